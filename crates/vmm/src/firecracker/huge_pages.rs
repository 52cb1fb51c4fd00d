//! Huge pages of hugetlbfs, which are filled whole: gathered from the small pages that come. Pure.

use std::collections::BTreeMap;

use bindery_units::{PAGE_BYTES, PageIndex, PageRange};

use super::filling::Fill;

/// Small pages that one fault of the source brings: one is asked for in each aligned run of so many.
const ASKED_PAGES: u32 = 16;

/// Huge pages of which some small pages have come.
#[derive(Debug)]
pub(super) struct HugePages {
    /// By the first small page.
    partial: BTreeMap<u32, Partial>,
    zeros: Vec<u8>,
}

#[derive(Debug)]
struct Partial {
    content: Vec<u8>,
    has: Vec<bool>,
    count: u32,
    /// True if a small page of it is lost: then all of it is.
    is_lost: bool,
}

impl Default for HugePages {
    fn default() -> Self {
        Self { partial: BTreeMap::new(), zeros: vec![0; Self::BYTES] }
    }
}

impl HugePages {
    /// Small pages of a huge one.
    pub(super) const PAGES: u32 = 512;

    /// Length of a huge page, in bytes.
    pub(super) const BYTES: usize = Self::PAGES as usize * PAGE_BYTES;

    /// Returns a huge page of zeros.
    pub(super) fn zeros(&self) -> &[u8] {
        &self.zeros
    }

    /// Returns small pages to ask for, so that all of the huge page of `page` comes.
    pub(super) fn wanted_around(&self, page: PageIndex) -> Vec<PageIndex> {
        let first = page.0 - page.0 % Self::PAGES;
        let has = |page: u32| {
            self.partial.get(&first).is_some_and(|partial| partial.has[(page - first) as usize])
        };
        let runs = (first..first + Self::PAGES).step_by(ASKED_PAGES as usize);
        let lacking =
            runs.filter_map(|run| (run..run + ASKED_PAGES).find(|page| !has(*page)).map(PageIndex));
        lacking.collect()
    }

    /// Takes in small pages. Returns the huge pages that are whole with them: their content, or none if they are lost.
    pub(super) fn take(
        &mut self,
        pages: PageRange,
        fill: Fill<'_>,
    ) -> Vec<(PageRange, Option<Vec<u8>>)> {
        let mut whole = Vec::new();
        let mut at = pages.first.0;
        while at < pages.end().0 {
            let first = at - at % Self::PAGES;
            let end = pages.end().0.min(first + Self::PAGES);
            let partial = self.partial.entry(first).or_insert_with(Partial::empty);
            for page in at..end {
                let from = (page - pages.first.0) as usize * PAGE_BYTES;
                partial.take((page - first) as usize, fill, from);
            }
            if partial.count == Self::PAGES
                && let Some(done) = self.partial.remove(&first)
            {
                let content = (!done.is_lost).then_some(done.content);
                whole.push((PageRange::new(PageIndex(first), Self::PAGES), content));
            }
            at = end;
        }
        whole
    }

    /// Drops what has come of huge pages that were discarded.
    pub(super) fn forget(&mut self, pages: PageRange) {
        let first = pages.first.0 - pages.first.0 % Self::PAGES;
        self.partial.retain(|chunk, _| !(first..pages.end().0).contains(chunk));
    }
}

impl Partial {
    fn empty() -> Self {
        let (content, has) = (vec![0; HugePages::BYTES], vec![false; HugePages::PAGES as usize]);
        Self { content, has, count: 0, is_lost: false }
    }

    fn take(&mut self, page: usize, fill: Fill<'_>, from: usize) {
        match fill {
            Fill::Content(content) => self.content[page * PAGE_BYTES..][..PAGE_BYTES]
                .copy_from_slice(&content[from..from + PAGE_BYTES]),
            Fill::Zero => {}
            Fill::Lost => self.is_lost = true,
        }
        self.count += u32::from(!std::mem::replace(&mut self.has[page], true));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_huge_page_is_whole_once_all_of_it_came() {
        let mut huge = HugePages::default();
        let range = |first, count| PageRange::new(PageIndex(first), count);
        assert_eq!(huge.wanted_around(PageIndex(700)).len(), 32);
        let content: Vec<u8> = (0..32 * PAGE_BYTES).map(|at| (at / PAGE_BYTES) as u8 + 1).collect();
        assert!(huge.take(range(512, 32), Fill::Content(&content)).is_empty());
        assert_eq!(huge.wanted_around(PageIndex(700))[0], PageIndex(544));
        // Twice the same, and across into the next.
        assert!(huge.take(range(520, 24), Fill::Content(&content)).is_empty());
        let whole = huge.take(range(544, 500), Fill::Zero);
        assert_eq!(whole.len(), 1);
        let (pages, content) = &whole[0];
        let content = content.as_ref().unwrap();
        assert_eq!((*pages, content.len()), (range(512, 512), HugePages::BYTES));
        assert_eq!((content[0], content[8 * PAGE_BYTES], content[40 * PAGE_BYTES]), (1, 1, 0));
        assert!(huge.take(range(1044, 1), Fill::Lost).is_empty());
        assert_eq!(huge.take(range(1045, 492), Fill::Zero), [(range(1024, 512), None)]);
        huge.forget(range(1600, 1));
        assert!(huge.partial.is_empty());
    }
}
