//! When objects were last used.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::ObjectId;

/// When each object was last let go by all who had it, as far as that was since the pool was opened.
/// Takes some 40 bytes for each object that was.
#[derive(Debug)]
pub(crate) struct Uses {
    opened: Instant,
    ends: Mutex<HashMap<ObjectId, Instant>>,
}

impl Uses {
    pub(crate) fn new() -> Self {
        Self { opened: Instant::now(), ends: Mutex::default() }
    }

    /// Nobody uses it any more.
    pub(crate) fn end(&self, id: ObjectId) {
        self.ends().insert(id, Instant::now());
    }

    /// Removes an object that is not there any more.
    pub(crate) fn forget(&self, id: ObjectId) {
        self.ends().remove(&id);
    }

    /// Returns the time since the last use of an object that nobody uses: since the pool was opened, where that
    /// is all that is known.
    #[cfg_attr(not(feature = "archive"), expect(dead_code, reason = "asked by who archives"))]
    pub(crate) fn idle_for(&self, id: ObjectId) -> Duration {
        self.ends().get(&id).unwrap_or(&self.opened).elapsed()
    }

    fn ends(&self) -> MutexGuard<'_, HashMap<ObjectId, Instant>> {
        self.ends.lock().expect("a table of times is whole at any time")
    }
}
