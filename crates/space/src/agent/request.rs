//! What a lane is asked to do, as far as that makes sense. Pure.
//!
//! Every number is checked here, before anything of the space is touched. A page that is not managed
//! (any more) is sense, though: regions go while requests are on their way.

use bindery_units::{PageIndex, PageRange};

use crate::entry::{SLOTS_MAX, STORE_MAX};
use crate::wire::control::StoreId;
use crate::wire::lane::{
    DIGEST_PAGES_MAX, FETCH_PAGES_MAX, MERGE_PAGES_MAX, MERGE_RUNS_MAX, RUN_PAGES_MAX, Request,
    Run, SEGMENTS_MAX, op,
};

/// A request that makes sense by itself; arrays, as long as said here, follow in the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    Scan(PageRange),
    Survey(PageRange),
    Lost,
    Digest { pages: usize },
    Fetch { pages: usize },
    Merge { store: StoreId, runs: usize, segments: usize },
    Unmerge(PageRange),
    Report(PageRange),
    Mend(PageRange),
}

impl Task {
    /// The request's task; `None` if it makes no sense.
    pub(super) fn of(request: &Request) -> Option<Self> {
        let of_merges_alone = [request.store, request.segments] != [0; 2];
        if request.unused != [0; 11] || (of_merges_alone && request.op != op::MERGE) {
            return None;
        }
        let array = |max: usize| {
            let count = request.count as usize;
            (request.first == 0 && count <= max).then_some(count)
        };
        match request.op {
            op::SCAN => range(request).map(Self::Scan),
            op::SURVEY => range(request).map(Self::Survey),
            op::LOST => array(0).map(|_| Self::Lost),
            op::DIGEST => array(DIGEST_PAGES_MAX).map(|pages| Self::Digest { pages }),
            op::FETCH => array(FETCH_PAGES_MAX).map(|pages| Self::Fetch { pages }),
            op::MERGE => {
                let store = u8::try_from(request.store).ok().filter(|store| *store <= STORE_MAX)?;
                let segments = request.segments as usize;
                let runs = array(MERGE_RUNS_MAX).filter(|_| segments <= SEGMENTS_MAX)?;
                Some(Self::Merge { store: StoreId(store), runs, segments })
            }
            op::UNMERGE => range(request).map(Self::Unmerge),
            op::REPORT => range(request).map(Self::Report),
            op::MEND => range(request).map(Self::Mend),
            _ => None,
        }
    }
}

fn range(request: &Request) -> Option<PageRange> {
    request.first.checked_add(request.count)?;
    Some(PageRange::new(PageIndex(request.first), request.count))
}

/// Whether every run, and all of them together, are within bounds.
pub(super) fn are_runs(runs: &[Run]) -> bool {
    let mut pages = 0;
    runs.iter().all(|run| {
        pages += run.count as usize;
        let slots_end = run.slot.checked_add(run.count);
        (1..=RUN_PAGES_MAX).contains(&run.count)
            && pages <= MERGE_PAGES_MAX
            && run.page.checked_add(run.count).is_some()
            && match run.zero {
                0 => slots_end.is_some_and(|end| end <= SLOTS_MAX),
                1 => true,
                _ => false,
            }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(op: u32, store: u32, first: u32, count: u32) -> Request {
        Request { op, store, first, count, ..Request::default() }
    }

    /// Numbers near the edges, and any others.
    fn edge() -> impl Strategy<Value = u32> {
        prop_oneof![0u32..20, Just(u32::MAX), Just(u32::MAX - 1), any::<u32>()]
    }

    proptest! {
        /// Whatever is accepted is within the bounds that the rest of the lane relies on.
        #[test]
        fn accepted_requests_are_within_bounds(
            op in edge(), store in edge(), first in edge(), count in edge(), segments in edge(),
            unused in 0u32..2,
        ) {
            let mut request = Request { segments, ..request(op, store, first, count) };
            request.unused[7] = unused;
            match Task::of(&request) {
                None => {}
                Some(
                    Task::Scan(r)
                    | Task::Survey(r)
                    | Task::Unmerge(r)
                    | Task::Report(r)
                    | Task::Mend(r),
                ) => {
                    prop_assert_eq!(u64::from(r.first.0) + u64::from(r.count),
                        u64::from(r.end().0));
                }
                Some(Task::Lost) => prop_assert_eq!(count, 0),
                Some(Task::Digest { pages }) => prop_assert!(pages <= DIGEST_PAGES_MAX),
                Some(Task::Fetch { pages }) => prop_assert!(pages <= FETCH_PAGES_MAX),
                Some(Task::Merge { store, runs, segments }) => {
                    prop_assert!(runs <= MERGE_RUNS_MAX && store.0 <= STORE_MAX);
                    prop_assert!(segments <= SEGMENTS_MAX);
                }
            }
        }

        #[test]
        fn accepted_runs_are_within_bounds(
            parts in prop::collection::vec((edge(), 0u32..70, edge(), 0u32..3), 0..8)
        ) {
            let run = |&(page, count, slot, zero)| Run { page, count, slot, zero };
            let runs: Vec<Run> = parts.iter().map(run).collect();
            let sane = |run: &Run| {
                run.count > 0 && run.count <= RUN_PAGES_MAX && run.zero <= 1
                    && u64::from(run.page) + u64::from(run.count) <= u64::from(u32::MAX)
                    && (run.zero == 1
                        || u64::from(run.slot) + u64::from(run.count) <= u64::from(SLOTS_MAX))
            };
            prop_assert_eq!(are_runs(&runs), runs.iter().all(sane));
        }
    }

    #[test]
    fn each_operation_is_understood() {
        let some = PageRange::new(PageIndex(5), 9);
        assert_eq!(Task::of(&request(op::SCAN, 0, 5, 9)), Some(Task::Scan(some)));
        assert_eq!(Task::of(&request(op::SURVEY, 0, 5, 9)), Some(Task::Survey(some)));
        assert_eq!(Task::of(&request(op::LOST, 0, 0, 0)), Some(Task::Lost));
        assert_eq!(Task::of(&request(op::DIGEST, 0, 0, 3)), Some(Task::Digest { pages: 3 }));
        assert_eq!(Task::of(&request(op::FETCH, 0, 0, 3)), Some(Task::Fetch { pages: 3 }));
        let merge = Task::Merge { store: StoreId(2), runs: 4, segments: 3 };
        let asked = Request { segments: 3, ..request(op::MERGE, 2, 0, 4) };
        assert_eq!(Task::of(&asked), Some(merge));
        assert_eq!(Task::of(&Request { op: op::LOST, store: 0, count: 0, ..asked }), None);
        assert_eq!(Task::of(&request(op::UNMERGE, 0, 5, 9)), Some(Task::Unmerge(some)));
        assert_eq!(Task::of(&request(op::REPORT, 0, 5, 9)), Some(Task::Report(some)));
        assert_eq!(Task::of(&request(op::MEND, 0, 5, 9)), Some(Task::Mend(some)));
        assert_eq!(Task::of(&request(0, 0, 0, 0)), None);
    }

    #[test]
    fn too_many_pages_in_runs_are_refused() {
        let run = Run { page: 0, count: RUN_PAGES_MAX, slot: 0, zero: 1 };
        let fitting = MERGE_PAGES_MAX / RUN_PAGES_MAX as usize;
        assert!(are_runs(&vec![run; fitting]));
        assert!(!are_runs(&vec![run; fitting + 1]));
    }
}
