//! Why pages could not be collected.

use std::io;

use bindery_sys::kvm::OutOfStep;
use bindery_units::HostAddress;

/// Why pages could not be collected.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// This kernel, or this machine's KVM, cannot do it.
    #[error("{way} cannot be used here: {why}")]
    Unsupported {
        /// The way of tracking.
        way: &'static str,
        /// What is missing.
        why: String,
    },
    /// The guest's process ended, or KVM gave its machine up. Which pages it wrote at last is lost
    /// with it.
    #[error("the guest is gone: {0}; what was marked before is all that is known")]
    Vanished(String),
    /// A system call was refused.
    #[error("{call} failed for {what}: {source}")]
    Kernel {
        /// The call.
        call: &'static str,
        /// Of what.
        what: String,
        /// What the kernel answered.
        source: io::Error,
    },
    /// A part of a region can no longer be watched: it was mapped anew, its registration ended, or (told
    /// since Linux 6.11; before, it looks as if nobody wrote it) it was unmapped.
    #[error("memory at {start} ({pages} pages) is not watched for writes as a whole")]
    NotWatched {
        /// Where the region begins.
        start: HostAddress,
        /// How long it is.
        pages: u32,
    },
    /// A slot is larger than it was said to be. Unless it is protected by hand, KVM has forgotten
    /// its marks: take all of its pages as written.
    #[error(
        "slot {slot:#x} has more than the {pages} pages that it was said to have; its marks are lost"
    )]
    SlotLarger {
        /// The slot.
        slot: u32,
        /// Its pages as they were given.
        pages: u32,
    },
    /// KVM's bitmap has marks behind a slot's last page: the slot is larger than it was said to be. Its
    /// marks up to there are made.
    #[error("page {page} of slot {slot:#x} is marked, which has {pages} pages")]
    BeyondSlot {
        /// The slot.
        slot: u32,
        /// The page that it does not have, counted from its first.
        page: u64,
        /// How many it has.
        pages: u32,
    },
    /// A ring names a slot that was not given.
    #[error(
        "the dirty ring of vCPU {vcpu} names page {offset} of slot {slot:#x}, which is none of the \
         {known} slots that are tracked"
    )]
    UnknownSlot {
        /// Which ring, in the order in which they were given.
        vcpu: usize,
        /// The slot in the entry.
        slot: u32,
        /// The page in the entry.
        offset: u64,
        /// How many slots are known.
        known: usize,
    },
    /// A ring names a page that its slot has not.
    #[error(
        "the dirty ring of vCPU {vcpu} names page {offset} of slot {slot:#x}, which has {pages} pages"
    )]
    UnknownPage {
        /// Which ring, in the order in which they were given.
        vcpu: usize,
        /// The slot in the entry.
        slot: u32,
        /// The page in the entry.
        offset: u64,
        /// How many pages the slot has.
        pages: u32,
    },
    /// Somebody else harvests or resets a ring. Pages may have been lost to them: take all as
    /// written.
    #[error("vCPU {vcpu}: {source}; pages may be lost, so take all as written")]
    RingOutOfStep {
        /// Which ring, in the order in which they were given.
        vcpu: usize,
        /// What was seen.
        source: OutOfStep,
    },
    /// The kernel reset another number of entries than were harvested: somebody else harvests or
    /// resets the rings. Pages may have been lost to them: take all as written.
    #[error(
        "{reset} entries of the dirty rings were reset, but {harvested} were harvested here: somebody \
         else harvests or resets them; pages may be lost, so take all as written"
    )]
    RingsReset {
        /// Entries that were harvested here.
        harvested: u64,
        /// Entries that the kernel reset.
        reset: u64,
    },
    /// A vCPU left because its ring was full, and nothing was in it.
    #[error(
        "vCPU {vcpu} left because its dirty ring was full, but none of its {entries} entries is \
         dirty: somebody else harvests it; pages may be lost, so take all as written"
    )]
    FullRingEmpty {
        /// Which ring, in the order in which they were given.
        vcpu: usize,
        /// Its size.
        entries: u32,
    },
    /// A vCPU wrote more pages before it looked at its ring than the kernel keeps room for. The pages
    /// in the overwritten entries are lost: take all as written. What the ring says from now on is
    /// out of step: every later collection fails so too.
    #[error(
        "all {entries} entries of vCPU {vcpu}'s dirty ring were dirty: the kernel ran over its end, and \
         pages are lost; take all as written, and give the guest a larger ring or the bitmap"
    )]
    RingOverrun {
        /// Which ring, in the order in which they were given.
        vcpu: usize,
        /// Its size.
        entries: u32,
    },
    /// A source was made of parts that do not fit.
    #[error("{0}")]
    Misfit(String),
}

impl SourceError {
    pub(super) fn kernel(call: &'static str, what: impl Into<String>, source: io::Error) -> Self {
        Self::Kernel { call, what: what.into(), source }
    }

    /// What a call on a machine's descriptor answered. KVM refuses all with `EIO` once the machine is
    /// dead (`vm_dead`, `vm_bugged`), or to a process that is not the machine's.
    pub(super) fn of_machine(call: &'static str, what: String, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EIO | libc::EBADF) => {
                Self::Vanished(format!("{call} on {what} answers {source}"))
            }
            _ => Self::Kernel { call, what, source },
        }
    }
}
