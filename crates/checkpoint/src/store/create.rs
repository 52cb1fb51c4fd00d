//! Checkpoints that are being written.

use std::sync::{Arc, PoisonError};

use bindery_pool::ObjectId;
use bindery_pool::write::{Committer, Writer};
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};

use super::state::{FullName, SharedKnownPages};
use super::{Shared, Store};
use crate::catalogue::{Capture, CheckpointId, DomainNumber};
use crate::domain_keys::DomainKeys;
use crate::error::CheckpointError;
use crate::known::KnownPages;
use crate::manifest::{Description, Disk, Manifest, Overlay, PagePlace};
use crate::pack::{PackReader, PackWriter, PageEncoding};

/// Room of the first pack of a checkpoint, in pages.
const FIRST_PACK_PAGES: u32 = 256;

/// Pages that are asked of the caller at once, at most.
const READ_PAGES: u32 = 256;

/// A checkpoint that is to be written.
#[derive(Clone, Debug)]
pub struct NewCheckpoint {
    /// Description of the guest, beside its memory.
    pub description: Description,
    /// Checkpoint of which every page counts that is not put, in the blocks that it has by the same name.
    /// Without one, such pages are zero.
    pub base: Option<CheckpointId>,
    /// Way in which pages are stored.
    pub encoding: PageEncoding,
}

/// A checkpoint that is being written. Nobody sees it before it is finished; dropping it undoes it.
#[must_use = "a checkpoint that is not finished is undone"]
pub struct CheckpointWriter {
    pub(super) shared: Arc<Shared>,
    pub(super) domain: DomainNumber,
    pub(super) keys: Arc<DomainKeys>,
    pub(super) description: Description,
    pub(super) base: Option<Manifest>,
    encoding: PageEncoding,
    pub(super) known: SharedKnownPages,
    /// Pages that this checkpoint stores.
    pub(super) own: KnownPages,
    /// Pages that were put, of each block.
    pub(super) overlays: Vec<Overlay>,
    pack: Option<PackWriter>,
    /// Thread that commits; none once all objects were handed in.
    pub(super) committer: Option<Committer>,
    pub(super) new_packs: Vec<ObjectId>,
    /// Objects that are committed, once nothing more is handed in.
    pub(super) written: Vec<ObjectId>,
    pub(super) new_pages: u64,
    pub(super) new_bytes: u64,
    pub(super) capture: Option<Capture>,
    /// True once something could not be put: the checkpoint would lack it.
    pub(super) has_failed: bool,
    /// True once its objects may be named by the catalogue: they are not deleted any more.
    pub(super) is_noted: bool,
}

impl Store {
    /// Begins a checkpoint of a domain that there is. Blocks while the base's manifest is read and, at the
    /// first checkpoint of the domain since the store was opened, the digests of all its packs.
    ///
    /// # Errors
    /// [`CheckpointError::Description`] if no checkpoint can have it; [`CheckpointError::Exists`] if the name
    /// is taken; [`CheckpointError::OtherDomain`] if the base is of
    /// another domain; [`CheckpointError::NoDomain`], [`CheckpointError::Locked`].
    pub fn create(&self, new: NewCheckpoint) -> Result<CheckpointWriter, CheckpointError> {
        new.description.check().map_err(CheckpointError::Description)?;
        let (domain, keys) = self.shared.domain(&new.description.domain)?;
        let committer = self.shared.pool.committer().map_err(CheckpointError::Thread)?;
        let known = self.shared.reserve(full_name(domain, &new.description))?;
        let blocks = new.description.blocks.len();
        let mut writer = CheckpointWriter {
            shared: Arc::clone(&self.shared),
            domain,
            keys,
            description: new.description,
            base: None,
            encoding: new.encoding,
            known,
            own: KnownPages::default(),
            overlays: std::iter::repeat_with(Overlay::default).take(blocks).collect(),
            pack: None,
            committer: Some(committer),
            new_packs: Vec::new(),
            written: Vec::new(),
            new_pages: 0,
            new_bytes: 0,
            capture: None,
            has_failed: false,
            is_noted: false,
        };
        // From here on packs of the domain stay, and dropping the writer gives the name back.
        writer.base = new.base.map(|base| self.base(base, &writer)).transpose()?;
        writer.load_known();
        Ok(writer)
    }

