//! Places of the pages of one memory block.

use bindery_units::{PageIndex, PageRange};

use crate::fields::{Fields, put_varint, unzigzag, zigzag};
use crate::format_error::FormatError;

const WHAT: &str = "page map";

/// Pages of a block that follow each other in a pack, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedRun {
    /// Pages of the memory block.
    pub pages: PageRange,
    /// Number of the pack in the manifest's list.
    pub pack: u32,
    /// Number of the first page in the pack.
    pub place: u32,
}

impl PlacedRun {
    /// Returns true if `next` goes on where this run ends, in the block and in the pack.
    pub(crate) fn is_continued_by(&self, next: &Self) -> bool {
        self.pages.end() == next.pages.first
            && self.pack == next.pack
            && self.place.checked_add(self.pages.count) == Some(next.place)
    }

    /// Returns the part of the run from a page of it on, `count` pages at most.
    pub(crate) fn part(&self, first: PageIndex, count: u32) -> Self {
        let skipped = first.0 - self.pages.first.0;
        let count = count.min(self.pages.count - skipped);
        let pages = PageRange::new(first, count);
        Self { pages, pack: self.pack, place: self.place + skipped }
    }
}

/// Places of the stored pages of one memory block, as runs in ascending order. Pages in no run are zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageMap {
    runs: Vec<PlacedRun>,
}

impl PageMap {
    /// Returns the runs, ascending by page.
    #[must_use]
    pub fn runs(&self) -> &[PlacedRun] {
        &self.runs
    }

    /// Returns the number of stored pages.
    #[must_use]
    pub fn stored_pages(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.pages.count)).sum()
    }

    /// Returns the run that has a page, from that page on; none if the page is zero. Costs O(log runs).
    #[must_use]
    pub fn find(&self, page: PageIndex) -> Option<PlacedRun> {
        let run = self.runs.get(self.runs.partition_point(|run| run.pages.end() <= page))?;
        run.pages.contains(page).then(|| run.part(page, u32::MAX))
    }

    /// Returns the stored parts of a range, in order.
    pub fn within(&self, range: PageRange) -> impl Iterator<Item = PlacedRun> + '_ {
        let first = self.runs.partition_point(|run| run.pages.end() <= range.first);
        let overlaps = move |run: &&PlacedRun| run.pages.first < range.end();
        self.runs[first..].iter().take_while(overlaps).map(move |run| {
            let pages = run.pages.intersection(range);
            run.part(pages.first, pages.count)
        })
    }

    /// Appends a run behind all others.
    pub(crate) fn push(&mut self, run: PlacedRun) {
        match self.runs.last_mut() {
            Some(last) if last.is_continued_by(&run) => last.pages.count += run.pages.count,
            _ => self.runs.push(run),
        }
    }

    /// Puts the runs: gap before, pages less one, pack and place as differences to where the last run ended.
    pub(super) fn put(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&(self.runs.len() as u32).to_le_bytes());
        let mut last = Ended::default();
        for run in &self.runs {
            put_varint(into, u64::from(run.pages.first.0 - last.page));
            put_varint(into, u64::from(run.pages.count - 1));
            put_varint(into, zigzag(i64::from(run.pack) - i64::from(last.pack)));
            put_varint(into, zigzag(i64::from(run.place) - i64::from(last.place)));
            last = Ended::behind(run);
        }
    }

    /// Reads the runs of a block of `pages` pages, in a manifest that names `packs` packs.
    pub(super) fn take(
        fields: &mut Fields<'_>,
        pages: u64,
        packs: usize,
    ) -> Result<Self, FormatError> {
        let count = fields.count(4)?;
        let mut map = Self { runs: Vec::with_capacity(count) };
        let mut last = Ended::default();
        for _ in 0..count {
            let run = take_run(fields, last, pages, packs)?;
            last = Ended::behind(&run);
            if map.runs.last().is_some_and(|before| before.is_continued_by(&run)) {
                return Err(FormatError::impossible(WHAT, "one run is written as two"));
            }
            map.runs.push(run);
        }
        Ok(map)
    }
}

/// End of the last run: behind its last page, in the block and in its pack.
#[derive(Clone, Copy, Default)]
struct Ended {
    page: u32,
    pack: u32,
    place: u32,
}

impl Ended {
    fn behind(run: &PlacedRun) -> Self {
        let place = run.place.wrapping_add(run.pages.count);
        Self { page: run.pages.end().0, pack: run.pack, place }
    }
}

fn take_run(
    fields: &mut Fields<'_>,
    last: Ended,
    pages: u64,
    packs: usize,
) -> Result<PlacedRun, FormatError> {
    let impossible = |why| FormatError::impossible(WHAT, why);
    let first = u64::from(last.page).checked_add(fields.varint()?);
    let count = fields.varint()?.checked_add(1);
    let end = first.zip(count).and_then(|(first, count)| first.checked_add(count));
    if end.is_none_or(|end| end > pages) {
        return Err(impossible("a run ends behind its memory block"));
    }
    let near = |from: u32, difference: u64| {
        i64::from(from).checked_add(unzigzag(difference)).and_then(|it| u32::try_from(it).ok())
    };
    let pack = near(last.pack, fields.varint()?).filter(|pack| (*pack as usize) < packs);
    let place = near(last.place, fields.varint()?);
    let (first, count) = (first.unwrap_or_default() as u32, count.unwrap_or_default() as u32);
    let place = place.filter(|place| place.checked_add(count).is_some());
    let pages = PageRange::new(PageIndex(first), count);
    Ok(PlacedRun {
        pages,
        pack: pack.ok_or_else(|| impossible("a run is in no pack"))?,
        place: place.ok_or_else(|| impossible("a run has no place in its pack"))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u32, count: u32, pack: u32, place: u32) -> PlacedRun {
        PlacedRun { pages: PageRange::new(PageIndex(first), count), pack, place }
    }

    #[test]
    fn pages_are_found_in_runs_and_gaps_are_zero() {
        let mut map = PageMap::default();
        for it in [run(2, 3, 0, 7), run(5, 1, 0, 10), run(6, 2, 0, 0), run(20, 4, 1, 0)] {
            map.push(it);
        }
        assert_eq!(map.runs().len(), 3, "what goes on is one run");
        assert_eq!(map.stored_pages(), 10);
        for page in [0, 1, 8, 19, 24, u32::MAX] {
            assert_eq!(map.find(PageIndex(page)), None);
        }
        assert_eq!(map.find(PageIndex(3)), Some(run(3, 3, 0, 8)));
        assert_eq!(map.find(PageIndex(7)), Some(run(7, 1, 0, 1)));
        let within: Vec<_> = map.within(PageRange::new(PageIndex(5), 16)).collect();
        assert_eq!(within, [run(5, 1, 0, 10), run(6, 2, 0, 0), run(20, 1, 1, 0)]);
    }
}
