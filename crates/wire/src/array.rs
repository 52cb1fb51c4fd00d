//! Arrays in a lane's window, which the other side may change at any time: they are copied out, and only
//! then checked.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// Why a peer's array cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ArrayError {
    /// An element has a code that this version does not know.
    #[error(
        "an array with a code that means nothing; is the peer a shim or daemon of this version?"
    )]
    Nonsense,
    /// The kernel's error.
    #[error("reading a window: {0}")]
    Io(#[from] io::Error),
}

/// Copies arrays out of windows. Keeps its memory from one to the next.
#[derive(Debug, Default)]
pub struct ArrayReader {
    /// Aligned as every element may be.
    words: Vec<u64>,
}

impl ArrayReader {
    /// Copies `count` elements that begin `offset` bytes into the window, in place of what `into` holds.
    ///
    /// # Errors
    /// [`ArrayError::Nonsense`] if a field holds a code that is none of its type's, and then `into` is
    /// empty; the kernel's error if the window is shorter.
    ///
    /// # Panics
    /// If an element is aligned to more than 8 bytes.
    pub fn read<T>(
        &mut self,
        window: &File,
        offset: usize,
        count: usize,
        into: &mut Vec<T>,
    ) -> Result<(), ArrayError>
    where
        T: TryFromBytes + KnownLayout + Immutable + Copy,
    {
        const { assert!(align_of::<T>() <= align_of::<u64>(), "words are aligned for elements") };
        let bytes = count * size_of::<T>();
        self.words.resize(bytes.div_ceil(size_of::<u64>()), 0);
        let bytes = &mut self.words.as_mut_slice().as_mut_bytes()[..bytes];
        into.clear();
        window.read_exact_at(bytes, offset as u64)?;
        let elements = <[T]>::try_ref_from_bytes(bytes).map_err(|_| ArrayError::Nonsense)?;
        into.extend_from_slice(elements);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bindery_sys::memfd;
    use proptest::prelude::*;

    use super::*;
    use crate::lane::{DigestKind, PageDigest, PageOutcome, Run, RunTarget};

    fn window(bytes: &[u8]) -> File {
        let window = memfd::create("window", 4096).unwrap();
        window.write_all_at(bytes, 8).unwrap();
        window
    }

    proptest! {
        /// Exactly the arrays whose every code is known are read, and as they are.
        #[test]
        fn codes_are_known_or_refused(codes in prop::collection::vec(0u8..9, 0..40)) {
            let (mut reader, mut outcomes) = (ArrayReader::default(), vec![PageOutcome::Never]);
            let read = reader.read(&window(&codes), 8, codes.len(), &mut outcomes);
            let known = codes.iter().all(|code| (1..=6).contains(code));
            prop_assert_eq!(read.is_ok(), known);
            let back: Vec<u8> = outcomes.iter().map(|outcome| *outcome as u8).collect();
            prop_assert_eq!(back, if known { codes } else { Vec::new() });
        }
    }

    #[test]
    fn fields_are_read_where_they_are() {
        let runs = [
            Run { page: 1, count: 2, slot: 3, target: RunTarget::Slots },
            Run { page: 7, count: 1, slot: 0, target: RunTarget::Zeros },
        ];
        let (mut reader, mut read) = (ArrayReader::default(), Vec::<Run>::new());
        reader.read(&window(runs.as_bytes()), 8, 2, &mut read).unwrap();
        assert_eq!(read, runs);

        let mut digests = vec![PageDigest::default()];
        let nonsense = window(&3u64.to_le_bytes());
        let error = reader.read(&nonsense, 8, 1, &mut digests).unwrap_err();
        assert!(matches!(error, ArrayError::Nonsense) && digests.is_empty());
        let content = PageDigest { kind: DigestKind::Content, digest: [5, 6] };
        reader.read(&window(content.as_bytes()), 8, 1, &mut digests).unwrap();
        assert_eq!(digests, [content]);
        assert!(matches!(reader.read(&nonsense, 0, 4096, &mut read), Err(ArrayError::Io(_))));
    }
}
