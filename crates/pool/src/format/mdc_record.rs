//! A record of an MDC's log: the client's, or one of those around a compaction.

use super::le::u64_at;

const CLIENT: u8 = 0;
const BEGIN: u8 = 1;
const END: u8 = 2;

/// A record of an MDC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry<'a> {
    /// A record of the client.
    Client(&'a [u8]),
    /// CSTART: the first record of a log, with the number of the compaction.
    Begin(u64),
    /// CEND: the compaction of this number is complete.
    End(u64),
}

/// The bytes of an entry.
pub(crate) fn encode(entry: Entry<'_>) -> Vec<u8> {
    let number;
    let (tag, content) = match entry {
        Entry::Client(bytes) => (CLIENT, bytes),
        Entry::Begin(begun) => {
            number = begun.to_le_bytes();
            (BEGIN, &number[..])
        }
        Entry::End(ended) => {
            number = ended.to_le_bytes();
            (END, &number[..])
        }
    };
    let mut record = Vec::with_capacity(1 + content.len());
    record.push(tag);
    record.extend_from_slice(content);
    record
}

/// The entry of these bytes.
///
/// # Errors
/// If there is none, its first byte, if it has one.
pub(crate) fn decode(record: &[u8]) -> Result<Entry<'_>, Option<u8>> {
    let (&tag, content) = record.split_first().ok_or(None)?;
    match (tag, number(content)) {
        (CLIENT, _) => Ok(Entry::Client(content)),
        (BEGIN, Some(number)) => Ok(Entry::Begin(number)),
        (END, Some(number)) => Ok(Entry::End(number)),
        _ => Err(Some(tag)),
    }
}

/// The number of a compaction. The last of all is none: there must be one more.
fn number(content: &[u8]) -> Option<u64> {
    let whole = content.len() == size_of::<u64>();
    whole.then(|| u64_at(content, 0)).filter(|number| *number < u64::MAX)
}

/// Returns the bytes that the client gave, if the record is the client's.
pub(crate) fn into_client(mut record: Vec<u8>) -> Option<Vec<u8>> {
    if record.first() != Some(&CLIENT) {
        return None;
    }
    record.remove(0);
    Some(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_these_bytes() {
        assert_eq!(encode(Entry::Client(b"abc")), b"\0abc");
        assert_eq!(encode(Entry::Begin(258)), b"\x01\x02\x01\0\0\0\0\0\0");
        assert_eq!(encode(Entry::End(1)), b"\x02\x01\0\0\0\0\0\0\0");
        for entry in [Entry::Client(b""), Entry::Client(b"x"), Entry::Begin(7), Entry::End(8)] {
            assert_eq!(decode(&encode(entry)), Ok(entry));
        }
        for (bytes, tag) in [(&b""[..], None), (b"\x03", Some(3)), (b"\x01abc", Some(1))] {
            assert_eq!(decode(bytes), Err(tag));
        }
        assert_eq!(decode(&encode(Entry::Begin(u64::MAX))), Err(Some(BEGIN)));
    }
}
