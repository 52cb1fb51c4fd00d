//! Memory that is filled when it is touched.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use bindery_sys::mapped::{View, runs_mapped};
use bindery_sys::mapping::{self, Mapping};
use bindery_sys::memfd;
use bindery_sys::pagemap::Pagemap;
use bindery_sys::userfault::{Userfault, feature, mode};
use bindery_units::PAGE_BYTES;

use crate::buffers;
use crate::server::PageServer;
use crate::sigbus::{self, Registration};
use crate::source::PageSource;

/// Memory whose content is fetched on demand.
///
/// Making and dropping it wait until the faults that the process serves at the moment have been served,
/// those of other memory too.
#[derive(Debug)]
pub struct DemandMemory {
    // In the order in which they must go: first nobody serves the memory, then it is not there, and the
    // userfaultfd, without which absent pages would be zeros, goes last, with the server.
    _registration: Registration,
    mapping: Mapping,
    server: Arc<PageServer>,
    /// True if the userfaultfd can track writes to files in memory without stopping them.
    sees_writes: bool,
    file: File,
}

impl DemandMemory {
    /// Makes memory of `bytes`, none of them fetched. `name` is for `/proc/PID/maps`.
    ///
    /// # Errors
    /// The kernel's, when descriptors, mappings or memory are short, or it has no userfaultfd.
    ///
    /// # Panics
    /// If `bytes` is none, or not whole pages.
    pub fn new(name: &str, bytes: usize, source: Arc<dyn PageSource>) -> io::Result<Self> {
        Self::with(memfd::create(name, bytes as u64)?, bytes, source)
    }

