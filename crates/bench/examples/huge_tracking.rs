//! Measures ways to find which huge pages were written, for a checkpoint every so often, and prints a table.
//!
//! ```sh
//! cargo run --release -p bindery-bench --example huge_tracking -- [BLOCKS] [CHECKPOINTS]
//! ```
//! Between two checkpoints one word in each of eight pages of every fourth block is written. Nothing is changed
//! outside this process.

use std::hint::black_box;
use std::io::Write;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bindery_page::DigestKey;
use bindery_sys::mapping::{self, HUGE_PAGE_BYTES, Mapping};
use bindery_sys::pagemap::{EXTENTS_PER_CALL_MAX, Extent, Pagemap, Query, category};
use bindery_sys::userfault::{Fault, Userfault, feature, mode};
use bindery_units::{HostAddress, PAGE_BYTES};

const BLOCK_PAGES: usize = HUGE_PAGE_BYTES / PAGE_BYTES;

/// Pages written in a block that is written, and every how many blocks one is.
const WRITES: usize = 8;
const STRIDE: usize = 4;

/// `PAGE_IS_SOFT_DIRTY` (Linux 6.14).
const SOFT_DIRTY: u64 = 1 << 7;

/// Costs of a way.
#[derive(Default)]
struct Costs {
    first_writes: Vec<Duration>,
    later_writes: Vec<Duration>,
    checkpoints: Vec<Duration>,
    pages_found: usize,
    huge_before: usize,
    huge_after: usize,
}

/// A way to find what was written.
trait Way {
    fn name(&self) -> &'static str;
    /// Returns the number of pages that may have been written since the call before, and begins anew.
    fn checkpoint(&mut self, memory: &Mapping) -> Result<usize>;
}

/// Nothing is found.
struct Nothing;

impl Way for Nothing {
    fn name(&self) -> &'static str {
        "nothing tracked"
    }

    fn checkpoint(&mut self, _: &Mapping) -> Result<usize> {
        Ok(0)
    }
}

/// Asynchronous write protection: the kernel splits a huge page at its first write.
struct ByPage {
    _faults: Userfault,
    pagemap: Pagemap,
}

impl ByPage {
    fn begin(memory: &Mapping) -> Result<Self> {
        let faults = Userfault::open(feature::GUEST_MEMORY).context("userfaultfd")?;
        // SAFETY: the kernel resolves all faults.
        unsafe { faults.register(memory.address(), memory.bytes(), mode::WP)? };
        Ok(Self { _faults: faults, pagemap: Pagemap::of_self()? })
    }
}

impl Way for ByPage {
    fn name(&self) -> &'static str {
        "WP_ASYNC, by page"
    }

    fn checkpoint(&mut self, memory: &Mapping) -> Result<usize> {
        let query = Query {
            require: category::WRITTEN | category::PRESENT,
            report: category::WRITTEN,
            protect: true,
            ..Query::default()
        };
        let mut pages = 0;
        scan(&self.pagemap, memory, query, |extent| pages += extent.pages())?;
        Ok(pages)
    }
}

/// Synchronous write protection: a handler lifts it from all of a block.
struct ByBlock {
    faults: Arc<Userfault>,
    pagemap: Pagemap,
}

impl ByBlock {
    fn begin(memory: &Mapping) -> Result<Self> {
        let faults = Arc::new(Userfault::open(feature::PAGEFAULT_FLAG_WP).context("userfaultfd")?);
        // SAFETY: the thread below serves the faults for as long as the process lives.
        unsafe { faults.register(memory.address(), memory.bytes(), mode::WP)? };
        let handler = Arc::clone(&faults);
        thread::spawn(move || {
            let mut buffer = [Fault::default(); Userfault::READ_MAX];
            loop {
                for fault in handler.read(&mut buffer).unwrap_or_default() {
                    let block = HostAddress(fault.address.0 & !(HUGE_PAGE_BYTES - 1));
                    handler.write_protect(block, HUGE_PAGE_BYTES, false).expect("unprotect");
                }
            }
        });
        Ok(Self { faults, pagemap: Pagemap::of_self()? })
    }
}

impl Way for ByBlock {
    fn name(&self) -> &'static str {
        "WP, by 2 MiB"
    }

    fn checkpoint(&mut self, memory: &Mapping) -> Result<usize> {
        let query = Query {
            require: category::WRITTEN | category::PRESENT,
            report: category::WRITTEN,
            ..Query::default()
        };
        let (mut pages, mut found) = (0, Vec::new());
        scan(&self.pagemap, memory, query, |extent| {
            pages += extent.pages();
            found.push((extent.start as usize, extent.end as usize));
        })?;
        for (start, end) in found {
            self.faults.write_protect(HostAddress(start), end - start, true)?;
        }
        Ok(pages)
    }
}

/// Soft-dirty bits, which are cleared for the whole process.
struct SoftDirty {
    pagemap: Pagemap,
}

impl Way for SoftDirty {
    fn name(&self) -> &'static str {
        "soft-dirty"
    }

    fn checkpoint(&mut self, memory: &Mapping) -> Result<usize> {
        let query = Query { require: SOFT_DIRTY, report: SOFT_DIRTY, ..Query::default() };
        let mut pages = 0;
        scan(&self.pagemap, memory, query, |extent| pages += extent.pages())?;
        std::fs::File::options().write(true).open("/proc/self/clear_refs")?.write_all(b"4")?;
        Ok(pages)
    }
}

/// Digests of all pages, compared with those before.
struct Digests {
    key: DigestKey,
    before: Vec<[u64; 2]>,
}

