//! Write streams: writes that go through consecutive merged pages, upwards or downwards.
//!
//! A break costs a thread's wake-up and a mapping whether it brings back one page or many. A guest
//! that fills memory writes one page after the other, and as often from the top down as up, since
//! Linux hands out first what it freed last. The further a write stream has gone, the more of what lies
//! ahead is brought back with the page written, and at most twice as much as for the write before:
//! where it ends, little has come back in vain. Pages that are the guest's own are written without
//! our hearing of it, so a write stream may go on behind a few of them.

use bindery_units::{HostAddress, PAGE_BYTES};

/// The most pages brought back for one write.
const PAGES_MAX: u32 = 32;

/// So many write streams are known at a time: each CPU of a guest may be on one.
const STREAMS: usize = 4;

/// The most pages that a write stream goes through unnoticed, because they are their guest's own.
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
    /// Which write stream it is the next step of; the oldest is forgotten for a new one.
    stream: usize,
}

/// Where breaks have gone.
#[derive(Debug)]
pub(crate) struct WriteStreams {
    /// The last step of each, and what came back of its pages; the write stream that went on last first.
    last: [Step; STREAMS],
}

impl WriteStreams {
    pub(crate) const fn new() -> Self {
        let nowhere = HostAddress(0);
        let none = Step { start: nowhere, end: nowhere, way: None, pages: 0, stream: 0 };
        Self { last: [none; STREAMS] }
    }

    /// The step to take where the page at `address` is written, which is one of its pages. Between two
    /// addresses writes are `unnoticed` if no page there is merged.
    pub(crate) fn step(
        &self,
        address: HostAddress,
        unnoticed: impl Fn(HostAddress, HostAddress) -> bool,
    ) -> Step {
        let ways = self.last.iter().map(|last| last.way_to(address, &unnoticed));
        let found = (0..).zip(ways).find_map(|(stream, way)| Some((stream, way?)));
        let Some((stream, way)) = found else {
            let end = address.plus(PAGE_BYTES);
            return Step { start: address, end, way: None, pages: 1, stream: STREAMS - 1 };
        };
        let last = &self.last[stream];
        let turns = last.way.is_some_and(|before| before != way);
        let pages = if turns { 2 } else { (last.pages * 2).min(PAGES_MAX) };
        let ahead = (pages as usize - 1) * PAGE_BYTES;
        let end = address.plus(PAGE_BYTES);
        // There is no memory below the first page, or above the last.
        let (start, end) = match way {
            Way::Up => (address, HostAddress(end.0.saturating_add(ahead))),
            Way::Down => (HostAddress(address.0.saturating_sub(ahead)), end),
        };
        Step { start, end, way: Some(way), pages, stream }
    }

    /// The step given last was taken, and brought back the pages from `start` to `end`.
    pub(crate) fn take(&mut self, step: Step, start: HostAddress, end: HostAddress) {
        self.last[..=step.stream].rotate_right(1);
        self.last[0] = Step { start, end, ..step };
    }
}

