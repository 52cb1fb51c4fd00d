//! The lanes of a guest: idle ones, and those that owe an answer.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{GuestError, Lane};

/// Lanes that wait to be used.
///
/// A lane leaves the pool for as long as somebody holds its [`LaneLease`] and comes back when the
/// lease is dropped, to the idle ones or to those that owe an answer.
#[derive(Default)]
pub struct LanePool {
    lanes: Mutex<Lanes>,
}

#[derive(Default)]
struct Lanes {
    idle: Vec<Box<dyn Lane>>,
    owing: Vec<Box<dyn Lane>>,
}

/// A lane, held by one thread.
pub struct LaneLease<'a> {
    pool: &'a LanePool,
    /// `None` only while the lease is being dropped.
    lane: Option<Box<dyn Lane>>,
}

impl LanePool {
    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        // Lanes are only moved under the lock: a panic elsewhere leaves the lists whole.
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An idle lane, or else the one that `open` makes.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn lease(
        &self,
        open: impl FnOnce() -> Result<Box<dyn Lane>, GuestError>,
    ) -> Result<LaneLease<'_>, GuestError> {
        let idle = self.lanes().idle.pop();
        let lane = idle.map_or_else(open, Ok)?;
        Ok(LaneLease { pool: self, lane: Some(lane) })
    }

    /// Gives back memory that idle lanes hold.
    pub fn rest(&self) {
        self.lanes().idle.iter_mut().for_each(|lane| lane.rest());
    }

    /// Takes answers that came late. True if no lane owes one (any more). Never blocks.
    ///
    /// # Errors
    /// [`GuestError`] of a lane that failed; it is closed.
    pub fn settle(&self) -> Result<bool, GuestError> {
        let mut lanes = self.lanes();
        let owing = std::mem::take(&mut lanes.owing);
        for mut lane in owing {
            if lane.settle()? { lanes.idle.push(lane) } else { lanes.owing.push(lane) }
        }
        Ok(lanes.owing.is_empty())
    }
}

impl Deref for LaneLease<'_> {
    type Target = dyn Lane;

    fn deref(&self) -> &Self::Target {
        self.lane.as_deref().expect("a lease has its lane until it is dropped")
    }
}

impl DerefMut for LaneLease<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.lane.as_deref_mut().expect("a lease has its lane until it is dropped")
    }
}

impl Drop for LaneLease<'_> {
    fn drop(&mut self) {
        let lane = self.lane.take().expect("a lease has its lane until it is dropped");
        let mut lanes = self.pool.lanes();
        if lane.owes() { lanes.owing.push(lane) } else { lanes.idle.push(lane) }
    }
}
