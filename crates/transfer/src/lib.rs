//! Moves the memory of running guests, for checkpoints and for migration.
//!
//! [`run`] captures a guest: it hands the pages that changed since the last epoch to a [`Sink`], and returns the
//! state of the guest's devices as of the same instant. Most pages are read while the guest runs, in rounds; the
//! last ones in a pause. It knows neither pools nor networks.
//!
//! ```no_run
//! use std::sync::{Arc, atomic::AtomicBool};
//!
//! use bindery_guest::Guest;
//! use bindery_transfer::{GuestMemory, Limits, Request, Sink, Tracker, place_blocks, run};
//! use bindery_vmm::{Purpose, Qemu, QemuSettings, Vmm};
//!
//! # fn capture(guest: Arc<Guest>, sink: &mut dyn Sink) -> Result<(), Box<dyn std::error::Error>> {
//! let mut qemu = Qemu::connect("/run/guest/qmp.sock".as_ref(), QemuSettings::default())?;
//! let blocks = place_blocks(&qemu.describe()?.memory, &[])?;
//! // Kept from one checkpoint to the next.
//! let mut tracker = Tracker::begin(guest)?;
//!
//! let mut memory = GuestMemory::new(&mut tracker, blocks)?;
//! let request = Request {
//!     overlays: &[],
//!     purpose: Purpose::Checkpoint,
//!     limits: Limits::default(),
//!     is_cancelled: &AtomicBool::new(false),
//!     progress: &|progress| println!("{progress:?}"),
//! };
//! let outcome = run(&mut qemu, &mut memory, sink, &request)?;
//! // Once the sink has it for good; dropping the outcome puts the pages back for the next time.
//! outcome.epoch.commit();
//! # Ok(())
//! # }
//! ```
//!
//! # Order
//! ```text
//!  estimate     a scan of the running guest, which only adds to what counts as changed
//!  round        stop, scan, take, resume; then read what was taken      repeated while the rest is too much
//!  last pause   stop, overlays, device state, scan, take, read into a buffer, resume; then hand the buffer on
//! ```
//! Device state is saved before memory is read, since saving may write memory. Rounds end when the rest is expected
//! to fit [`Limits::pause_max`] at the speed that was measured, when two after each other gain nothing, or when all
//! are spent ([`Ending`]).
//!
//! # Why nothing is lost
//! The rule: after the last pause the sink has, of each page, what the page held in that pause. A page that
//! is not read in it was read before, in a round or an earlier epoch, and did not change since. So each change
//! between two takes must be among the pages of the later one.
//!
//! - **Writes.** A write leaves the page marked in the kernel, or noted in the guest's library, until a scan
//!   reports it. Scans are made by anybody at any time (merging, `bindery dirty`, an estimate), and each adds to the
//!   tracker's set ([`Written`](bindery_guest::Written)). The set is cleared in a take alone, after a scan in the
//!   same pause.
//! - **Direct I/O in flight.** A read past the page cache marks its page once, when it pins it. A scan that protects
//!   the page again takes that mark, and the data arrives without another. The mark is in the set then, and stays
//!   until the next take. All I/O has ended in a pause, since the VMM drains it; so I/O whose mark was taken in one
//!   pause had written its data by then, and I/O that begins later marks its pages anew. Clearing the set while the
//!   guest runs would lose pages.
//! - **Pages read while the guest runs** may be torn, or older than what the guest has written meanwhile. That write
//!   came after the take, and is in the next one.
//! - **Pages in transit.** A page that is moved for merging, unmerging or making a block whole is nowhere for a scan.
//!   Takes ask [alone](bindery_guest::Written::alone): whoever has a guest move pages holds
//!   [silence](bindery_guest::Written::silence) until it has answered. A request whose answer is late may still be
//!   at work; then a lane owes an answer, and the take fails ([`MemoryError::Stalled`]). Before a pause,
//!   merging is asked to begin nothing new, so that the pause does not wait for it.
//! - **Pages in swap, or that the kernel moves to another frame,** are passed over by the library's scan. They stay
//!   marked in the kernel. A last take looks for such marks from outside, after the scan; rounds need not, since
//!   a later scan reports them.
//! - **Merged pages** are copied by the library as any other. Merging changes no content. A page that was written and
//!   then merged before any scan is noted by the library; one that was merged on an inference is noted by the daemon.
//! - **Discarded pages** are noted by the library, and count as changed. They are put as zeros: known to be such
//!   from the page map if they are many, found to be so when read if they are few.
//! - **Absent pages** are zero in managed memory. The page map is believed only in a take, where no page is in
//!   transit, and of merged pages, which may be missing there, the library is asked first.
//! - **Memory that nobody tracks** (pages that are not managed) counts as changed in each last pause. Regions that come or
//!   go count as changed as a whole.
//! - **Lost answers.** If the guest was asked and its answer was lost, a take surveys it: everything that may have
//!   changed counts.
//! - **An epoch that fails** puts all pages back that it took, and so does one that is not committed.
//!
//! Memory that is still served on demand after a restore has to be complete before it is captured: there an absent
//! page is not zero.
//!
//! Not seen: writers that need no page table (registered buffers, devices passed through). [`bindery_vmm`] refuses
//! guests that have them.
//!
//! # Huge pages
//! A huge page is tracked as a whole: its first write makes all of its pages count as changed, and splits nothing. Each
//! of its pages is read, and the sink finds those that it has. In the last pause a huge page takes about 0.4 ms to
//! read. Where the guest writes to more of them than the pause has room for, those beyond are split, and tracked by
//! page, after rounds did not help ([`Memory::refine`]).
//!
//! # Reading
//! Managed pages are read by the library's threads in the guest's process, over up to [`LANES`] lanes at once: a page in
//! transit is waited for. What is not managed is read by process_vm_readv(2), after asking the page map, so that
//! nothing absent is touched; this needs the right to trace the process.
//!
//! # Measured
//! On two shared cores, small pages, 32 MiB: 3.2 to 3.7 GB/s over one lane, 4.2 to 6.6 over two, 5.5 to 6.4 over four,
//! and 1.0 to 2.0 by process_vm_readv in pieces of 1 MiB.
//!
//! Linux guests of 256 MiB under TCG, merged every 50 ms while they read a disk past the page cache, 300 to 1000 pages
//! left for the last pause: STOP to RESUME, in the median of ten pauses, 5.6 and 7.3 ms with QEMU 7.2, 7.2 and 9.9 ms
//! with QEMU 10, and 23.7 ms (7.2) while the machine compiled; at least 4.6. In the quietest of these runs device state
//! took 2.5 ms or more, the scans 1.0 to 1.7, reading 0.6 to 1.5. Nothing was measured under KVM.
//!
//! ```sh
//! cargo build -p bindery-shim && cargo test -p bindery-merge --test capture -- --nocapture --test-threads 1
//! ```
#![forbid(unsafe_code)]

mod chunk;
mod guest_memory;
mod hot;
mod lanes;
mod memory;
mod outcome;
mod pace;
mod pieces;
mod place;
mod process;
mod run;
mod stream;
mod tracker;

pub use guest_memory::{GuestMemory, LANES};
pub use memory::{BlockPages, Changed, Memory, MemoryError, PauseKind, Sink, SinkError};
pub use outcome::{Ending, Epoch, Limits, Outcome, Progress, Round, TransferError};
pub use place::{PlaceError, PlacedBlock, place_blocks};
pub use run::{Request, run};
pub use tracker::Tracker;
