//! Packs in an object store: an index of groups and digests before the pages.

use bindery_units::PAGE_BYTES;

use super::object::{RemoteKind, RemoteObject, decode_object, encode_object};
use crate::fields::Fields;
use crate::format_error::FormatError;
use crate::pack::{GROUP_PAGES, GroupCompressor, decompress};
use crate::page_digest::{DIGEST_BYTES, PageDigest, PageDigestKey};
use crate::seal::{CHECK_BYTES, Check, ObjectCipher, SecretKey};

/// Length of an entry for a group, in bytes.
const ENTRY_BYTES: usize = 6 + CHECK_BYTES;

const WHAT: &str = "pushed pack";

/// Tag of a domain: packs of another one share no page.
pub(super) type DomainTag = [u8; 16];

/// Pages of a pack that are stored together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    pages: u8,
    is_compressed: bool,
    stored_bytes: u32,
    check: Check,
}

impl Group {
    const fn bound(&self) -> [u8; 2] {
        [self.pages, self.is_compressed as u8]
    }

    const fn plain_bytes(&self) -> usize {
        self.pages as usize * PAGE_BYTES
    }

    fn put(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.bound());
        into.extend_from_slice(&self.stored_bytes.to_le_bytes());
        into.extend_from_slice(&self.check);
    }

    fn take(fields: &mut Fields<'_>) -> Result<Self, FormatError> {
        let [pages, codec] = fields.array()?;
        let (stored_bytes, check) = (fields.u32()?, fields.array()?);
        let group = Self { pages, is_compressed: codec == 1, stored_bytes, check };
        let plain_bytes = group.plain_bytes() as u32;
        let is_possible = (1..=GROUP_PAGES).contains(&pages.into())
            && match codec {
                0 => stored_bytes == plain_bytes,
                1 => (1..plain_bytes).contains(&stored_bytes),
                _ => false,
            };
        if is_possible {
            Ok(group)
        } else {
            Err(FormatError::impossible(WHAT, "a group of no length"))
        }
    }
}

/// A pack that is filled in memory.
pub(super) struct PackBuilder {
    id: u128,
    cipher: ObjectCipher,
    compressor: GroupCompressor,
    groups: Vec<Group>,
    digests: Vec<PageDigest>,
    /// Pages that are to be compressed together.
    gathered: Vec<u8>,
    stored: Vec<u8>,
}

impl PackBuilder {
    pub(super) fn new(id: u128, key: Option<&SecretKey>) -> Self {
        Self {
            id,
            cipher: ObjectCipher::new(id, key),
            compressor: GroupCompressor::new(),
            groups: Vec::new(),
            digests: Vec::new(),
            gathered: Vec::new(),
            stored: Vec::new(),
        }
    }

    pub(super) const fn id(&self) -> u128 {
        self.id
    }

    /// Returns the number of pages that were put.
    pub(super) fn pages(&self) -> u32 {
        self.digests.len() as u32
    }

    /// Appends a page. Returns its number.
    pub(super) fn put(&mut self, page: &[u8; PAGE_BYTES], digest: PageDigest) -> u32 {
        let number = self.pages();
        self.digests.push(digest);
        self.gathered.extend_from_slice(page);
        if self.gathered.len() == GROUP_PAGES * PAGE_BYTES {
            self.end_group();
        }
        number
    }

    fn end_group(&mut self) {
        let mut piece = std::mem::take(&mut self.gathered);
        let pages = (piece.len() / PAGE_BYTES) as u8;
        let compressed = self.compressor.compress(&piece).map(std::mem::take);
        let is_compressed = compressed.is_some();
        piece = compressed.unwrap_or(piece);
        let ordinal = self.groups.len() as u64 + 1;
        let stored_bytes = piece.len() as u32;
        let mut group = Group { pages, is_compressed, stored_bytes, check: [0; CHECK_BYTES] };
        group.check = self.cipher.seal(ordinal, &group.bound(), &mut piece);
        self.groups.push(group);
        self.stored.extend_from_slice(&piece);
    }

    /// Encodes the object.
    pub(super) fn finish(mut self, tag: &DomainTag, key: Option<&SecretKey>) -> Vec<u8> {
        if !self.gathered.is_empty() {
            self.end_group();
        }
        let mut body = tag.to_vec();
        body.extend_from_slice(&(self.groups.len() as u32).to_le_bytes());
        self.groups.iter().for_each(|group| group.put(&mut body));
        self.digests.iter().for_each(|digest| body.extend_from_slice(&digest.0));
        let (mut bytes, _) = encode_object((RemoteKind::Pack, self.id), key, &[], body);
        bytes.extend_from_slice(&self.stored);
        bytes
    }
}