    /// Maps the memory that another process has made with [`new`](Self::new), from its [`file`](Self::file).
    /// A page that either process fetches is there for both.
    ///
    /// Any process that has the descriptor can write what all others read: pass it to trusted ones alone.
    ///
    /// # Errors
    /// As for `new`; `InvalidInput` for a file that is no memfd, or has another length.
    ///
    /// # Panics
    /// As for `new`.
    pub fn attach(file: File, bytes: usize, source: Arc<dyn PageSource>) -> io::Result<Self> {
        if !memfd::is_fixed(&file, bytes as u64) {
            let why = format!("not a file of memory of a fixed length of {bytes} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Self::with(file, bytes, source)
    }

    fn with(file: File, bytes: usize, source: Arc<dyn PageSource>) -> io::Result<Self> {
        assert!(bytes > 0 && bytes.is_multiple_of(PAGE_BYTES), "{bytes} bytes are no whole pages");
        buffers::make()?;
        let (userfault, sees_writes) = open_userfault()?;
        let mapping = Mapping::hidden(file.as_fd(), bytes)?;
        mapping.keep_from_children()?;
        // Of a huge page that cannot be split at that moment, evicting a part leaves zeros (the kernel's
        // `truncate_inode_partial_folio`), and khugepaged makes such where shmem_enabled lets it.
        mapping.keep_small();
        // SAFETY: needs somebody who serves the faults: the handler does, from the next line on, and
        // nobody knows of the memory before.
        unsafe { userfault.register(mapping.address(), bytes, mode::MISSING)? };
        mapping.reveal()?;
        let (start, pages) = (mapping.address(), bytes / PAGE_BYTES);
        let server = Arc::new(PageServer { start, pages, userfault, source });
        let registration = sigbus::register(start, bytes, Arc::<PageServer>::clone(&server))?;
        Ok(Self { _registration: registration, mapping, server, sees_writes, file })
    }

    /// Returns the memory's file, for [`attach`](Self::attach) in another process. Mapping it by other means
    /// and touching it fills it with zeros for everybody.
    #[must_use]
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// Returns a part of the memory. Reading a page that is absent fetches it, and waits for that; a page
    /// that cannot be fetched is `SIGBUS`. A system call that is given an absent page fails with `EFAULT`.
    ///
    /// # Panics
    /// If the range leaves the memory.
    #[must_use]
    pub fn view(&self, offset_bytes: usize, bytes: usize) -> View<'_> {
        View::of(&self.mapping, offset_bytes, bytes)
    }

    /// Installs pages that were fetched by other means, from `first_page` on. Pages that are there stay as
    /// they are.
    ///
    /// # Errors
    /// `ENOMEM` when memory is short.
    ///
    /// # Panics
    /// If `content` is not whole pages, or more than the memory has from there on.
    pub fn install(&self, first_page: usize, content: &[u8]) -> io::Result<()> {
        self.server.install(first_page, content).map_err(io::Error::from_raw_os_error)
    }

    /// Copies from `offset_bytes` on, up to the first page that is absent. Returns the number of bytes
    /// copied; 0 too if the kernel refuses (process_vm_readv(2) may be forbidden). Fetches nothing.
    ///
    /// # Panics
    /// If the range leaves the memory.
    pub fn read_resident(&self, offset_bytes: usize, into: &mut [u8]) -> usize {
        let view = self.view(offset_bytes, into.len());
        let to = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let from =
            libc::iovec { iov_base: view.as_ptr() as *mut libc::c_void, iov_len: into.len() };
        // SAFETY: `into` is writable for its length, and the kernel checks the rest. The process is this
        // one; absent pages end the copy.
        let copied = unsafe {
            libc::process_vm_readv(libc::getpid(), &raw const to, 1, &raw const from, 1, 0)
        };
        usize::try_from(copied).unwrap_or(0)
    }

    /// Makes each fault map the touched page alone, from now on, and not those around it that are there
    /// already. A fault on an absent page saves the search for them (0.4 of some 3.5 µs beside the read);
    /// touching many pages that are there, but not in this process's page tables, costs more.
    ///
    /// A side effect of write protection does it, as in
    /// [`MappedFile::fault_singly`](bindery_sys::mapped::MappedFile::fault_singly).
    ///
    /// # Errors
    /// `Unsupported` before Linux 6.7; as userfaultfd(2).
    pub fn fault_singly(&self) -> io::Result<()> {
        if !self.sees_writes {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let (start, bytes) = (self.mapping.address(), self.mapping.bytes());
        let modes = mode::MISSING | mode::WP;
        // SAFETY: needs somebody who serves the faults. Those of absent pages are served as before; of
        // writes the kernel reports none (WP_ASYNC), nothing is protected, and nobody can write here.
        unsafe { self.server.userfault.register(start, bytes, modes) }
    }

    /// Returns the memory of whole pages to the kernel, in every process; touching them fetches them again.
    /// Of a page that the range covers in part, that part becomes zeros.
    ///
    /// # Errors
    /// As fallocate(2).
    ///
    /// # Panics
    /// If the range leaves the memory.
    pub fn evict(&self, offset_bytes: usize, bytes: usize) -> io::Result<()> {
        let _ = self.view(offset_bytes, bytes);
        memfd::punch(&self.file, offset_bytes as u64, bytes as u64)
    }

    /// Takes whole pages out of this process's page tables. The memory stays: touching it again is a fault
    /// that fetches nothing.
    ///
    /// # Errors
    /// As madvise(2).
    ///
    /// # Panics
    /// If the range leaves the memory.
    pub fn forget(&self, offset_bytes: usize, bytes: usize) -> io::Result<()> {
        let start = self.view(offset_bytes, bytes).address();
        // SAFETY: needs content that is kept elsewhere: the mapping is shared, the memfd has all of it.
        unsafe { mapping::advise(start, bytes, libc::MADV_DONTNEED) }
    }

    /// Calls `found` with each run of pages of a range that is in this process's page tables: its first
    /// page, counted from the range's beginning, and its number of pages. `pagemap` is this process's.
    ///
    /// # Errors
    /// As [`Pagemap::scan`].
    ///
    /// # Panics
    /// If the range leaves the memory.
    pub fn runs_mapped(
        &self,
        pagemap: &Pagemap,
        offset_bytes: usize,
        bytes: usize,
        found: &mut dyn FnMut(u64, u64),
    ) -> io::Result<()> {
        runs_mapped(pagemap, self.view(offset_bytes, bytes).address(), bytes, found)
    }
}

/// Opens a context for absent pages. Returns true with it if it has what [`DemandMemory::fault_singly`]
/// needs.
fn open_userfault() -> io::Result<(Userfault, bool)> {
    let needed = feature::SIGBUS | feature::MISSING_SHMEM;
    let seeing_writes = needed | feature::WP_HUGETLBFS_SHMEM | feature::WP_ASYNC;
    match Userfault::open_for_user_mode(seeing_writes) {
        Ok(userfault) => Ok((userfault, true)),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            Ok((Userfault::open_for_user_mode(needed)?, false))
        }
        Err(error) => Err(error),
    }
}