    fn base(
        &self,
        base: CheckpointId,
        writer: &CheckpointWriter,
    ) -> Result<Manifest, CheckpointError> {
        let (summary, _) = self.shared.unlocked(base)?;
        let wanted = &writer.description.domain;
        if summary.domain == *wanted {
            return self.manifest(base);
        }
        let (domain, wanted) = (summary.domain.clone(), wanted.clone());
        Err(CheckpointError::OtherDomain { base: summary.to_string(), domain, wanted })
    }
}

pub(super) fn full_name(domain: DomainNumber, description: &Description) -> FullName {
    (domain, description.guest.clone(), description.name.clone())
}

impl Shared {
    /// Reserves a name, and has packs of the domain stay.
    fn reserve(&self, full_name: FullName) -> Result<SharedKnownPages, CheckpointError> {
        let mut state = self.state();
        let (domain, guest, name) = &full_name;
        let is_taken = state.contents.checkpoints().any(|(other, summary)| {
            other == domain && summary.guest == *guest && summary.name == *name
        });
        if is_taken || state.reserved.contains(&full_name) {
            return Err(CheckpointError::Exists { guest: guest.clone(), name: name.clone() });
        }
        let domain = *domain;
        state.reserved.insert(full_name);
        state.begin_writing(domain);
        Ok(state.known(domain))
    }
}

