//! A pilot for kernel KSM: says how fast ksmd scans, from user space, on any kernel since 5.10.
//!
//! "Can this be done in userspace?" was asked when the kernel got its own advisor (Linux 6.8), and
//! answered with three objections. Here they are met:
//!
//! 1. *The CPU time of ksmd's last scan must be known.* The scheduler tells it of every thread, to the
//!    nanosecond ([`Meter`], [`bindery_sys::ksm::Ksmd`]).
//! 2. *A new value must take effect between scans.* At the end of a full scan ksmd gives up the rest
//!    of its batch and rests for `sleep_millisecs`; it reads `pages_to_scan` when it begins a batch
//!    (mm/ksm.c, `ksm_do_scan`, `scan_get_next_rmap_item`). Whoever looks more often than that rest is
//!    long, and writes at once, writes between scans. [`Pilot`] does, proves each time that it did,
//!    and counts the times that it cannot ([`Timing`]).
//! 3. *Nobody else may set the rate meanwhile.* A setting that somebody else writes is put back within
//!    a millisecond, before ksmd's next batch in all likelihood, and the writer is named (`Guard`,
//!    [`bindery_sys::watch`]); what somebody writes again and again is put back a few times a second
//!    (`Quarrel`).
//!
//! The laws are those of [`bindery_advisor`]. What was set before is saved first and put back at the
//! end ([`Found`]), by the pilot itself, or after it was killed by whoever runs next.
#![forbid(unsafe_code)]

mod claim;
mod error;
mod event;
mod forecast;
mod found;
mod guard;
mod knobs;
mod meter;
mod pause;
mod pilot;
mod processes;
mod quarrel;
mod scans;
mod status;

pub use claim::{Claim, Holder};
pub use error::PilotError;
pub use event::{Event, Suspect, Timing, Totals};
pub use found::{DEFAULT_STATE, Found, State};
pub use meter::{Items, Meter, Sample};
pub use pilot::{Options, Pilot, restore};
pub use processes::{ProcessLine, Processes};
pub use scans::{EndedScan, Scans};
pub use status::{Savings, SetBy, Status};
