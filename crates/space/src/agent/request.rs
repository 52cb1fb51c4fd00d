//! What a lane is asked to do, as far as that makes sense. Pure.
//!
//! Every number is checked here, before anything of the space is touched. A page that is not managed
//! (any more) is sense, though: regions go while requests are on their way.

use bindery_units::{PageIndex, PageRange};

use bindery_wire::control::{SLOTS_MAX, STORE_MAX, StoreId};
use bindery_wire::lane::{
    BLOCKS_MAX, DIGEST_PAGES_MAX, FETCH_PAGES_MAX, MERGE_PAGES_MAX, MERGE_RUNS_MAX, Op,
    RUN_PAGES_MAX, Reach, Request, Run, RunTarget, SEGMENTS_MAX,
};

/// A request that makes sense by itself; arrays, as long as said here, follow in the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    Scan(PageRange, Reach),
    Survey(PageRange, Reach),
    Lost,
    Digest { pages: usize },
    Fetch { pages: usize },
    Merge { store: StoreId, runs: usize, segments: usize },
    Unmerge(PageRange),
    Report(PageRange),
    Mend(PageRange),
    Sample { blocks: usize },
    Split { blocks: usize },
    Collapse { blocks: usize },
}

impl Task {
    /// The request's task; `None` if it makes no sense.
    pub(super) fn of(request: &Request) -> Option<Self> {
        let of_merges_alone = [request.store, request.segments] != [0; 2];
        let of_scans_alone = request.reach != Reach::Split;
        if request.unused != [0; 10]
            || (of_merges_alone && request.op != Op::Merge)
            || (of_scans_alone && !matches!(request.op, Op::Scan | Op::Survey))
        {
            return None;
        }
        let array = |max: usize| {
            let count = request.count as usize;
            (request.first == 0 && count <= max).then_some(count)
        };
        match request.op {
            Op::Scan => range(request).map(|range| Self::Scan(range, request.reach)),
            Op::Survey => range(request).map(|range| Self::Survey(range, request.reach)),
            Op::Lost => array(0).map(|_| Self::Lost),
            Op::Digest => array(DIGEST_PAGES_MAX).map(|pages| Self::Digest { pages }),
            Op::Fetch => array(FETCH_PAGES_MAX).map(|pages| Self::Fetch { pages }),
            Op::Merge => {
                let store = u8::try_from(request.store).ok().filter(|store| *store <= STORE_MAX)?;
                let segments = request.segments as usize;
                let runs = array(MERGE_RUNS_MAX).filter(|_| segments <= SEGMENTS_MAX)?;
                Some(Self::Merge { store: StoreId(store), runs, segments })
            }
            Op::Unmerge => range(request).map(Self::Unmerge),
            Op::Report => range(request).map(Self::Report),
            Op::Mend => range(request).map(Self::Mend),
            Op::Sample => array(BLOCKS_MAX).map(|blocks| Self::Sample { blocks }),
            Op::Split => array(BLOCKS_MAX).map(|blocks| Self::Split { blocks }),
            Op::Collapse => array(BLOCKS_MAX).map(|blocks| Self::Collapse { blocks }),
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
            && match run.target {
                RunTarget::Slots => slots_end.is_some_and(|end| end <= SLOTS_MAX),
                RunTarget::Zeros => true,
            }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::TryFromBytes;

    fn request(op: Op, store: u32, first: u32, count: u32) -> Request {
        Request { store, first, count, ..Request::of(op) }
    }

    /// Numbers near the edges, and any others.
    fn edge() -> impl Strategy<Value = u32> {
        prop_oneof![0u32..20, Just(u32::MAX), Just(u32::MAX - 1), any::<u32>()]
    }

    fn any_op() -> impl Strategy<Value = Op> {
        let known = |code: u32| Op::try_read_from_bytes(&code.to_ne_bytes()).expect("a known code");
        (Op::Scan as u32..=Op::Collapse as u32).prop_map(known)
    }

    proptest! {
        /// Whatever is accepted is within the bounds that the rest of the lane relies on.
        #[test]
        fn accepted_requests_are_within_bounds(
            op in any_op(), store in edge(), first in edge(), count in edge(), segments in edge(),
            unused in 0u32..2,
        ) {
            let mut request = Request { segments, ..request(op, store, first, count) };
            request.unused[7] = unused;
            match Task::of(&request) {
                None => {}
                Some(
                    Task::Scan(r, _)
                    | Task::Survey(r, _)
                    | Task::Unmerge(r)
                    | Task::Report(r)
                    | Task::Mend(r),
                ) => {
                    prop_assert_eq!(u64::from(r.first.0) + u64::from(r.count),
                        u64::from(r.end().0));
                }
                Some(
                    Task::Sample { blocks } | Task::Split { blocks } | Task::Collapse { blocks },
                ) => prop_assert!(blocks <= BLOCKS_MAX),
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
            parts in prop::collection::vec((edge(), 0u32..70, edge(), any::<bool>()), 0..8)
        ) {
            let target = |zeros| if zeros { RunTarget::Zeros } else { RunTarget::Slots };
            let run =
                |&(page, count, slot, zeros)| Run { page, count, slot, target: target(zeros) };
            let runs: Vec<Run> = parts.iter().map(run).collect();
            let sane = |run: &Run| {
                run.count > 0 && run.count <= RUN_PAGES_MAX
                    && u64::from(run.page) + u64::from(run.count) <= u64::from(u32::MAX)
                    && (run.target == RunTarget::Zeros
                        || u64::from(run.slot) + u64::from(run.count) <= u64::from(SLOTS_MAX))
            };
            prop_assert_eq!(are_runs(&runs), runs.iter().all(sane));
        }
    }

    #[test]
    fn each_operation_is_understood() {
        let some = PageRange::new(PageIndex(5), 9);
        assert_eq!(Task::of(&request(Op::Scan, 0, 5, 9)), Some(Task::Scan(some, Reach::Split)));
        let survey = Request { reach: Reach::All, ..request(Op::Survey, 0, 5, 9) };
        assert_eq!(Task::of(&survey), Some(Task::Survey(some, Reach::All)));
        assert_eq!(Task::of(&Request { op: Op::Mend, ..survey }), None);
        assert_eq!(Task::of(&request(Op::Sample, 0, 0, 3)), Some(Task::Sample { blocks: 3 }));
        assert_eq!(Task::of(&request(Op::Split, 0, 0, 3)), Some(Task::Split { blocks: 3 }));
        assert_eq!(Task::of(&request(Op::Collapse, 0, 0, 3)), Some(Task::Collapse { blocks: 3 }));
        assert_eq!(Task::of(&request(Op::Lost, 0, 0, 0)), Some(Task::Lost));
        assert_eq!(Task::of(&request(Op::Digest, 0, 0, 3)), Some(Task::Digest { pages: 3 }));
        assert_eq!(Task::of(&request(Op::Fetch, 0, 0, 3)), Some(Task::Fetch { pages: 3 }));
        let merge = Task::Merge { store: StoreId(2), runs: 4, segments: 3 };
        let asked = Request { segments: 3, ..request(Op::Merge, 2, 0, 4) };
        assert_eq!(Task::of(&asked), Some(merge));
        assert_eq!(Task::of(&Request { op: Op::Lost, store: 0, count: 0, ..asked }), None);
        assert_eq!(Task::of(&request(Op::Unmerge, 0, 5, 9)), Some(Task::Unmerge(some)));
        assert_eq!(Task::of(&request(Op::Report, 0, 5, 9)), Some(Task::Report(some)));
        assert_eq!(Task::of(&request(Op::Mend, 0, 5, 9)), Some(Task::Mend(some)));
    }

    #[test]
    fn too_many_pages_in_runs_are_refused() {
        let run = Run { page: 0, count: RUN_PAGES_MAX, slot: 0, target: RunTarget::Zeros };
        let fitting = MERGE_PAGES_MAX / RUN_PAGES_MAX as usize;
        assert!(are_runs(&vec![run; fitting]));
        assert!(!are_runs(&vec![run; fitting + 1]));
    }
}
