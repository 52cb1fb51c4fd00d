//! Deltas: words of a page that changed since it was last sent.
//!
//! A page is 512 words of 8 bytes. A delta is runs of changed words, ascending; each is a gap (unchanged words
//! since the run before), the number of words less 1, both varints, and the words as they are now. Runs do not
//! touch. Applying a delta twice does no harm, since it has new words and no differences.

use bindery_units::PAGE_BYTES;

use super::error::FormatError;

/// Length of a word, in bytes.
pub const WORD_BYTES: usize = 8;

const WORDS: usize = PAGE_BYTES / WORD_BYTES;

type Page = [u8; PAGE_BYTES];

/// Appends the delta from `old` to `new` to `into`. Returns its length in bytes, 0 if the pages are equal; `None`
/// if it would be longer than `most`, and then `into` is as it was.
pub fn encode_delta(old: &Page, new: &Page, most: usize, into: &mut Vec<u8>) -> Option<usize> {
    let start = into.len();
    let changed = |word: usize| {
        let at = word * WORD_BYTES..(word + 1) * WORD_BYTES;
        old[at.clone()] != new[at]
    };
    let (mut word, mut end) = (0, 0);
    while word < WORDS {
        if !changed(word) {
            word += 1;
            continue;
        }
        let run_end = (word..WORDS).find(|at| !changed(*at)).unwrap_or(WORDS);
        put_short(into, word - end);
        put_short(into, run_end - word - 1);
        into.extend_from_slice(&new[word * WORD_BYTES..run_end * WORD_BYTES]);
        if into.len() - start > most {
            into.truncate(start);
            return None;
        }
        (word, end) = (run_end, run_end);
    }
    Some(into.len() - start)
}

/// Delta that was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta<'a>(&'a [u8]);

impl<'a> Delta<'a> {
    /// Checks a delta.
    ///
    /// # Errors
    /// [`FormatError::Impossible`] if it is none, goes beyond the page, or changes nothing.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FormatError> {
        let (mut rest, mut word) = (bytes, 0);
        while !rest.is_empty() {
            let is_first = word == 0 && rest.len() == bytes.len();
            let (gap, run) = take_run(&mut rest).ok_or(WRONG)?;
            let words = run.len() / WORD_BYTES;
            if (gap == 0 && !is_first) || word + gap + words > WORDS {
                return Err(WRONG);
            }
            word += gap + words;
        }
        if bytes.is_empty() { Err(WRONG) } else { Ok(Self(bytes)) }
    }

    /// Returns its runs: the offset in the page in bytes, and the bytes there.
    pub fn runs(self) -> impl Iterator<Item = (usize, &'a [u8])> {
        let (mut rest, mut at) = (self.0, 0);
        std::iter::from_fn(move || {
            let (gap, run) = take_run(&mut rest)?;
            let start = at + gap * WORD_BYTES;
            at = start + run.len();
            Some((start, run))
        })
    }

    /// Applies it to the page that it was made for.
    pub fn apply(self, page: &mut Page) {
        self.runs().for_each(|(at, bytes)| page[at..at + bytes.len()].copy_from_slice(bytes));
    }

    /// Returns its encoding.
    #[must_use]
    pub const fn bytes(self) -> &'a [u8] {
        self.0
    }
}

const WRONG: FormatError = FormatError::impossible("delta", "it is no list of words of a page");

/// Takes a gap, in words, and the bytes of a run.
fn take_run<'a>(rest: &mut &'a [u8]) -> Option<(usize, &'a [u8])> {
    let gap = take_short(rest)?;
    let words = take_short(rest)? + 1;
    let (run, behind) = rest.split_at_checked(words * WORD_BYTES)?;
    *rest = behind;
    Some((gap, run))
}

/// Puts a number below 2^14 as a varint.
fn put_short(into: &mut Vec<u8>, number: usize) {
    if number >= 0x80 {
        into.push(number as u8 | 0x80);
    }
    into.push(if number >= 0x80 { (number >> 7) as u8 } else { number as u8 });
}

/// Takes a varint of one or two bytes in its shortest form.
fn take_short(rest: &mut &[u8]) -> Option<usize> {
    let (&low, behind) = rest.split_first()?;
    *rest = behind;
    if low < 0x80 {
        return Some(low.into());
    }
    let (&high, behind) = rest.split_first()?;
    *rest = behind;
    ((1..0x80).contains(&high)).then_some(usize::from(low & 0x7f) | usize::from(high) << 7)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn page(seed: u8) -> Page {
        std::array::from_fn(|at| (at as u8).wrapping_mul(31).wrapping_add(seed))
    }

    proptest! {
        #[test]
        fn deltas_make_the_new_page(writes in prop::collection::vec((0..PAGE_BYTES, any::<u8>()), 0..600)) {
            let old = page(3);
            let mut new = old;
            writes.iter().for_each(|(at, byte)| new[*at] = *byte);
            let mut bytes = vec![9];
            let length = encode_delta(&old, &new, usize::MAX, &mut bytes).unwrap();
            prop_assert_eq!(length, bytes.len() - 1);
            if old == new {
                prop_assert_eq!(length, 0);
                return Ok(());
            }
            let delta = Delta::parse(&bytes[1..]).unwrap();
            let mut made = old;
            delta.apply(&mut made);
            delta.apply(&mut made);
            prop_assert!(made == new);
            let mut again = vec![];
            prop_assert_eq!(encode_delta(&old, &new, length - 1, &mut again), None);
            prop_assert!(again.is_empty());
        }

        /// A delta that is parsed stays within the page, and has one form.
        #[test]
        fn parsed_bytes_are_canonical(bytes in prop::collection::vec(prop_oneof![0_u8..4, any::<u8>()], 0..80)) {
            let Ok(delta) = Delta::parse(&bytes) else { return Ok(()) };
            let old = page(5);
            let mut new = old;
            // Each word that the delta names differs from the old page's.
            let mut other = old;
            for (at, run) in delta.runs() {
                for (byte, made) in run.iter().zip(&mut other[at..]) {
                    *made = !byte;
                }
            }
            delta.apply(&mut new);
            let mut again = vec![];
            encode_delta(&other, &new, usize::MAX, &mut again).unwrap();
            prop_assert_eq!(again, bytes);
        }
    }

    #[test]
    fn runs_that_touch_or_leave_the_page_are_refused() {
        let run = |gap: u8| [&[gap, 0][..], &[7; 8]].concat();
        assert!(Delta::parse(&[run(0), run(1)].concat()).is_ok());
        assert!(Delta::parse(&[run(0), run(0)].concat()).is_err());
        assert!(Delta::parse(&[&[0xff, 0x03, 0][..], &[7; 8]].concat()).is_ok());
        assert!(Delta::parse(&[&[0xff, 0x03, 1][..], &[7; 16]].concat()).is_err());
        assert!(Delta::parse(&[&[0x80, 0x00, 0][..], &[7; 8]].concat()).is_err());
        assert!(Delta::parse(&[]).is_err());
    }
}
