//! KVM's dirty rings against a guest that wrote pages which are known.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use bindery_dirty::source::{KvmBitmap, KvmRings, MemorySlot, Source, SourceError};
use bindery_sys::kvm::{DirtyRing, enable_dirty_rings, reset_dirty_rings};
use bindery_testkit::kvm::{TinyGuest, Tracking};
use bindery_testkit::skipped;
use bindery_units::{PageIndex, PageRange};
use common::{Guest, Oracle, collect, shifted};
use kvm_ioctls::Kvm;
use proptest::prelude::*;

/// More than any processor reserves, so that small numbers of pages do not fill it.
const ENTRIES: u32 = 1024;
const RING: Tracking = Tracking::Ring { entries: ENTRIES };

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 10))]

    #[test]
    fn what_was_written_is_collected_once(
        slots in prop::collection::vec(1_usize..3000, 1..4),
        first in 0_u32..130,
        epochs in prop::collection::vec(prop::collection::vec(any::<prop::sample::Index>(), 0..300), 1..12),
    ) {
        let Some(mut guest) = Guest::start(&slots, first, RING) else { return Ok(()) };
        let mut source = guest.rings();
        let pages: usize = slots.iter().sum();
        let end = first + pages as u32;
        for epoch in &epochs {
            let written: BTreeSet<u32> =
                epoch.iter().map(|index| index.index(pages) as u32).collect();
            guest.touch(&written);
            prop_assert_eq!(collect(&mut source, end), shifted(&written, first));
            // All is watched again before anybody reads a page. Where real mode is emulated, KVM
            // notes every write, watched or not, so that no lost write would show it.
            prop_assert_eq!(reset_dirty_rings(&guest.tiny.vm()).unwrap(), 0);
            prop_assert_eq!(collect(&mut source, end), BTreeSet::new());
        }
    }
}

#[test]
fn a_full_ring_stops_the_guest_until_there_is_room() {
    let pages = 20_000;
    let Some(mut guest) = Guest::start(&[pages as usize], 0, RING) else { return };
    let source = RefCell::new(guest.rings());
    let (oracle, full) = (Oracle::new(pages), Cell::new(0));
    // All over the slot, none twice: 7919 is no divisor.
    let order: Vec<usize> = (0..pages as usize).map(|at| at * 7919 % pages as usize).collect();
    for round in 1..=2 {
        guest
            .tiny
            .touch(&order, &mut || {
                let collected = source.borrow_mut().make_room(0, &oracle).unwrap();
                assert!(collected.pages > 0 && collected.pages <= u64::from(ENTRIES));
                full.set(full.get() + 1);
            })
            .unwrap();
        source.borrow_mut().collect(&oracle).unwrap();
        assert_eq!(oracle.take(), (0..pages).collect());
        assert!(full.get() >= round * (pages / ENTRIES), "{} full rings", full.get());
    }
}

#[test]
fn rings_and_the_bitmap_exclude_each_other() {
    let Some(guest) = Guest::start(&[64], 0, RING) else { return };
    let mut bitmap = KvmBitmap::plain(guest.tiny.vm(), &guest.slots).unwrap();
    let error = bitmap.collect(&Oracle::new(64)).unwrap_err();
    assert!(error.to_string().contains("the machine has dirty rings"), "{error}");
}

#[test]
fn an_entry_that_names_no_page_is_an_error_with_numbers_and_is_kept() {
    let Some(mut guest) = Guest::start(&[100, 100], 0, RING) else { return };
    let entries = guest.tiny.rings().unwrap();
    let rings = |slots: &[MemorySlot]| {
        KvmRings::new(guest.tiny.vm(), [guest.tiny.vcpu()], entries, slots).unwrap()
    };
    let short = MemorySlot { id: 1, pages: PageRange::new(PageIndex(0), 50) };
    let mut too_few = rings(&[short]);
    let mut all = guest.rings();
    let pages: Vec<usize> = vec![3, 49, 50, 150];
    guest.tiny.touch(&pages, &mut || panic!("full")).unwrap();
    let oracle = Oracle::new(200);
    let error = too_few.collect(&oracle).unwrap_err().to_string();
    assert_eq!(error, "the dirty ring of vCPU 0 names page 50 of slot 0x1, which has 50 pages");
    // What came before it is marked, and watched again.
    assert_eq!(oracle.take(), [3, 49].into());
    assert_eq!(reset_dirty_rings(&guest.tiny.vm()).unwrap(), 0);
    guest.tiny.touch(&[3], &mut || panic!("full")).unwrap();
    assert!(too_few.collect(&oracle).is_err(), "it stays the next");
    // Another harvester begins at the ring's start, and sees that it is not the only one.
    let foreign = all.collect(&oracle).unwrap_err();
    assert!(matches!(foreign, SourceError::RingOutOfStep { vcpu: 0, .. }), "{foreign}");
}

