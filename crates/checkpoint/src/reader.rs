//! Checkpoints that are read.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use bindery_pool::object::Object;
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};

use crate::domain_keys::DomainKeys;
use crate::error::{CheckpointError, PackError};
use crate::manifest::{Manifest, PlacedRun};
use crate::pack::PackReader;
use crate::seal::SecretKey;

/// Decompressed groups that are kept, so that pages that are read one after the other cost one each.
const KEPT_GROUPS: usize = 32;

/// A checkpoint that is read. May be used by any number of threads.
pub struct CheckpointReader {
    /// `guest@name`, for errors.
    name: String,
    manifest: Manifest,
    packs: Vec<Result<PackReader, Arc<PackError>>>,
    keys: Arc<DomainKeys>,
    groups: Mutex<VecDeque<KeptGroup>>,
}

/// Decompressed pages of a pack.
struct KeptGroup {
    pack: u32,
    first: u32,
    bytes: Arc<[u8]>,
}

/// Pages of a memory block that lie in an object as they are, so that they can be mapped.
#[derive(Clone)]
pub struct MappableRun {
    /// Pages of the memory block.
    pub pages: PageRange,
    /// The object, as [`Maps::map`](bindery_pool::map::Maps::map) takes it.
    pub object: Arc<dyn Object>,
    /// Start of the pages in the object, in bytes: a whole number of pages.
    pub offset_bytes: u64,
}

impl fmt::Debug for CheckpointReader {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "checkpoint {} ({} packs)", self.name, self.packs.len())
    }
}

impl fmt::Debug for MappableRun {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pages, object, offset_bytes } = self;
        write!(formatter, "{pages:?} at {offset_bytes} of object {}", object.id())
    }
}

impl CheckpointReader {
    pub(crate) fn new(
        name: String,
        manifest: Manifest,
        packs: Vec<Result<Arc<dyn Object>, PackError>>,
        keys: Arc<DomainKeys>,
    ) -> Self {
        let packs = packs.into_iter().map(|pack| pack.map(PackReader::new).map_err(Arc::new));
        let groups = Mutex::default();
        Self { name, manifest, packs: packs.collect(), keys, groups }
    }

    /// Returns the manifest.
    #[must_use]
    pub const fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the stored pages of a memory block, ascending. Those between them are zero.
    ///
    /// # Panics
    /// If there is no block of that number.
    #[must_use]
    pub fn runs(&self, block: usize) -> &[PlacedRun] {
        self.manifest.pages[block].runs()
    }

    pub(crate) fn block_name(&self, block: usize) -> &str {
        &self.manifest.description.blocks[block].name
    }

    fn key(&self) -> Option<&SecretKey> {
        self.keys.secret()
    }

    /// Reads pages of a memory block, from `first` on, verified; those that are not stored as zeros. Blocks.
    ///
    /// # Errors
    /// [`CheckpointError::Page`] with the first page that cannot be read; pages before it were.
    /// [`CheckpointError::NoPages`], [`CheckpointError::NotPages`].
    pub fn read(
        &self,
        block: usize,
        first: PageIndex,
        into: &mut [u8],
    ) -> Result<(), CheckpointError> {
        let range = self.range(block, first, into.len())?;
        into.fill(0);
        for run in self.manifest.pages[block].within(range) {
            let at = (run.pages.first.0 - first.0) as usize * PAGE_BYTES;
            let bytes = run.pages.count as usize * PAGE_BYTES;
            self.read_run(block, run, &mut into[at..at + bytes])?;
        }
        Ok(())
    }

    fn range(
        &self,
        block: usize,
        first: PageIndex,
        bytes: usize,
    ) -> Result<PageRange, CheckpointError> {
        let found = self.manifest.description.blocks.get(block);
        let pages = found.map_or(0, |block| block.pages());
        let count = (bytes / PAGE_BYTES) as u64;
        if !bytes.is_multiple_of(PAGE_BYTES) {
            return Err(CheckpointError::NotPages(bytes));
        }
        if found.is_none() || u64::from(first.0) + count > pages {
            let block = found.map_or_else(|| block.to_string(), |block| block.name.clone());
            return Err(CheckpointError::NoPages { block, pages, first, count });
        }
        Ok(PageRange::new(first, count as u32))
    }

