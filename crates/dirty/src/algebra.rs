//! A tree with another one, and with a legacy bitmap.

use crate::error::MismatchError;
use crate::geometry::WORD_SHIFT;
use crate::primitive::Ordering;
use crate::tree::Tree;

impl Tree {
    /// Marks every page that is dirty in `other`.
    ///
    /// # Errors
    /// If the two have not equally many pages.
    pub fn unite(&self, other: &Self) -> Result<(), MismatchError> {
        self.check_pages(other)?;
        other.dirty_leaves().for_each(|(leaf, bits)| self.mark_word(leaf, bits));
        Ok(())
    }

    /// Clears every page that is dirty in `other`.
    ///
    /// # Errors
    /// If the two have not equally many pages.
    pub fn subtract(&self, other: &Self) -> Result<(), MismatchError> {
        self.check_pages(other)?;
        for (leaf, bits) in other.dirty_leaves() {
            // As `take::Swap`. The summaries stay: they may lead nowhere.
            self.word(0, leaf).fetch_and(!bits, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Words of 64 bits that the legacy bitmap has.
    #[must_use]
    pub const fn bitmap_words(&self) -> usize {
        self.geometry.leaves()
    }

    /// Marks every page whose bit is set in a legacy bitmap, as `KVM_GET_DIRTY_LOG` fills it.
    ///
    /// # Errors
    /// If the bitmap has another length, or a bit that is no page's; then nothing is marked.
    pub fn import(&self, bitmap: &[u64]) -> Result<(), MismatchError> {
        self.check_words_of(bitmap.len())?;
        Ok(self.mark_words(0, bitmap)?)
    }

    /// Writes the set as a legacy bitmap, and leaves it as it is.
    ///
    /// # Errors
    /// If the bitmap has another length; then nothing is written.
    pub fn export(&self, bitmap: &mut [u64]) -> Result<(), MismatchError> {
        self.check_words_of(bitmap.len())?;
        for (leaf, word) in self.leaves().iter().zip(bitmap) {
            // Acquire: pairs with the Release of a mark.
            *word = leaf.load(Ordering::Acquire).to_le();
        }
        Ok(())
    }

    fn check_words_of(&self, found: usize) -> Result<(), MismatchError> {
        let expected = self.bitmap_words();
        let error = MismatchError::Words { pages: self.pages(), expected, found };
        if found == expected { Ok(()) } else { Err(error) }
    }

    fn check_pages(&self, other: &Self) -> Result<(), MismatchError> {
        let (pages, found) = (self.pages(), other.pages());
        if pages == found { Ok(()) } else { Err(MismatchError::Pages { pages, found }) }
    }

    /// Whether every word that is not zero has its summaries, as must hold whenever nobody marks. For
    /// tests: it looks at all words.
    #[doc(hidden)]
    #[must_use]
    pub fn is_sound(&self) -> bool {
        (0..self.geometry.top()).all(|level| {
            let words = self.pages().div_ceil(1 << ((level as u32 + 1) * WORD_SHIFT)) as usize;
            (0..words).all(|word| {
                let above = self.word(level + 1, word >> WORD_SHIFT).load(Ordering::Acquire);
                self.word(level, word).load(Ordering::Acquire) == 0 || above >> (word % 64) & 1 == 1
            })
        })
    }
}
