//! Lanes: the daemon asks, a thread of the guest's process works and answers.
//!
//! One request is outstanding at a time. A request is one 64-byte [`Request`] on the lane's
//! `SOCK_SEQPACKET` socket, with its array (if any) at the start of the window, and for an [`Op::Merge`] one
//! descriptor for each segment of the store that its runs touch; an answer is one
//! 64-byte [`Answer`], with its array at [`ANSWER_OFFSET`]. The window is a memfd of
//! [`WINDOW_BYTES`] made by the daemon and sealed at that length: a shim maps it, and refuses another.
//!
//! All integers are little-endian and naturally aligned; unused fields are zero.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// The shared window of a lane, in bytes.
pub const WINDOW_BYTES: usize = 1 << 20;

/// Where the numbers of the segments of a `Merge` request begin in the window, `u32` each.
pub const SEGMENTS_OFFSET: usize = 128 * 1024;

/// Where the answer's array begins in the window. The request's arrays are before it.
pub const ANSWER_OFFSET: usize = SEGMENTS_OFFSET + 4096;

/// The most pages that one `Digest` request may name: their answers fit the window.
pub const DIGEST_PAGES_MAX: usize = 32 * 1024;

/// The most pages that one `Fetch` request may name.
pub const FETCH_PAGES_MAX: usize = (WINDOW_BYTES - ANSWER_OFFSET) / 4096 - 1;

/// The most runs of one `Merge` request.
pub const MERGE_RUNS_MAX: usize = 8 * 1024;

/// The most pages that all runs of one `Merge` request may have together.
pub const MERGE_PAGES_MAX: usize = 512 * 1024;

/// The most segments that all runs of one `Merge` request may touch: their descriptors fit one message, and
/// few guests have no room for as many.
pub const SEGMENTS_MAX: usize = 200;

/// Pages of a block: what one huge page holds. Blocks begin at multiples of this. Two regions have pages of one
/// only where a region was cut there.
pub const BLOCK_PAGES: u32 = 512;

/// The most blocks that one `Sample`, `Split` or `Collapse` request may name.
pub const BLOCKS_MAX: usize = 8 * 1024;

/// The longest single run: bounds how long a guest's thread can wait for a page in transit.
pub const RUN_PAGES_MAX: u32 = 64;

/// Operation that a [`Request`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(u32)]
pub enum Op {
    /// Reports which pages of `first..first+count` were written since the last scan, and write-protects
    /// them again; in blocks that are split, or by `reach` in all. Answer: [`PageSpan`]s, ascending among those that are gone and among those that are
    /// not; `resume_at` if the window was full.
    Scan = 1,
    /// Reports which merged pages were written (broken) or discarded since last asked. Answer: [`Lost`]s;
    /// `more` is non-zero while there are more.
    Lost = 2,
    /// Digests the pages named (`u32` each). Answer: one [`PageDigest`] each.
    Digest = 3,
    /// Copies the pages named (`u32` each, at most [`FETCH_PAGES_MAX`]). Answer: one flag byte each (1
    /// copied, 0 absent), padded to 4096 bytes, then 4096 bytes for each page named, which mean nothing
    /// for one that is absent.
    Fetch = 4,
    /// Merges the [`Run`]s named with store `store`, of which `segments` segments come along: their numbers
    /// at [`SEGMENTS_OFFSET`], ascending, and as many read-only descriptors with the request, in the same
    /// order. Runs touch no other segments. Answer: one [`PageOutcome`] for each page, in the order of the
    /// runs. [`Status::Failed`] if nothing was done, for want of descriptors or memory.
    Merge = 5,
    /// Makes all merged pages of `first..first+count` private again. Answer: `count` pages done, and
    /// `resume_at` when it stopped after a bounded amount of work.
    Unmerge = 6,
    /// Reports which pages of `first..first+count` are merged, and with what. Answer: [`MergedSpan`]s,
    /// ascending; `resume_at` if the window was full.
    Report = 7,
    /// Joins mappings that breaks left apart in `first..first+count`. Answer: `count` mappings saved.
    Mend = 8,
    /// Reports which pages of `first..first+count` are there and the guest's own, written or not, and
    /// write-protects those that were. For a daemon that does not know what was reported before: it is
    /// new, or an answer never came. Reaches and answers as [`Op::Scan`].
    Survey = 9,
    /// Samples the blocks named (`u32` each, the first page, at most [`BLOCKS_MAX`]), and changes nothing.
    /// Answer: one [`BlockSample`] each.
    Sample = 10,
    /// Splits the blocks named, so that their pages can be watched and merged; those that are written from
    /// now on are reported by scans. Answer: one [`BlockOutcome`] each.
    Split = 11,
    /// Makes the blocks named whole again, and huge where they may be: their merged pages become private
    /// first, and are reported as lost. Answer: one [`BlockOutcome`] each, fewer when it stopped after a
    /// bounded amount of work.
    Collapse = 12,
}

