//! Memory whose content is fetched when it is touched, by the thread that touches it.
//!
//! [`DemandMemory`] is a memfd, mapped shared and read-only and registered with a userfaultfd that turns
//! faults on absent pages into `SIGBUS` (`UFFD_FEATURE_SIGBUS`). The handler ([`sigbus`]) has a
//! [`PageSource`] read the pages into a buffer and installs them (`UFFDIO_COPY`); then the access happens
//! again. No other thread is woken for it, which is most of the time of a fault that a handler thread
//! serves (measured: 7 to 8 against 15 to 22 µs). Processes that map the same memfd share its pages.
//!
//! ```
//! use std::sync::Arc;
//!
//! use bindery_demand::{DemandMemory, PageSource};
//!
//! struct Sevens;
//!
//! impl PageSource for Sevens {
//!     fn fetch(&self, _first_page: usize, into: &mut [u8]) -> bool {
//!         into.fill(7);
//!         true
//!     }
//!
//!     fn lost(&self, _page: usize) {}
//! }
//!
//! let memory = DemandMemory::new("sevens", 1 << 20, Arc::new(Sevens))?;
//! assert_eq!(memory.view(5000, 3).to_vec(), [7; 3]);
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # What holds
//!
//! - A memfd that is touched through a mapping that is *not* registered gets a page of zeros, which all
//!   others then see. So each mapping is registered before it can be read and before its address is known
//!   to anybody, and is not inherited by children.
//! - A fault is a signal that the kernel must be able to deliver: a thread that blocks `SIGBUS` and touches
//!   an absent page ends the process.

mod buffers;
mod memory;
pub mod published;
mod server;
pub mod sigbus;
mod source;

pub use self::memory::DemandMemory;
pub use self::source::{FETCH_PAGES_MAX, PageSource};

/// The examples of the README are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
