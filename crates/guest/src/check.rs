//! Checks of what a guest answers. Pure: answers in, nonsense found.

use bindery_units::{PageIndex, PageRange};
use bindery_wire::lane::{Answer, MergedSpan, PageSpan, Presence, Run};

use crate::{GuestError, Resume};

fn require(holds: bool, what: &'static str) -> Result<(), GuestError> {
    if holds { Ok(()) } else { Err(GuestError::nonsense(what)) }
}

/// The number of elements of an answer's array that has room for `most`.
pub(crate) fn count(answer: &Answer, most: usize) -> Result<usize, GuestError> {
    let count = answer.count as usize;
    require(count <= most, "an answer with more elements than there is room for")?;
    Ok(count)
}

/// The number of elements of an answer that must have `expected`.
pub(crate) fn exact_count(answer: &Answer, expected: usize) -> Result<usize, GuestError> {
    require(answer.count as usize == expected, "an answer with another count than asked for")?;
    Ok(expected)
}

/// The number of elements of an answer that may be about the first of `asked` alone, so that asking ends.
pub(crate) fn part_count(answer: &Answer, asked: usize) -> Result<usize, GuestError> {
    let count = answer.count as usize;
    require(count <= asked && (count > 0 || asked == 0), "an answer about another number")?;
    Ok(count)
}

/// Where an answer about `range` says to go on. Always further on, so that asking ends.
pub(crate) fn resume(answer: &Answer, range: PageRange) -> Result<Resume, GuestError> {
    if answer.more == 0 {
        return Ok(None);
    }
    let at = PageIndex(answer.resume_at);
    require(at > range.first && at < range.end(), "an answer that goes on outside its range")?;
    Ok(Some(at))
}

/// The part of `range` that an answer covers.
fn covered(range: PageRange, resume: Resume) -> PageRange {
    match resume {
        Some(at) => PageRange::new(range.first, at.0 - range.first.0),
        None => range,
    }
}

/// Spans are not empty, ascending, and within what is covered.
fn ascending(
    spans: impl Iterator<Item = (u32, u32)>,
    range: PageRange,
    resume: Resume,
) -> Result<(), GuestError> {
    let covered = covered(range, resume);
    let mut free_from = covered.first.0;
    for (first, count) in spans {
        let end = first.checked_add(count).filter(|end| *end <= covered.end().0);
        require(count > 0 && first >= free_from, "spans that are empty or not ascending")?;
        free_from = end.ok_or_else(|| GuestError::nonsense("a span outside what was asked for"))?;
    }
    Ok(())
}

/// Checks the spans of an answer to a scan: those of pages that are gone lie among the others.
pub(crate) fn spans(
    spans: &[PageSpan],
    range: PageRange,
    resume: Resume,
) -> Result<(), GuestError> {
    let alike = |presence| {
        let alike = spans.iter().filter(move |span| span.presence == presence);
        alike.map(|span| (span.first, span.count))
    };
    ascending(alike(Presence::Present), range, resume)?;
    // They are reported as a whole, and then what is there again is looked for.
    ascending(alike(Presence::Gone), range, None)
}

/// Checks the spans of a report.
pub(crate) fn merged_spans(
    spans: &[MergedSpan],
    range: PageRange,
    resume: Resume,
) -> Result<(), GuestError> {
    ascending(spans.iter().map(|span| (span.page, span.count)), range, resume)?;
    let in_slots = |span: &MergedSpan| span.slot.checked_add(span.count).is_some();
    require(spans.iter().all(in_slots), "a report of slots that no store has")
}

/// How many pages `runs` have together.
pub(crate) fn pages_of(runs: &[Run]) -> usize {
    runs.iter().map(|run| run.count as usize).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(first: u32, count: u32) -> PageRange {
        PageRange::new(PageIndex(first), count)
    }

    proptest! {
        /// Accepted spans name each page at most once, in order, and none that was not asked for (or not
        /// reached, unless it is gone); rejected ones break one of these.
        #[test]
        fn spans_are_accepted_exactly_when_they_make_sense(
            list in prop::collection::vec((0u32..40, 0u32..6, any::<bool>()), 0..6),
            huge in prop::option::of(0usize..6),
            first in 0u32..20, count in 0u32..20, resume in prop::option::of(0u32..20),
        ) {
            let range = range(first, count);
            let resume = resume
                .map(|offset| PageIndex(first + offset))
                .filter(|at| *at > range.first && *at < range.end());
            let presence = |gone| if gone { Presence::Gone } else { Presence::Present };
            let span = |(first, count, gone)| PageSpan { first, count, presence: presence(gone) };
            let mut list: Vec<_> = list.into_iter().map(span).collect();
            if let Some(at) = huge && at < list.len() {
                list[at].count = u32::MAX;
            }
            let sensible = |presence, end: PageIndex| {
                let alike = list.iter().filter(|s| s.presence == presence);
                let pages: Vec<u64> = alike
                    .flat_map(|s| u64::from(s.first)..u64::from(s.first) + u64::from(s.count).min(99))
                    .collect();
                pages.is_sorted_by(|a, b| a < b)
                    && pages.iter().all(|p| (u64::from(first)..u64::from(end.0)).contains(p))
            };
            let sensible = list.iter().all(|s| s.count > 0)
                && sensible(Presence::Present, resume.unwrap_or(range.end()))
                && sensible(Presence::Gone, range.end());
            prop_assert_eq!(spans(&list, range, resume).is_ok(), sensible);
        }
    }

    #[test]
    fn going_on_is_always_further_on() {
        let answer = |resume_at| Answer { more: 1, resume_at, ..Answer::default() };
        assert_eq!(resume(&answer(15), range(10, 10)).unwrap(), Some(PageIndex(15)));
        for nonsense in [0, 9, 10, 20, u32::MAX] {
            assert!(resume(&answer(nonsense), range(10, 10)).is_err());
        }
    }

    #[test]
    fn counts_are_bounded() {
        let answer = Answer { count: 7, ..Answer::default() };
        assert!(count(&answer, 6).is_err() && count(&answer, 7).is_ok());
        assert!(exact_count(&answer, 6).is_err() && exact_count(&answer, 8).is_err());
    }

    #[test]
    fn slots_are_some_stores() {
        let beyond = MergedSpan { page: 0, count: 2, slot: u32::MAX, store: 1 };
        assert!(merged_spans(&[beyond], range(0, 4), None).is_err());
    }
}
