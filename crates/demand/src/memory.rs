//! PageServer whose content is fetched when it is touched, by the thread that touches it.
//!
//! A memfd, mapped shared and read-only and registered with a userfaultfd that turns faults on absent
//! pages into `SIGBUS` (`UFFD_FEATURE_SIGBUS`). The handler ([`sigbus`]) has the
//! [`PageSource`] read the pages into a buffer and installs them (`UFFDIO_COPY`); then the access happens
//! again. No other thread is woken for it, which is most of the time of a fault that a handler thread
//! serves (measured: 7 to 8 against 15 to 22 µs). Processes that map the same memfd share its pages.
//!
//! A memfd that is touched through a mapping that is *not* registered gets a page of zeros, which all
//! others then see. So each mapping is registered here before it can be read and before its address is
//! known to anybody, and is not inherited by children.
//!
//! The fault is a signal that the kernel must be able to deliver: a thread that blocks `SIGBUS` and
//! touches an absent page ends the process.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use bindery_sys::mapped::{View, runs_mapped};
use bindery_sys::mapping::{self, Mapping};
use bindery_sys::memfd;
use bindery_sys::pagemap::Pagemap;
use bindery_sys::userfault::{Userfault, feature, mode};
use bindery_units::{HostAddress, PAGE_BYTES};

use crate::sigbus::{self, Registration, Serve};

/// Where the content comes from. All of it is called in a signal handler, with what
/// [`Serve::serve`] demands.
pub trait PageSource: Send + Sync {
    /// Which pages to fetch when `page` is touched: `page` and such as are probably needed too. What is
    /// more than [`FETCH_PAGES_MAX`] of them is left. Called once a fault, before anything is taken for
    /// it: whoever is to be slowed waits here.
    fn window(&self, page: usize) -> Range<usize> {
        page..page + 1
    }

    /// Fetches pages, whole, from `first_page` on. Whether `into` now has them.
    fn fetch(&self, first_page: usize, into: &mut [u8]) -> bool;

    /// Is told that a page was touched that could not be fetched. The thread gets `SIGBUS`.
    fn lost(&self, page: usize);
}

/// The most pages that are fetched at once.
pub const FETCH_PAGES_MAX: usize = 32;

/// PageServer whose content is fetched on demand.
#[derive(Debug)]
pub struct DemandMemory {
    // In the order in which they must go: first nobody serves the memory, then it is not there, and the
    // userfaultfd, without which absent pages would be zeros, goes last.
    _registration: Registration,
    mapping: Mapping,
    memory: Arc<PageServer>,
    file: File,
}

struct PageServer {
    start: HostAddress,
    pages: usize,
    userfault: Userfault,
    /// Whether the context can be told of writes to files in memory without stopping them.
    sees_writes: bool,
    source: Arc<dyn PageSource>,
}

impl DemandMemory {
    /// New memory of `bytes`, none of them fetched. `name` is for `/proc/PID/maps`.
    ///
    /// # Errors
    /// The kernel's, when descriptors, mappings or memory are short, or it has no userfaultfd.
    ///
    /// # Panics
    /// If `bytes` is none, or not whole pages.
    pub fn new(name: &str, bytes: usize, source: Arc<dyn PageSource>) -> io::Result<Self> {
        Self::with(memfd::create(name, bytes as u64)?, bytes, source)
    }