#[test]
fn an_unknown_slot_is_an_error_with_numbers() {
    let Some(mut guest) = Guest::start(&[100, 100], 0, RING) else { return };
    let entries = guest.tiny.rings().unwrap();
    let (vm, vcpu) = (guest.tiny.vm(), guest.tiny.vcpu());
    let mut source = KvmRings::new(vm, [vcpu], entries, &guest.slots[..1]).unwrap();
    guest.tiny.touch(&[142], &mut || panic!("full")).unwrap();
    let error = source.collect(&Oracle::new(200)).unwrap_err().to_string();
    let expected = "the dirty ring of vCPU 0 names page 42 of slot 0x2, which is none of the 1 slots \
                    that are tracked";
    assert_eq!(error, expected);
}

#[test]
fn a_ring_that_somebody_else_harvests_is_an_error_with_numbers() {
    let Some(mut guest) = Guest::start(&[5000], 0, RING) else { return };
    let entries = guest.tiny.rings().unwrap();
    let mut source = guest.rings();
    let mut other = DirtyRing::map(guest.tiny.vcpu(), entries).unwrap();
    // Harvested and not yet reset.
    guest.touch(&[1, 2, 3].into());
    other.peek().unwrap().unwrap();
    other.advance();
    let error = source.collect(&Oracle::new(5000)).unwrap_err();
    assert!(error.to_string().contains("entry 0 of the dirty ring has flags 0x2"), "{error}");
    // Reset as well: what comes next is where the other one stands.
    while other.peek().unwrap().is_some() {
        other.advance();
    }
    reset_dirty_rings(&guest.tiny.vm()).unwrap();
    guest.touch(&[4, 5].into());
    let error = source.collect(&Oracle::new(5000)).unwrap_err();
    assert!(error.to_string().contains("somebody else harvests or resets it"), "{error}");
}

#[test]
fn a_full_ring_with_nothing_in_it_is_an_error_with_numbers() {
    let Some(mut guest) = Guest::start(&[5000], 0, RING) else { return };
    let mut source = guest.rings();
    let error = source.make_room(0, &Oracle::new(5000)).unwrap_err();
    let shown = error.to_string();
    assert!(shown.contains("vCPU 0") && shown.contains("none of its 1024 entries"), "{shown}");
    // Far ahead of where a collection looks.
    let mut other = guest.rings();
    guest.touch(&(0..200).collect());
    assert_eq!(collect(&mut other, 5000).len(), 200);
    guest.touch(&(200..210).collect());
    let error = source.make_room(0, &Oracle::new(5000)).unwrap_err();
    assert!(matches!(error, SourceError::RingOutOfStep { vcpu: 0, .. }), "{error}");
}

#[test]
fn a_machine_without_rings_is_an_error_and_no_signal() {
    if let Some(why) = TinyGuest::unavailable() {
        return skipped!("{why}");
    }
    let (Some(with), Some(without)) =
        (Guest::start(&[1], 0, RING), Guest::start(&[1], 0, Tracking::Bitmap))
    else {
        return;
    };
    let entries = with.tiny.rings().unwrap();
    let (vm, vcpu) = (without.tiny.vm(), without.tiny.vcpu());
    let error = KvmRings::new(vm, [vcpu], entries, &without.slots).unwrap_err();
    assert!(error.to_string().contains("of 1024 entries, cannot be mapped"), "{error}");
    let refused = reset_dirty_rings(&without.tiny.vm()).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
    // Sizes that no kernel takes, and a machine that has a vCPU already.
    let vm = Kvm::new().unwrap().create_vm().unwrap();
    for entries in [0, 1, 1000, 1 << 30] {
        assert!(enable_dirty_rings(&vm, entries).is_err(), "{entries}");
    }
    vm.create_vcpu(0).unwrap();
    assert!(enable_dirty_rings(&vm, ENTRIES).is_err());
}