/// Reach of an [`Op::Scan`] or [`Op::Survey`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(u32)]
pub enum Reach {
    /// Blocks that are split.
    #[default]
    Split = 0,
    /// All blocks. Writes are tracked in whole ones, too, from the first request on that says so until the
    /// next that does not; in the first answer all their pages that are there count as written.
    All = 1,
}

/// State of a block.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(u32)]
pub enum BlockState {
    /// No longer managed.
    #[default]
    Unmanaged = 0,
    /// Whole, and nothing is there but zeros that the kernel made.
    Absent = 1,
    /// Whole, and of small pages.
    Small = 2,
    /// Whole, and a huge page.
    Huge = 3,
    /// Split.
    Split = 4,
}

/// Outcome of one block of an [`Op::Split`] or [`Op::Collapse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(u8)]
pub enum BlockOutcome {
    /// Split block.
    Split = 1,
    /// Whole block.
    Whole = 2,
    /// Whole block that is a huge page.
    Huge = 3,
    /// Block left as it was: for want of mappings or memory, because a page of it is pinned or locked or was
    /// copied inside a mapping of the store, or because another userfaultfd has it.
    Stuck = 4,
    /// Block that is no longer managed.
    Unmanaged = 5,
}

/// Status of an [`Answer`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(u32)]
pub enum Status {
    /// Done.
    #[default]
    Done = 0,
    /// The request made no sense to the shim (a length, an index, an unknown operation).
    Refused = 1,
    /// The kernel refused something that retrying will not change; `errno` says what.
    Failed = 2,
}

/// Outcome of one page of an [`Op::Merge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(u8)]
pub enum PageOutcome {
    /// The page is now the slot's (or, for a run of zeros, the kernel's zero page).
    Merged = 1,
    /// Its bytes are not those expected; it was left as it is.
    Different = 2,
    /// The kernel would not move it now (pinned, shared by fork, absent): try in a later period.
    Busy = 3,
    /// There is no room for more mappings in the process.
    NoMappings = 4,
    /// It was merged already, with this very slot.
    Already = 5,
    /// It can never be merged (locked memory, a page that was copied inside a mapping of the
    /// store, a page no longer managed).
    Never = 6,
}

/// Presence of the pages of a [`PageSpan`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(u32)]
pub enum Presence {
    /// They are the guest's own.
    #[default]
    Present = 0,
    /// They were written and then merged, or discarded, or replaced by the kernel's zero page, before any scan
    /// could report them; those that are the guest's own again and were written are reported as present as well.
    Gone = 1,
}

/// Cause for which a page is no longer merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(u32)]
pub enum LossCause {
    /// The guest wrote to it.
    Write = 1,
    /// The guest discarded it (`MADV_DONTNEED`).
    Discard = 2,
    /// An unmerge was requested.
    Unmerge = 3,
}

/// Kind of a page's content.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(u64)]
pub enum DigestKind {
    /// None: the page is absent or no longer managed.
    #[default]
    Nothing = 0,
    /// Only zeros.
    Zeros = 1,
    /// Something, of which there is a digest.
    Content = 2,
}

/// Target that the pages of a [`Run`] are merged with.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(u32)]
pub enum RunTarget {
    /// Slots of the store.
    #[default]
    Slots = 0,
    /// The kernel's page of zeros; `slot` does not matter.
    Zeros = 1,
}

/// A question to a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Request {
    /// Operation asked for.
    pub op: Op,
    /// For [`Op::Merge`]: which store.
    pub store: u32,
    /// For ranges: the first page.
    pub first: u32,
    /// For ranges: how many pages. For arrays: how many elements.
    pub count: u32,
    /// For [`Op::Merge`]: how many segments come along.
    pub segments: u32,
    /// For [`Op::Scan`] and [`Op::Survey`]: which blocks.
    pub reach: Reach,
    /// Zero.
    pub unused: [u32; 10],
}