    /// The memory that another process has made with [`new`](Self::new), from its [`file`](Self::file);
    /// what either fetches both have. Whoever has the descriptor can write what all read: give it to
    /// those that are trusted with that.
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
        buffers()?;
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
        let memory = Arc::new(PageServer { start, pages, userfault, sees_writes, source });
        let server: Arc<dyn Serve> = Arc::<PageServer>::clone(&memory);
        let registration = sigbus::register(start, bytes, server)?;
        Ok(Self { _registration: registration, mapping, memory, file })
    }

    /// The memory itself, for [`attach`](Self::attach) in another process. To map it by other means and
    /// touch it fills it with zeros for everybody.
    #[must_use]
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// A part of it. To read it fetches it; what cannot be fetched is `SIGBUS`, and `EFAULT` for any
    /// system call that is given an absent page.
    ///
    /// # Panics
    /// If the range leaves it.
    #[must_use]
    pub fn view(&self, offset_bytes: usize, bytes: usize) -> View<'_> {
        View::of(&self.mapping, offset_bytes, bytes)
    }

    /// Installs pages that were fetched by other means, from `first_page` on; those that are there
    /// stay as they are.
    ///
    /// # Errors
    /// `ENOMEM` when memory is short.
    ///
    /// # Panics
    /// If `content` is not whole pages, or too many.
    pub fn install(&self, first_page: usize, content: &[u8]) -> io::Result<()> {
        self.memory.install(first_page, content).map_err(io::Error::from_raw_os_error)
    }

    /// Copies from `offset_bytes` on, up to the first page that is absent. How many bytes; none too if
    /// the kernel does not say (process_vm_readv(2) may be forbidden).
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

    /// From now on each fault maps the page that was touched, and not those around it that are there
    /// already. A fault on an absent page saves the search for them (0.4 of some 3.5 µs beside
    /// the read); to touch many that are there, but not in this process's page tables, costs more.
    ///
    /// It is a side effect, as in [`MappedFile::fault_singly`](bindery_sys::mapped::MappedFile::fault_singly).
    ///
    /// # Errors
    /// `Unsupported` before Linux 6.7; as userfaultfd(2).
    pub fn fault_singly(&self) -> io::Result<()> {
        let PageServer { start, userfault, sees_writes, .. } = &*self.memory;
        if !sees_writes {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let modes = mode::MISSING | mode::WP;
        // SAFETY: needs somebody who serves the faults. Those of absent pages are served as before; of
        // writes the kernel reports none (WP_ASYNC), nothing is protected, and nobody can write here.
        unsafe { userfault.register(*start, self.mapping.bytes(), modes) }
    }

    /// Gives the memory of whole pages back, in every process; touching them fetches them again.
    ///
    /// # Errors
    /// The kernel's.
    pub fn evict(&self, offset_bytes: usize, bytes: usize) -> io::Result<()> {
        let _ = self.view(offset_bytes, bytes);
        memfd::punch(&self.file, offset_bytes as u64, bytes as u64)
    }

    /// Takes whole pages out of this process's page tables. The memory stays: touching it is a fault
    /// and nothing else.
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

    /// Tells of each run of pages of a range that is in this process's page tables: its first page,
    /// counted from the range's beginning, and how many.
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

/// A context for absent pages, and whether it has what [`DemandMemory::fault_singly`] needs.
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

impl PageServer {
    fn page_of(&self, address: HostAddress) -> usize {
        (address.0 - self.start.0) / PAGE_BYTES
    }

    /// Fetches pages and installs them. Whether the first of them can be read now.
    fn fetch(&self, pages: Range<usize>) -> bool {
        let Some(buffers) = BUFFERS.get().and_then(|buffers| buffers.as_ref().ok()) else {
            return false;
        };
        buffers.with(|buffer| {
            let content = &mut buffer[..pages.len() * PAGE_BYTES];
            self.source.fetch(pages.start, content) && self.install(pages.start, content).is_ok()
        })
    }

    fn install(&self, first_page: usize, content: &[u8]) -> Result<(), i32> {
        assert!(content.len().is_multiple_of(PAGE_BYTES), "pages are installed whole");
        let pages = content.len() / PAGE_BYTES;
        assert!(first_page <= self.pages && pages <= self.pages - first_page, "too many pages");
        let mut at = 0;
        while at < content.len() {
            let destination = self.start.plus(first_page * PAGE_BYTES + at);
            let source = HostAddress(content[at..].as_ptr().addr());
            // SAFETY: `content` is readable to its end. The range is this memory's, of which nobody
            // expects anything but what its source or its owner puts there.
            match unsafe { self.userfault.copy(destination, source, content.len() - at) } {
                Ok(()) => break,
                // Somebody else, perhaps in another process, was first.
                Err(stopped) if stopped.errno == libc::EEXIST => at += PAGE_BYTES,
                Err(stopped) if stopped.errno == libc::EAGAIN => at += stopped.done,
                Err(stopped) => return Err(stopped.errno),
            }
        }
        Ok(())
    }
}

impl Serve for PageServer {
    fn serve(&self, address: HostAddress) -> bool {
        let page = self.page_of(address);
        let window = self.source.window(page);
        let start = window.start.min(page).max((page + 1).saturating_sub(FETCH_PAGES_MAX));
        let end = window.end.clamp(page + 1, self.pages).min(start + FETCH_PAGES_MAX);
        // One page that cannot be read must not take its neighbours with it.
        if self.fetch(start..end) || (end - start > 1 && self.fetch(page..page + 1)) {
            return true;
        }
        self.source.lost(page);
        false
    }
}

impl fmt::Debug for PageServer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "PageServer({} pages at {:#x})", self.pages, self.start.0)
    }
}

const BUFFER_BYTES: usize = FETCH_PAGES_MAX * PAGE_BYTES;

/// Buffers for pages on their way, of all memory of this process: as many as bits of a word. Each takes
/// memory once it has been used.
struct Buffers {
    taken: AtomicU32,
    mapping: Mapping,
}

static BUFFERS: OnceLock<Result<Buffers, i32>> = OnceLock::new();

fn buffers() -> io::Result<()> {
    let bytes = u32::BITS as usize * BUFFER_BYTES;
    let buffers = BUFFERS.get_or_init(|| match Mapping::anonymous(bytes) {
        Ok(mapping) => Ok(Buffers { taken: AtomicU32::new(0), mapping }),
        Err(error) => Err(error.raw_os_error().unwrap_or(libc::ENOMEM)),
    });
    buffers.as_ref().map(|_| ()).map_err(|errno| io::Error::from_raw_os_error(*errno))
}

impl Buffers {
    /// Lends a buffer, aligned to its length. Where all are lent it waits for one: who has one has
    /// all that he needs to give it back, since the handler is not interrupted.
    fn with<R>(&self, work: impl FnOnce(&mut [u8]) -> R) -> R {
        let lent = Lent { buffers: self, which: self.take() };
        let start = self.mapping.as_ptr().wrapping_add(lent.which as usize * BUFFER_BYTES);
        // SAFETY: the mapping has a buffer for each bit, readable, writable and initialised; the bit is
        // set by this thread alone until `lent` goes.
        work(unsafe { std::slice::from_raw_parts_mut(start, BUFFER_BYTES) })
    }

    fn take(&self) -> u32 {
        let mut taken = self.taken.load(Ordering::Relaxed);
        loop {
            let free = taken.trailing_ones();
            if free == u32::BITS {
                std::thread::yield_now();
                taken = self.taken.load(Ordering::Relaxed);
                continue;
            }
            // Acquire, with the Release of `Lent`: the last one who had it is done with it.
            let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
            match self.taken.compare_exchange(taken, taken | 1 << free, acquire, relaxed) {
                Ok(_) => return free,
                Err(now) => taken = now,
            }
        }
    }
}

struct Lent<'a> {
    buffers: &'a Buffers,
    which: u32,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.buffers.taken.fetch_and(!(1 << self.which), Ordering::Release);
    }
}
