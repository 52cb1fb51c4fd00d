//! Work of a lane: one method for each request of [`wire::lane`](bindery_wire::lane).

use std::os::fd::BorrowedFd;

use bindery_units::{PageIndex, PageRange};
use bindery_wire::control::StoreId;
use bindery_wire::lane::{
    BlockOutcome, BlockSample, Lost, MergedSpan, PageDigest, PageOutcome, PageSpan, Reach, Run,
};

use crate::{Fetched, GuestError};

/// Where to go on, if an answer did not cover the whole range.
pub type Resume = Option<PageIndex>;

/// A thread in a guest's process that works on its pages on request.
///
/// Every method blocks until the answer is there, at most [`ANSWER_PATIENCE`](crate::ANSWER_PATIENCE).
/// What output vectors held before is gone. Whatever is returned has been checked: spans are within the
/// range asked for, ascending and not empty; there are as many digests, flags and outcomes as pages
/// asked for. On an error nothing is known about what the guest did, or will still do once it goes
/// on.
pub trait Lane: Send {
    /// Which present pages of `range` were written since they were last scanned, and which are
    /// [gone](bindery_wire::lane::Presence::Gone) that were written before, or discarded; in the blocks
    /// that `reach` says.
    ///
    /// # Errors
    /// [`GuestError`].
    fn scan(
        &mut self,
        reach: Reach,
        range: PageRange,
        written: &mut Vec<PageSpan>,
    ) -> Result<Resume, GuestError>;

    /// Which pages of `range` are present and private, whether they were written or not. What was
    /// not known, or is not known any more, is known again. Otherwise as [`scan`](Self::scan).
    ///
    /// # Errors
    /// [`GuestError`].
    fn survey(
        &mut self,
        reach: Reach,
        range: PageRange,
        present: &mut Vec<PageSpan>,
    ) -> Result<Resume, GuestError>;

    /// Which merged pages were lost, each told once. True while there are more.
    ///
    /// # Errors
    /// [`GuestError`].
    fn lost(&mut self, lost: &mut Vec<Lost>) -> Result<bool, GuestError>;

    /// Digests pages: at most [`DIGEST_PAGES_MAX`](bindery_wire::lane::DIGEST_PAGES_MAX).
    ///
    /// # Errors
    /// [`GuestError`].
    fn digest(&mut self, pages: &[u32], digests: &mut Vec<PageDigest>) -> Result<(), GuestError>;

    /// Copies pages: at most [`FETCH_PAGES_MAX`](bindery_wire::lane::FETCH_PAGES_MAX).
    ///
    /// # Errors
    /// [`GuestError`].
    fn fetch(&mut self, pages: &[u32], fetched: &mut Fetched) -> Result<(), GuestError>;

    /// Merges runs with slots of `store`, in `segments`: at most
    /// [`SEGMENTS_MAX`](bindery_wire::lane::SEGMENTS_MAX), ascending, and among them all that the runs
    /// touch. The outcomes are in the order of the runs' pages.
    ///
    /// # Errors
    /// [`GuestError`]; [`GuestError::Refused`] and [`GuestError::Failed`] say that nothing was done.
    fn merge(
        &mut self,
        store: StoreId,
        segments: &[Segment<'_>],
        runs: &[Run],
        outcomes: &mut Vec<PageOutcome>,
    ) -> Result<(), GuestError>;

    /// Makes merged pages of `range` private again, a bounded number of them.
    ///
    /// # Errors
    /// [`GuestError`].
    fn unmerge(&mut self, range: PageRange) -> Result<Unmerged, GuestError>;

    /// Which pages of `range` are merged, and with what.
    ///
    /// # Errors
    /// [`GuestError`].
    fn report(
        &mut self,
        range: PageRange,
        merged: &mut Vec<MergedSpan>,
    ) -> Result<Resume, GuestError>;

    /// Joins mappings that breaks left apart in `range`. Returns how many were saved.
    ///
    /// # Errors
    /// [`GuestError`].
    fn mend(&mut self, range: PageRange) -> Result<u32, GuestError>;

    /// Samples the blocks that begin with each of `blocks`, at most
    /// [`BLOCKS_MAX`](bindery_wire::lane::BLOCKS_MAX), and changes nothing.
    ///
    /// # Errors
    /// [`GuestError`].
    fn sample(&mut self, blocks: &[u32], samples: &mut Vec<BlockSample>) -> Result<(), GuestError>;

    /// Splits the blocks that begin with each of `blocks`, at most
    /// [`BLOCKS_MAX`](bindery_wire::lane::BLOCKS_MAX).
    ///
    /// # Errors
    /// [`GuestError`].
    fn split(&mut self, blocks: &[u32], outcomes: &mut Vec<BlockOutcome>)
    -> Result<(), GuestError>;

    /// Makes the blocks whole that begin with each of `blocks`, at most
    /// [`BLOCKS_MAX`](bindery_wire::lane::BLOCKS_MAX), or the first ones of them: there are fewer outcomes
    /// then, but one at least.
    ///
    /// # Errors
    /// [`GuestError`].
    fn collapse(
        &mut self,
        blocks: &[u32],
        outcomes: &mut Vec<BlockOutcome>,
    ) -> Result<(), GuestError>;

    /// What the last answer said about the guest as a whole. The sums start anew.
    fn gauges(&mut self) -> Gauges;

    /// Gives back memory that large answers took. For a lane that nobody waits for.
    fn rest(&mut self) {}

    /// Whether an answer is outstanding that nobody waits for any more.
    fn owes(&self) -> bool;

    /// Takes an answer that came late and forgets it. Never blocks. True if the lane owes nothing
    /// (any more) and can be used.
    ///
    /// # Errors
    /// [`GuestError`].
    fn settle(&mut self) -> Result<bool, GuestError>;
}

/// A segment of a store: its number, and its file, open for reading alone.
pub type Segment<'a> = (u32, BorrowedFd<'a>);

/// What an unmerge request did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unmerged {
    /// Pages that are private again.
    pub pages: u32,
    /// Where to go on, if the range is not done.
    pub resume: Resume,
}

/// What a guest's process says about itself with each answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Mappings that the process has.
    pub mappings: u32,
    /// Mappings that it may have before merging has to stop. 0 if no answer came since the gauges were last taken:
    /// then the number above is old.
    pub mappings_max: u32,
    /// CPU time of this lane since the gauges were last taken, in nanoseconds.
    pub lane_cpu_ns: u64,
    /// CPU time of the process's fault handlers in all, in nanoseconds.
    pub handler_cpu_ns: u64,
    /// The longest transit since the gauges were last taken, in nanoseconds.
    pub transit_max_ns: u64,
}
