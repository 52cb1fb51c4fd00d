//! Firecracker's page faults: the process that fills the memory of microVMs which are restored.
//!
//! A microVM that is loaded with `"mem_backend": {"backend_type": "Uffd"}` connects to a Unix socket, and sends one
//! message: where its memory lies, as JSON ([`decode_regions`]), and the userfaultfd that its memory is registered
//! with. [`MicroVm::receive`] takes that in, and [`MicroVm::serve`] answers its faults until it ends, with pages that
//! come over a [source](bindery_wire::source). Facts are those of Firecracker's
//! `docs/snapshotting/handling-page-faults-on-snapshot-resume.md`.
//!
//! # What holds
//! - A page is filled once, with its content as of the snapshot. A page that was discarded (`UFFD_EVENT_REMOVE`, by
//!   a balloon) is zero from then on, whatever comes from the source afterwards.
//! - A page whose content is lost is poisoned: whoever touches it gets `SIGBUS`, and others go on.
//! - A source that is lost is asked for again; whoever waits for a page waits until it has come.
//!
//! # Order of events
//! A thread that discards pages waits until its event is read, and discards then. Pages are filled by the thread that
//! reads events, and no page while an event is unread (`EAGAIN`). So a page that is filled is either discarded
//! afterwards, or was known to be discarded.

mod filling;
mod huge_pages;
mod micro_vm;
mod missing;
mod page_link;
mod regions;
mod serving;

pub use filling::{Served, ServingError};
pub use micro_vm::{HandshakeError, MicroVm};
pub use regions::{GuestRegion, MESSAGE_BYTES_MAX, RegionError, decode_regions};
pub use serving::Step;

/// Kind of VMM that checkpoints of a Firecracker have.
pub const KIND: &str = "firecracker";

/// Kind of device state that such checkpoints have: the file of `snapshot_path`, as it is.
pub const DEVICE_STATE: &str = "vmstate";

/// Name of the one memory block of such checkpoints: the file of `mem_file_path`, as it is.
pub const MEMORY_BLOCK: &str = "memory";
