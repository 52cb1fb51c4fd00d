//! Pulling a checkpoint.

use std::collections::VecDeque;
use std::io::Write;
use std::ops::ControlFlow;

use bindery_pool::ObjectId;
use bindery_pool::archive::{Fault, Transfer};
use bindery_units::{PAGE_BYTES, PageRange};
use bytes::Bytes;

use super::manifest::{RemoteCheckpoint, RemoteManifest};
use super::object::{RemoteKind, decode_object};
use super::pack::RemotePack;
use super::space::Folder;
use super::{OBJECT_BYTES_MAX, Remote, RemoteError};
use crate::format_error::FormatError;
use crate::manifest::{Manifest, PlacedRun};
use crate::name::Name;
use crate::page_digest::PageDigestKey;
use crate::stream::{CHUNK_PAGES, StreamWriter};

const WHAT: &str = "pushed manifest";

/// Pages of a chunk: number of the memory block, pages, content.
type Chunk = (usize, PageRange, Vec<u8>);

impl Remote {
    /// Reads a checkpoint, each byte verified, and writes it as a stream that [`import`](crate::Store::import)
    /// takes. `watch` is called with the number of pages after each piece, and ends the pull by a break. What was
    /// written until then is no whole stream. Takes memory for some packs. Blocks.
    ///
    /// # Errors
    /// [`RemoteError::Missing`], [`RemoteError::Damaged`] and [`RemoteError::Lost`] with the key of the object,
    /// [`RemoteError::Stream`] if the stream breaks, [`RemoteError::Stopped`], [`RemoteError::Fault`].
    pub fn pull(
        &self,
        (guest, name): (&Name, &Name),
        into: &mut dyn Write,
        watch: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<RemoteCheckpoint, RemoteError> {
        let manifest = self.find(guest, name)?;
        let details = self.details(&manifest)?;
        let digests = self.space.digest_key(&manifest.checkpoint.domain);
        let mut stream = StreamWriter::begin(into, &details.description, None)?.uncompressed();
        let runs = runs_by_pack(&details);
        let at_once = self.bucket.options().parts_at_once;
        let mut packs = manifest.packs.iter();
        let mut fetches: VecDeque<(u128, Transfer<Bytes>)> = VecDeque::new();
        for runs in &runs {
            while fetches.len() < at_once
                && let Some(id) = packs.next()
            {
                fetches.push_back((*id, self.fetch(*id)));
            }
            let (id, fetch) = fetches.pop_front().expect("there are runs for each pack");
            for (block, pages, bytes) in self.chunks(id, fetch, runs, &digests)? {
                stream.put(block as u16, pages.first, &bytes)?;
                if watch(pages.count.into()).is_break() {
                    return Err(RemoteError::Stopped);
                }
            }
        }
        stream.end()?;
        Ok(manifest.checkpoint)
    }

    fn fetch(&self, id: u128) -> Transfer<Bytes> {
        self.bucket.get(&self.space.object(Folder::Packs, id), 0..OBJECT_BYTES_MAX)
    }

    /// Reads description and page maps.
    fn details(&self, manifest: &RemoteManifest) -> Result<Manifest, RemoteError> {
        let mut details = Vec::new();
        for id in &manifest.pieces {
            let key = self.space.object(Folder::Packs, *id);
            details.extend(self.read(&key, |bytes| {
                let piece = decode_object(bytes, RemoteKind::Piece, self.key())?;
                if piece.id != *id || piece.end != bytes.len() {
                    return Err(FormatError::impossible(WHAT, "a piece is another one"));
                }
                Ok(piece.body)
            })?);
        }
        let RemoteCheckpoint { guest, name, domain, time_ns, .. } = &manifest.checkpoint;
        let decode = || {
            if details.len() as u64 != manifest.details_bytes {
                return Err(FormatError::Short { what: WHAT });
            }
            let packs = (0..manifest.packs.len() as u64).map(ObjectId).collect();
            let details = Manifest::decode_body(&details, packs)?;
            let description = &details.description;
            let is_same = (guest, name, domain, *time_ns)
                == (
                    &description.guest,
                    &description.name,
                    &description.domain,
                    description.time_ns,
                );
            if is_same && details.stored_pages() == manifest.checkpoint.stored_pages {
                return Ok(details);
            }
            Err(FormatError::impossible(WHAT, "its details are another checkpoint's"))
        };
        let id = self.space.manifest_id(guest, name);
        decode().map_err(|error| self.damaged(&self.space.object(Folder::Manifests, id), error))
    }

    /// Returns pages of a pack, verified. It is read again where it does not verify.
    fn chunks(
        &self,
        id: u128,
        fetch: Transfer<Bytes>,
        runs: &[(usize, PlacedRun)],
        digests: &PageDigestKey,
    ) -> Result<Vec<Chunk>, RemoteError> {
        let key = self.space.object(Folder::Packs, id);
        let decode = |bytes: &[u8]| {
            let mut pack = RemotePack::read(bytes, id, self.key())?;
            chunks_of(&mut pack, runs, digests)
        };
        let bytes = match fetch.wait() {
            Err(Fault::Absent { .. }) => return Err(self.lost(&key)),
            bytes => bytes?,
        };
        // Its first reading went ahead.
        decode(&bytes).or_else(|_| self.read(&key, decode))
    }
}

/// Returns the runs of each pack in the order of their places, each with the number of its memory block.
fn runs_by_pack(details: &Manifest) -> Vec<Vec<(usize, PlacedRun)>> {
    let mut by_pack = vec![Vec::new(); details.packs.len()];
    for (block, map) in details.pages.iter().enumerate() {
        map.runs().iter().for_each(|run| by_pack[run.pack as usize].push((block, *run)));
    }
    by_pack.iter_mut().for_each(|runs| runs.sort_by_key(|(_, run)| run.place));
    by_pack
}

fn chunks_of(
    pack: &mut RemotePack<'_>,
    runs: &[(usize, PlacedRun)],
    digests: &PageDigestKey,
) -> Result<Vec<Chunk>, FormatError> {
    let mut chunks = Vec::new();
    for (block, run) in runs {
        let mut place = run.place;
        for pages in run.pages.pieces(CHUNK_PAGES) {
            let mut bytes = Vec::with_capacity(pages.count as usize * PAGE_BYTES);
            for _ in 0..pages.count {
                bytes.extend_from_slice(pack.page(place, digests)?);
                place += 1;
            }
            chunks.push((*block, pages, bytes));
        }
    }
    Ok(chunks)
}
