//! Written-page scans: `PAGEMAP_SCAN` over asynchronous write protection.
//!
//! The kernel protects each page that it reports, atomically with looking at it. Writers take a fault
//! that the kernel resolves by itself, and go on. Whoever writes through the process's own page
//! tables is seen: the VMM's threads, system calls, and vCPUs, whose faults KVM resolves there.

use bindery_sys::{
    maps::Maps,
    pagemap::{EXTENTS_PER_CALL_MAX, Extent, Pagemap, Query, category},
    pidfd::PeerProcess,
};
use bindery_units::{HostAddress, PAGE_BYTES, PAGE_SHIFT, PageRange};

use super::{Abilities, Collected, Source, SourceError};
use crate::marks::Marks;

/// Memory that is scanned, registered with userfaultfd for writes (`WP`, with `WP_ASYNC`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Where it begins.
    pub start: HostAddress,
    /// Which pages of the guest's space it holds.
    pub pages: PageRange,
}

impl Region {
    const fn bytes(self) -> usize {
        (self.pages.count as usize) << PAGE_SHIFT
    }
}

/// The written pages of some regions of a process.
///
/// Of each page that is there (or swapped out), the first collection reports that it was written, as
/// does the first after it came to be there: it was not protected before. Pages that are absent are
/// passed over: **whoever discards pages marks them by [`Software`](super::Software)**, since
/// discarding is no write. Writes into pages that are pinned for long (registered buffers, DMA) are
/// not seen.
#[derive(Debug)]
pub struct WrittenPages {
    pagemap: Pagemap,
    /// For holes, over which a scan passes in silence; none where they are no mistake, or where the
    /// kernel does not tell of them.
    maps: Option<Maps>,
    /// Of another process: for its end, which a scan does not show.
    process: Option<Process>,
    regions: Vec<Region>,
    query: Query,
    extents: Box<[Extent; EXTENTS_PER_CALL_MAX]>,
}

#[derive(Debug)]
struct Process {
    pid: i32,
    descriptor: PeerProcess,
}

impl WrittenPages {
    /// Scans memory of this process. All of it must stay mapped and registered; where parts are mapped otherwise
    /// (a space with merged pages), see [`passing_over`](Self::passing_over).
    ///
    /// # Errors
    /// [`SourceError::Unsupported`] before Linux 6.7, [`SourceError::NotWatched`] if a region is not
    /// registered.
    pub fn of_self(regions: Vec<Region>) -> Result<Self, SourceError> {
        let failed = |what| move |error| SourceError::kernel("open", what, error);
        let pagemap = Pagemap::of_self().map_err(failed("/proc/self/pagemap"))?;
        let maps = Maps::of_self().map_err(failed("/proc/self/maps"))?;
        Self::new(pagemap, maps, None, regions)
    }

    /// Scans memory of another process, which has registered it and scans it itself no more.
    ///
    /// # Errors
    /// As [`of_self`](Self::of_self); [`SourceError::Vanished`] if there is no such process;
    /// [`SourceError::Kernel`] without the right to trace it.
    pub fn of_process(pid: i32, regions: Vec<Region>) -> Result<Self, SourceError> {
        let failed = |call| {
            move |error: std::io::Error| match error.raw_os_error() {
                Some(libc::ESRCH | libc::ENOENT) => {
                    SourceError::Vanished(format!("there is no process {pid}"))
                }
                _ => SourceError::kernel(call, format!("process {pid}"), error),
            }
        };
        // First its descriptor: if it lives after the page map was opened, it was the one opened.
        let descriptor = PeerProcess::of_pid(pid).map_err(failed("pidfd_open"))?;
        let pagemap = Pagemap::of(pid).map_err(failed("open of the page map"))?;
        let maps = Maps::of(pid).map_err(failed("open of the mappings"))?;
        Self::new(pagemap, maps, Some(Process { pid, descriptor }), regions)
    }

    fn new(
        pagemap: Pagemap,
        maps: Maps,
        process: Option<Process>,
        regions: Vec<Region>,
    ) -> Result<Self, SourceError> {
        let query = Query {
            require: category::WP_ALLOWED | category::WRITTEN,
            // Not absent ones: protecting those leaves a marker in each, which fills page tables
            // and refuses UFFDIO_ZEROPAGE and UFFDIO_MOVE. A page that was swapped out was written.
            any_of: category::PRESENT | category::SWAPPED,
            report: category::WRITTEN,
            protect: true,
            refuse_unprotectable: true,
            ..Query::default()
        };
        let extents = Box::new([Extent::default(); EXTENTS_PER_CALL_MAX]);
        let mut source = Self { pagemap, maps: Some(maps), process, regions, query, extents };
        let probed = source.probe();
        source.check_alive().and(probed).map(|()| source)
    }

    /// The same source for regions of which parts are mapped otherwise: those count as not written,
    /// and it is for whoever maps them to say what changed there.
    #[must_use]
    pub fn passing_over(mut self) -> Self {
        self.query.refuse_unprotectable = false;
        self.maps = None;
        self
    }

