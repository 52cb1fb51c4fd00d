//! Scans of another process's memory, which writes it and knows what it wrote: for each page, how often, in
//! memory that both share.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bindery_dirty::source::{Region, Source, SourceError, WrittenPages};
use bindery_sys::mapping::{self, Mapping};
use bindery_sys::maps::Maps;
use bindery_sys::memfd;
use bindery_sys::process::{MemorySpan, read_memory};
use bindery_sys::userfault::{Userfault, feature, mode};
use bindery_testkit::skipped;
use bindery_units::{HostAddress, PAGE_BYTES, PageIndex, PageRange};
use common::{Oracle, StopAtEnd, collect};
use rand::{Rng, SeedableRng, rngs::SmallRng, seq::index};

/// No multiple of the pages of a table, nor of 64.
const PAGES: u32 = 3 * 8192 + 37;

/// Its threads, each of which writes pages of its own.
const WRITERS: u32 = 2;

/// A page that is written at first, and not there in the end.
const UNMAPPED: u32 = 5002;

/// Collections beside the writers, each of which finds more than one call to the kernel returns.
const EPOCHS: usize = 100;
const PATIENCE: Duration = Duration::from_secs(20);

/// Names the file of counts to the other process.
const VARIABLE: &str = "BINDERY_TEST_COUNTS";
const MARK: &str = "writer: ";

/// Every seventh page is never there.
const fn is_written(page: u32) -> bool {
    page % 7 != 6
}

/// So many pages that are written, none beside another.
fn scattered(seed: u64, runs: usize) -> BTreeSet<u32> {
    let pages: Vec<u32> = (0..PAGES).step_by(2).filter(|page| is_written(*page)).collect();
    let sample = index::sample(&mut SmallRng::seed_from_u64(seed), pages.len(), runs);
    sample.into_iter().map(|at| pages[at]).collect()
}

/// How often each page was written, after it was.
struct Counts(Mapping);

impl Counts {
    fn of(file: &File) -> Self {
        Self(Mapping::shared(file.as_fd(), PAGES as usize * 8, true).unwrap())
    }

    fn page(&self, page: u32) -> &AtomicU64 {
        assert!(page < PAGES);
        // SAFETY: the mapping has a word for each page, and both processes use it so alone.
        unsafe { &*self.0.as_ptr().cast::<AtomicU64>().add(page as usize) }
    }

    /// All of them; what they count was written before.
    fn all(&self) -> Vec<u64> {
        (0..PAGES).map(|page| self.page(page).load(Ordering::Acquire)).collect()
    }
}

/// The other process: this test program, which runs this test alone. In this one, nothing.
#[test]
fn the_writer() {
    let Some(counts) = std::env::var_os(VARIABLE) else { return };
    let file = File::options().read(true).write(true).open(counts).unwrap();
    let writer = Writer::new(Counts::of(&file));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        let mut threads = Vec::new();
        for order in std::iter::once(Ok("begin".to_owned())).chain(std::io::stdin().lines()) {
            let order = order.unwrap();
            let words: Vec<&str> = order.split(' ').collect();
            match words[..] {
                ["begin"] => {}
                ["write", seed, runs] => {
                    let pages = scattered(seed.parse().unwrap(), runs.parse().unwrap());
                    pages.iter().for_each(|page| writer.write(*page));
                }
                ["run"] => {
                    let start = |at| {
                        scope.spawn({
                            let (writer, stop) = (&writer, &stop);
                            move || writer.run(at, stop)
                        })
                    };
                    threads.extend((0..WRITERS).map(start));
                }
                ["rest"] => {
                    stop.store(true, Ordering::Relaxed);
                    threads.drain(..).for_each(|thread| thread.join().unwrap());
                }
                // SAFETY: the page is ours, and written no more.
                ["unmap"] => unsafe {
                    let page = writer.memory.address().plus_pages(UNMAPPED);
                    mapping::unmap(page, PAGE_BYTES).unwrap();
                },
                ["exec"] => panic!("{}", Command::new("sleep").arg("60").exec()),
                _ => panic!("{order}"),
            }
            let (memory, other) = (writer.memory.address().0, writer.counts.0.address().0);
            println!("{MARK}{memory} {other}");
        }
    });
}

