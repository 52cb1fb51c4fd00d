//! Machines that share one slot's memory, and differ in how KVM tracks what is written to it. One
//! machine cannot be tracked in two ways.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bindery_dirty::Tree;
use bindery_dirty::source::{KvmBitmap, KvmRings, MemorySlot, Protection, Source};
use bindery_sys::kvm::{DirtyBitmap, DirtyRing, clear_dirty_log, get_dirty_log, reset_dirty_rings};
use bindery_sys::mapping::Mapping;
use bindery_testkit::kvm::{TinyGuest, Tracking};
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};
use kvm_ioctls::VmFd;

/// Entries of each ring: the most that KVM has.
pub(crate) const RING_ENTRIES: u32 = 65_536;

/// The slot's number, as the tiny guest has it.
const SLOT: u32 = 1;

/// The ways in which an epoch's pages are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// `KVM_GET_DIRTY_LOG`, and nobody looks at what it says.
    GetAlone,
    /// The same, and a plain pass over the words.
    GetByHand,
    /// [`KvmBitmap::plain`], and a set.
    Bitmap,
    /// `KVM_GET_DIRTY_LOG`, a plain pass, and `KVM_CLEAR_DIRTY_LOG` of the whole slot.
    ManualByHand,
    /// [`KvmBitmap::manual`], and a set.
    Manual,
    /// The ring into a list, and `KVM_RESET_DIRTY_RINGS`.
    RingByHand,
    /// [`KvmRings`], and a set.
    Ring,
}

impl Way {
    pub(crate) const ALL: [Self; 7] = [
        Self::GetAlone,
        Self::GetByHand,
        Self::Bitmap,
        Self::ManualByHand,
        Self::Manual,
        Self::RingByHand,
        Self::Ring,
    ];

    /// Those of the product.
    pub(crate) const SOURCES: [Self; 3] = [Self::Bitmap, Self::Manual, Self::Ring];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::GetAlone => "KVM_GET_DIRTY_LOG alone",
            Self::GetByHand => "GET, plain pass",
            Self::Bitmap => "GET, source and set",
            Self::ManualByHand => "GET, plain pass, CLEAR of all",
            Self::Manual => "GET and CLEAR, source and set",
            Self::RingByHand => "ring to a list, RESET",
            Self::Ring => "ring, source and set",
        }
    }

    const fn tracking(self) -> Tracking {
        match self {
            Self::GetAlone | Self::GetByHand | Self::Bitmap => Tracking::Bitmap,
            Self::ManualByHand | Self::Manual => Tracking::ManualBitmap { initially_set: false },
            Self::RingByHand | Self::Ring => Tracking::Ring { entries: RING_ENTRIES },
        }
    }
}

/// How a machine is asked.
enum Asked {
    ByHand { bitmap: DirtyBitmap, clear: bool, look: bool },
    RingByHand(DirtyRing),
    Bitmap(KvmBitmap<Arc<VmFd>>),
    Ring(KvmRings<Arc<VmFd>>),
}

/// A machine whose only slot is memory that others have too.
pub(crate) struct Machine {
    // First: it lets go of the memory before that is unmapped.
    guest: TinyGuest,
    asked: Asked,
    vm: Arc<VmFd>,
    pages: u32,
    set: Tree,
    found: Vec<PageIndex>,
    _memory: Arc<Mapping>,
}

/// What an epoch took.
pub(crate) struct Epoch {
    pub(crate) total: Duration,
    /// Of it, taking the pages out of the set.
    pub(crate) harvest: Duration,
    /// The sum over all pages of a mix of their numbers, so that the order does not matter.
    pub(crate) check: u64,
}

