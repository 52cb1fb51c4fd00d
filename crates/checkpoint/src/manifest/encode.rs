//! Manifests as objects: a head, the packs in the clear, and a body that is sealed where there is a key.

use bindery_pool::ObjectId;

use super::description::Description;
use super::page_map::PageMap;
use crate::checksum::crc32c;
use crate::fields::Fields;
use crate::format_error::FormatError;
use crate::object::{HEAD_BYTES, KIND_FIELDS_AT, ObjectHead, ObjectKind};
use crate::seal::{Check, ObjectCipher, SecretKey};

const WHAT: &str = "manifest";
const PACK_BYTES: usize = 8;

/// Start of the list of packs in a manifest, in bytes.
pub(crate) const PACKS_AT: usize = HEAD_BYTES;

/// A checkpoint: what the guest was, and the place of each of its pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Description of the guest, beside its memory.
    pub description: Description,
    /// Objects of the pool that hold its pages. Each is named by a run, and in the order of the first that does.
    pub packs: Vec<ObjectId>,
    /// Places of the pages of each memory block, in the order of the description's blocks.
    pub pages: Vec<PageMap>,
}

impl Manifest {
    /// Returns the number of pages that are not zero.
    #[must_use]
    pub fn stored_pages(&self) -> u64 {
        self.pages.iter().map(PageMap::stored_pages).sum()
    }

    /// Returns the number of a memory block, if there is one of that name.
    #[must_use]
    pub fn block(&self, name: &str) -> Option<usize> {
        self.description.blocks.iter().position(|block| block.name == name)
    }

    /// Encodes the object's bytes. `store` and `id` go into its head.
    #[must_use]
    pub fn encode(&self, store: u128, id: u128, key: Option<&SecretKey>) -> Vec<u8> {
        let mut body = self.encode_body();
        let packs: Vec<u8> = self.packs.iter().flat_map(|pack| pack.0.to_le_bytes()).collect();
        let cipher = ObjectCipher::new(id, key);
        let packs_checksum = crc32c([&packs]);
        let count = (self.packs.len() as u32).to_le_bytes();
        // Body and packs are of one manifest; a checksum alone could be kept by who changes packs.
        let check = cipher.seal(0, &packs, &mut body);
        let mut fields = Vec::with_capacity(32);
        fields.extend_from_slice(&count);
        fields.extend_from_slice(&packs_checksum.to_le_bytes());
        fields.extend_from_slice(&(body.len() as u64).to_le_bytes());
        fields.extend_from_slice(&check);
        let is_sealed = cipher.is_sealed();
        let head = ObjectHead { store, id, kind: ObjectKind::Manifest, is_sealed };
        [&head.encode(&fields)[..], &packs, &body].concat()
    }

    /// Encodes the description and the page maps.
    pub(crate) fn encode_body(&self) -> Vec<u8> {
        let mut body = Vec::new();
        self.description.put(&mut body);
        self.pages.iter().for_each(|map| map.put(&mut body));
        body
    }

    /// Reads a manifest that is all of `bytes`.
    ///
    /// # Errors
    /// See [`FormatError`].
    pub fn decode(bytes: &[u8], key: Option<&SecretKey>) -> Result<Self, FormatError> {
        let head = ManifestHead::decode(bytes)?;
        let mut fields = Fields::new(WHAT, bytes);
        fields.bytes(PACKS_AT)?;
        let pack_bytes = fields.bytes(head.packs_bytes())?;
        let packs = head.decode_packs(pack_bytes)?;
        let body_bytes = usize::try_from(head.body_bytes);
        let body = fields.bytes(body_bytes.map_err(|_| FormatError::Short { what: WHAT })?)?;
        fields.end()?;
        let cipher = ObjectCipher::reading(WHAT, head.object.id, head.object.is_sealed, key)?;
        let mut body = body.to_vec();
        cipher.open(WHAT, (0, pack_bytes), &head.check, &mut body)?;
        Self::decode_body(&body, packs)
    }

