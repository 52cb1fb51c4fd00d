//! The source: memory of a guest that the daemon fills on demand.
//!
//! One `SOCK_SEQPACKET` socket and one window for each `Bind` or `Rebind` of the [control
//! connection](super::control). Every message is one 16-byte frame, [`FromGuest`] or [`FromSource`]; neither side
//! waits for an answer before it sends the next. The window is a memfd of [`WINDOW_BYTES`] made by the daemon and
//! sealed at that length, of [`SLOTS`] slots: the daemon fills one, names it in a `Pages`, and may use it again
//! after the `Taken`.
//!
//! ```text
//! guest                                       daemon
//!  | Lacks …                            ->      |   after a Rebind: what is still missing, run by run
//!  | Bound | Failed                     ->      |   the first frame after a Bind
//!  |                <- Pages | Zeros | Damaged  |   pushed ahead, each page once
//!  | Taken (for each Pages)             ->      |
//!  | Fault                              ->      |   somebody waits for this page
//!  |                <- Pages | Zeros | Damaged  |   it, and pages around it
//!  | Complete                           ->      |   nothing is missing: both sides hang up
//! ```
//!
//! A process that asks in the place of a VMM without the library (`checkpoint-serve`) makes the socket, and is sent the window
//! first: its descriptor, with one byte. Then `Lacks` and `Bound` follow as after a `Rebind`. Such a guest ends with
//! `Complete` too if its process has ended.
//!
//! A page that the VMM has discarded or unmapped meanwhile is sent in vain. A daemon sends no page twice over one
//! socket: what it sent has arrived, or will.
//!
//! All integers are little-endian; unused fields are zero.

use bindery_units::{PAGE_BYTES, PageIndex, PageRange};
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// Number of pages that a slot of the window holds.
pub const SLOT_PAGES: u32 = 32;

/// Number of slots of a window.
pub const SLOTS: u32 = 16;

/// Length of a slot, in bytes.
pub const SLOT_BYTES: usize = SLOT_PAGES as usize * PAGE_BYTES;

/// Length of a source's window, in bytes.
pub const WINDOW_BYTES: usize = SLOTS as usize * SLOT_BYTES;

/// Runs of missing pages that are nearer to each other than this many pages are one `Lacks`.
pub const LACKS_GAP_PAGES: u32 = 64;

/// Kind of a [`FromGuest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(u32)]
pub enum GuestWord {
    /// The ranges are bound.
    Bound = 1,
    /// They could not be bound: `value` is the error, as in errno(3). The last frame.
    Failed = 2,
    /// Pages `first..first+count` are missing, with some among them that are not. Runs ascend within a range of
    /// the `Bind`, and reach no further.
    Lacks = 3,
    /// Somebody waits for page `first`.
    Fault = 4,
    /// Slot `value` can be used again.
    Taken = 5,
    /// No page is missing. The last frame.
    Complete = 6,
}

/// Frame from the guest to the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct FromGuest {
    /// Word of the frame.
    pub word: GuestWord,
    /// First page.
    pub first: u32,
    /// Number of pages.
    pub count: u32,
    /// Error or slot.
    pub value: u32,
}

impl FromGuest {
    /// Makes a frame about no pages.
    #[must_use]
    pub const fn of(word: GuestWord, value: u32) -> Self {
        Self { word, first: 0, count: 0, value }
    }

    /// Makes a frame about pages.
    #[must_use]
    pub const fn about(word: GuestWord, pages: PageRange) -> Self {
        Self { word, first: pages.first.0, count: pages.count, value: 0 }
    }

    /// Reads a frame. `None` for bytes that are none.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        Self::try_read_from_bytes(bytes).ok()
    }

    /// Returns its pages. `None` where they go beyond the last index.
    #[must_use]
    pub fn pages(&self) -> Option<PageRange> {
        pages(self.first, self.count)
    }
}

/// Kind of a [`FromSource`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(u32)]
pub enum SourceWord {
    /// Pages `first..first+count`, at most [`SLOT_PAGES`], are in slot `slot`, from its beginning.
    Pages = 1,
    /// Pages `first..first+count` are zero.
    Zeros = 2,
    /// The content of pages `first..first+count` is lost: whoever touches them gets `SIGBUS`.
    Damaged = 3,
}

/// Frame from the daemon to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct FromSource {
    /// Word of the frame.
    pub word: SourceWord,
    /// First page.
    pub first: u32,
    /// Number of pages.
    pub count: u32,
    /// Slot of the window.
    pub slot: u32,
}

impl FromSource {
    /// Makes a frame about pages.
    #[must_use]
    pub const fn about(word: SourceWord, pages: PageRange, slot: u32) -> Self {
        Self { word, first: pages.first.0, count: pages.count, slot }
    }

    /// Reads a frame that makes sense by itself: pages that have an index, and a slot that they fit in.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<(Self, PageRange)> {
        let frame = Self::try_read_from_bytes(bytes).ok()?;
        let pages = pages(frame.first, frame.count)?;
        let fits = frame.slot < SLOTS && (1..=SLOT_PAGES).contains(&frame.count);
        (frame.word != SourceWord::Pages || fits).then_some((frame, pages))
    }
}

fn pages(first: u32, count: u32) -> Option<PageRange> {
    first.checked_add(count)?;
    Some(PageRange::new(PageIndex(first), count))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Any bytes are a frame within bounds, or none.
        #[test]
        fn frames_that_are_read_are_within_bounds(
            bytes in prop::collection::vec(any::<u8>(), 12), word in 0u8..9, cut in 0usize..17
        ) {
            let mut frame = vec![word, 0, 0, 0];
            frame.extend(bytes);
            let read = FromSource::read(&frame);
            prop_assert!(read.is_none() || (1..=3).contains(&word));
            if let Some((frame, pages)) = read {
                prop_assert_eq!((frame.first, frame.count), (pages.first.0, pages.count));
                prop_assert!(frame.word != SourceWord::Pages || frame.slot < SLOTS);
            }
            prop_assert_eq!(FromGuest::read(&frame).is_some(), (1..=6).contains(&word));
            prop_assert!(cut == 16 || FromSource::read(&frame[..cut]).is_none());
            prop_assert!(cut == 16 || FromGuest::read(&frame[..cut]).is_none());
        }
    }

    #[test]
    fn a_slot_holds_so_many_pages_and_no_more() {
        let frame = |count, slot| {
            let pages = PageRange::new(PageIndex(7), count);
            FromSource::read(FromSource::about(SourceWord::Pages, pages, slot).as_bytes())
        };
        assert!(frame(SLOT_PAGES, SLOTS - 1).is_some());
        assert!(
            frame(SLOT_PAGES + 1, 0).is_none()
                && frame(1, SLOTS).is_none()
                && frame(0, 0).is_none()
        );
    }
}
