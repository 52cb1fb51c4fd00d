//! A slot's bitmap on its way into a set: the parts that are not zero, at the slot's place.

use std::ops::Range;

use bindery_units::PageIndex;

use crate::marks::Marks;

/// Words that are tested at once: a cache line.
const BLOCK: usize = 8;

/// The parts of `words` that have a bit set, in whole blocks (the last may be shorter), ascending,
/// with a block of zeros between any two. 0.1 ns a word of zeros from the L2 cache.
pub(super) fn dirty_parts(words: &[u64], parts: &mut Vec<Range<usize>>) {
    parts.clear();
    for (block, start) in words.chunks(BLOCK).zip((0..).step_by(BLOCK)) {
        if block.iter().fold(0, |all, word| all | word) == 0 {
            continue;
        }
        let end = start + block.len();
        match parts.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => parts.push(start..end),
        }
    }
}

/// `parts` with those joined that have at most `gap` words between them.
pub(super) fn joined(parts: &[Range<usize>], gap: usize) -> impl Iterator<Item = Range<usize>> {
    let mut rest = parts.iter().cloned();
    let mut current = rest.next();
    std::iter::from_fn(move || {
        let mut part = current.take()?;
        for next in rest.by_ref() {
            if next.start - part.end > gap {
                current = Some(next);
                break;
            }
            part.end = next.end;
        }
        Some(part)
    })
}

/// How many bits are set.
pub(super) fn count(words: &[u64]) -> u64 {
    words.iter().map(|word| u64::from(word.count_ones())).sum()
}

/// Marks the pages of `words`, whose lowest bit is page `first`.
pub(super) fn mark(marks: &dyn Marks, first: PageIndex, words: &[u64]) {
    let (first_word, shift) = (first.at() / 64, first.0 % 64);
    if shift == 0 {
        marks.mark_words(first_word, words);
    } else {
        mark_shifted(marks, first_word, shift, words);
    }
}

/// The same, `shift` bits into `first_word`.
fn mark_shifted(marks: &dyn Marks, first_word: usize, shift: u32, words: &[u64]) {
    const PIECE: usize = 64;
    let mut carry = 0;
    for (piece, start) in words.chunks(PIECE).zip((first_word..).step_by(PIECE)) {
        let mut moved = [0; PIECE];
        for (moved, word) in moved.iter_mut().zip(piece) {
            *moved = word << shift | carry;
            carry = word >> (64 - shift);
        }
        marks.mark_words(start, &moved[..piece.len()]);
    }
    // Only if there is something: the word may lie behind the end of the set.
    if carry != 0 {
        marks.mark_words(first_word + words.len(), &[carry]);
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, collections::BTreeSet};

    use bindery_units::PageRange;
    use proptest::prelude::*;

    use super::*;

    #[derive(Default)]
    struct Set(RefCell<BTreeSet<u64>>);

    impl Marks for Set {
        fn mark(&self, page: PageIndex) {
            self.0.borrow_mut().insert(page.0.into());
        }

        fn mark_range(&self, pages: PageRange) {
            pages.pages().for_each(|page| self.mark(page));
        }

        fn mark_words(&self, first_word: usize, words: &[u64]) {
            self.0.borrow_mut().extend(bits(first_word as u64 * 64, words));
        }
    }

    fn bits(first: u64, words: &[u64]) -> BTreeSet<u64> {
        let is_set = |at: u64| words[at as usize / 64] >> (at % 64) & 1 == 1;
        (0..words.len() as u64 * 64).filter(|at| is_set(*at)).map(|at| first + at).collect()
    }

    fn sparse_words() -> impl Strategy<Value = Vec<u64>> {
        let word =
            prop_oneof![20 => Just(0), 1 => any::<u64>(), 1 => Just(u64::MAX), 1 => Just(1 << 63)];
        prop::collection::vec(word, 0..300)
    }

    proptest! {
        #[test]
        fn every_page_is_marked_at_its_place(first in 0_u32..1000, words in sparse_words()) {
            let set = Set::default();
            let mut parts = Vec::new();
            dirty_parts(&words, &mut parts);
            for part in &parts {
                let at = PageIndex(first + part.start as u32 * 64);
                mark(&set, at, &words[part.clone()]);
            }
            prop_assert_eq!(set.0.into_inner(), bits(first.into(), &words));
            let counted: u64 = parts.iter().map(|part| count(&words[part.clone()])).sum();
            prop_assert_eq!(counted, bits(0, &words).len() as u64);
        }

        #[test]
        fn joined_parts_cover_the_same_words(words in sparse_words(), gap in 0_usize..40) {
            let mut parts = Vec::new();
            dirty_parts(&words, &mut parts);
            let whole: Vec<_> = joined(&parts, gap).collect();
            for part in &parts {
                let holds = |whole: &Range<usize>| whole.start <= part.start && part.end <= whole.end;
                prop_assert!(whole.iter().any(holds));
            }
            prop_assert!(whole.windows(2).all(|two| two[0].end + gap < two[1].start));
            for whole in &whole {
                prop_assert!(parts.iter().any(|part| part.start == whole.start));
                prop_assert!(parts.iter().any(|part| part.end == whole.end));
            }
        }
    }

    #[test]
    fn a_word_of_zeros_behind_the_last_is_not_touched() {
        struct Narrow;
        impl Marks for Narrow {
            fn mark(&self, _: PageIndex) {}
            fn mark_range(&self, _: PageRange) {}
            fn mark_words(&self, first_word: usize, words: &[u64]) {
                assert!(first_word + words.len() <= 2);
            }
        }
        // 70 pages from page 58 on: the last is page 127.
        mark(&Narrow, PageIndex(58), &[u64::MAX, 0x3f]);
    }
}
