//! Harvests that list pages.

use bindery_units::PageIndex;

use super::list::List;
use super::output::Output;
use super::takes::Takes;
use crate::decode::Decoder;
use crate::geometry::WORD_BITS;
use crate::take::Take;

/// Pages, to the end of a list.
pub(super) struct Pages<'l, L>(pub(super) &'l mut L);

impl<L: List<Entry = PageIndex>> Output for Pages<'_, L> {
    const GROWS: bool = L::GROWS;

    #[inline]
    fn room_words(&mut self) -> usize {
        self.0.prepare() / WORD_BITS as usize
    }

    #[inline]
    fn list<T: Take, const WHOLE: bool>(&mut self, takes: Takes<'_, T, WHOLE>, decoder: Decoder) {
        let end = self.0.end();
        // SAFETY: there is room for all pages of all words, and nothing is listed but what was decoded.
        unsafe {
            let count = match takes.full() {
                Some(words) => takes.list_run(words, decoder, end),
                None => decoder.list_pages(takes, end),
            };
            self.0.advance(count);
        }
    }

    fn list_part(&mut self, first: u32, bits: u64) -> u64 {
        let room = self.0.prepare();
        let end = self.0.end();
        let (mut rest, mut count) = (bits, 0);
        while rest != 0 && count < room {
            // SAFETY: there is room for one more.
            unsafe { end.add(count).write(first.wrapping_add(rest.trailing_zeros())) };
            count += 1;
            rest &= rest - 1;
        }
        // SAFETY: written above.
        unsafe { self.0.advance(count) };
        rest
    }
}
