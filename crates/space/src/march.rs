//! Marches: writes that go through consecutive merged pages, upwards or downwards.
//!
//! A break costs a thread's wake-up and a mapping whether it brings back one page or many. A guest
//! that fills memory writes one page after the other, and as often from the top down as up, since
//! Linux hands out first what it freed last. The further a march has gone, the more of what lies
//! ahead is brought back with the page written, and at most twice as much as for the write before:
//! where it ends, little has come back in vain. Pages that are the guest's own are written without
//! our hearing of it, so a march may go on behind a few of them.

use bindery_units::{HostAddress, PAGE_BYTES};

/// The most pages brought back for one write.
const PAGES_MAX: u32 = 32;

/// The most pages that a march goes through unnoticed, because they are their guest's own.
const GAP_PAGES_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

/// What to bring back for a write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// The first page.
    pub(crate) start: HostAddress,
    /// Where the last one ends.
    pub(crate) end: HostAddress,
    way: Option<Way>,
    pages: u32,
}

/// Where breaks have gone.
#[derive(Debug)]
pub(crate) struct March {
    /// The step taken last, and what came back of its pages.
    last: Step,
}

impl March {
    pub(crate) const fn new() -> Self {
        let nowhere = HostAddress(0);
        Self { last: Step { start: nowhere, end: nowhere, way: None, pages: 0 } }
    }

    /// The step to take where the page at `address` is written, which is one of its pages. Between two
    /// addresses writes are `unnoticed` if no page there is merged.
    pub(crate) fn step(
        &self,
        address: HostAddress,
        unnoticed: impl Fn(HostAddress, HostAddress) -> bool,
    ) -> Step {
        let (last, above) = (&self.last, address.plus(PAGE_BYTES));
        let went = |from: HostAddress, to: HostAddress| {
            let gap = to.0.checked_sub(from.0);
            gap.is_some_and(|gap| gap <= GAP_PAGES_MAX * PAGE_BYTES)
                && (from == to || unnoticed(from, to))
        };
        let way = match last.start == last.end {
            false if went(last.end, address) => Some(Way::Up),
            false if went(above, last.start) => Some(Way::Down),
            _ => None,
        };
        let goes_on = last.way.is_none() || last.way == way;
        let pages = match way {
            Some(_) if goes_on => (last.pages * 2).min(PAGES_MAX),
            Some(_) => 2,
            None => 1,
        };
        let ahead = (pages as usize - 1) * PAGE_BYTES;
        // There is no memory below the first page, or above the last.
        let (start, end) = match way {
            Some(Way::Down) => (HostAddress(address.0.saturating_sub(ahead)), above),
            _ => (address, HostAddress(above.0.saturating_add(ahead))),
        };
        Step { start, end, way, pages }
    }

    /// A step was taken, and brought back the pages from `start` to `end`.
    pub(crate) const fn take(&mut self, step: Step, start: HostAddress, end: HostAddress) {
        self.last = Step { start, end, ..step };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(page: usize) -> HostAddress {
        HostAddress(page * PAGE_BYTES)
    }

    fn pages(step: Step) -> (usize, usize) {
        (step.start.0 / PAGE_BYTES, step.end.0 / PAGE_BYTES)
    }

    /// Writes a page, has all come back that is wanted, and says which pages that were.
    fn write(march: &mut March, page: usize) -> (usize, usize) {
        let step = march.step(at(page), |_, _| false);
        assert!(step.start <= at(page) && at(page + 1) <= step.end, "the page comes back");
        march.take(step, step.start, step.end);
        pages(step)
    }

    #[test]
    fn a_march_up_brings_back_twice_as_many_each_time() {
        let mut march = March::new();
        let steps = [100, 101, 103, 107, 115, 131, 163].map(|page| write(&mut march, page));
        let wanted =
            [(100, 101), (101, 103), (103, 107), (107, 115), (115, 131), (131, 163), (163, 195)];
        assert_eq!(steps, wanted);
    }

    #[test]
    fn a_march_down_does_the_same_below() {
        let mut march = March::new();
        let steps = [200, 199, 197, 193, 185, 169, 137].map(|page| write(&mut march, page));
        let wanted =
            [(200, 201), (198, 200), (194, 198), (186, 194), (170, 186), (138, 170), (106, 138)];
        assert_eq!(steps, wanted);
    }

    #[test]
    fn a_leap_ends_a_march_and_a_turn_begins_another() {
        let mut march = March::new();
        for page in [100, 101, 103] {
            write(&mut march, page);
        }
        assert_eq!(write(&mut march, 500), (500, 501));
        assert_eq!(write(&mut march, 499), (498, 500));
        assert_eq!(write(&mut march, 500), (500, 502));
        assert_eq!(write(&mut march, 502), (502, 506));
    }

    #[test]
    fn a_march_goes_on_from_what_came_back_and_not_from_what_was_wanted() {
        let mut march = March::new();
        for page in [100, 101, 103] {
            write(&mut march, page);
        }
        let step = march.step(at(107), |_, _| false);
        assert_eq!(pages(step), (107, 115));
        march.take(step, at(107), at(109));
        assert_eq!(write(&mut march, 109), (109, 125));
        let untaken = march.step(at(125), |_, _| false);
        assert_eq!(pages(untaken), (125, 157));
        assert_eq!(write(&mut march, 125), (125, 157), "it is written again");
        let nothing = march.step(at(157), |_, _| false);
        march.take(nothing, at(157), at(157));
        assert_eq!(write(&mut march, 157), (157, 158));
    }

    #[test]
    fn a_march_goes_on_behind_pages_whose_writes_are_unnoticed() {
        let mut march = March::new();
        for page in [100, 101, 103] {
            write(&mut march, page);
        }
        assert_eq!(pages(march.step(at(107), |_, _| panic!("nothing lies between"))), (107, 115));
        let own = |from, to| at(107) <= from && to <= at(171);
        assert_eq!(pages(march.step(at(171), own)), (171, 179));
        assert_eq!(pages(march.step(at(172), |_, _| true)), (172, 173), "too far");
        assert_eq!(pages(march.step(at(110), |_, _| false)), (110, 111));

        let mut march = March::new();
        for page in [200, 199, 197] {
            write(&mut march, page);
        }
        let own = |from, to| at(130) <= from && to <= at(194);
        assert_eq!(pages(march.step(at(129), own)), (122, 130));
        assert_eq!(pages(march.step(at(128), own)), (128, 129));
    }

    #[test]
    fn a_march_stays_within_the_address_space() {
        let mut march = March::new();
        let steps = [4, 3, 1].map(|page| write(&mut march, page));
        assert_eq!(steps, [(4, 5), (2, 4), (0, 2)]);
    }
}