impl Step {
    /// Which way a write at `address` goes on from here, if it does.
    fn way_to(
        &self,
        address: HostAddress,
        unnoticed: impl Fn(HostAddress, HostAddress) -> bool,
    ) -> Option<Way> {
        let went = |from: HostAddress, to: HostAddress| {
            let gap = to.0.checked_sub(from.0);
            gap.is_some_and(|gap| gap <= GAP_PAGES_MAX * PAGE_BYTES)
                && (from == to || unnoticed(from, to))
        };
        match self.start == self.end {
            false if went(self.end, address) => Some(Way::Up),
            false if went(address.plus(PAGE_BYTES), self.start) => Some(Way::Down),
            _ => None,
        }
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
    fn write(streams: &mut WriteStreams, page: usize) -> (usize, usize) {
        let step = streams.step(at(page), |_, _| false);
        assert!(step.start <= at(page) && at(page + 1) <= step.end, "the page comes back");
        streams.take(step, step.start, step.end);
        pages(step)
    }

    #[test]
    fn a_write_stream_up_brings_back_twice_as_many_each_time() {
        let mut streams = WriteStreams::new();
        let steps = [100, 101, 103, 107, 115, 131, 163].map(|page| write(&mut streams, page));
        let wanted =
            [(100, 101), (101, 103), (103, 107), (107, 115), (115, 131), (131, 163), (163, 195)];
        assert_eq!(steps, wanted);
    }

    #[test]
    fn a_write_stream_down_does_the_same_below() {
        let mut streams = WriteStreams::new();
        let steps = [200, 199, 197, 193, 185, 169, 137].map(|page| write(&mut streams, page));
        let wanted =
            [(200, 201), (198, 200), (194, 198), (186, 194), (170, 186), (138, 170), (106, 138)];
        assert_eq!(steps, wanted);
    }

    #[test]
    fn a_leap_begins_another_write_stream_and_a_turn_begins_anew() {
        let mut streams = WriteStreams::new();
        for page in [100, 101, 103] {
            write(&mut streams, page);
        }
        assert_eq!(write(&mut streams, 500), (500, 501));
        assert_eq!(write(&mut streams, 499), (498, 500));
        assert_eq!(write(&mut streams, 500), (500, 502));
        assert_eq!(write(&mut streams, 502), (502, 506));
    }

    #[test]
    fn write_streams_go_on_beside_each_other_until_too_many_are_newer() {
        let mut streams = WriteStreams::new();
        let firsts = [100, 900, 300, 700].map(|page| write(&mut streams, page));
        assert_eq!(firsts, [(100, 101), (900, 901), (300, 301), (700, 701)]);
        let seconds = [101, 899, 301, 699].map(|page| write(&mut streams, page));
        assert_eq!(seconds, [(101, 103), (898, 900), (301, 303), (698, 700)]);
        for page in [1000, 2000] {
            write(&mut streams, page);
        }
        let thirds = [303, 697, 103, 897].map(|page| write(&mut streams, page));
        assert_eq!(thirds, [(303, 307), (694, 698), (103, 104), (897, 898)]);
    }

    #[test]
    fn a_write_stream_goes_on_from_what_came_back_and_not_from_what_was_wanted() {
        let mut streams = WriteStreams::new();
        for page in [100, 101, 103] {
            write(&mut streams, page);
        }
        let step = streams.step(at(107), |_, _| false);
        assert_eq!(pages(step), (107, 115));
        streams.take(step, at(107), at(109));
        assert_eq!(write(&mut streams, 109), (109, 125));
        let untaken = streams.step(at(125), |_, _| false);
        assert_eq!(pages(untaken), (125, 157));
        assert_eq!(write(&mut streams, 125), (125, 157), "it is written again");
        let nothing = streams.step(at(157), |_, _| false);
        streams.take(nothing, at(157), at(157));
        assert_eq!(write(&mut streams, 157), (157, 158));
    }

    #[test]
    fn a_write_stream_goes_on_behind_pages_whose_writes_are_unnoticed() {
        let mut streams = WriteStreams::new();
        for page in [100, 101, 103] {
            write(&mut streams, page);
        }
        assert_eq!(pages(streams.step(at(107), |_, _| panic!("nothing lies between"))), (107, 115));
        let own = |from, to| at(107) <= from && to <= at(171);
        assert_eq!(pages(streams.step(at(171), own)), (171, 179));
        assert_eq!(pages(streams.step(at(172), |_, _| true)), (172, 173), "too far");
        assert_eq!(pages(streams.step(at(110), |_, _| false)), (110, 111));

        let mut streams = WriteStreams::new();
        for page in [200, 199, 197] {
            write(&mut streams, page);
        }
        let own = |from, to| at(130) <= from && to <= at(194);
        assert_eq!(pages(streams.step(at(129), own)), (122, 130));
        assert_eq!(pages(streams.step(at(128), own)), (128, 129));
    }

    #[test]
    fn a_write_stream_stays_within_the_address_space() {
        let mut streams = WriteStreams::new();
        let steps = [4, 3, 1].map(|page| write(&mut streams, page));
        assert_eq!(steps, [(4, 5), (2, 4), (0, 2)]);
    }
}
