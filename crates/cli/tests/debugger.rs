//! Other processes that look into a guest and write to it, as debuggers and dumpers do: what the
//! operator's guide says of `bindery unmanage` and `bindery unmerge` before it.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;
#[path = "common/guest.rs"]
mod guest;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use bindery_sys::process::{MemorySpan, read_memory};
use bindery_units::{HostAddress, PAGE_BYTES};
use common::{PATIENCE, TestDaemon};
use guest::{EQUAL_PAGES, PAGES, TestGuest, can_manage};

/// A page that every guest has, and one that no guest has touched.
const EQUAL: usize = 100;
const ABSENT: usize = PAGES - 10;

#[test]
#[ignore = "the guests' process of the other tests, not a test of its own"]
fn guest_process() {
    guest::live();
}

/// A guest that is merged with another one.
struct Merged {
    daemon: TestDaemon,
    guest: TestGuest,
    _other: TestGuest,
    address: u64,
}

impl Merged {
    fn start() -> Self {
        let daemon = TestDaemon::start(&["--period", "50ms"]);
        let mut guest = TestGuest::start(&daemon.socket(), "one", "web");
        let _other = TestGuest::start(&daemon.socket(), "two", "web");
        let address = guest.address();
        let merged = Self { daemon, guest, _other, address };
        merged.await_merged(EQUAL_PAGES as u64);
        merged
    }

    fn await_merged(&self, pages: u64) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let guests = self.daemon.ask(&["ps", "--json"]).json();
            if guests[0]["pages_merged"] == pages {
                return;
            }
            assert!(Instant::now() < deadline, "{guests}");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    fn memory(&self) -> File {
        let path = format!("/proc/{}/mem", self.guest.pid());
        File::options().read(true).write(true).open(path).unwrap()
    }

    /// Where the last word of a page is, which is what tells pages apart.
    fn word(&self, page: usize) -> u64 {
        self.address + ((page + 1) * PAGE_BYTES - 8) as u64
    }

    /// Reads the last word of a page by `/proc/PID/mem`.
    fn peek(&self, page: usize) -> std::io::Result<u64> {
        let mut word = [0; 8];
        self.memory().read_exact_at(&mut word, self.word(page))?;
        Ok(u64::from_ne_bytes(word))
    }

    /// Writes the last word of a page by `/proc/PID/mem`.
    fn poke(&self, page: usize, word: u64) -> std::io::Result<()> {
        self.memory().write_all_at(&word.to_ne_bytes(), self.word(page))
    }
}

/// Content of a page of [`guest::EQUAL_PAGES`].
fn content(page: usize) -> u64 {
    1 + page as u64
}

#[test]
fn what_is_merged_or_absent_is_read_from_outside() {
    if !can_manage("what_is_merged_or_absent_is_read_from_outside") {
        return;
    }
    let mut merged = Merged::start();
    assert_eq!(merged.peek(EQUAL).unwrap(), content(EQUAL));
    // process_vm_readv(2) waits for the page that it asks for, unlike /proc/PID/mem.
    for (page, expected) in [(EQUAL, content(EQUAL)), (ABSENT, 0)] {
        let span = MemorySpan { address: HostAddress(merged.word(page) as usize), bytes: 8 };
        let mut word = [1; 8];
        let pid = merged.guest.pid().cast_signed();
        assert_eq!(read_memory(pid, &[span], &mut word).unwrap(), 8);
        assert_eq!(u64::from_ne_bytes(word), expected);
    }
    merged.guest.check();
}

#[test]
fn a_guest_that_is_unmerged_can_be_written_from_outside() {
    if !can_manage("a_guest_that_is_unmerged_can_be_written_from_outside") {
        return;
    }
    let mut merged = Merged::start();
    assert_eq!(merged.daemon.ask(&["unmerge", "one"]).code, Some(0));
    merged.poke(EQUAL, 77).unwrap();
    assert_eq!(merged.peek(EQUAL).unwrap(), 77);
    merged.poke(EQUAL, content(EQUAL)).unwrap();
    merged.guest.check();
    assert_eq!(merged.daemon.ask(&["merge", "one"]).code, Some(0));
    merged.await_merged(EQUAL_PAGES as u64);
    merged.guest.check();
}

#[test]
fn a_guest_that_is_unmanaged_is_debugged_as_any_program() {
    if !can_manage("a_guest_that_is_unmanaged_is_debugged_as_any_program") {
        return;
    }
    let mut merged = Merged::start();
    let ended = merged.daemon.ask(&["unmanage", "one"]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert_eq!(merged.peek(ABSENT).unwrap(), 0);
    merged.poke(EQUAL, 77).unwrap();
    assert_eq!(merged.peek(EQUAL).unwrap(), 77);
    merged.poke(EQUAL, content(EQUAL)).unwrap();
    merged.guest.check();
    gdb_sees_everything(&merged);
    merged.guest.check();
}

/// Has gdb write a page, read an absent one, and dump the process.
fn gdb_sees_everything(merged: &Merged) {
    let directory = tempfile::tempdir().unwrap();
    let core = directory.path().join("core");
    let (equal, absent) = (merged.word(EQUAL + 1), merged.word(ABSENT + 1));
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-p"]).arg(merged.guest.pid().to_string());
    for command in [
        format!("set *(long*){equal:#x} = 4711"),
        format!("print *(long*){equal:#x} + *(long*){absent:#x}"),
        format!("set *(long*){equal:#x} = {}", content(EQUAL + 1)),
        format!("generate-core-file {}", core.display()),
    ] {
        gdb.arg("-ex").arg(command);
    }
    let output = match gdb.stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) => {
            return bindery_testkit::skipped!("gdb on a guest: there is none here: {error}");
        }
    };
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    let said = said.concat();
    if said.contains("Operation not permitted") {
        return bindery_testkit::skipped!("gdb on a guest: {said}");
    }
    assert!(said.contains("= 4711"), "{said}");
    // [vsyscall], which no program's memory is.
    let is_wrong = |line: &&str| line.contains("failed") && !line.contains("0xffffffffff600000");
    assert_eq!(said.lines().find(is_wrong), None, "{said}");
    assert!(!said.contains("Cannot access memory"), "{said}");
    assert!(std::fs::metadata(core).unwrap().len() > (PAGES * PAGE_BYTES) as u64, "{said}");
}