struct Writer {
    memory: Mapping,
    counts: Counts,
    _context: Userfault,
}

impl Writer {
    /// Ends this process if the kernel does not permit it.
    fn new(counts: Counts) -> Self {
        let features = feature::PAGEFAULT_FLAG_WP | feature::WP_UNPOPULATED | feature::WP_ASYNC;
        let context = Userfault::open(features).unwrap_or_else(|error| {
            println!("{MARK}userfaultfd with WP_ASYNC: {error}");
            std::process::exit(0)
        });
        let memory = Mapping::anonymous(PAGES as usize * PAGE_BYTES).unwrap();
        // SAFETY: nobody waits in asynchronous write protection; huge pages hold the same content.
        unsafe {
            mapping::advise(memory.address(), memory.bytes(), libc::MADV_NOHUGEPAGE).unwrap();
            context.register(memory.address(), memory.bytes(), mode::WP).unwrap();
        }
        let writer = Self { memory, counts, _context: context };
        (0..PAGES).filter(|page| is_written(*page)).for_each(|page| writer.write(page));
        writer
    }

    fn write(&self, page: u32) {
        assert!(is_written(page) && page < PAGES);
        // SAFETY: the word is in the mapping, aligned, and used in this process through this alone.
        let word =
            unsafe { &*self.memory.as_ptr().add(page as usize * PAGE_BYTES).cast::<AtomicU64>() };
        let count = word.load(Ordering::Relaxed) + 1;
        word.store(count, Ordering::Relaxed);
        // Release: whoever sees the count finds the page written.
        self.counts.page(page).store(count, Ordering::Release);
    }

    /// Writes pages of one thread at random until it is told to stop.
    fn run(&self, at: u32, stop: &AtomicBool) {
        let mut random = SmallRng::seed_from_u64(at.into());
        while !stop.load(Ordering::Relaxed) {
            let page = random.random_range(0..PAGES / WRITERS) * WRITERS + at;
            if is_written(page) {
                self.write(page);
            }
        }
    }
}

/// The other process as this one sees it; it ends with it.
struct Elsewhere {
    child: Child,
    answers: BufReader<ChildStdout>,
    counts: Counts,
    memory: HostAddress,
    other: HostAddress,
}

