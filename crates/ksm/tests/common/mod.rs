//! Memory that is offered to KSM, and a pilot on a thread of its own.

#![allow(dead_code, reason = "each test program uses its own part of this module")]

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bindery_advisor::{AdvisorSettings, Mode};
use bindery_ksm::{Event, Options, Pilot, PilotError, Totals};
use bindery_testkit::machine::{KsmGuard, KsmSettings};
use bindery_testkit::skipped;

pub(crate) const PAGE: usize = 4096;

/// How long anything here may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// KSM at its own pace, every page in every scan; `None`, loudly, where that cannot be.
pub(crate) fn ksm(test: &str) -> Option<KsmGuard> {
    ksm_with(test, false)
}

/// The same, with or without `smart_scan`.
pub(crate) fn ksm_with(test: &str, smart_scan: bool) -> Option<KsmGuard> {
    let settings = KsmSettings {
        sleep_millisecs: Some(20),
        pages_to_scan: Some(100),
        smart_scan: Some(smart_scan),
        use_zero_pages: None,
    };
    match KsmGuard::start(settings) {
        Ok(guard) => Some(guard),
        Err(error) => {
            skipped!("{test}: {error}");
            None
        }
    }
}

/// Pages that are all different, offered to KSM until they are dropped.
pub(crate) struct Memory {
    block: Vec<u8>,
    pages: usize,
}

impl Memory {
    pub(crate) fn offer(pages: usize) -> Self {
        let mut block = vec![0_u8; (pages + 1) * PAGE];
        let start = block.as_ptr().addr().next_multiple_of(PAGE) - block.as_ptr().addr();
        let own = block.as_ptr().addr() as u64;
        for page in 0..pages {
            let stamp = (own ^ (page as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)).to_le_bytes();
            let at = start + page * PAGE;
            block[at..at + 8].copy_from_slice(&stamp);
            block[at + PAGE - 8..at + PAGE].copy_from_slice(&stamp);
        }
        let memory = Self { block, pages };
        memory.advise(libc::MADV_MERGEABLE);
        memory
    }

    fn advise(&self, advice: i32) {
        let start = self.block.as_ptr().addr().next_multiple_of(PAGE);
        let start = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: the range is inside the block, which is ours; the advice changes no content.
        let result = unsafe { libc::madvise(start, self.pages * PAGE, advice) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // The allocator may keep the block, and KSM would go on with it.
        self.advise(libc::MADV_UNMERGEABLE);
    }
}

/// A pilot at work, ended when this is dropped.
pub(crate) struct Piloted {
    stop: UnixStream,
    events: Receiver<Event>,
    /// `None` once it was ended.
    thread: Option<JoinHandle<Result<Totals, PilotError>>>,
    _directory: tempfile::TempDir,
}

pub(crate) fn settings(mode: Mode, target_scan_time_s: u64) -> AdvisorSettings {
    AdvisorSettings {
        mode,
        target_scan_time_s,
        max_cpu_percent: 95,
        min_pages_to_scan: 100,
        max_pages_to_scan: 30_000,
    }
}

impl Piloted {
    pub(crate) fn start(settings: AdvisorSettings) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("ksm.json");
        let pilot = Pilot::start(&Options { settings, state, start: false }).unwrap();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let (sender, events) = channel();
        let thread = std::thread::spawn(move || {
            pilot.run(stopped.as_fd(), None, &mut |event| {
                // Nobody listens any more once the test is over.
                let _ = sender.send(event.clone());
            })
        });
        Self { stop, events, thread: Some(thread), _directory: directory }
    }

    /// The next event that `wanted` says something of.
    pub(crate) fn next<T>(&self, mut wanted: impl FnMut(&Event) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let event = self.events.recv_timeout(left).expect("the pilot tells of it in time");
            if let Some(found) = wanted(&event) {
                return found;
            }
        }
    }

    /// Ends it.
    pub(crate) fn end(self) -> Totals {
        self.end_with(|_| ())
    }

    /// Ends it, and tells what nobody has asked for so far.
    pub(crate) fn end_with(mut self, reported: impl FnMut(Event)) -> Totals {
        self.stop.write_all(b"s").unwrap();
        let totals = self.thread.take().unwrap().join().unwrap().unwrap();
        self.events.try_iter().for_each(reported);
        totals
    }
}

impl Drop for Piloted {
    /// Before KSM's settings are put back by the test's own guard, which was made first: a pilot that
    /// goes on would fight that.
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        let _ = self.stop.write_all(b"s");
        let _ = thread.join();
    }
}

/// One of KSM's files.
pub(crate) fn file(name: &str) -> String {
    std::fs::read_to_string(format!("/sys/kernel/mm/ksm/{name}")).unwrap().trim().to_owned()
}

/// Waits until `is_so`.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what} never came");
        std::thread::sleep(Duration::from_millis(5));
    }
}
