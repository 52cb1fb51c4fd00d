//! The pages that are indexed: as many as wanted, in a fixed amount of memory.
//!
//! Ten million pages of 4 KiB do not fit a test machine, so a page is an id: bytes of a *base* page
//! with a run of zeroes in front, on some data sets, and one word of eight bytes that is the id,
//! scrambled. Two memories stand for the two that a real index works between:
//!
//! - The page *in hand* is written out in full into a buffer of its own. Whoever asks about a page
//!   has just read it, so these buffers (64 a thread) stay in the second-level cache.
//! - *Stored* pages lie in a pool that fits no cache; each id has its place in it, scattered.
//!   Comparing with a stored page reads all of its bytes from there, but for the run of zeroes and
//!   the word, which are computed, and lie in lines that are read for their neighbours.
//!
//! All contenders are served by the same functions, so all pay the same for them.

use std::cmp::Ordering;
use std::hint::black_box;

use bindery_index::first_difference;
use bindery_page::PAGE_BYTES;

/// Base pages of different content, and page buffers of a thread.
pub(super) const CLASSES: usize = 64;
const WORD_BYTES: usize = 8;
const LAST_WORD: usize = PAGE_BYTES - WORD_BYTES;
/// Runs of zeroes are shorter than this: 128 bytes on average.
const RUN_LIMIT: u64 = 257;
static ZEROES: [u8; RUN_LIMIT as usize] = [0; RUN_LIMIT as usize];

/// What pages look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// Pages differ in their first eight bytes: PageONE's easy set.
    Easy,
    /// A run of zeroes first, 128 on average, then as in the easy set: PageONE's harder set.
    ZeroPrefix,
    /// Pages are equal but for their last eight bytes: the worst case of a tree ordered by content.
    LastWord,
}

/// A page as a mapping has it.
#[derive(Clone)]
#[repr(C, align(4096))]
pub(super) struct Page(pub(super) [u8; PAGE_BYTES]);

/// What distinguishes a page from its base: `zeroes` zero bytes in front, and `word` at `at`.
struct Patch {
    zeroes: usize,
    at: usize,
    word: [u8; WORD_BYTES],
}

/// All pages of one data set.
pub(super) struct Pages {
    content: Content,
    bases: Vec<Page>,
    pool: Vec<Page>,
}

impl Pages {
    /// The pages of `content`, stored in a pool of `pool_pages`, a multiple of [`CLASSES`].
    pub(super) fn new(content: Content, pool_pages: usize) -> Self {
        let bases: Vec<Page> = (0..CLASSES as u64)
            .map(|class| {
                let class = if content == Content::LastWord { 0 } else { class };
                let mut page = Page([0; PAGE_BYTES]);
                for (position, word) in (0..).zip(page.0.chunks_exact_mut(WORD_BYTES)) {
                    word.copy_from_slice(&scramble(class << 32 | position).to_be_bytes());
                }
                page
            })
            .collect();
        let pool = (0..pool_pages).map(|place| bases[place % CLASSES].clone()).collect();
        Self { content, bases, pool }
    }

    /// Buffers for pages in hand: one a class, holding its base.
    pub(super) fn buffers(&self) -> Vec<Page> {
        self.bases.clone()
    }

    /// The buffer for page `id`.
    pub(super) fn class(id: u64) -> usize {
        id as usize % CLASSES
    }

    /// Writes page `id` out into a buffer of its class.
    pub(super) fn take_in_hand(&self, id: u64, page: &mut Page) {
        let Patch { zeroes, at, word } = self.patch(id);
        if self.content == Content::ZeroPrefix {
            const HEAD: usize = RUN_LIMIT as usize + WORD_BYTES;
            page.0[..HEAD].copy_from_slice(&self.bases[Self::class(id)].0[..HEAD]);
            page.0[..zeroes].fill(0);
        }
        page.0[at..at + WORD_BYTES].copy_from_slice(&word);
    }

    /// Whether `page` is page `id`, byte for byte.
    pub(super) fn is_stored(&self, page: &Page, id: u64) -> bool {
        let Patch { zeroes, at, word } = self.patch(id);
        let (page, stored) = (&page.0, &self.stored(id).0);
        let after = at + WORD_BYTES;
        page[..zeroes] == ZEROES[..zeroes]
            && page[zeroes..at] == stored[zeroes..at]
            && page[at..after] == word
            && page[after..] == stored[after..]
    }