impl Request {
    /// Makes a request about no page.
    #[must_use]
    pub const fn of(op: Op) -> Self {
        let reach = Reach::Split;
        Self { op, store: 0, first: 0, count: 0, segments: 0, reach, unused: [0; 10] }
    }
}

/// A lane's answer.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct Answer {
    /// Status of the operation.
    pub status: Status,
    /// The kernel's error number, for [`Status::Failed`].
    pub errno: u32,
    /// How many elements the array has, or how many pages were done.
    pub count: u32,
    /// Non-zero if there is more to come: ask again.
    pub more: u32,
    /// Where to go on, if `more`.
    pub resume_at: u32,
    /// Mappings that the process has now, as the shim counts them.
    pub mappings: u32,
    /// Mappings it may have before merging stops, reserve already taken off.
    pub mappings_max: u32,
    /// Pages brought back by breaks since the process came under management (wraps).
    pub breaks: u32,
    /// CPU time of the lane's thread so far, in nanoseconds.
    pub lane_cpu_ns: u64,
    /// CPU time of the shim's fault handlers so far, in nanoseconds.
    pub handler_cpu_ns: u64,
    /// The longest transit since the last answer, in nanoseconds: the longest that a guest's
    /// thread can have waited for a page.
    pub transit_max_ns: u64,
    /// Zero.
    pub unused: u64,
}

/// A run of consecutive pages that were written, or are there.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct PageSpan {
    /// The first page.
    pub first: u32,
    /// How many.
    pub count: u32,
    /// Presence of all of them.
    pub presence: Presence,
}

/// A merged page that its guest wrote to or discarded. The shim maps `slot` for it no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Lost {
    /// The page.
    pub page: u32,
    /// The slot it was mapped from.
    pub slot: u32,
    /// The store of that slot.
    pub store: u32,
    /// Why.
    pub cause: LossCause,
}

/// What a page holds.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct PageDigest {
    /// Kind of its content.
    pub kind: DigestKind,
    /// The 128-bit digest of [`DigestKind::Content`].
    pub digest: [u64; 2],
}

/// Sample of a block.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct BlockSample {
    /// State of the block.
    pub state: BlockState,
    /// Non-zero if the machine and the VMM want huge pages there, and there is room for one.
    pub may_be_huge: u32,
    /// For a huge one: a digest of some of its bytes, always the same ones, which says that it was written
    /// if it changes, and says nothing if it does not.
    pub signature: u64,
}

/// Consecutive pages to be merged with consecutive slots.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct Run {
    /// The first page.
    pub page: u32,
    /// How many, at most [`RUN_PAGES_MAX`].
    pub count: u32,
    /// The slot of the first page.
    pub slot: u32,
    /// Target of all of them; each is expected to be equal to it.
    pub target: RunTarget,
}

/// Consecutive pages that are merged with consecutive slots of one store.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct MergedSpan {
    /// The first page.
    pub page: u32,
    /// How many.
    pub count: u32,
    /// The slot of the first page.
    pub slot: u32,
    /// The store.
    pub store: u32,
}

const _: () = {
    assert!(size_of::<Request>() == 64 && size_of::<Answer>() == 64);
    assert!(DIGEST_PAGES_MAX * 4 <= ANSWER_OFFSET);
    assert!(BLOCKS_MAX * 4 <= ANSWER_OFFSET);
    assert!(ANSWER_OFFSET + BLOCKS_MAX * size_of::<BlockSample>() <= WINDOW_BYTES);
    assert!(ANSWER_OFFSET + DIGEST_PAGES_MAX * size_of::<PageDigest>() <= WINDOW_BYTES);
    assert!(MERGE_RUNS_MAX * size_of::<Run>() <= SEGMENTS_OFFSET);
    assert!(SEGMENTS_OFFSET + SEGMENTS_MAX * size_of::<u32>() <= ANSWER_OFFSET);
    assert!(SEGMENTS_MAX <= bindery_sys::socket::FDS_MAX_OF_KERNEL);
    assert!(ANSWER_OFFSET + MERGE_PAGES_MAX <= WINDOW_BYTES);
    assert!(FETCH_PAGES_MAX * 4 <= ANSWER_OFFSET);
    assert!(ANSWER_OFFSET + 4096 * (1 + FETCH_PAGES_MAX) <= WINDOW_BYTES);
};
