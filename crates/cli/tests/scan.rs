//! `bindery scan` on files and processes whose pages are known.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use bindery_units::PAGE_BYTES;
use common::{Ended, PATIENCE, adds_up, as_nobody, bindery, can_change_user, run, run_within};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::Value;

fn scan(arguments: &[&dyn AsRef<std::ffi::OsStr>]) -> Ended {
    let mut command = bindery(["scan", "--json"]);
    command.args(arguments.iter().map(|argument| argument.as_ref()));
    run(command)
}

/// A page of each number: zeros for 0, otherwise the number at its very end.
fn pages(numbers: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(numbers.len() * PAGE_BYTES);
    for number in numbers {
        bytes.resize(bytes.len() + PAGE_BYTES - 8, 0);
        bytes.extend(number.to_ne_bytes());
    }
    bytes
}

fn image(directory: &Path, name: &str, numbers: &[u64]) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, pages(numbers)).unwrap();
    path
}

#[test]
fn images_are_counted_exactly() {
    let directory = tempfile::tempdir().unwrap();
    let one = image(directory.path(), "one.mem", &[1, 1, 1, 2, 0, 0, 3]);
    let two = image(directory.path(), "two.mem", &[3, 4, 0, 2, 2]);
    let report = scan(&[&one, &two]).json();
    let field = |name: &str| report["total"][name].as_u64().unwrap();
    assert_eq!(field("pages"), 12);
    assert_eq!(field("zero_pages"), 3);
    assert_eq!(field("distinct_pages"), 4);
    assert_eq!(field("duplicate_pages_inside"), 3);
    assert_eq!(field("duplicate_pages_across"), 2);
    assert_eq!(field("saved_pages"), 8);
    let of_one = &report["inputs"][0];
    assert_eq!(of_one["zero_pages"], 2);
    assert_eq!(of_one["distinct_pages"], 3);
    assert_eq!(of_one["duplicate_pages"], 2);
    assert_eq!(of_one["saved_pages"], 4);
}

/// Holes count as the zeros that they read as, and cost nothing.
#[test]
fn holes_of_images_are_not_read() {
    const TIB: u64 = 1 << 40;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sparse.mem");
    let file = std::fs::File::create(&path).unwrap();
    let page = PAGE_BYTES as u64;
    if let Err(error) = file.set_len(TIB) {
        bindery_testkit::skipped!("no sparse file of 1 TiB here: {error}");
        return;
    }
    // At both ends, in the middle, and not where pages of a file system's blocks begin.
    for (at, numbers) in [(0, &[1, 0][..]), (TIB / 2 + 3 * page, &[1, 2]), (TIB - page, &[2])] {
        file.write_all_at(&pages(numbers), at).unwrap();
    }
    let mut command = bindery(["scan", "--json"]);
    command.arg(&path);
    let report = run_within(Duration::from_secs(20), command).json();
    let field = |name: &str| report["total"][name].as_u64().unwrap();
    assert_eq!(field("pages"), TIB / page);
    assert_eq!(field("zero_pages"), TIB / page - 4);
    assert_eq!((field("distinct_pages"), field("duplicate_pages_inside")), (2, 2));
    assert!(report["notes"][0].as_str().unwrap().contains("of holes"), "{report}");
}

#[test]
fn threads_change_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let numbers: Vec<u64> = (0..9000).map(|at| at * at % 1201).collect();
    let path = image(directory.path(), "large.mem", &numbers);
    let one = scan(&[&"--threads", &"1", &path]).json();
    let seven = scan(&[&"--threads", &"7", &path]).json();
    assert_eq!(one, seven);
    let zero = numbers.iter().filter(|&&number| number == 0).count() as u64;
    let distinct = numbers.iter().collect::<std::collections::BTreeSet<_>>().len() as u64 - 1;
    assert_eq!(one["total"]["zero_pages"], zero);
    assert_eq!(one["total"]["saved_pages"], 9000 - distinct);
}

#[test]
fn what_is_no_memory_image_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let odd = directory.path().join("odd.mem");
    std::fs::write(&odd, vec![1; PAGE_BYTES + 1]).unwrap();
    let ended = scan(&[&odd]);
    assert_eq!(ended.code, Some(8), "{}", ended.err);
    assert!(ended.err.contains("not a multiple of the page size"), "{}", ended.err);
    assert_eq!(scan(&[&directory.path()]).code, Some(8));
    assert_eq!(scan(&[&directory.path().join("none")]).code, Some(4));
    let good = image(directory.path(), "good.mem", &[1]);
    assert_eq!(scan(&[&good, &good]).code, Some(2));

    let [fifo, socket] = ["fifo", "socket"].map(|name| directory.path().join(name));
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let _listener = UnixListener::bind(&socket).unwrap();
    for path in [fifo, socket, "/dev/null".into()] {
        let mut command = bindery(["scan"]);
        command.arg(&path);
        // Nobody ever writes to the FIFO.
        let ended = run_within(Duration::from_secs(5), command);
        assert_eq!(ended.code, Some(8), "{}", ended.err);
        assert!(ended.err.contains("is not a regular file"), "{}", ended.err);
    }
}

