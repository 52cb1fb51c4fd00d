//! KVM's dirty bitmap against a guest that wrote pages which are known.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::collections::BTreeSet;

use bindery_dirty::marks::Marks;
use bindery_dirty::source::{
    Abilities, KvmBitmap, MemorySlot, Protection, Software, Source, SourceError, Union,
};
use bindery_sys::kvm::dirty_tracking;
use bindery_testkit::kvm::Tracking;
use bindery_units::{PageIndex, PageRange};
use common::{Guest, Oracle, collect, shifted};
use proptest::prelude::*;

const MANUAL: Tracking = Tracking::ManualBitmap { initially_set: false };

/// Sizes around the multiples of 64, and epochs of pages below a bound that suits them.
fn slots() -> impl Strategy<Value = Vec<usize>> {
    let size = prop_oneof![1_usize..200, Just(64), Just(63), Just(65), 4000_usize..4200];
    prop::collection::vec(size, 1..4)
}

fn epochs() -> impl Strategy<Value = Vec<Vec<prop::sample::Index>>> {
    let pages = prop::collection::vec(any::<prop::sample::Index>(), 0..80);
    prop::collection::vec(pages, 1..5)
}

fn pages_of(epoch: &[prop::sample::Index], pages: usize) -> BTreeSet<u32> {
    epoch.iter().map(|index| index.index(pages) as u32).collect()
}

fn same_sets(
    slots: &[usize],
    first: u32,
    epochs: &[Vec<prop::sample::Index>],
    protection: Protection,
) {
    let tracking = if protection == Protection::AtOnce { Tracking::Bitmap } else { MANUAL };
    let Some(mut guest) = Guest::start(slots, first, tracking) else { return };
    let mut source = guest.bitmap(protection, false);
    let pages: usize = slots.iter().sum();
    let end = first + pages as u32;
    for epoch in epochs {
        let written = pages_of(epoch, pages);
        guest.touch(&written);
        assert_eq!(collect(&mut source, end), shifted(&written, first));
        assert_eq!(collect(&mut source, end), BTreeSet::new(), "nothing twice");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 10))]

    #[test]
    fn plain(slots in slots(), first in 0_u32..130, epochs in epochs()) {
        same_sets(&slots, first, &epochs, Protection::AtOnce);
    }

    #[test]
    fn cleared(slots in slots(), first in 0_u32..130, epochs in epochs()) {
        same_sets(&slots, first, &epochs, Protection::Cleared);
    }

    /// A model of the protocol: what is reported is what was written and not cleared since.
    #[test]
    fn cleared_by_the_caller(
        slots in slots(),
        first in 0_u32..130,
        epochs in epochs(),
        clears in prop::collection::vec((any::<prop::sample::Index>(), 1_u32..150), 5),
    ) {
        let Some(mut guest) = Guest::start(&slots, first, MANUAL) else { return Ok(()) };
        let mut source = guest.bitmap(Protection::ClearedByCaller, false);
        let pages: usize = slots.iter().sum();
        let mut kernel = BTreeSet::new();
        for (epoch, (at, count)) in epochs.iter().zip(&clears) {
            let written = pages_of(epoch, pages);
            guest.touch(&written);
            kernel.extend(shifted(&written, first));
            let seen = collect(&mut source, first + pages as u32);
            prop_assert_eq!(&seen, &kernel);
            // Written between being seen and being cleared: no longer marked, and seen before.
            guest.touch(&written);
            let start = first + at.index(pages) as u32;
            let range = PageRange::new(PageIndex(start), (*count).min(first + pages as u32 - start));
            source.clear(range).unwrap();
            kernel.retain(|page| !range.contains(PageIndex(*page)));
            // Written after it, and cleared a second time: that bit was not seen, and stays.
            let late: BTreeSet<u32> =
                seen.iter().filter(|page| range.contains(PageIndex(**page))).take(3).copied().collect();
            guest.touch(&late.iter().map(|page| page - first).collect());
            source.clear(range).unwrap();
            kernel.extend(late);
        }
        prop_assert_eq!(collect(&mut source, first + pages as u32), kernel);
    }
}

#[test]
fn thousands_of_scattered_pages_are_cleared_in_pieces() {
    // Some marks close to each other, some farther apart than a call to the kernel is worth.
    let Some(mut guest) = Guest::start(&[600_001], 0, MANUAL) else { return };
    let mut source = guest.bitmap(Protection::Cleared, false);
    let near = (0..2000).map(|at| at * 65);
    let far = (0..5).map(|at| 150_000 + at * 90_001);
    let written: BTreeSet<u32> = near.chain(far).chain([600_000]).collect();
    for _ in 0..3 {
        guest.touch(&written);
        assert_eq!(collect(&mut source, 600_001), written);
        assert!(collect(&mut source, 600_001).is_empty());
    }
}

#[test]
fn initially_set_reports_all_pages_once() {
    let Some(mut guest) =
        Guest::start(&[100, 129], 7, Tracking::ManualBitmap { initially_set: true })
    else {
        return;
    };
    let mut source = guest.bitmap(Protection::Cleared, true);
    assert!(source.abilities().first_has_more);
    assert_eq!(collect(&mut source, 236), (7..236).collect());
    let written = [3, 99, 100, 228].into();
    guest.touch(&written);
    assert_eq!(collect(&mut source, 236), shifted(&written, 7));
}