impl Elsewhere {
    /// None, loudly, where it is not permitted.
    fn start() -> Option<Self> {
        let file = memfd::create("counts", u64::from(PAGES) * 8).unwrap();
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "the_writer", "--nocapture"]).env(VARIABLE, path);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let nowhere = HostAddress(0);
        let counts = Counts::of(&file);
        let mut elsewhere = Self { child, answers, counts, memory: nowhere, other: nowhere };
        let answer = elsewhere.answer();
        let Some((Ok(memory), Ok(other))) =
            answer.split_once(' ').map(|(memory, other)| (memory.parse(), other.parse()))
        else {
            skipped!("{answer}");
            return None;
        };
        (elsewhere.memory, elsewhere.other) = (HostAddress(memory), HostAddress(other));
        Some(elsewhere)
    }

    fn answer(&mut self) -> String {
        let mut lines = self.answers.by_ref().lines().map(Result::unwrap);
        let answer = lines.find_map(|line| Some(line.split_once(MARK)?.1.to_owned()));
        answer.expect("the writer answers")
    }

    fn order(&mut self, order: &str) {
        self.send(order);
        self.answer();
    }

    fn send(&mut self, order: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{order}").unwrap();
    }

    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    fn source(&self) -> WrittenPages {
        let region = Region { start: self.memory, pages: PageRange::new(PageIndex(0), PAGES) };
        WrittenPages::of_process(self.pid(), vec![region]).unwrap()
    }

    /// The words of some of its pages.
    fn read(&self, pages: &BTreeSet<u32>) -> Vec<u64> {
        const BATCH: usize = 64;
        let spans = pages
            .iter()
            .map(|page| MemorySpan { address: self.memory.plus_pages(*page), bytes: 8 });
        let spans: Vec<MemorySpan> = spans.collect();
        let mut words = Vec::new();
        for spans in spans.chunks(BATCH) {
            let mut bytes = [0; BATCH * 8];
            assert_eq!(read_memory(self.pid(), spans, &mut bytes).unwrap(), spans.len() * 8);
            words.extend(
                bytes.as_chunks().0[..spans.len()].iter().map(|word| u64::from_ne_bytes(*word)),
            );
        }
        words
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn all_written() -> BTreeSet<u32> {
    (0..PAGES).filter(|page| is_written(*page)).collect()
}

/// Numbers of runs around multiples of what one call returns, beyond which the kernel's `walk_end` says less
/// than what it walked, protected and returned.
#[test]
fn what_it_wrote_is_collected_once() {
    let Some(mut elsewhere) = Elsewhere::start() else { return };
    let mut source = elsewhere.source();
    assert!(source.abilities().first_has_more);
    assert_eq!(collect(&mut source, PAGES), all_written());
    for (seed, runs) in (0..).zip([0, 1, 511, 512, 513, 1023, 1024, 1025, 5000, 10_000]) {
        elsewhere.order(&format!("write {seed} {runs}"));
        assert_eq!(collect(&mut source, PAGES), scattered(seed, runs), "{runs} runs");
        assert_eq!(collect(&mut source, PAGES), BTreeSet::new(), "{runs} runs");
    }
}

/// What was counted before a collection began is in a copy of the pages that it, and those before it, found.
#[test]
fn a_copy_beside_it_is_complete() {
    let Some(mut elsewhere) = Elsewhere::start() else { return };
    let mut source = elsewhere.source();
    let mut copy = vec![0; PAGES as usize];
    let mut epoch = |elsewhere: &Elsewhere| {
        let counted = elsewhere.counts.all();
        let found = collect(&mut source, PAGES);
        for (page, word) in found.iter().zip(elsewhere.read(&found)) {
            assert!(is_written(*page), "page {page}");
            copy[*page as usize] = word;
        }
        for (page, (counted, copied)) in counted.iter().zip(&copy).enumerate() {
            assert!(copied >= counted, "page {page}: {counted} writes, {copied} in the copy");
        }
        (found.len(), copy.clone())
    };
    elsewhere.order("run");
    let (mut epochs, mut copied) = (0, 0);
    let deadline = Instant::now() + PATIENCE;
    while epochs < EPOCHS {
        assert!(Instant::now() < deadline, "{epochs} collections found something");
        std::thread::sleep(Duration::from_millis(2));
        let (pages, _) = epoch(&elsewhere);
        // More than one call returns.
        epochs += usize::from(pages > 1024);
        copied += pages;
    }
    elsewhere.order("rest");
    let (_, copy) = epoch(&elsewhere);
    assert_eq!(copy, elsewhere.counts.all());
    let all = all_written();
    assert!(all.iter().map(|page| copy[*page as usize]).eq(elsewhere.read(&all)));
    println!("{copied} pages were copied, {} writes", copy.iter().sum::<u64>());
}

#[test]
fn memory_that_it_does_not_watch_is_an_error_with_numbers() {
    let Some(elsewhere) = Elsewhere::start() else { return };
    let region = Region { start: elsewhere.other, pages: PageRange::new(PageIndex(0), 3) };
    let error = WrittenPages::of_process(elsewhere.pid(), vec![region]).unwrap_err();
    let expected =
        format!("memory at {} (3 pages) is not watched for writes as a whole", elsewhere.other);
    assert_eq!(error.to_string(), expected);
}

/// A scan passes over holes: they must not be taken for pages that nobody wrote.
#[test]
fn memory_that_it_unmapped_is_an_error_with_numbers() {
    let Some(mut elsewhere) = Elsewhere::start() else { return };
    let (start, pid) = (elsewhere.memory, elsewhere.pid());
    if let Err(error) = Maps::of(pid).unwrap().first_hole(start, PAGE_BYTES) {
        return skipped!("holes are told since Linux 6.11: {error}");
    }
    let (mut source, mut lenient) = (elsewhere.source(), elsewhere.source().passing_over());
    collect(&mut source, PAGES);
    elsewhere.order("write 1 100");
    elsewhere.order("unmap");
    let oracle = Oracle::new(PAGES);
    let expected =
        format!("memory at {start} ({PAGES} pages) is not watched for writes as a whole");
    assert_eq!(source.collect(&oracle).unwrap_err().to_string(), expected);
    // All that is there.
    let mut written = scattered(1, 100);
    written.remove(&UNMAPPED);
    assert_eq!(oracle.take(), written);
    let region = Region { start, pages: PageRange::new(PageIndex(0), PAGES) };
    let refused = WrittenPages::of_process(pid, vec![region]).unwrap_err();
    assert_eq!(refused.to_string(), expected);
    assert_eq!(collect(&mut lenient, PAGES), [].into());
}

/// While it is scanned again and again; whoever starts it has not waited for it yet.
#[test]
fn its_end_is_an_error_with_its_pid() {
    for lives in 0..8 {
        let Some(mut elsewhere) = Elsewhere::start() else { return };
        let mut source = elsewhere.source();
        elsewhere.order("run");
        let pid = elsewhere.pid();
        let deadline = Instant::now() + PATIENCE;
        let error = std::thread::scope(|scope| {
            let child = &mut elsewhere.child;
            scope.spawn(move || {
                std::thread::sleep(Duration::from_micros(3000 + 170 * lives));
                child.kill().unwrap();
            });
            let oracle = Oracle::new(PAGES);
            loop {
                assert!(Instant::now() < deadline, "its end was not seen");
                if let Err(error) = source.collect(&oracle) {
                    assert!(oracle.take().is_subset(&all_written()));
                    break error;
                }
            }
        });
        assert!(matches!(error, SourceError::Vanished(_)), "{error}");
        assert!(
            error.to_string().contains(&format!("the guest is gone: process {pid} ")),
            "{error}"
        );
        elsewhere.child.wait().unwrap();
        let error = source.collect(&Oracle::new(PAGES)).unwrap_err();
        let expected = format!(
            "the guest is gone: process {pid} has ended; what was marked before is all that is known"
        );
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn a_process_that_is_not_there_is_an_error_with_its_pid() {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let pid = child.id().cast_signed();
    let error = WrittenPages::of_process(pid, vec![]).unwrap_err();
    let expected = format!(
        "the guest is gone: there is no process {pid}; what was marked before is all that is known"
    );
    assert_eq!(error.to_string(), expected);
}

/// It has the same pid and lives, but its memory is another.
#[test]
fn another_program_is_an_error_with_its_pid() {
    let Some(mut elsewhere) = Elsewhere::start() else { return };
    let mut source = elsewhere.source();
    let pid = elsewhere.pid();
    elsewhere.send("exec");
    let deadline = Instant::now() + PATIENCE;
    let error = loop {
        assert!(Instant::now() < deadline, "another program was not seen");
        if let Err(error) = source.collect(&Oracle::new(PAGES)) {
            break error;
        }
    };
    let expected = format!(
        "the guest is gone: process {pid} gave its memory up: it ends, or runs another program; what was \
         marked before is all that is known"
    );
    assert_eq!(error.to_string(), expected);
    assert!(elsewhere.child.try_wait().unwrap().is_none());
}