    /// Whether the scan is there and the regions are registered, by looking at a page of each.
    fn probe(&mut self) -> Result<(), SourceError> {
        let query = Query { protect: false, ..self.query };
        for region in self.regions.iter().filter(|region| !region.pages.is_empty()) {
            let mut extent = [Extent::default()];
            self.pagemap
                .scan(region.start, PAGE_BYTES, query, &mut extent)
                .map_err(|error| refused(*region, error))?;
        }
        if let Some(maps) = &self.maps
            && let Err(error) = maps.first_hole(HostAddress(0), 1)
            && error.raw_os_error() == Some(libc::ENOTTY)
        {
            self.maps = None;
        }
        self.regions.iter().try_for_each(|region| self.check_mapped(*region))
    }

    /// Nothing of a region may have been unmapped: that would look as if nobody wrote it.
    fn check_mapped(&self, region: Region) -> Result<(), SourceError> {
        let Some(maps) = &self.maps else { return Ok(()) };
        match maps.first_hole(region.start, region.bytes()) {
            Ok(None) => Ok(()),
            Ok(Some(_)) => Err(not_watched(region)),
            Err(error) => Err(SourceError::kernel(
                "PROCMAP_QUERY",
                format!("memory at {}", region.start),
                error,
            )),
        }
    }

    /// A process that ended while it was scanned, or executed another program, had no memory for the
    /// rest of the scan. Such a scan finds nothing written; is refused, by stable kernels of 2026
    /// (`ESRCH`); or finds memory that is not watched: a scan that holds on to the memory there
    /// outlives the process's userfaultfd. So this is asked after each scan, and before anything
    /// that the scan said is believed.
    fn check_alive(&self) -> Result<(), SourceError> {
        let Some(Process { pid, descriptor }) = &self.process else { return Ok(()) };
        let failed = |call| move |error| SourceError::kernel(call, format!("process {pid}"), error);
        if descriptor.has_ended().map_err(failed("poll"))? {
            return Err(SourceError::Vanished(format!("process {pid} has ended")));
        }
        if self.pagemap.is_gone().map_err(failed("read of the page map"))? {
            let why = format!("process {pid} gave its memory up: it ends, or runs another program");
            return Err(SourceError::Vanished(why));
        }
        Ok(())
    }

    fn scan(&mut self, region: Region, marks: &dyn Marks) -> Result<u64, SourceError> {
        let (mut at, end) = (region.start, region.start.plus(region.bytes()));
        let mut pages = 0;
        while at < end {
            let scanned = self.pagemap.scan(at, end.0 - at.0, self.query, &mut self.extents[..]);
            // A scan that fails on its way has protected and returned what it found before, and does
            // not say how much: what it left is taken back to zero each time.
            let returned = self.extents.iter().take_while(|extent| extent.end > extent.start);
            let count = match &scanned {
                Ok(scanned) => scanned.extents,
                Err(_) => returned.count(),
            };
            let found = &mut self.extents[..count];
            for extent in found.iter() {
                let range = pages_of(region, *extent);
                pages += u64::from(range.count);
                marks.mark_range(range);
            }
            found.fill(Extent::default());
            let scanned = scanned.map_err(|error| refused(region, error))?;
            let next = scanned.resume_at;
            assert!(
                next > at,
                "a scan that reports nothing ends at the range's end, not at {next}"
            );
            at = next;
        }
        Ok(pages)
    }
}

fn refused(region: Region, error: std::io::Error) -> SourceError {
    match error.raw_os_error() {
        Some(libc::ENOTTY) => {
            let why = "this kernel has no PAGEMAP_SCAN (Linux 6.7)".to_owned();
            SourceError::Unsupported { way: "a scan for written pages", why }
        }
        Some(libc::EPERM) => not_watched(region),
        _ => SourceError::kernel("PAGEMAP_SCAN", format!("memory at {}", region.start), error),
    }
}

const fn not_watched(region: Region) -> SourceError {
    SourceError::NotWatched { start: region.start, pages: region.pages.count }
}

fn pages_of(region: Region, extent: Extent) -> PageRange {
    let offset = (extent.start as usize - region.start.0) >> PAGE_SHIFT;
    PageRange::new(region.pages.first.plus(offset as u32), extent.pages() as u32)
}

impl Source for WrittenPages {
    /// About 2 ns for each page that is there and was not written, and 20 ns for one that was.
    fn collect(&mut self, marks: &dyn Marks) -> Result<Collected, SourceError> {
        let scanned =
            (0..self.regions.len()).try_fold(Collected::default(), |mut collected, at| {
                collected.pages += self.scan(self.regions[at], marks)?;
                self.check_mapped(self.regions[at])?;
                Ok(collected)
            });
        self.check_alive().and(scanned)
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            vcpu_writes: true,
            process_writes: true,
            first_has_more: true,
            beside_writers: true,
        }
    }
}