    fn read_run(
        &self,
        block: usize,
        run: PlacedRun,
        into: &mut [u8],
    ) -> Result<(), CheckpointError> {
        let (mut done, mut at_once) = (0, into.len());
        while done < run.pages.count {
            let rest = &mut into[done as usize * PAGE_BYTES..];
            let length = rest.len().min(at_once);
            match self.read_some(run.pack, run.place + done, &mut rest[..length]) {
                Ok(pages) => done += pages,
                // One page of many: page by page it is found, and named.
                Err(_) if length > PAGE_BYTES => at_once = PAGE_BYTES,
                Err(source) => {
                    let page = PageIndex(run.pages.first.0 + done);
                    return Err(self.page_error(block, page, source));
                }
            }
        }
        Ok(())
    }

    /// Reads pages of a pack, as many as it gives at once. Returns how many.
    fn read_some(&self, pack: u32, place: u32, into: &mut [u8]) -> Result<u32, PackError> {
        let reader = self.pack(pack)?;
        if let Some((first, bytes)) = self.kept(pack, place) {
            return Ok(copy_group(first, &bytes, place, into));
        }
        match reader.read_raw(self.key(), place, into)? {
            0 => {
                let (first, bytes) = reader.read_group(self.key(), place)?;
                let bytes: Arc<[u8]> = bytes.into();
                self.keep(pack, first, &bytes);
                Ok(copy_group(first, &bytes, place, into))
            }
            pages => Ok(pages),
        }
    }

    fn pack(&self, pack: u32) -> Result<&PackReader, PackError> {
        self.packs[pack as usize].as_ref().map_err(|error| match &**error {
            PackError::Find(error) => (*error).into(),
            _ => unreachable!("a pack that is not there was not found"),
        })
    }

    fn page_error(&self, block: usize, page: PageIndex, source: PackError) -> CheckpointError {
        let (checkpoint, block) = (self.name.clone(), self.block_name(block).to_owned());
        CheckpointError::Page { checkpoint, block, page, source }
    }

    fn kept(&self, pack: u32, place: u32) -> Option<(u32, Arc<[u8]>)> {
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let has = |group: &&KeptGroup| {
            let pages = (group.bytes.len() / PAGE_BYTES) as u32;
            group.pack == pack && (group.first..group.first + pages).contains(&place)
        };
        groups.iter().find(has).map(|group| (group.first, Arc::clone(&group.bytes)))
    }

    fn keep(&self, pack: u32, first: u32, bytes: &Arc<[u8]>) {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        if groups.len() == KEPT_GROUPS {
            groups.pop_front();
        }
        groups.push_back(KeptGroup { pack, first, bytes: Arc::clone(bytes) });
    }

    /// Returns the longest run from a page on that can be mapped, as far as one object goes: none if the page
    /// is zero, compressed or encrypted. Mapped pages are not verified before they are read, beyond what
    /// [`Maps`](bindery_pool::map::Maps) does. Blocks at the first page of a pack.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn mappable(
        &self,
        block: usize,
        page: PageIndex,
    ) -> Result<Option<MappableRun>, CheckpointError> {
        self.range(block, page, PAGE_BYTES)?;
        let Some(run) = self.manifest.pages[block].find(page) else { return Ok(None) };
        let find = || {
            let reader = self.pack(run.pack)?;
            if reader.is_sealed(self.key())? {
                return Ok(None);
            }
            let stretch = reader.raw_stretch(self.key(), run.place, run.pages.count)?;
            Ok(stretch.map(|stretch| MappableRun {
                pages: PageRange::new(page, stretch.pages),
                object: Arc::clone(reader.object()),
                offset_bytes: stretch.offset_bytes,
            }))
        };
        find().map_err(|source| self.page_error(block, page, source))
    }

    /// Reads the table of the pack that has a page.
    pub(crate) fn check_pack(&self, block: usize, page: PageIndex) -> Result<(), CheckpointError> {
        self.mappable(block, page).map(drop)
    }
}

/// Copies pages of a group, from `place` on, as far as both go. Returns how many.
fn copy_group(first: u32, bytes: &[u8], place: u32, into: &mut [u8]) -> u32 {
    let from = &bytes[(place - first) as usize * PAGE_BYTES..];
    let length = from.len().min(into.len());
    into[..length].copy_from_slice(&from[..length]);
    (length / PAGE_BYTES) as u32
}