/// Index of a pack: its groups, and the digests of its pages.
pub(super) struct PackIndex {
    pub(super) tag: DomainTag,
    pub(super) digests: Vec<PageDigest>,
    groups: Vec<Group>,
}

impl PackIndex {
    fn decode(body: &[u8]) -> Result<Self, FormatError> {
        let mut fields = Fields::new(WHAT, body);
        let tag = fields.array()?;
        let count = fields.count(ENTRY_BYTES)?;
        let groups: Result<Vec<Group>, _> = (0..count).map(|_| Group::take(&mut fields)).collect();
        let groups = groups?;
        let pages: usize = groups.iter().map(|group| usize::from(group.pages)).sum();
        let (digests, rest) = fields.bytes(pages * DIGEST_BYTES)?.as_chunks();
        fields.end()?;
        assert!(rest.is_empty(), "they are a whole number of digests");
        Ok(Self {
            tag,
            digests: digests.iter().map(|digest| PageDigest(*digest)).collect(),
            groups,
        })
    }

    /// Reads the index of the pack with an id; its pages need not be there.
    pub(super) fn read(
        bytes: &[u8],
        id: u128,
        key: Option<&SecretKey>,
    ) -> Result<(Self, RemoteObject), FormatError> {
        let object = decode_object(bytes, RemoteKind::Pack, key)?;
        if object.id != id {
            return Err(FormatError::impossible(WHAT, "it is another pack"));
        }
        Ok((Self::decode(&object.body)?, object))
    }
}

/// A pack that was read whole.
pub(super) struct RemotePack<'a> {
    index: PackIndex,
    cipher: ObjectCipher,
    stored: &'a [u8],
    /// Number of the first page of each group, and start of the group in `stored`.
    starts: Vec<(u32, usize)>,
    /// The last group that was read: its number and its pages.
    last: Option<(usize, Vec<u8>)>,
}

impl<'a> RemotePack<'a> {
    /// Reads the pack with an id that is all of `bytes`.
    pub(super) fn read(
        bytes: &'a [u8],
        id: u128,
        key: Option<&SecretKey>,
    ) -> Result<Self, FormatError> {
        let (index, object) = PackIndex::read(bytes, id, key)?;
        let stored = &bytes[object.end..];
        let (mut starts, mut page, mut at) = (Vec::with_capacity(index.groups.len()), 0, 0_usize);
        for group in &index.groups {
            starts.push((page, at));
            page += u32::from(group.pages);
            at += group.stored_bytes as usize;
        }
        if at != stored.len() {
            return Err(FormatError::impossible(WHAT, "it has another length than its groups"));
        }
        Ok(Self { index, cipher: object.cipher, stored, starts, last: None })
    }

    /// Returns a page, verified by its check and by its digest.
    pub(super) fn page(
        &mut self,
        page: u32,
        digests: &PageDigestKey,
    ) -> Result<&[u8; PAGE_BYTES], FormatError> {
        let missing = FormatError::impossible(WHAT, "it has no page of that number");
        let wanted = *self.index.digests.get(page as usize).ok_or(missing)?;
        let group = self.starts.partition_point(|(first, _)| *first <= page) - 1;
        if self.last.as_ref().is_none_or(|(last, _)| *last != group) {
            self.last = Some((group, self.group(group)?));
        }
        let (_, pages) = self.last.as_ref().expect("it was just read");
        let (pages, _) = pages.as_chunks::<PAGE_BYTES>();
        let content = &pages[(page - self.starts[group].0) as usize];
        if digests.digest(content) == wanted {
            return Ok(content);
        }
        Err(FormatError::Checksum { what: "page" })
    }

    /// Verifies all groups. Returns the number of their pages.
    pub(super) fn verify_groups(&self) -> Result<u64, FormatError> {
        (0..self.index.groups.len()).try_for_each(|number| self.group(number).map(drop))?;
        Ok(self.index.digests.len() as u64)
    }

    fn group(&self, number: usize) -> Result<Vec<u8>, FormatError> {
        let (group, start) = (self.index.groups[number], self.starts[number].1);
        let mut piece = self.stored[start..start + group.stored_bytes as usize].to_vec();
        let place = (number as u64 + 1, &group.bound()[..]);
        self.cipher.open("group of pages", place, &group.check, &mut piece)?;
        if !group.is_compressed {
            return Ok(piece);
        }
        let mut plain = vec![0; group.plain_bytes()];
        if decompress(&piece, &mut plain) {
            return Ok(plain);
        }
        Err(FormatError::impossible(WHAT, "a group decompresses to something else"))
    }
}