impl Machine {
    pub(crate) fn new(way: Way, memory: &Arc<Mapping>) -> Result<Self> {
        let pages = memory.bytes() / PAGE_BYTES;
        // SAFETY: the machine keeps the mapping, and nothing here holds a reference into it.
        let guest = unsafe { TinyGuest::tracked(memory.as_ptr(), &[pages], way.tracking()) }?;
        let pages = u32::try_from(pages).context("a slot of at most 16 TiB")?;
        let vm = guest.vm();
        let slot = [MemorySlot { id: SLOT, pages: PageRange::new(PageIndex(0), pages) }];
        let rings = guest.rings().context("a guest with rings");
        let by_hand = |clear, look| -> Result<Asked> {
            Ok(Asked::ByHand { bitmap: DirtyBitmap::new(pages as usize)?, clear, look })
        };
        let asked = match way {
            Way::GetAlone => by_hand(false, false)?,
            Way::GetByHand => by_hand(false, true)?,
            Way::ManualByHand => by_hand(true, true)?,
            Way::RingByHand => Asked::RingByHand(DirtyRing::map(guest.vcpu(), rings?)?),
            Way::Bitmap => Asked::Bitmap(KvmBitmap::plain(Arc::clone(&vm), &slot)?),
            Way::Manual => {
                let cleared = Protection::Cleared;
                Asked::Bitmap(KvmBitmap::manual(Arc::clone(&vm), &slot, cleared, false)?)
            }
            Way::Ring => {
                Asked::Ring(KvmRings::new(Arc::clone(&vm), [guest.vcpu()], rings?, &slot)?)
            }
        };
        let found = Vec::with_capacity(RING_ENTRIES as usize * 2);
        let set = Tree::new(u64::from(pages))?;
        Ok(Self { guest, asked, vm, pages, set, found, _memory: Arc::clone(memory) })
    }

    /// Returns the pages that the last epoch found, in no order.
    pub(crate) fn found(&self) -> &[PageIndex] {
        &self.found
    }

    /// Has the guest write `pages`, and finds out which they were. Time counts from when the guest
    /// has stopped, and where its ring is full meanwhile.
    pub(crate) fn epoch(&mut self, pages: &[usize]) -> Result<Epoch> {
        self.found.clear();
        let Self { guest, asked, vm, pages: slot_pages, set, found, .. } = self;
        let full = RefCell::new(Ok(Duration::ZERO));
        guest.touch(pages, &mut || {
            let started = Instant::now();
            let result = asked.collect(vm, *slot_pages, set, found);
            let mut full = full.borrow_mut();
            *full = match (result, &*full) {
                (Ok(()), Ok(before)) => Ok(*before + started.elapsed()),
                (Err(error), _) => Err(error),
                (Ok(()), Err(_)) => return,
            };
        })?;
        let before = full.into_inner()?;
        let started = Instant::now();
        asked.collect(vm, *slot_pages, set, found)?;
        let collected = Instant::now();
        set.harvest_into(PageRange::new(PageIndex(0), *slot_pages), found)?;
        let ended = Instant::now();
        let check = found.iter().map(|page| mix(page.0)).fold(0, u64::wrapping_add);
        Ok(Epoch { total: before + (ended - started), harvest: ended - collected, check })
    }
}

impl Asked {
    /// Into the list, or into the set.
    fn collect(
        &mut self,
        vm: &VmFd,
        pages: u32,
        set: &Tree,
        found: &mut Vec<PageIndex>,
    ) -> Result<()> {
        match self {
            Self::Bitmap(source) => source.collect(set).map(drop)?,
            Self::Ring(source) => source.collect(set).map(drop)?,
            Self::ByHand { bitmap, clear, look } => {
                get_dirty_log(vm, SLOT, bitmap)?;
                if *look {
                    for (word, first) in bitmap.words().iter().zip((0..).step_by(64)) {
                        found.extend(bits(*word).map(|bit| PageIndex(first + bit)));
                    }
                }
                if *clear {
                    clear_dirty_log(vm, SLOT, 0, pages, bitmap.words())?;
                }
            }
            Self::RingByHand(ring) => {
                while let Some(entry) = ring.peek()? {
                    found.push(PageIndex(entry.offset as u32));
                    ring.advance();
                }
                while ring.harvested() > 0 && reset_dirty_rings(vm)? > 0 {
                    ring.note_reset();
                }
            }
        }
        Ok(())
    }
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood, 2014).
fn mix(page: u32) -> u64 {
    let mut word = u64::from(page).wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The positions of the bits that are set, ascending.
fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros())?;
        word &= word - 1;
        Some(bit)
    })
}
