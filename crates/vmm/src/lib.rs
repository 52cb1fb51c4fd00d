//! Drives a VMM whose guest is checkpointed, restored or migrated.
//!
//! Memory is moved by others. This crate does the rest, of a guest that runs: says what it is, pauses it,
//! puts overlays over its disks, saves the state of its devices and resumes it ([`Vmm`], [`Paused`]); and
//! at the other end, loads that state and starts the guest ([`IncomingVmm`]). It knows nothing of pools,
//! managed memory or daemons.
//!
//! [`Qemu`] and [`IncomingQemu`] are unmodified QEMUs, 7.2 and 10, driven over QMP. Any other VMM written
//! in Rust implements the two traits. Memory of microVMs that Firecracker restores is served by [`firecracker`].
//!
//! ```no_run
//! use bindery_vmm::{Paused, Purpose, Qemu, QemuSettings};
//!
//! let mut qemu = Qemu::connect("/run/guest/qmp.sock".as_ref(), QemuSettings::default())?;
//! let mut paused = Paused::begin(&mut qemu, &[])?;
//! let state = paused.save(Purpose::Checkpoint)?;
//! // Here the caller copies or protects memory; dropping `paused` resumes the guest, too.
//! let times = paused.resume()?;
//! println!("{} bytes, {:?} from STOP to RESUME", state.bytes.len(), times.outage);
//! # Ok::<(), bindery_vmm::VmmError>(())
//! ```
//!
//! # Order
//! Disks get their overlays first, then device state is saved (both in [`Paused::save`]), then memory is
//! read: saving may write guest memory. At the other end memory comes first, or is served from its last
//! state: loading reads what virtio rings hold.
//!
//! # Trust and waiting
//! A VMM may hang, end or talk nonsense at any moment; each of these is an error, and no call waits longer
//! than [`QemuSettings`] allow. Only one thread at a time uses a VMM. A process that is killed in a pause leaves
//! its guest paused: whoever starts it again has to resume the guest.
//!
//! # Measured
//! On two shared cores, guests under TCG, 128 MiB, idle, machine `pc` without a disk: STOP to RESUME by QEMU's
//! clock, nothing done with memory, of 30 pauses at least 2.6 and in the median 3.4 ms with QEMU 7.2, and 2.2 and
//! 2.4 ms with QEMU 10. An overlay over a disk with I/O adds about 5 ms; one that is not prepared added 27 to 49.
//! Loading took 4 to 14 ms with memory in tmpfs, and 70 ms with QEMU 10 and memory in a file on a disk. Nothing
//! was measured under KVM.
//!
//! ```sh
//! cargo test -p bindery-vmm --test qemu -- --nocapture --test-threads 1 moves::
//! ```
#![forbid(unsafe_code)]

mod description;
mod device_state;
mod error;
pub mod firecracker;
mod hidden_writers;
mod paused;
pub mod qemu;
pub mod qmp;
mod stream;
mod vmm;

pub use description::{Disk, GuestDescription, MemoryBlock, Obstacle, Overlay};
pub use device_state::{DeviceState, SaveMethod};
pub use error::{GuestAfter, VmmError};
pub use hidden_writers::hidden_writers;
pub use paused::{PauseTimes, Paused};
pub use qemu::{DiskChain, IncomingQemu, Qemu, QemuSettings};
pub use stream::{StreamError, complete};
pub use vmm::{IncomingVmm, Pause, Purpose, Vmm};