    /// The first bit at which `page` and page `id` differ.
    pub(super) fn difference(&self, page: &Page, id: u64) -> Option<u32> {
        let Patch { zeroes, at, word } = self.patch(id);
        let stored = &self.stored(id).0;
        let after = at + WORD_BYTES;
        let parts = [
            (0, &ZEROES[..zeroes]),
            (zeroes, &stored[zeroes..at]),
            (at, &word[..]),
            (after, &stored[after..]),
        ];
        parts.into_iter().find_map(|(start, part)| {
            let bit = first_difference(&page.0[start..start + part.len()], part)?;
            Some(start as u32 * u8::BITS + bit)
        })
    }

    /// Word `index` of page `id`, big-endian.
    pub(super) fn stored_word(&self, id: u64, index: usize) -> u64 {
        let Patch { zeroes, at, word } = self.patch(id);
        let stored = &self.stored(id).0;
        let byte = |offset: usize| match offset {
            offset if offset < zeroes => 0,
            offset if (at..at + WORD_BYTES).contains(&offset) => word[offset - at],
            offset => stored[offset],
        };
        let start = index * WORD_BYTES;
        u64::from_be_bytes(std::array::from_fn(|offset| byte(start + offset)))
    }

    /// The order of page `hand`, which is in a cache, and page `stored`, by their bytes: what
    /// memcmp of the two says, at the cost of memcmp up to the first difference.
    pub(super) fn order(&self, hand: u64, stored: u64) -> Ordering {
        let (patch, other) = (self.patch(hand), self.patch(stored));
        let (base, bytes) = (&self.bases[Self::class(hand)].0, &self.stored(stored).0);
        // The line with the first byte that is not zero is read, as memcmp would.
        black_box(bytes[patch.zeroes.min(other.zeroes)]);
        // The longer run of zeroes is the lesser page: no run ends with a zero.
        let runs = other.zeroes.cmp(&patch.zeroes);
        let after = patch.at + WORD_BYTES;
        runs.then_with(|| base[patch.zeroes..patch.at].cmp(&bytes[other.zeroes..other.at]))
            .then_with(|| patch.word.cmp(&other.word))
            .then_with(|| base[after..].cmp(&bytes[after..]))
    }

    fn stored(&self, id: u64) -> &Page {
        // Scattered, but always a copy of the base of its class.
        let rows = self.pool.len() / CLASSES;
        let row = scramble(!id) as usize % rows;
        &self.pool[row * CLASSES + Self::class(id)]
    }

    fn patch(&self, id: u64) -> Patch {
        // Never zero in the first byte, so that a run ends where it should.
        let word = (scramble(id) | 1 << 63).to_be_bytes();
        match self.content {
            Content::Easy => Patch { zeroes: 0, at: 0, word },
            Content::ZeroPrefix => {
                let zeroes = (scramble(id ^ 0x5eed << 40) % RUN_LIMIT) as usize;
                Patch { zeroes, at: zeroes, word }
            }
            Content::LastWord => Patch { zeroes: 0, at: LAST_WORD, word },
        }
    }
}

/// A word that looks random, different for every number: the finaliser of SplitMix64 (Steele, Lea,
/// Flood, 2014).
pub(super) fn scramble(number: u64) -> u64 {
    let mut word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Content; 3] = [Content::Easy, Content::ZeroPrefix, Content::LastWord];

    fn written_out(pages: &Pages, id: u64) -> Page {
        let mut page = pages.bases[Pages::class(id)].clone();
        pages.take_in_hand(id, &mut page);
        page
    }

    #[test]
    fn a_page_in_hand_equals_the_stored_page_of_its_id_and_no_other() {
        for content in ALL {
            let pages = Pages::new(content, 4 * CLASSES);
            let mut buffers = pages.buffers();
            for id in 0..400 {
                let page = &mut buffers[Pages::class(id)];
                pages.take_in_hand(id, page);
                for other in id.saturating_sub(130)..id + 130 {
                    assert_eq!(pages.is_stored(page, other), other == id);
                    let naive = written_out(&pages, other);
                    let bit = first_difference(&page.0, &naive.0);
                    assert_eq!(pages.difference(page, other), bit);
                    assert_eq!(pages.order(id, other), page.0.cmp(&naive.0));
                }
                let words = page.0.chunks_exact(WORD_BYTES).enumerate();
                for (index, word) in words {
                    assert_eq!(pages.stored_word(id, index).to_be_bytes(), word);
                }
            }
        }
    }
}