#[test]
fn what_devices_wrote_is_added_to_what_the_guest_wrote() {
    let Some(mut guest) = Guest::start(&[500], 0, Tracking::Bitmap) else { return };
    let mut source =
        Union(guest.bitmap(Protection::AtOnce, false), Software::new(Oracle::new(500)));
    let abilities = source.abilities();
    assert!(abilities.vcpu_writes && abilities.process_writes);
    guest.touch(&[1, 64, 499].into());
    source.1.marked().mark_range(PageRange::new(PageIndex(60), 4));
    let oracle = Oracle::new(500);
    assert_eq!(source.collect(&oracle).unwrap().pages, 7);
    assert_eq!(oracle.take(), [1, 60, 61, 62, 63, 64, 499].into());
    assert_eq!(source.collect(&oracle).unwrap().pages, 0);
}

/// A guest that is gone half way: the part that is left keeps its marks.
#[test]
fn a_union_whose_guest_is_gone_keeps_the_other_half() {
    struct Gone;
    impl Source for Gone {
        fn collect(
            &mut self,
            marks: &dyn Marks,
        ) -> Result<bindery_dirty::source::Collected, SourceError> {
            marks.mark(PageIndex(5));
            Err(SourceError::Vanished("it ended after page 5".to_owned()))
        }

        fn abilities(&self) -> Abilities {
            unreachable!()
        }
    }
    let devices = Oracle::new(10);
    devices.mark(PageIndex(7));
    let mut source = Union(Gone, Software::new(&devices));
    let oracle = Oracle::new(10);
    let error = source.collect(&oracle).unwrap_err();
    assert!(error.to_string().contains("the guest is gone: it ended after page 5"), "{error}");
    assert_eq!(oracle.take(), [5].into());
    assert_eq!(devices.take(), [7].into());
}

#[test]
fn a_machine_of_another_process_is_gone() {
    let Some(guest) = Guest::start(&[64], 0, Tracking::Bitmap) else { return };
    let mut source = guest.bitmap(Protection::AtOnce, false);
    let oracle = Oracle::new(64);
    // KVM answers EIO to all processes but the one that made the machine.
    let expected = "the guest is gone: KVM_GET_DIRTY_LOG on slot 0x1 of 64 pages answers Input/output \
                    error (os error 5); what was marked before is all that is known";
    assert!(common::holds_in_a_child(|| {
        source.collect(&oracle).is_err_and(|error| error.to_string() == expected)
    }));
}

#[test]
fn slots_that_are_not_as_given_are_errors_with_numbers() {
    let Some(guest) = Guest::start(&[40_000], 0, Tracking::Bitmap) else { return };
    let refusal = |slot| {
        let mut source = KvmBitmap::plain(guest.tiny.vm(), &[slot]).unwrap();
        source.collect(&Oracle::new(100_000)).unwrap_err()
    };
    let slot = |id, pages| MemorySlot { id, pages: PageRange::new(PageIndex(0), pages) };
    let missing = refusal(slot(9, 40_000));
    assert!(missing.to_string().contains("slot 0x9 of 40000 pages is not tracked"), "{missing}");
    let code = refusal(slot(0, 1));
    assert!(code.to_string().contains("not tracked"), "{code}");
    // More than a page of bitmap behind its end.
    let larger = refusal(slot(1, 100));
    let expected =
        "slot 0x1 has more than the 100 pages that it was said to have; its marks are lost";
    assert_eq!(larger.to_string(), expected);
    let twice = KvmBitmap::plain(guest.tiny.vm(), &[slot(1, 5), slot(1, 5)]).unwrap_err();
    assert_eq!(twice.to_string(), "slot 0x1 is given twice");
    let empty = KvmBitmap::plain(guest.tiny.vm(), &[slot(7, 0)]).unwrap_err();
    assert_eq!(empty.to_string(), "slot 0x7 has no page");
    let at_once = Protection::AtOnce;
    let plain = KvmBitmap::manual(guest.tiny.vm(), &[slot(1, 5)], at_once, false).unwrap_err();
    assert_eq!(plain.to_string(), "a machine that is protected by hand never is at once");
}

#[test]
fn marks_behind_a_slot_s_end_are_an_error_with_numbers() {
    let Some(mut guest) = Guest::start(&[130], 0, Tracking::Bitmap) else { return };
    let slot = MemorySlot { id: 1, pages: PageRange::new(PageIndex(0), 129) };
    let mut source = KvmBitmap::plain(guest.tiny.vm(), &[slot]).unwrap();
    guest.touch(&[5, 129].into());
    let oracle = Oracle::new(129);
    let error = source.collect(&oracle).unwrap_err();
    assert_eq!(error.to_string(), "page 129 of slot 0x1 is marked, which has 129 pages");
    assert_eq!(oracle.take(), [5].into());
}

#[test]
fn the_kernel_says_what_it_offers() {
    let Some(guest) = Guest::start(&[1], 0, Tracking::None) else { return };
    let offered = dirty_tracking(&guest.tiny.vm());
    println!("{offered:?}");
    assert!(offered.manual_protect || !offered.initially_set);
}
