//! Real guests, measurements of the machine, and faults on demand, for tests, benchmarks and the
//! demo.
//!
//! * [`guest`] boots unmodified QEMU guests under TCG and speaks to them.
//! * [`browser`] drives a real browser without a window.
//! * [`background_process`] is a child that puts things back when it is asked to end.
//! * [`bindery`] runs a daemon on a private socket, as an operator would.
//! * [`coprocess`] is a child that obeys orders and answers them, line by line.
//! * [`guest_memory`] is what such a child fills, offers for merging and compares.
//! * [`fork`] runs a part of a test in a child.
//! * [`machine`] measures memory and CPU time, and puts back settings that it changed.
//! * [`process`] is a guest without a VMM: a process that offers memory, writes and verifies.
//! * [`clones`] are guests that go on from one checkpoint.
//! * [`kvm`] runs a tiny guest under KVM in memory that the caller gives it.
//! * [`skipped!`] says loudly that a test cannot run here.
//!
//! Everything here leaves the machine as it found it: guards restore what they change when they
//! are dropped, and only processes that were started here are ended.

pub mod background_process;
pub mod bindery;
pub mod browser;
pub mod clones;
pub mod coprocess;
pub mod fork;
pub mod guest;
pub mod guest_memory;
pub mod kvm;
pub mod machine;
pub mod process;
#[doc(hidden)]
pub mod skip;
