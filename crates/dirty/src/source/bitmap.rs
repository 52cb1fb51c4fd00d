//! KVM's dirty bitmap, in both of its protocols.
//!
//! Plainly, `KVM_GET_DIRTY_LOG` reads and protects at once: pages that are written between that and
//! the moment they are sent count twice. By hand, it only reads, and `KVM_CLEAR_DIRTY_LOG` protects
//! (KVM commit 2a31b9db153530df4aa02dac8c32837bf5f47019): all at once, or just before a page is
//! read. Only bits that were seen set may be cleared, or writes are lost (QEMU commit 9f4bf4baa8b8).

use std::{borrow::Borrow, ops::Range};

use bindery_sys::kvm::{
    DirtyBitmap, clear_dirty_log, dirty_tracking, enable_manual_protect, get_dirty_log,
};
use bindery_units::PageRange;
use kvm_ioctls::VmFd;

use super::{Abilities, Collected, MemorySlot, Source, SourceError, slot::Slots, words};
use crate::marks::Marks;

/// When pages that were reported are protected again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// By `KVM_GET_DIRTY_LOG` itself.
    AtOnce,
    /// By `KVM_CLEAR_DIRTY_LOG`, at the end of each collection.
    Cleared,
    /// By [`KvmBitmap::clear`], before the caller reads a page. Pages that were not cleared are
    /// reported again.
    ClearedByCaller,
}

/// Words of zeros between marks that are cheaper to pass to `KVM_CLEAR_DIRTY_LOG` than to leave out
/// by a further call: the kernel takes about 0.7 ns a word, and 0.4 µs a call; each call that
/// clears something also interrupts every CPU that runs the guest.
const CLEAR_GAP_WORDS: usize = 1024;

/// KVM's dirty bitmap of some slots of a machine.
#[derive(Debug)]
pub struct KvmBitmap<V> {
    vm: V,
    protection: Protection,
    initially_set: bool,
    slots: Vec<TrackedSlot>,
    /// Kept for their memory: where a bitmap has something, and what to clear of it.
    parts: Vec<Range<usize>>,
    cleared: Vec<u64>,
}

#[derive(Debug)]
struct TrackedSlot {
    slot: MemorySlot,
    /// What the last `KVM_GET_DIRTY_LOG` showed, less what the caller has had cleared since: a bit
    /// that was cleared once may be set again, and has not been seen then.
    seen: DirtyBitmap,
}

impl<V: Borrow<VmFd>> KvmBitmap<V> {
    /// The bitmap of `slots`, which are tracked already (`KVM_MEM_LOG_DIRTY_PAGES`), in a machine
    /// without rings that is not protected by hand.
    ///
    /// # Errors
    /// [`SourceError::Misfit`] for slots of one number or without pages; [`SourceError::Kernel`]
    /// without memory for the bitmaps.
    pub fn plain(vm: V, slots: &[MemorySlot]) -> Result<Self, SourceError> {
        Self::new(vm, slots, Protection::AtOnce, false)
    }

    /// The bitmap of `slots`, protected by hand: a property of the whole machine from now on. With
    /// `initially_set` the first collection of a slot that was not tracked before this call has all
    /// of its pages.
    ///
    /// # Errors
    /// As [`plain`](Self::plain), and [`SourceError::Unsupported`].
    pub fn manual(
        vm: V,
        slots: &[MemorySlot],
        protection: Protection,
        initially_set: bool,
    ) -> Result<Self, SourceError> {
        const WAY: &str = "KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2";
        let offered = dirty_tracking(vm.borrow());
        if !offered.manual_protect || (initially_set && !offered.initially_set) {
            let why = format!("the kernel offers {offered:?}");
            return Err(SourceError::Unsupported { way: WAY, why });
        }
        if protection == Protection::AtOnce {
            let why = "a machine that is protected by hand never is at once";
            return Err(SourceError::Misfit(why.to_owned()));
        }
        enable_manual_protect(vm.borrow(), initially_set)
            .map_err(|error| SourceError::of_machine("KVM_ENABLE_CAP", WAY.to_owned(), error))?;
        Self::new(vm, slots, protection, initially_set)
    }

    fn new(
        vm: V,
        slots: &[MemorySlot],
        protection: Protection,
        initially_set: bool,
    ) -> Result<Self, SourceError> {
        Slots::new(slots)?;
        let track = |slot: &MemorySlot| {
            let seen = DirtyBitmap::new(slot.pages.count as usize)
                .map_err(|error| SourceError::kernel("mmap", slot.name(), error))?;
            Ok(TrackedSlot { slot: *slot, seen })
        };
        let slots = slots.iter().map(track).collect::<Result<_, SourceError>>()?;
        Ok(Self { vm, protection, initially_set, slots, parts: Vec::new(), cleared: Vec::new() })
    }