#[test]
fn a_dead_process_is_not_found() {
    let mut child = Command::new("true").spawn().unwrap();
    let pid = child.id().to_string();
    child.wait().unwrap();
    let ended = scan(&[&pid]);
    assert_eq!(ended.code, Some(4), "{}", ended.err);
    assert!(ended.err.contains(&format!("no process {pid}")), "{}", ended.err);
}

#[test]
fn another_users_process_is_refused() {
    if !can_change_user("another_users_process_is_refused") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(common::program_for_all(directory.path()));
    command.args(["scan", &std::process::id().to_string()]);
    let ended = run(as_nobody(command));
    assert_eq!(ended.code, Some(5), "{}", ended.err);
}

/// This test program once more, as [`child_with_known_pages`].
struct KnownChild {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

const ZERO_PAGES: u64 = 60;
const EQUAL_PAGES: u64 = 100;
const UNIQUE_PAGES: u64 = 140;
const PAGES: u64 = ZERO_PAGES + EQUAL_PAGES + UNIQUE_PAGES;

impl KnownChild {
    fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_with_known_pages", "--ignored", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let mut child = Self { child, orders, answers };
        child.await_word("ready");
        child.await_rest();
        child
    }

    fn await_word(&mut self, word: &str) {
        let mut line = String::new();
        while line.trim() != word {
            line.clear();
            assert_ne!(self.answers.read_line(&mut line).unwrap(), 0, "the child has ended");
        }
    }

    fn fill(&mut self) {
        self.orders.write_all(b"fill\n").unwrap();
        self.await_word("filled");
        self.await_rest();
    }

    /// Waits until all of its threads sleep: on the way to its next order it takes pages.
    fn await_rest(&self) {
        let tasks = format!("/proc/{}/task", self.child.id());
        let sleeps = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            stat.rsplit_once(") ").unwrap().1.starts_with('S')
        };
        let deadline = Instant::now() + PATIENCE;
        while !std::fs::read_dir(&tasks).unwrap().all(sleeps) {
            assert!(Instant::now() < deadline, "the child does not rest");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn scan(&self) -> Value {
        let ended = scan(&[&self.child.id().to_string()]);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        let input = ended.json()["inputs"][0].clone();
        adds_up(&input);
        input
    }
}

impl Drop for KnownChild {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "the other process of `a_process_is_counted_exactly`, not a test of its own"]
fn child_with_known_pages() {
    let fill = |pages: u64| {
        // Above malloc's largest threshold: a mapping of its own.
        let mut memory = vec![0_u8; 64 << 20];
        let offset = memory.as_ptr().align_offset(PAGE_BYTES);
        let region = &mut memory[offset..][..PAGES as usize * PAGE_BYTES];
        let chunks = region.chunks_exact_mut(PAGE_BYTES).take(pages as usize);
        for (at, page) in (0..PAGES).zip(chunks) {
            let number = match at {
                _ if at < ZERO_PAGES => 0,
                _ if at < ZERO_PAGES + EQUAL_PAGES => u64::MAX,
                _ => at,
            };
            // Written even where it is zero: these pages are to be there.
            page[..8].copy_from_slice(std::hint::black_box(&number.to_ne_bytes()));
        }
        memory
    };
    let order = || {
        let mut order = String::new();
        std::io::stdin().read_line(&mut order).unwrap();
    };
    // Once for the pages of stack and heap that the work itself takes.
    drop(std::hint::black_box(fill(1)));
    println!("\nready");
    order();
    let memory = std::hint::black_box(fill(PAGES));
    println!("filled");
    order();
    drop(memory);
}

#[test]
fn a_process_is_counted_exactly() {
    let huge = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    if huge.is_ok_and(|setting| setting.contains("[always]")) {
        bindery_testkit::skipped!("with transparent huge pages always on, pages come unasked");
        return;
    }
    let mut child = KnownChild::start();
    let before = child.scan();
    child.fill();
    let after = child.scan();
    let grown = |field: &str| after[field].as_u64().unwrap() - before[field].as_u64().unwrap();
    // One more page than was written: the allocator's, in front of them.
    assert_eq!(grown("pages"), PAGES + 1, "{before} {after}");
    assert_eq!(grown("zero_pages"), ZERO_PAGES);
    assert_eq!(grown("duplicate_pages"), EQUAL_PAGES - 1);
    assert_eq!(grown("distinct_pages"), UNIQUE_PAGES + 1 + 1);
}

#[test]
fn scanning_touches_no_absent_page() {
    let mut child = KnownChild::start();
    child.fill();
    let resident = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.child.id())).unwrap();
        status.lines().find(|line| line.starts_with("VmRSS")).unwrap().to_owned()
    };
    let before = resident();
    // 64 MiB are mapped there, of which next to nothing is present.
    for _ in 0..3 {
        assert!(child.scan()["pages"].as_u64().unwrap() < 4096);
    }
    assert_eq!(resident(), before);
}