    /// Reads what [`encode_body`](Self::encode_body) has encoded.
    pub(crate) fn decode_body(body: &[u8], packs: Vec<ObjectId>) -> Result<Self, FormatError> {
        let mut fields = Fields::new(WHAT, body);
        let description = Description::take(&mut fields)?;
        let mut pages = Vec::with_capacity(description.blocks.len());
        for block in &description.blocks {
            pages.push(PageMap::take(&mut fields, block.pages(), packs.len())?);
        }
        fields.end()?;
        let manifest = Self { description, packs, pages };
        if manifest.names_each_pack_in_order() {
            return Ok(manifest);
        }
        Err(FormatError::impossible(WHAT, "its packs are not in the order of its runs"))
    }

    fn names_each_pack_in_order(&self) -> bool {
        let mut named = 0;
        for run in self.pages.iter().flat_map(PageMap::runs) {
            if run.pack > named {
                return false;
            }
            named += u32::from(run.pack == named);
        }
        let mut packs = self.packs.clone();
        packs.sort_unstable();
        packs.dedup();
        named as usize == self.packs.len() && packs.len() == self.packs.len()
    }
}

/// The part of a manifest that is read without a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ManifestHead {
    pub(crate) object: ObjectHead,
    packs: u32,
    packs_checksum: u32,
    body_bytes: u64,
    check: Check,
}

impl ManifestHead {
    /// Reads the first block. More bytes may follow.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let object = ObjectHead::expect(bytes, ObjectKind::Manifest)?;
        let mut fields = Fields::new(WHAT, &bytes[KIND_FIELDS_AT..HEAD_BYTES]);
        Ok(Self {
            object,
            packs: fields.u32()?,
            packs_checksum: fields.u32()?,
            body_bytes: fields.u64()?,
            check: fields.array()?,
        })
    }

    pub(crate) const fn packs_bytes(&self) -> usize {
        self.packs as usize * PACK_BYTES
    }

    /// Reads the list of packs.
    pub(crate) fn decode_packs(&self, bytes: &[u8]) -> Result<Vec<ObjectId>, FormatError> {
        if bytes.len() != self.packs_bytes() {
            return Err(FormatError::Short { what: "list of packs" });
        }
        if crc32c([bytes]) != self.packs_checksum {
            return Err(FormatError::Checksum { what: "list of packs" });
        }
        let (packs, _) = bytes.as_chunks();
        Ok(packs.iter().map(|pack| ObjectId(u64::from_le_bytes(*pack))).collect())
    }
}

#[cfg(test)]
mod tests {
    use bindery_units::{PAGE_BYTES, PageIndex, PageRange};

    use super::*;
    use crate::manifest::{MemoryBlock, PlacedRun, Vmm};

    fn manifest() -> Manifest {
        let name = |text: &str| text.parse().unwrap();
        let description = Description {
            guest: name("one"),
            name: name("a"),
            domain: name("web"),
            time_ns: 7,
            vmm: Vmm::default(),
            blocks: vec![MemoryBlock { name: "ram".into(), bytes: PAGE_BYTES as u64 }],
            disks: Vec::new(),
            device_state: Vec::new(),
        };
        let mut map = PageMap::default();
        map.push(PlacedRun { pages: PageRange::new(PageIndex(0), 1), pack: 0, place: 0 });
        Manifest { description, packs: vec![ObjectId(20)], pages: vec![map] }
    }

    #[test]
    fn other_packs_of_one_checksum_are_refused() {
        let key = SecretKey::from_bytes([3; 32]);
        let bytes = manifest().encode(1, 2, Some(&key));
        assert_eq!(Manifest::decode(&bytes, Some(&key)), Ok(manifest()));
        // The polynomial of CRC-32C, which divides by itself.
        let mut forged = bytes;
        let difference = 1_u64 | 0x82f6_3b78 << 1;
        for (byte, other) in forged[PACKS_AT..].iter_mut().zip(difference.to_le_bytes()) {
            *byte ^= other;
        }
        let head = ManifestHead::decode(&forged).unwrap();
        head.decode_packs(&forged[PACKS_AT..PACKS_AT + PACK_BYTES]).unwrap();
        let refused = Manifest::decode(&forged, Some(&key));
        assert_eq!(refused, Err(FormatError::Sealed { what: WHAT }));
    }
}
