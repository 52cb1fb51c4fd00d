//! Pages that the last restore touched, in the order in which it did.

use bindery_units::{PageIndex, PageRange};

use crate::fields::{Fields, put_varint, unzigzag, zigzag};
use crate::format_error::FormatError;
use crate::object::{HEAD_BYTES, KIND_FIELDS_AT, ObjectHead, ObjectKind};
use crate::seal::{ObjectCipher, SecretKey};

const WHAT: &str = "record of touched pages";

/// Pages of a memory block that were touched one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TouchedRun {
    /// Number of the memory block.
    pub block: u16,
    /// Pages, of which there is at least one.
    pub pages: PageRange,
}

/// Encodes the record's object. `store` and `id` go into its head.
///
/// # Panics
/// If a run is empty.
#[must_use]
pub fn encode_touched(
    runs: &[TouchedRun],
    (store, id): (u128, u128),
    key: Option<&SecretKey>,
) -> Vec<u8> {
    let mut body = Vec::new();
    let mut end = 0_u32;
    for run in runs {
        put_varint(&mut body, run.block.into());
        put_varint(&mut body, zigzag(i64::from(run.pages.first.0) - i64::from(end)));
        put_varint(&mut body, u64::from(run.pages.count.checked_sub(1).expect("a run has pages")));
        end = run.pages.end().0;
    }
    let cipher = ObjectCipher::new(id, key);
    let check = cipher.seal(0, b"", &mut body);
    let mut fields = Vec::from((body.len() as u64).to_le_bytes());
    fields.extend_from_slice(&check);
    let is_sealed = cipher.is_sealed();
    let head = ObjectHead { store, id, kind: ObjectKind::Touched, is_sealed };
    [&head.encode(&fields)[..], &body].concat()
}

/// Reads a record that is all of `bytes`.
///
/// # Errors
/// See [`FormatError`].
pub fn decode_touched(
    bytes: &[u8],
    key: Option<&SecretKey>,
) -> Result<Vec<TouchedRun>, FormatError> {
    let head = ObjectHead::expect(bytes, ObjectKind::Touched)?;
    let mut fields = Fields::new(WHAT, &bytes[KIND_FIELDS_AT..HEAD_BYTES]);
    let (body_bytes, check) = (fields.u64()?, fields.array()?);
    let mut body = bytes[HEAD_BYTES..].to_vec();
    if body.len() as u64 != body_bytes {
        return Err(FormatError::Short { what: WHAT });
    }
    let cipher = ObjectCipher::reading(WHAT, head.id, head.is_sealed, key)?;
    cipher.open(WHAT, (0, b""), &check, &mut body)?;
    decode_runs(&body)
}

fn decode_runs(body: &[u8]) -> Result<Vec<TouchedRun>, FormatError> {
    let mut fields = Fields::new(WHAT, body);
    let (mut runs, mut end) = (Vec::new(), 0_u32);
    while fields.end().is_err() {
        let block = u16::try_from(fields.varint()?).ok();
        let first = i64::from(end).checked_add(unzigzag(fields.varint()?));
        let first = first.and_then(|first| u32::try_from(first).ok());
        let count = fields.varint()?.checked_add(1).and_then(|count| u32::try_from(count).ok());
        let behind = first.zip(count).and_then(|(first, count)| first.checked_add(count));
        let (Some(block), Some(first), Some(count), Some(behind)) = (block, first, count, behind)
        else {
            return Err(FormatError::impossible(WHAT, "a run of pages that no block has"));
        };
        end = behind;
        runs.push(TouchedRun { block, pages: PageRange::new(PageIndex(first), count) });
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn runs_come_back_in_order(
            runs in prop::collection::vec((any::<u16>(), 0..u32::MAX - 9, 1..9_u32), 0..40),
            sealed: bool,
        ) {
            let run = |(block, first, count)| TouchedRun {
                block,
                pages: PageRange::new(PageIndex(first), count),
            };
            let runs: Vec<_> = runs.into_iter().map(run).collect();
            let key = sealed.then(|| SecretKey::from_bytes([9; 32]));
            let bytes = encode_touched(&runs, (1, 2), key.as_ref());
            prop_assert_eq!(decode_touched(&bytes, key.as_ref()), Ok(runs));
            prop_assert_eq!(decode_touched(&bytes, None).is_err(), sealed);
            let other = SecretKey::from_bytes([1; 32]);
            prop_assert!(decode_touched(&bytes, Some(&other)).is_err());
        }
    }
}
