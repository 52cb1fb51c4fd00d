//! Cuts a stream of bytes into lines of bounded length. Pure.

/// The longest line that a peer may send, in bytes. `query-qmp-schema`, the longest answer, has a quarter
/// of a MiB.
pub(crate) const LINE_BYTES_MAX: usize = 8 << 20;

/// A line longer than agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a line of more than {0} bytes")]
pub(crate) struct LineTooLong(pub(crate) usize);

/// Bytes received and not yet taken as lines.
#[derive(Debug)]
pub(crate) struct LineBuffer {
    bytes: Vec<u8>,
    /// Length of the part at the start that has no line end.
    searched: usize,
    most: usize,
}

impl LineBuffer {
    /// Makes an empty buffer for lines of at most `most` bytes, their ends apart.
    pub(crate) const fn new(most: usize) -> Self {
        Self { bytes: Vec::new(), searched: 0, most }
    }

    /// Adds what came. Bounded only if [`Self::next_line`] is asked after each addition.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the next whole line, without its end.
    ///
    /// # Errors
    /// [`LineTooLong`], even if the end of the line has not come. The buffer is of no further use.
    pub(crate) fn next_line(&mut self) -> Result<Option<Vec<u8>>, LineTooLong> {
        let end = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n');
        let length = end.map_or(self.bytes.len(), |end| self.searched + end);
        if length > self.most {
            return Err(LineTooLong(self.most));
        }
        if end.is_none() {
            self.searched = length;
            return Ok(None);
        }
        let rest = self.bytes.split_off(length + 1);
        let mut line = std::mem::replace(&mut self.bytes, rest);
        line.truncate(length);
        self.searched = 0;
        Ok(Some(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the lines of `bytes`, which come in pieces of the given sizes, over and over.
    fn cut(bytes: &[u8], sizes: &[usize], most: usize) -> Result<Vec<Vec<u8>>, LineTooLong> {
        let (mut buffer, mut lines, mut rest) = (LineBuffer::new(most), Vec::new(), bytes);
        for size in sizes.iter().cycle() {
            let (piece, later) = rest.split_at((*size).min(rest.len()));
            buffer.push(piece);
            while let Some(line) = buffer.next_line()? {
                lines.push(line);
            }
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        Ok(lines)
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(
            lines in prop::collection::vec("[a-z{}\r]{0,30}", 0..8),
            unfinished in "[a-z]{0,20}",
            sizes in prop::collection::vec(1_usize..40, 1..5),
        ) {
            let mut bytes: Vec<u8> = lines.iter().flat_map(|l| format!("{l}\n").into_bytes()).collect();
            bytes.extend(unfinished.as_bytes());
            let expected: Vec<_> = lines.into_iter().map(String::into_bytes).collect();
            prop_assert_eq!(cut(&bytes, &sizes, 30), Ok(expected));
        }

        #[test]
        fn any_line_that_is_too_long_is_refused(
            lines in prop::collection::vec(0_usize..40, 1..6),
            sizes in prop::collection::vec(1_usize..40, 1..5),
            is_finished: bool,
        ) {
            let mut bytes: Vec<u8> = lines.iter().flat_map(|n| [vec![b'x'; *n], vec![b'\n']].concat()).collect();
            if !is_finished {
                bytes.pop();
            }
            let is_too_long = lines.iter().any(|length| *length > 30);
            prop_assert_eq!(cut(&bytes, &sizes, 30).is_err(), is_too_long);
        }
    }
}