impl CheckpointWriter {
    /// Reads the digests of the domain's packs, unless that was done. Packs whose digests are damaged are
    /// passed over: their pages are stored anew.
    fn load_known(&self) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.is_some() {
            return;
        }
        let packs = self.shared.state().contents.packs_of(self.domain);
        let (mut loaded, key) = (KnownPages::default(), self.keys.secret());
        for pack in packs {
            let object = self.shared.pool.get(pack).map_err(Into::into);
            match object.and_then(|object| PackReader::new(object).digests(key)) {
                Ok(digests) => loaded.insert_pack(pack, &digests),
                Err(error) => tracing::warn!(%pack, %error, "pages of a pack will be stored anew"),
            }
        }
        *known = Some(loaded);
    }

    /// Puts pages of a memory block, from `first` on. Pages may be put in any order; of one that is put twice
    /// the last counts. In ascending order they are laid out best. Blocks while the device is behind.
    ///
    /// # Errors
    /// [`CheckpointError::NoPages`], [`CheckpointError::NotPages`]; if the pool has no room, or a device
    /// fails: then the checkpoint can only be dropped.
    pub fn put(
        &mut self,
        block: usize,
        first: PageIndex,
        bytes: &[u8],
    ) -> Result<(), CheckpointError> {
        let (pages, rest) = bytes.as_chunks::<PAGE_BYTES>();
        if !rest.is_empty() {
            return Err(CheckpointError::NotPages(bytes.len()));
        }
        self.check(block, first, pages.len() as u64)?;
        // Until all of them are put.
        let failed_before = std::mem::replace(&mut self.has_failed, true);
        for (page, content) in (first.0..).map(PageIndex).zip(pages) {
            let place = self.place(content)?;
            self.overlays[block].put(PageRange::new(page, 1), place);
        }
        self.has_failed = failed_before;
        Ok(())
    }

    /// Puts the pages of runs that changed, read by `read` into whole pages, up to 256 at a time.
    ///
    /// # Errors
    /// As [`put`](Self::put); [`CheckpointError::Memory`] with the error of `read`.
    pub fn put_changed(
        &mut self,
        block: usize,
        runs: impl IntoIterator<Item = PageRange>,
        mut read: impl FnMut(PageRange, &mut [u8]) -> std::io::Result<()>,
    ) -> Result<(), CheckpointError> {
        let mut bytes = Vec::new();
        for run in runs {
            self.check(block, run.first, run.count.into())?;
            for piece in run.pieces(READ_PAGES) {
                bytes.resize(piece.count as usize * PAGE_BYTES, 0);
                if let Err(error) = read(piece, &mut bytes) {
                    self.has_failed = true;
                    return Err(CheckpointError::Memory(error));
                }
                self.put(block, piece.first, &bytes)?;
            }
        }
        Ok(())
    }

    /// Puts pages of zeros of a memory block. Costs the same however many they are.
    ///
    /// # Errors
    /// [`CheckpointError::NoPages`].
    pub fn put_zeros(&mut self, block: usize, pages: PageRange) -> Result<(), CheckpointError> {
        self.check(block, pages.first, pages.count.into())?;
        if !pages.is_empty() {
            self.overlays[block].put(pages, None);
        }
        Ok(())
    }

    /// Sets the time of the pause, in nanoseconds since 1970-01-01 UTC.
    pub fn set_time(&mut self, time_ns: u64) {
        self.description.time_ns = time_ns;
    }

    /// Sets the figures of the capture, which the catalogue keeps.
    pub const fn set_capture(&mut self, capture: Capture) {
        self.capture = Some(capture);
    }

    /// Sets the device state and its [kind](crate::Vmm::device_state), which are often known after memory only.
    pub fn set_device_state(&mut self, kind: &str, device_state: Vec<u8>) {
        kind.clone_into(&mut self.description.vmm.device_state);
        self.description.device_state = device_state;
    }

    /// Sets the writable disks.
    pub fn set_disks(&mut self, disks: Vec<Disk>) {
        self.description.disks = disks;
    }

    fn check(&self, block: usize, first: PageIndex, count: u64) -> Result<(), CheckpointError> {
        let found = self.description.blocks.get(block);
        let pages = found.map_or(0, |block| block.pages());
        if u64::from(first.0) + count <= pages && found.is_some() {
            return Ok(());
        }
        let block = found.map_or_else(|| block.to_string(), |block| block.name.clone());
        Err(CheckpointError::NoPages { block, pages, first, count })
    }

    /// Returns the place of a page's content, which is stored unless it is known; none if it is zero.
    fn place(&mut self, content: &[u8; PAGE_BYTES]) -> Result<Option<PagePlace>, CheckpointError> {
        if bindery_page::is_zero(content) {
            return Ok(None);
        }
        let digest = self.keys.digest().digest(content);
        if let Some(place) = self.own.find(&digest) {
            return Ok(Some(place));
        }
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = known.as_ref().and_then(|known| known.find(&digest)) {
            return Ok(Some(place));
        }
        drop(known);
        let mut pack = match self.pack.take() {
            Some(pack) => pack,
            None => self.begin_pack()?,
        };
        let place = (pack.object(), pack.put(content, digest)?);
        self.own.insert(digest, place);
        self.new_pages += 1;
        if pack.is_full() {
            self.end_pack(pack)?;
        } else {
            self.pack = Some(pack);
        }
        Ok(Some(place))
    }

    fn begin_pack(&mut self) -> Result<PackWriter, CheckpointError> {
        let Shared { pool, options, id, .. } = &*self.shared;
        let pages = FIRST_PACK_PAGES.checked_shl(self.new_packs.len() as u32).unwrap_or(u32::MAX);
        let pages = pages.clamp(1, options.pack_pages.max(1));
        let key = (*id, self.keys.secret());
        PackWriter::begin(pool, options.class, pages, key, self.encoding)
    }

    fn end_pack(&mut self, pack: PackWriter) -> Result<(), CheckpointError> {
        let object = pack.object();
        let (writer, _) = pack.finish()?;
        self.commit(writer)?;
        self.new_packs.push(object);
        Ok(())
    }

    /// Hands an object in to be committed.
    pub(super) fn commit(&mut self, writer: Writer) -> Result<(), CheckpointError> {
        self.new_bytes += writer.length_bytes();
        let committer = self.committer.as_ref().expect("it is there until all is handed in");
        Ok(committer.commit(writer)?)
    }

    /// Ends the last pack.
    pub(super) fn end_packs(&mut self) -> Result<(), CheckpointError> {
        self.pack.take().map_or(Ok(()), |pack| self.end_pack(pack))
    }

    /// Drops what is not written yet.
    pub(super) fn drop_pack(&mut self) {
        self.pack = None;
    }
}
