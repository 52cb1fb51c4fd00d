//! Counting equal pages: digests in, savings out. Pure.

use serde::Serialize;

/// What is kept of a page that was read and is not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PageRecord {
    /// Its digest.
    pub(super) digest: [u64; 2],
    /// Which input it is of.
    pub(super) input: u32,
}

/// What is counted of an input while it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Pages that are there: read, or shared already.
    pub(super) pages: u64,
    /// Read, and only zeros.
    pub(super) zero_pages: u64,
    /// Not read: the kernel's zero page.
    pub(super) zero_page_mapped_pages: u64,
    /// Not read: shared by KSM.
    pub(super) ksm_pages: u64,
    /// Not read: mapped from a bindery store.
    pub(super) store_pages: u64,
    /// Not there: in swap.
    pub(super) swapped_pages: u64,
    /// Unmapped while the scan went on.
    pub(super) vanished_pages: u64,
}

impl Counts {
    /// Pages that were shared already, of those that are there.
    pub(super) fn shared_pages(&self) -> u64 {
        self.ksm_pages + self.zero_page_mapped_pages + self.store_pages
    }

    /// Adds what another thread counted.
    pub(super) fn add(&mut self, other: &Self) {
        self.pages += other.pages;
        self.zero_pages += other.zero_pages;
        self.zero_page_mapped_pages += other.zero_page_mapped_pages;
        self.ksm_pages += other.ksm_pages;
        self.store_pages += other.store_pages;
        self.swapped_pages += other.swapped_pages;
        self.vanished_pages += other.vanished_pages;
    }
}

/// What one input would save on its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InputTally {
    pub(super) counts: Counts,
    /// Different contents among its pages, zero apart.
    pub(super) distinct_pages: u64,
    /// Pages, zero ones apart, whose content another page of the same input has already.
    pub(super) duplicate_pages: u64,
}

/// What all inputs would save.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// In the order of the inputs.
    pub(super) inputs: Vec<InputTally>,
    pub(super) total: Total,
}

/// Sums over all inputs. Pages that were shared already are in `pages` and `already_shared_pages`
/// alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Total {
    /// Pages that are there.
    pub(super) pages: u64,
    /// Of them, shared already: KSM's, a bindery store's, or the kernel's zero page.
    pub(super) already_shared_pages: u64,
    /// Only zeros.
    pub(super) zero_pages: u64,
    /// Different contents, zero apart.
    pub(super) distinct_pages: u64,
    /// Duplicates of a page of the same input.
    pub(super) duplicate_pages_inside: u64,
    /// Further pages that become duplicates once inputs share.
    pub(super) duplicate_pages_across: u64,
    /// Zero pages and duplicates: what merging would free, before its metadata.
    pub(super) saved_pages: u64,
}

/// Groups equal pages and counts them.
pub(super) fn tally(mut records: Vec<PageRecord>, counts: Vec<Counts>) -> Tally {
    // Equal pages come side by side, and among them those of one input.
    records.sort_unstable();
    let mut inputs: Vec<InputTally> =
        counts.iter().map(|&counts| InputTally { counts, ..InputTally::default() }).collect();
    let mut total = Total::default();
    for class in records.chunk_by(|a, b| a.digest == b.digest) {
        total.distinct_pages += 1;
        for of_one_input in class.chunk_by(|a, b| a.input == b.input) {
            let input = &mut inputs[of_one_input[0].input as usize];
            input.distinct_pages += 1;
            input.duplicate_pages += of_one_input.len() as u64 - 1;
        }
    }
    for input in &inputs {
        let counts = &input.counts;
        total.pages += counts.pages;
        total.already_shared_pages += counts.shared_pages();
        total.zero_pages += counts.zero_pages;
        total.duplicate_pages_inside += input.duplicate_pages;
    }
    let duplicate_pages = records.len() as u64 - total.distinct_pages;
    total.duplicate_pages_across = duplicate_pages - total.duplicate_pages_inside;
    total.saved_pages = total.zero_pages + duplicate_pages;
    Tally { inputs, total }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    proptest! {
        /// The naive way: one set of contents for each input and one for all.
        #[test]
        fn sums_are_those_of_sets(
            pages in prop::collection::vec((0_u64..12, 0_u64..2, 0_u32..4), 0..200)
        ) {
            let records: Vec<PageRecord> = pages
                .iter()
                .map(|&(high, low, input)| PageRecord { digest: [high, low], input })
                .collect();
            let tally = tally(records, vec![Counts::default(); 4]);
            let mut of_input: BTreeMap<u32, (u64, BTreeSet<_>)> = BTreeMap::new();
            let mut of_all = BTreeSet::new();
            for (high, low, input) in &pages {
                let (count, set) = of_input.entry(*input).or_default();
                *count += 1;
                set.insert((high, low));
                of_all.insert((high, low));
            }
            let mut inside = 0;
            for (input, (count, set)) in &of_input {
                let found = &tally.inputs[*input as usize];
                prop_assert_eq!(found.distinct_pages, set.len() as u64);
                prop_assert_eq!(found.duplicate_pages, count - set.len() as u64);
                inside += count - set.len() as u64;
            }
            prop_assert_eq!(tally.total.distinct_pages, of_all.len() as u64);
            prop_assert_eq!(tally.total.duplicate_pages_inside, inside);
            prop_assert_eq!(tally.total.saved_pages, (pages.len() - of_all.len()) as u64);
            prop_assert_eq!(tally.total.duplicate_pages_across, tally.total.saved_pages - inside);
        }
    }
}
