//! Real guests, measurements of the machine, and faults on demand, for tests, benchmarks and the
//! demo.
//!
//! * [`guest`] boots unmodified QEMU guests under TCG and speaks to them.
//! * [`skipped!`] says loudly that a test cannot run here.
//!
//! Everything here leaves the machine as it found it: guards restore what they change when they
//! are dropped, and only processes that were started here are ended.

pub mod guest;
#[doc(hidden)]
pub mod skip;
