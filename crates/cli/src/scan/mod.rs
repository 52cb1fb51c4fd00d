//! `bindery scan`: what processes and memory images would save, without managing them.
//!
//! Inputs are cut into [`Chunk`]s, which threads take one after the other; each page is read and
//! digested once, and what is left of it is its digest and where it came from. Sorted by digest,
//! equal pages stand side by side ([`tally`]). Digests have 128 bits under a key drawn for this
//! run: nobody can have built pages that collide.
//!
//! Memory needed: 24 bytes a page, twice while the threads' shares are joined.

mod image;
mod process;
mod report;
mod tally;

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};

use bindery_page::{DigestKey, Examined, examine};
use bindery_units::PAGE_BYTES;
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::ScanArgs;
use crate::exit::{Failure, Reason};
use image::Image;
use process::ProcessMemory;
use tally::{Counts, PageRecord};

/// The most pages that a thread takes at once: large enough that taking costs nothing, small
/// enough that threads end together.
const CHUNK_PAGES: usize = 1024;

/// Pages read by one system call: where `process_vm_readv` is as fast as a copy.
const BATCH_PAGES: usize = 256;

/// Something that is scanned.
enum Input {
    Process(ProcessMemory),
    Image(Image),
}

/// A part of an input: up to [`CHUNK_PAGES`] pages from byte `start` of the file, or of the
/// process's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chunk {
    input: u32,
    start: u64,
    pages: usize,
}

/// What a thread has found, and what it reads with.
struct Findings<'a> {
    key: &'a DigestKey,
    records: Vec<PageRecord>,
    counts: Vec<Counts>,
    /// Room for a batch.
    bytes: Vec<u8>,
}

/// Scans and prints.
pub(crate) fn run(arguments: &ScanArgs, json: bool) -> Result<(), Failure> {
    let mut inputs = Vec::with_capacity(arguments.inputs.len());
    for (at, text) in arguments.inputs.iter().enumerate() {
        if arguments.inputs[..at].contains(text) {
            let message = format!("{} is given twice", text.display());
            return Err(Failure::new(Reason::Usage, message));
        }
        inputs.push(Input::open(text)?);
    }
    let key = DigestKey::generate()
        .map_err(|error| Failure::new(Reason::Unsupported, error.to_string()))?;
    let (records, counts) = examine_all(&inputs, &key, arguments.threads)?;
    for input in &inputs {
        input.check_unchanged()?;
    }
    report::Report::new(&inputs, tally::tally(records, counts)).print(json)
}

impl Input {
    /// A number is a process, all else a file.
    fn open(text: &std::ffi::OsStr) -> Result<Self, Failure> {
        match text.to_str().map(str::parse) {
            Some(Ok(pid)) => ProcessMemory::open(pid).map(Self::Process),
            _ => Image::open(text.as_ref()).map(Self::Image),
        }
    }

    /// State known without reading the pages.
    fn known(&self) -> Counts {
        match self {
            Self::Process(_) => Counts::default(),
            Self::Image(image) => image.holes(),
        }
    }

    /// Byte ranges to be looked at, as start and length, page-aligned.
    fn ranges(&self) -> Vec<(u64, u64)> {
        match self {
            Self::Process(process) => process.ranges(),
            Self::Image(image) => image.data().to_vec(),
        }
    }

    fn examine(&self, chunk: Chunk, findings: &mut Findings<'_>) -> Result<(), Failure> {
        match self {
            Self::Process(process) => process.examine(chunk, findings),
            Self::Image(image) => image.examine(chunk, findings),
        }
    }

    fn check_unchanged(&self) -> Result<(), Failure> {
        match self {
            Self::Process(process) => process.check_alive(),
            Self::Image(_) => Ok(()),
        }
    }
}

impl<'a> Findings<'a> {
    fn new(key: &'a DigestKey, inputs: usize) -> Self {
        Self {
            key,
            records: Vec::new(),
            counts: vec![Counts::default(); inputs],
            bytes: vec![0; BATCH_PAGES * PAGE_BYTES],
        }
    }

    /// What is counted of an input.
    fn counts(&mut self, input: u32) -> &mut Counts {
        &mut self.counts[input as usize]
    }

    /// Takes in the first `pages` pages of the buffer, as pages of `input`.
    fn take_in(&mut self, input: u32, pages: usize) {
        let (read, _) = self.bytes.as_chunks();
        for page in &read[..pages] {
            match examine(page, self.key) {
                Examined::Zero => self.counts[input as usize].zero_pages += 1,
                Examined::Content(digest) => {
                    self.records.push(PageRecord { digest: digest.to_words(), input });
                }
            }
        }
    }
}

/// Cuts all inputs into chunks.
fn chunks(inputs: &[Input]) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    for (input, ranges) in inputs.iter().map(Input::ranges).enumerate() {
        for (start, bytes) in ranges {
            let pages = (bytes / PAGE_BYTES as u64) as usize;
            chunks.extend((0..pages).step_by(CHUNK_PAGES).map(|first| Chunk {
                input: input as u32,
                start: start + (first * PAGE_BYTES) as u64,
                pages: CHUNK_PAGES.min(pages - first),
            }));
        }
    }
    chunks
}

/// Has threads examine every chunk, and joins what they found. The first failure ends all.
fn examine_all(
    inputs: &[Input],
    key: &DigestKey,
    threads: Option<NonZeroUsize>,
) -> Result<(Vec<PageRecord>, Vec<Counts>), Failure> {
    let chunks = chunks(inputs);
    let threads = threads.or_else(|| std::thread::available_parallelism().ok());
    let threads = threads.map_or(1, NonZeroUsize::get).min(chunks.len().max(1));
    let progress = progress_bar(&chunks);
    let next = AtomicUsize::new(0);
    let work = || -> Result<Findings<'_>, Failure> {
        let mut findings = Findings::new(key, inputs.len());
        // Relaxed: the counter alone is shared; what threads found is handed over by joining them.
        while let Some(&chunk) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(failure) = inputs[chunk.input as usize].examine(chunk, &mut findings) {
                next.store(chunks.len(), Ordering::Relaxed);
                return Err(failure);
            }
            progress.inc((chunk.pages * PAGE_BYTES) as u64);
        }
        Ok(findings)
    };
    let shares: Result<Vec<_>, Failure> = std::thread::scope(|scope| {
        let spawned: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        spawned.into_iter().map(|thread| thread.join().unwrap_or_else(resume_panic)).collect()
    });
    progress.finish_and_clear();
    let (mut records, mut counts) =
        (Vec::new(), inputs.iter().map(Input::known).collect::<Vec<_>>());
    for share in shares? {
        records.extend_from_slice(&share.records);
        for (sum, share) in counts.iter_mut().zip(&share.counts) {
            sum.add(share);
        }
    }
    Ok((records, counts))
}

fn resume_panic<T>(panic: Box<dyn std::any::Any + Send>) -> T {
    std::panic::resume_unwind(panic)
}

/// A bar on stderr; nothing where that is no terminal.
fn progress_bar(chunks: &[Chunk]) -> ProgressBar {
    let bytes = chunks.iter().map(|chunk| (chunk.pages * PAGE_BYTES) as u64).sum();
    let template = "scanning {bar:40} {binary_bytes} of {binary_total_bytes}, {eta} left";
    let style = ProgressStyle::with_template(template).expect("the template is a valid one");
    ProgressBar::new(bytes).with_style(style)
}
