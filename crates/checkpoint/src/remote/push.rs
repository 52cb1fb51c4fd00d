//! Pushing a checkpoint.

mod known;

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::Read;
use std::ops::ControlFlow;

use bindery_pool::ObjectId;
use bindery_pool::archive::{Transfer, Upload};
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};

use super::manifest::{RemoteCheckpoint, RemoteManifest};
use super::object::{RemoteKind, encode_object};
use super::pack::{DomainTag, PackBuilder};
use super::snapshot::Snapshot;
use super::space::Folder;
use super::{Remote, RemoteError};
use crate::known::KnownPages;
use crate::manifest::{Description, Manifest, Overlay, PageMap};
use crate::page_digest::PageDigestKey;
use crate::seal::{KeyError, random};
use crate::stream::StreamReader;

/// Most pages of a pack, whatever the options say.
const PACK_PAGES_MAX: u64 = 16 << 10;

/// Number of looks at a listing that does not show what was just put.
const LOOKS: u32 = 3;

/// Result of a push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// The checkpoint that is there now.
    pub checkpoint: RemoteCheckpoint,
    /// Number of objects that were sent.
    pub objects: u64,
    /// Bytes of those objects.
    pub bytes: u64,
}

impl Remote {
    /// Pushes the checkpoint of a stream that is not encrypted, as [`export`](crate::Store::export) writes it.
    /// `watch` is called with the number of pages after each piece, and ends the push by a break. What was sent
    /// until then is known to the next push. Takes memory for some packs and, for each page that the prefix
    /// has of the domain, 50 to 100 bytes, up to four million pages. Blocks.
    ///
    /// # Errors
    /// [`RemoteError::Exists`], [`RemoteError::NotKept`], [`RemoteError::Swept`], [`RemoteError::Stopped`];
    /// [`RemoteError::Stream`] if the stream breaks; [`RemoteError::Fault`] if the store does.
    pub fn push(
        &self,
        from: &mut dyn Read,
        watch: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Pushed, RemoteError> {
        let (mut stream, description) = StreamReader::begin(from, None)?;
        let manifest = self.space.manifest_id(&description.guest, &description.name);
        if self.snapshot()?.manifests.contains(&manifest) {
            return Err(self.exists(&description));
        }
        let mut push = Push::begin(self, description, manifest)?;
        let pushed = push.put_all(&mut stream, watch).and_then(|()| push.finish(manifest));
        // A store that fails fails here as well, and is not waited for again.
        if !matches!(pushed, Err(RemoteError::Fault(_))) {
            let claim = self.space.object(Folder::Claims, push.claim);
            if let Err(error) = self.bucket.delete(&claim) {
                tracing::warn!(claim, %error, "a claim is left, and counts for a week");
            }
        }
        pushed
    }

    fn exists(&self, description: &Description) -> RemoteError {
        let checkpoint = format!("{}@{}", description.guest, description.name);
        RemoteError::Exists { url: self.url().into(), checkpoint }
    }
}

/// A push that goes on.
struct Push<'a> {
    remote: &'a Remote,
    claim: u128,
    description: Description,
    tag: DomainTag,
    digests: PageDigestKey,
    /// Pages of packs, these by their number in `packs`.
    known: KnownPages,
    packs: Vec<u128>,
    overlays: Vec<Overlay>,
    pack: Option<(ObjectId, PackBuilder)>,
    uploads: VecDeque<(u128, Transfer<Upload>)>,
    sent_pages: u64,
    objects: u64,
    bytes: u64,
}

impl<'a> Push<'a> {
    /// Claims what there is, and reads what of it is known.
    fn begin(
        remote: &'a Remote,
        description: Description,
        manifest: u128,
    ) -> Result<Self, RemoteError> {
        let (tag, digests) = {
            let domain = &description.domain;
            (remote.space.domain_tag(domain), remote.space.digest_key(domain))
        };
        let claim = u128::from_le_bytes(random()?);
        let before: Vec<u128> = remote.snapshot()?.packs.into_keys().collect();
        let body = manifest.to_le_bytes().to_vec();
        remote.put_list((RemoteKind::Claim, claim), &before, body)?;
        let mut push = Self {
            remote,
            claim,
            tag,
            digests,
            known: KnownPages::default(),
            packs: Vec::new(),
            overlays: std::iter::repeat_with(Overlay::default)
                .take(description.blocks.len())
                .collect(),
            description,
            pack: None,
            uploads: VecDeque::new(),
            sent_pages: 0,
            objects: 0,
            bytes: 0,
        };
        push.load_known(&before.into_iter().collect())?;
        Ok(push)
    }

