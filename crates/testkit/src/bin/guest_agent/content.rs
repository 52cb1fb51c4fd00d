//! Deterministic contents: what a page or a document holds follows from numbers alone, so that it
//! can be verified without a second copy in the memory under test.

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;

/// A page on a page boundary, as direct I/O asks for.
#[repr(align(4096))]
#[derive(Clone)]
pub(crate) struct Page(pub(crate) [u8; PAGE]);

impl Page {
    pub(crate) const fn zeroed() -> Self {
        Self([0; PAGE])
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, and every seed gives a different stream.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// A number below `bound`; the bias is of no matter here.
    pub(crate) const fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// What a page holds: one of four kinds of content, then perhaps a stamp written over eight bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PageState {
    /// Chooses the kind and the content.
    pub(crate) version: u64,
    /// Non-zero: written over an aligned word of the page after the content was.
    pub(crate) stamp: u64,
}

impl PageState {
    /// Where the stamp goes.
    pub(crate) const fn stamp_offset(self) -> usize {
        (self.stamp % (PAGE as u64 / 8)) as usize * 8
    }

    /// Fills `page` with what it must hold.
    ///
    /// Kinds by `version`: zero; the same in every guest (these merge); the same but for the last
    /// word (a merge on a prefix would be caught); this writer's own, from `seed`.
    pub(crate) fn fill(self, seed: u64, position: u64, page: &mut [u8; PAGE]) {
        let shared = position ^ (self.version / 4).wrapping_mul(0x1_0000_01B3);
        match self.version % 4 {
            0 => page.fill(0),
            1 => fill_words(shared, page),
            2 => {
                fill_words(shared, page);
                page[PAGE - 8..].copy_from_slice(&(seed ^ self.version).to_le_bytes());
            }
            _ => fill_words(seed ^ shared.rotate_left(17), page),
        }
        if self.stamp != 0 {
            let at = self.stamp_offset();
            page[at..at + 8].copy_from_slice(&self.stamp.to_le_bytes());
        }
    }
}

fn fill_words(seed: u64, page: &mut [u8; PAGE]) {
    let mut random = Random::new(seed);
    for word in page.chunks_exact_mut(8) {
        word.copy_from_slice(&random.next().to_le_bytes());
    }
}

const WORDS: [&str; 48] = [
    "the", "of", "page", "and", "to", "server", "request", "in", "a", "memory", "client", "is",
    "that", "kernel", "for", "on", "was", "with", "log", "error", "by", "as", "from", "at",
    "buffer", "this", "be", "socket", "or", "an", "are", "file", "not", "it", "thread", "which",
    "have", "report", "has", "table", "index", "value", "which", "function", "return", "module",
    "static", "struct",
];

/// Text of about `bytes` bytes: lines of common words, the same for the same seed.
pub(crate) fn text(seed: u64, bytes: usize) -> String {
    let mut random = Random::new(seed);
    let mut text = String::with_capacity(bytes + 80);
    while text.len() < bytes {
        for _ in 0..6 + random.below(6) {
            text.push_str(WORDS[random.below(WORDS.len())]);
            text.push(' ');
        }
        text.push('\n');
    }
    text.truncate(bytes);
    text
}
