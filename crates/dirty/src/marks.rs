//! What takes marks, and what gives them away again: all that sources know of a dirty set.

use bindery_units::{PageIndex, PageRange};

use crate::error::OutOfRange;
use crate::feed::Feed;
use crate::tree::Tree;

/// Takes marks, from any number of threads.
///
/// A page that is marked twice is marked. Implementations panic for a page that they do not have:
/// whoever takes numbers from a guest, a peer or the kernel checks them first.
pub trait Marks {
    /// Marks a page.
    fn mark(&self, page: PageIndex);

    /// Marks a run of pages.
    fn mark_range(&self, pages: PageRange);

    /// Marks the pages whose bits are set. The lowest bit of `words[0]` is page `64 × first_word`,
    /// and so on upwards, as in the bitmap of `KVM_GET_DIRTY_LOG`.
    fn mark_words(&self, first_word: usize, words: &[u64]);
}

/// The methods of the same names, which answer with an error for a page that they do not have.
macro_rules! marks_or_panics {
    ($set:ty) => {
        impl Marks for $set {
            fn mark(&self, page: PageIndex) {
                expect(Self::mark(self, page));
            }

            fn mark_range(&self, pages: PageRange) {
                expect(Self::mark_range(self, pages.first, u64::from(pages.count)));
            }

            fn mark_words(&self, first_word: usize, words: &[u64]) {
                expect(Self::mark_words(self, first_word, words));
            }
        }
    };
}

marks_or_panics!(Tree);
marks_or_panics!(Feed);

fn expect(marked: Result<(), OutOfRange>) {
    if let Err(error) = marked {
        panic!("{error}");
    }
}

/// Gives its marks away.
pub trait Drain {
    /// Takes all marks out, adds them to `into`, and returns how many there were. A mark that is
    /// made meanwhile is given away now or the next time.
    fn drain(&self, into: &dyn Marks) -> u64;
}

impl Drain for Tree {
    /// # Panics
    /// If the tree has more pages than a [`PageIndex`] can name: 2^32.
    fn drain(&self, into: &dyn Marks) -> u64 {
        assert!(self.pages() <= 1 << 32, "{} pages have no 32-bit numbers", self.pages());
        let mut buffer = [PageRange::default(); DRAINED_TOGETHER];
        let mut drained = 0;
        for window in self.windows() {
            let harvested = self.harvest_runs(window, &mut buffer, |run| {
                let first = PageIndex(window.base as u32 + run.first.0);
                into.mark_range(PageRange::new(first, run.count));
                drained += u64::from(run.count);
            });
            harvested.expect("a tree has its own pages");
        }
        drained
    }
}

/// Runs taken out of a tree at a time, on the stack.
const DRAINED_TOGETHER: usize = 1024;

impl<D: Drain + ?Sized> Drain for &D {
    fn drain(&self, into: &dyn Marks) -> u64 {
        (**self).drain(into)
    }
}

impl<D: Drain + ?Sized> Drain for std::sync::Arc<D> {
    fn drain(&self, into: &dyn Marks) -> u64 {
        (**self).drain(into)
    }
}
