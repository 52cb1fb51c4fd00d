//! Where a harvest goes.

use super::takes::Takes;
use crate::decode::Decoder;
use crate::take::Take;

/// A list of pages or of runs, which grows or does not.
pub(super) trait Output {
    /// Whether it grows.
    const GROWS: bool;

    /// How many words of the bitmap there is room for, whatever is set in them: at least 64 if the list
    /// grows.
    fn room_words(&mut self) -> usize;

    /// Takes words of the bitmap and lists their pages. No more words than there is room for.
    fn list<T: Take, const WHOLE: bool>(&mut self, takes: Takes<'_, T, WHOLE>, decoder: Decoder);

    /// Lists the pages of a word that was taken, the lowest of which is called `first`, as far as there
    /// is room, and gives those back that there is none for.
    fn list_part(&mut self, first: u32, bits: u64) -> u64;
}
