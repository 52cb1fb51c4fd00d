//! KVM's dirty rings.

use std::borrow::Borrow;

use bindery_sys::kvm::{DirtyRing, RingEntries, reset_dirty_rings};
use kvm_ioctls::{VcpuFd, VmFd};

use super::{Abilities, Collected, MemorySlot, Source, SourceError, slot::Slots};
use crate::marks::Marks;

/// How far each collection looks ahead of what it found for entries that somebody else left behind:
/// four cache lines.
const LOOK_AHEAD: u32 = 16;

/// Calls that reset nothing, in a row, before the rest is given up: signals may end some early.
const RESET_TRIES: u32 = 8;

/// The dirty rings of all vCPUs of a machine.
///
/// To be made before a vCPU runs, one for each machine: the kernel tells nobody how far a ring is
/// harvested. A vCPU whose ring is full leaves `KVM_RUN` with
/// [`EXIT_DIRTY_RING_FULL`](bindery_sys::kvm::EXIT_DIRTY_RING_FULL), and may go on after
/// [`make_room`](Self::make_room).
#[derive(Debug)]
pub struct KvmRings<V> {
    vm: V,
    rings: Vec<Ring>,
    entries: RingEntries,
    slots: Slots,
}

#[derive(Debug)]
struct Ring {
    ring: DirtyRing,
    /// Whether anything was harvested since its vCPU was last made room for.
    made_room: bool,
    /// Whether the kernel ever ran over its end: it then fills entries at another place than where it
    /// resets them and we harvest, for good.
    is_overrun: bool,
}

impl<V: Borrow<VmFd>> KvmRings<V> {
    /// The rings of `vcpus`, which must be all of the machine, and the slots that are tracked in it
    /// (`KVM_MEM_LOG_DIRTY_PAGES`). `entries` is what
    /// [`enable_dirty_rings`](bindery_sys::kvm::enable_dirty_rings) gave.
    ///
    /// # Errors
    /// [`SourceError::Unsupported`] if a vCPU has no ring of that size, [`SourceError::Misfit`] for
    /// slots of one number or without pages.
    pub fn new<'a>(
        vm: V,
        vcpus: impl IntoIterator<Item = &'a VcpuFd>,
        entries: RingEntries,
        slots: &[MemorySlot],
    ) -> Result<Self, SourceError> {
        let slots = Slots::new(slots)?;
        let map = |(vcpu, descriptor)| {
            let ring = DirtyRing::map(descriptor, entries).map_err(|error| {
                let why = format!(
                    "the ring of vCPU {vcpu}, of {} entries, cannot be mapped: {error}",
                    entries.get()
                );
                SourceError::Unsupported { way: "KVM_CAP_DIRTY_LOG_RING", why }
            })?;
            Ok(Ring { ring, made_room: false, is_overrun: false })
        };
        let rings = vcpus.into_iter().enumerate().map(map).collect::<Result<_, SourceError>>()?;
        Ok(Self { vm, rings, entries, slots })
    }

    /// Collects because a vCPU left with a full ring (its position in the order given to
    /// [`new`](Self::new)); it may run again afterwards. Finds nothing if a collection was faster.
    ///
    /// # Errors
    /// As [`Source::collect`], and [`SourceError::FullRingEmpty`] if there was none: the vCPU would
    /// leave again at once.
    ///
    /// # Panics
    /// If there is no such vCPU.
    pub fn make_room(&mut self, vcpu: usize, marks: &dyn Marks) -> Result<Collected, SourceError> {
        let entries = self.entries.get();
        let Ring { ring, made_room, is_overrun } = &mut self.rings[vcpu];
        if !*is_overrun && ring.peek() == Ok(None) {
            ring.check(entries).map_err(|source| SourceError::RingOutOfStep { vcpu, source })?;
            if !std::mem::take(made_room) {
                return Err(SourceError::FullRingEmpty { vcpu, entries });
            }
        }
        let collected = self.collect(marks)?;
        self.rings[vcpu].made_room = false;
        Ok(collected)
    }

    /// Has the kernel free, and protect the pages of, all entries that were harvested.
    fn reset(&mut self) -> Result<(), SourceError> {
        let harvested: u64 = self.rings.iter().map(|at| u64::from(at.ring.harvested())).sum();
        let (mut reset, mut tries) = (0, 0);
        while reset < harvested && tries < RESET_TRIES {
            let answer = reset_dirty_rings(self.vm.borrow()).map_err(|error| {
                SourceError::of_machine("KVM_RESET_DIRTY_RINGS", "the machine".to_owned(), error)
            })?;
            tries = if answer == 0 { tries + 1 } else { 0 };
            reset += u64::from(answer);
        }
        // Whatever the number: what is free now is no longer ours.
        self.rings.iter_mut().for_each(|at| at.ring.note_reset());
        if reset == harvested { Ok(()) } else { Err(SourceError::RingsReset { harvested, reset }) }
    }
}

impl Ring {
    /// Marks what it has, as `vcpu`'s.
    fn harvest(
        &mut self,
        vcpu: usize,
        slots: &Slots,
        marks: &dyn Marks,
    ) -> Result<u64, SourceError> {
        let out_of_step = |source| SourceError::RingOutOfStep { vcpu, source };
        let mut pages = 0;
        while let Some(entry) = self.ring.peek().map_err(out_of_step)? {
            // An entry that names no page stays where it is: it is found again, and not lost, when the
            // slots are set right.
            marks.mark(slots.page(vcpu, entry.slot, entry.offset)?);
            self.ring.advance();
            pages += 1;
        }
        self.is_overrun |= self.ring.is_overrun();
        if !self.is_overrun {
            self.ring.check(LOOK_AHEAD).map_err(out_of_step)?;
        }
        Ok(pages)
    }
}

impl<V: Borrow<VmFd>> Source for KvmRings<V> {
    /// 2 µs for 16 pages, and 0.1 to 0.3 µs for each of many, nearly all of it in the kernel's reset;
    /// vCPUs that run meanwhile are interrupted if there was any.
    fn collect(&mut self, marks: &dyn Marks) -> Result<Collected, SourceError> {
        let mut collected = Collected::default();
        let mut failed = Ok(());
        for (vcpu, ring) in self.rings.iter_mut().enumerate() {
            match ring.harvest(vcpu, &self.slots, marks) {
                Ok(pages) => collected.pages += pages,
                Err(error) => failed = failed.and(Err(error)),
            }
            ring.made_room |= ring.ring.harvested() > 0;
            // Whatever else: of this one nothing will be known any more.
            if ring.is_overrun {
                failed = Err(SourceError::RingOverrun { vcpu, entries: self.entries.get() });
            }
        }
        // Also if an entry was bad: what was marked may be read by now, and must be watched.
        let reset = self.reset();
        failed.and(reset).map(|()| collected)
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            vcpu_writes: true,
            process_writes: false,
            first_has_more: false,
            beside_writers: true,
        }
    }
}