    /// Protects those of some pages again that the last collection reported. To be called for every
    /// such page **before** the page is read. A write between the collection and this call does not
    /// count anew; one after it does. About 0.5 µs a call, and 1 ns for each 64 pages.
    ///
    /// # Errors
    /// As [`Source::collect`]. Pages that could not be protected are reported again.
    ///
    /// # Panics
    /// Unless the caller is to do it ([`Protection::ClearedByCaller`]).
    pub fn clear(&mut self, pages: PageRange) -> Result<(), SourceError> {
        assert!(self.protection == Protection::ClearedByCaller, "protection is not the caller's");
        for tracked in &mut self.slots {
            let own = pages.intersection(tracked.slot.pages);
            if !own.is_empty() {
                let first = own.first.0 - tracked.slot.pages.first.0;
                let first_word = tracked.cross_off(first..first + own.count, &mut self.cleared);
                tracked.clear(self.vm.borrow(), first_word, &self.cleared)?;
            }
        }
        Ok(())
    }
}

impl TrackedSlot {
    /// Reads the bitmap, marks what it has, and lists where it has something.
    fn read(
        &mut self,
        vm: &VmFd,
        marks: &dyn Marks,
        parts: &mut Vec<Range<usize>>,
    ) -> Result<u64, SourceError> {
        get_dirty_log(vm, self.slot.id, &mut self.seen).map_err(|error| self.refused(error))?;
        let end = self.cut_off_end();
        let words = self.seen.words();
        words::dirty_parts(words, parts);
        let mut pages = 0;
        for part in parts.iter() {
            let dirty = &words[part.clone()];
            pages += words::count(dirty);
            words::mark(marks, self.slot.pages.first.plus(part.start as u32 * 64), dirty);
        }
        end.map(|()| pages)
    }

    /// Takes out bits behind the last page, which would mark a page of somebody else, and says so.
    fn cut_off_end(&mut self) -> Result<(), SourceError> {
        let MemorySlot { id: slot, pages: PageRange { count: pages, .. } } = self.slot;
        let (1.., Some(last)) = (pages % 64, self.seen.words_mut().last_mut()) else {
            return Ok(());
        };
        let behind = *last & u64::MAX << (pages % 64);
        *last &= !behind;
        if behind == 0 {
            return Ok(());
        }
        let page = u64::from(pages / 64 * 64 + behind.trailing_zeros());
        Err(SourceError::BeyondSlot { slot, page, pages })
    }

    /// Takes the bits of some pages out of what was seen, into whole words; returns the first.
    fn cross_off(&mut self, pages: Range<u32>, cleared: &mut Vec<u64>) -> usize {
        let (first_word, end_word) = (pages.start as usize / 64, pages.end.div_ceil(64) as usize);
        let seen = &mut self.seen.words_mut()[first_word..end_word];
        cleared.clear();
        cleared.extend_from_slice(seen);
        cleared[0] &= u64::MAX << (pages.start % 64);
        let last = seen.len() - 1;
        cleared[last] &= u64::MAX >> (pages.end.wrapping_neg() % 64);
        seen.iter_mut().zip(cleared).for_each(|(seen, cleared)| *seen &= !*cleared);
        first_word
    }

    /// Protects the pages of `words` again, the first of which is the slot's `first_word`-th.
    fn clear(&self, vm: &VmFd, first_word: usize, words: &[u64]) -> Result<(), SourceError> {
        let first = first_word as u64 * 64;
        let end = first + words.len() as u64 * 64;
        // A range may only end within a word at the slot's own end, and may not go further.
        let pages = end.min(self.slot.pages.count.into()) - first;
        clear_dirty_log(vm, self.slot.id, first, pages as u32, words).map_err(|error| {
            SourceError::of_machine("KVM_CLEAR_DIRTY_LOG", self.slot.name(), error)
        })
    }

    fn refused(&self, error: std::io::Error) -> SourceError {
        const CALL: &str = "KVM_GET_DIRTY_LOG";
        let MemorySlot { id: slot, pages } = self.slot;
        match error.raw_os_error() {
            Some(libc::EFAULT) => SourceError::SlotLarger { slot, pages: pages.count },
            Some(libc::ENXIO) => {
                let why = "the machine has dirty rings, which exclude it".to_owned();
                SourceError::Unsupported { way: CALL, why }
            }
            Some(libc::ENOENT) => {
                let why = format!("{} is not tracked (KVM_MEM_LOG_DIRTY_PAGES)", self.slot.name());
                SourceError::Unsupported { way: CALL, why }
            }
            _ => SourceError::of_machine(CALL, self.slot.name(), error),
        }
    }
}

impl<V: Borrow<VmFd>> Source for KvmBitmap<V> {
    /// Two passes over a bit a page, the kernel's and ours: 2 µs a GiB if it is cleared by hand, 4 if
    /// reading protects; and up to 0.3 µs for each dirty page, less where they lie close.
    fn collect(&mut self, marks: &dyn Marks) -> Result<Collected, SourceError> {
        let vm = self.vm.borrow();
        let mut collected = Collected::default();
        for tracked in &mut self.slots {
            collected.pages += tracked.read(vm, marks, &mut self.parts)?;
            if self.protection == Protection::Cleared {
                for part in words::joined(&self.parts, CLEAR_GAP_WORDS) {
                    tracked.clear(vm, part.start, &tracked.seen.words()[part.clone()])?;
                }
            }
        }
        Ok(collected)
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            vcpu_writes: true,
            process_writes: false,
            first_has_more: self.initially_set,
            beside_writers: true,
        }
    }
}