impl Way for Digests {
    fn name(&self) -> &'static str {
        "digests of all"
    }

    fn checkpoint(&mut self, memory: &Mapping) -> Result<usize> {
        let pages = memory.bytes() / PAGE_BYTES;
        self.before.resize(pages, [0; 2]);
        let mut changed = 0;
        for page in 0..pages {
            let at = memory.as_ptr().wrapping_add(page * PAGE_BYTES);
            // SAFETY: the page is mapped, and aligned as pages are.
            let now = unsafe { bindery_page::digest_at(at, &self.key) }.to_words();
            changed += usize::from(std::mem::replace(&mut self.before[page], now) != now);
        }
        Ok(changed)
    }
}

fn scan(
    pagemap: &Pagemap,
    memory: &Mapping,
    query: Query,
    mut found: impl FnMut(&Extent),
) -> Result<()> {
    let mut extents = vec![Extent::default(); EXTENTS_PER_CALL_MAX];
    let (mut at, end) = (memory.address(), memory.address().plus(memory.bytes()));
    while at < end {
        let scanned = pagemap.scan(at, end.0 - at.0, query, &mut extents)?;
        extents[..scanned.extents].iter().for_each(&mut found);
        at = scanned.resume_at;
    }
    Ok(())
}

/// Returns the bytes of a mapping that lie in huge pages.
fn huge(pagemap: &Pagemap, memory: &Mapping) -> Result<usize> {
    let query = Query {
        require: category::HUGE | category::PRESENT,
        report: category::HUGE,
        ..Query::default()
    };
    let mut pages = 0;
    scan(pagemap, memory, query, |extent| pages += extent.pages())?;
    Ok(pages * PAGE_BYTES)
}

fn write(memory: &Mapping, page: usize, word: u64) -> Duration {
    let at = memory.as_ptr().wrapping_add(page * PAGE_BYTES).cast::<u64>();
    let start = Instant::now();
    // SAFETY: the page is mapped, writable and this program's.
    unsafe { at.write_volatile(black_box(word)) };
    start.elapsed()
}

fn measure(
    begin: impl FnOnce(&Mapping) -> Result<Box<dyn Way>>,
    blocks: usize,
    checkpoints: usize,
) -> Result<(&'static str, Costs)> {
    let memory = Mapping::anonymous_aligned(blocks * HUGE_PAGE_BYTES)?;
    // SAFETY: the memory is ours, and the advice keeps its content.
    unsafe { mapping::advise(memory.address(), memory.bytes(), libc::MADV_HUGEPAGE)? };
    for page in 0..blocks * BLOCK_PAGES {
        write(&memory, page, page as u64);
    }
    let pagemap = Pagemap::of_self()?;
    let mut way = begin(&memory)?;
    let mut costs = Costs { huge_before: huge(&pagemap, &memory)?, ..Costs::default() };
    way.checkpoint(&memory)?;
    for round in 0..checkpoints {
        for block in (round % STRIDE..blocks).step_by(STRIDE) {
            for nth in 0..WRITES {
                let page = block * BLOCK_PAGES + (nth * 61 + round * 7) % BLOCK_PAGES;
                let took = write(&memory, page, (round << 32 | page) as u64 + 1);
                let list = if nth == 0 { &mut costs.first_writes } else { &mut costs.later_writes };
                list.push(took);
            }
        }
        let start = Instant::now();
        costs.pages_found += way.checkpoint(&memory)?;
        costs.checkpoints.push(start.elapsed());
    }
    costs.huge_after = huge(&pagemap, &memory)?;
    let name = way.name();
    // Its registration goes with it.
    std::mem::forget(way);
    Ok((name, costs))
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn main() -> Result<()> {
    let mut numbers = std::env::args().skip(1).map(|word| word.parse::<usize>());
    let blocks = numbers.next().transpose()?.unwrap_or(256);
    let checkpoints = numbers.next().transpose()?.unwrap_or(10);
    let gib = (blocks * HUGE_PAGE_BYTES) as f64 / f64::from(1 << 30);
    println!(
        "{blocks} blocks of 2 MiB, {checkpoints} checkpoints; medians; written: {WRITES} pages in every {STRIDE}th block"
    );
    println!(
        "{:<20} {:>14} {:>14} {:>14} {:>12} {:>10}",
        "way", "1st write, µs", "next, µs", "ckpt, µs/GiB", "pages found", "huge kept"
    );
    type Begin = fn(&Mapping) -> Result<Box<dyn Way>>;
    let ways: [Begin; 5] = [
        |_| Ok(Box::new(Nothing)),
        |memory| Ok(Box::new(ByPage::begin(memory)?)),
        |memory| Ok(Box::new(ByBlock::begin(memory)?)),
        |_| Ok(Box::new(SoftDirty { pagemap: Pagemap::of_self()? })),
        |_| Ok(Box::new(Digests { key: DigestKey::generate()?, before: Vec::new() })),
    ];
    for begin in ways {
        match measure(begin, blocks, checkpoints) {
            Ok((name, mut costs)) => println!(
                "{name:<20} {:>14.2} {:>14.2} {:>14.0} {:>12} {:>9}%",
                micros(median(&mut costs.first_writes)),
                micros(median(&mut costs.later_writes)),
                micros(median(&mut costs.checkpoints)) / gib,
                costs.pages_found / checkpoints.max(1),
                costs.huge_after * 100 / costs.huge_before.max(1),
            ),
            Err(error) => println!("skipped: {error:#}"),
        }
    }
    Ok(())
}
