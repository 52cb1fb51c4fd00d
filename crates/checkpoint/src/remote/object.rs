//! Envelope of every object in an object store: a head, a list of other objects in the clear, a body.

use crate::checksum::crc32c;
use crate::fields::Fields;
use crate::format_error::FormatError;
use crate::seal::{ObjectCipher, SecretKey};

/// Length of the head, in bytes.
pub(super) const HEAD_BYTES: usize = 64;

/// Length of an id in a list, in bytes.
const ID_BYTES: usize = 16;

const MAGIC: &[u8; 8] = b"BndrPush";
const VERSION: u32 = 1;
const WHAT: &str = "pushed object";

/// Kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RemoteKind {
    /// Pages.
    Pack = 1,
    /// Piece of the details of a checkpoint.
    Piece = 2,
    /// Summary of a checkpoint, and the objects that it needs.
    Manifest = 3,
    /// Objects that a push relies on.
    Claim = 4,
    /// Objects that a deletion is about to remove.
    Tombstone = 5,
    /// Secret of what is not encrypted.
    Secret = 6,
}

impl RemoteKind {
    const ALL: [Self; 6] =
        [Self::Pack, Self::Piece, Self::Manifest, Self::Claim, Self::Tombstone, Self::Secret];
}

/// An object that was read: its list and its body, verified.
pub(super) struct RemoteObject {
    pub(super) id: u128,
    pub(super) list: Vec<u128>,
    pub(super) body: Vec<u8>,
    pub(super) cipher: ObjectCipher,
    /// Start of what follows the body, in bytes.
    pub(super) end: usize,
}

/// Encodes an object, and returns the cipher for what follows the body. That takes ordinals from 1 on.
pub(super) fn encode_object(
    (kind, id): (RemoteKind, u128),
    key: Option<&SecretKey>,
    list: &[u128],
    mut body: Vec<u8>,
) -> (Vec<u8>, ObjectCipher) {
    let cipher = ObjectCipher::new(id, key);
    let list: Vec<u8> = list.iter().flat_map(|id| id.to_le_bytes()).collect();
    let count = (list.len() / ID_BYTES) as u32;
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(MAGIC);
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    head[16..32].copy_from_slice(&id.to_le_bytes());
    head[32] = kind as u8;
    head[33] = u8::from(cipher.is_sealed());
    head[36..40].copy_from_slice(&count.to_le_bytes());
    head[40..48].copy_from_slice(&(body.len() as u64).to_le_bytes());
    let check = cipher.seal(0, &[&[kind as u8], &list[..]].concat(), &mut body);
    head[48..].copy_from_slice(&check);
    let checksum = crc32c([&head]);
    head[12..16].copy_from_slice(&checksum.to_le_bytes());
    ([&head[..], &list, &body].concat(), cipher)
}

/// Head of an object.
struct Head {
    id: u128,
    kind: RemoteKind,
    is_sealed: bool,
    list_bytes: u64,
    body_bytes: u64,
    check: [u8; 16],
}

impl Head {
    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let short = FormatError::Short { what: WHAT };
        let head = bytes.first_chunk::<HEAD_BYTES>().ok_or(short)?;
        let mut fields = Fields::new(WHAT, head);
        if fields.array::<8>()? != *MAGIC {
            return Err(FormatError::Foreign { what: WHAT });
        }
        let found = fields.u32()?;
        if found != VERSION {
            return Err(FormatError::Newer { what: WHAT, found, known: VERSION });
        }
        let checksum = fields.array::<4>()?;
        if crc32c([&head[..12], &[0; 4], &head[16..]]).to_le_bytes() != checksum {
            return Err(FormatError::Checksum { what: WHAT });
        }
        let id = fields.u128()?;
        let kind = fields.u8()?;
        let kind = RemoteKind::ALL.into_iter().find(|known| *known as u8 == kind);
        let kind = kind.ok_or(FormatError::impossible(WHAT, "an unknown kind"))?;
        let ([sealed @ (0 | 1), 0], 0) = (fields.array::<2>()?, fields.u8()?) else {
            return Err(FormatError::impossible(WHAT, "something stands where zeros must"));
        };
        let list_bytes = u64::from(fields.u32()?) * ID_BYTES as u64;
        let (body_bytes, check) = (fields.u64()?, fields.array()?);
        Ok(Self { id, kind, is_sealed: sealed == 1, list_bytes, body_bytes, check })
    }

    fn end(&self) -> Option<usize> {
        let end = (HEAD_BYTES as u64).checked_add(self.list_bytes)?.checked_add(self.body_bytes)?;
        usize::try_from(end).ok()
    }
}

/// Returns the length of head, list and body of an object that begins so, in bytes.
pub(super) fn front_bytes(bytes: &[u8]) -> Result<usize, FormatError> {
    Head::decode(bytes)?.end().ok_or(FormatError::Short { what: WHAT })
}

/// Returns the kind and the id of an object that begins so.
pub(super) fn kind_of(bytes: &[u8]) -> Result<(RemoteKind, u128), FormatError> {
    Head::decode(bytes).map(|head| (head.kind, head.id))
}

/// Reads an object, of which all up to the end of the body is there. Takes no more memory than that has.
pub(super) fn decode_object(
    bytes: &[u8],
    kind: RemoteKind,
    key: Option<&SecretKey>,
) -> Result<RemoteObject, FormatError> {
    let head = Head::decode(bytes)?;
    if head.kind != kind {
        return Err(FormatError::impossible(WHAT, "it is another kind of object"));
    }
    let short = FormatError::Short { what: WHAT };
    let end = head.end().filter(|end| *end <= bytes.len()).ok_or(short)?;
    let (list, body) = bytes[HEAD_BYTES..end].split_at(head.list_bytes as usize);
    let cipher = ObjectCipher::reading(WHAT, head.id, head.is_sealed, key)?;
    let bound = [&[kind as u8], list].concat();
    let mut body = body.to_vec();
    cipher.open(WHAT, (0, &bound), &head.check, &mut body)?;
    let (ids, _) = list.as_chunks::<ID_BYTES>();
    let list = ids.iter().map(|id| u128::from_le_bytes(*id)).collect();
    Ok(RemoteObject { id: head.id, list, body, cipher, end })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_anywhere_is_seen() {
        for key in [None, Some(SecretKey::from_bytes([3; 32]))] {
            let kind = (RemoteKind::Manifest, 7);
            let (bytes, _) = encode_object(kind, key.as_ref(), &[1, 2], b"a body".to_vec());
            let decode = |bytes: &[u8]| decode_object(bytes, RemoteKind::Manifest, key.as_ref());
            let object = decode(&bytes).unwrap();
            assert_eq!((object.id, object.list, object.end), (7, vec![1, 2], bytes.len()));
            assert_eq!(object.body, b"a body");
            assert_eq!(front_bytes(&bytes), Ok(bytes.len()));
            for at in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1;
                assert!(decode(&damaged).is_err(), "byte {at}");
                assert!(decode(&bytes[..at]).is_err());
            }
            assert!(decode_object(&bytes, RemoteKind::Pack, key.as_ref()).is_err());
        }
    }
}