    /// Returns an id for an object, which the claim covers.
    fn new_id(&self) -> Result<u128, KeyError> {
        let low = u64::from_le_bytes(random()?);
        Ok(self.claim >> 64 << 64 | u128::from(low))
    }

    fn put_all(
        &mut self,
        stream: &mut StreamReader<'_>,
        watch: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<(), RemoteError> {
        while let Some((block, pages, bytes)) = stream.pages()? {
            let (contents, _) = bytes.as_chunks::<PAGE_BYTES>();
            for (page, content) in (pages.first.0..).map(PageIndex).zip(contents) {
                self.put(block, page, content)?;
            }
            if watch(pages.count.into()).is_break() {
                return Err(RemoteError::Stopped);
            }
        }
        Ok(())
    }

    fn put(
        &mut self,
        block: usize,
        page: PageIndex,
        content: &[u8; PAGE_BYTES],
    ) -> Result<(), RemoteError> {
        let digest = self.digests.digest(content);
        let place = match self.known.find(&digest) {
            Some(place) => place,
            None => {
                let (number, mut pack) = match self.pack.take() {
                    Some(pack) => pack,
                    None => self.begin_pack()?,
                };
                let place = (number, pack.put(content, digest));
                self.known.insert(digest, place);
                self.sent_pages += 1;
                if u64::from(pack.pages()) >= self.pack_pages() {
                    self.end_pack(pack)?;
                } else {
                    self.pack = Some((number, pack));
                }
                place
            }
        };
        self.overlays[block].put(PageRange::new(page, 1), Some(place));
        Ok(())
    }

    fn pack_pages(&self) -> u64 {
        let pages = self.remote.bucket.options().part_bytes / PAGE_BYTES as u64;
        pages.clamp(1, PACK_PAGES_MAX)
    }

    fn begin_pack(&mut self) -> Result<(ObjectId, PackBuilder), RemoteError> {
        let pack = PackBuilder::new(self.new_id()?, self.remote.key());
        self.packs.push(pack.id());
        Ok((ObjectId(self.packs.len() as u64 - 1), pack))
    }

    fn end_pack(&mut self, pack: PackBuilder) -> Result<(), RemoteError> {
        let id = pack.id();
        let bytes = pack.finish(&self.tag, self.remote.key());
        self.send(id, bytes)
    }

    /// Sends an object, while some others are on their way. Blocks while these are as many as may be.
    fn send(&mut self, id: u128, bytes: Vec<u8>) -> Result<(), RemoteError> {
        while self.uploads.len() >= self.remote.bucket.options().parts_at_once {
            self.await_upload()?;
        }
        self.objects += 1;
        self.bytes += bytes.len() as u64;
        let key = self.remote.space.object(Folder::Packs, id);
        self.uploads.push_back((id, self.remote.bucket.create(&key, bytes.into())));
        Ok(())
    }

    fn await_upload(&mut self) -> Result<(), RemoteError> {
        let Some((id, upload)) = self.uploads.pop_front() else { return Ok(()) };
        let key = self.remote.space.object(Folder::Packs, id);
        self.remote.require_kept(upload.wait()?, &key)
    }

    /// Sends what is left, then the manifest.
    fn finish(&mut self, id: u128) -> Result<Pushed, RemoteError> {
        if let Some((_, pack)) = self.pack.take() {
            self.end_pack(pack)?;
        }
        let sent_bytes = self.bytes;
        let (details, packs) = self.details();
        let stored_pages = details.stored_pages();
        let details = details.encode_body();
        let pieces = self.send_details(&details)?;
        while !self.uploads.is_empty() {
            self.await_upload()?;
        }
        let Description { guest, name, domain, time_ns, .. } = self.description.clone();
        let checkpoint = RemoteCheckpoint {
            guest,
            name,
            domain,
            time_ns,
            memory_pages: self.description.pages(),
            stored_pages,
            sent_pages: self.sent_pages,
            sent_bytes,
        };
        let details_bytes = details.len() as u64;
        let manifest = RemoteManifest { checkpoint, details_bytes, pieces, packs };
        self.publish(id, &manifest)?;
        let Self { objects, bytes, .. } = *self;
        Ok(Pushed { checkpoint: manifest.checkpoint, objects, bytes })
    }

    /// Returns what the checkpoint is, and the packs that it names.
    fn details(&mut self) -> (Manifest, Vec<u128>) {
        let (mut order, mut numbers) = (Vec::new(), HashMap::new());
        let mut number = |pack: ObjectId| {
            *numbers.entry(pack).or_insert_with(|| {
                order.push(pack);
                order.len() as u32 - 1
            })
        };
        let nothing = PageMap::default();
        let overlays = self.overlays.drain(..).zip(&self.description.blocks);
        // Page indices have 32 bits: pages beyond them could not have come.
        let pages = overlays
            .map(|(overlay, block)| {
                overlay.over((&nothing, &[]), block.pages() as u32, &mut number)
            })
            .collect();
        let packs = order.iter().map(|pack| self.packs[pack.0 as usize]).collect();
        let numbered = (0..order.len() as u64).map(ObjectId).collect();
        (Manifest { description: self.description.clone(), packs: numbered, pages }, packs)
    }

    fn send_details(&mut self, details: &[u8]) -> Result<Vec<u128>, RemoteError> {
        let piece_bytes = self.pack_pages() as usize * PAGE_BYTES;
        let mut pieces = Vec::new();
        for piece in details.chunks(piece_bytes) {
            let id = self.new_id()?;
            let object = (RemoteKind::Piece, id);
            let (bytes, _) = encode_object(object, self.remote.key(), &[], piece.to_vec());
            self.send(id, bytes)?;
            pieces.push(id);
        }
        Ok(pieces)
    }

    /// Puts the manifest, and makes sure that all is there that it names.
    fn publish(&mut self, id: u128, manifest: &RemoteManifest) -> Result<(), RemoteError> {
        let remote = self.remote;
        let bytes = manifest.encode(self.new_id()?, remote.key());
        let key = remote.space.object(Folder::Manifests, id);
        self.objects += 1;
        self.bytes += bytes.len() as u64;
        match remote.bucket.create(&key, bytes.into()).wait()? {
            Upload::Exists => return Err(remote.exists(&self.description)),
            upload => remote.require_kept(upload, &key)?,
        }
        let needed: HashSet<u128> =
            manifest.pieces.iter().chain(&manifest.packs).copied().collect();
        if self.is_all_there(id, &needed)? {
            return Ok(());
        }
        remote.bucket.delete(&key)?;
        Err(RemoteError::Swept { url: remote.url().into() })
    }

    /// Returns true if all objects are there, and none has a tombstone.
    fn is_all_there(&self, manifest: u128, needed: &HashSet<u128>) -> Result<bool, RemoteError> {
        for _ in 0..LOOKS {
            let snapshot = self.remote.snapshot()?;
            if snapshot.manifests.contains(&manifest) {
                let buried = self.remote.buried(&snapshot)?;
                let is_there = |id: &u128| snapshot.packs.contains_key(id) && !buried.contains(id);
                return Ok(needed.iter().all(is_there));
            }
        }
        // A listing of before. Deletions remove nothing by such listings, but one may have ended.
        self.remote.are_there(needed)
    }
}

impl Remote {
    /// Returns the objects that have tombstones.
    fn buried(&self, snapshot: &Snapshot) -> Result<HashSet<u128>, RemoteError> {
        let mut buried = HashSet::new();
        for id in snapshot.tombstones.keys() {
            let tombstone = self.list_of(RemoteKind::Tombstone, *id)?;
            buried.extend(tombstone.into_iter().flat_map(|tombstone| tombstone.list));
        }
        Ok(buried)
    }

    /// Asks for the first byte of each object.
    fn are_there(&self, ids: &HashSet<u128>) -> Result<bool, RemoteError> {
        for id in ids {
            let key = self.space.object(Folder::Packs, *id);
            match self.bucket.get(&key, 0..1).wait() {
                Ok(_) => {}
                Err(bindery_pool::archive::Fault::Absent { .. }) => return Ok(false),
                Err(fault) => return Err(fault.into()),
            }
        }
        Ok(true)
    }
}
