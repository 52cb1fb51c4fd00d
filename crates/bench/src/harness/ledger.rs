//! Finished rounds, kept until the measurement has its report: a failure or Ctrl-C must not
//! take an hour's finished rounds along.
//!
//! Each thread has a ledger of its own; a measurement runs on one thread.

use std::cell::RefCell;
use std::fmt::{self, Display};

use serde::Serialize;
use serde_json::Value;

thread_local! {
    static KEPT: RefCell<Finished> = RefCell::default();
}

/// Everything that was kept since it was last taken, in the order of measurement.
#[derive(Debug, Default, Serialize)]
pub struct Finished {
    finished: Vec<Value>,
    #[serde(skip)]
    texts: Vec<String>,
}

impl Finished {
    /// Returns true if nothing was finished.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.finished.is_empty()
    }
}

impl Display for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.texts.iter().try_for_each(|text| writeln!(f, "{text}"))
    }
}

/// Keeps a part of a measurement, both for people and for programs.
///
/// # Panics
/// If the part cannot be written as JSON: reports are plain data.
pub fn keep(part: &(impl Serialize + Display)) {
    let json = serde_json::to_value(part).expect("reports are plain data");
    KEPT.with_borrow_mut(|kept| {
        kept.finished.push(json);
        kept.texts.push(part.to_string());
    });
}

/// Takes all that was kept, and leaves nothing.
#[must_use]
pub fn take() -> Finished {
    KEPT.take()
}
