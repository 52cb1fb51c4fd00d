//! Acts of the guest on its memory.

mod calls;
mod storm;

use std::io::BufRead;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use bindery_units::PAGE_BYTES;

use crate::content::{PAGES, word};
use crate::program::{MARK, SCENARIO};

/// Words of a page.
pub(super) const WORDS: usize = PAGE_BYTES / 8;

/// Memory of so many pages.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    pub(super) start: usize,
}

impl Memory {
    /// Maps memory, and offers it for merging.
    fn map(pages: usize, flags: i32) -> Self {
        let (bytes, protection) = (pages * PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE);
        let flags = flags | libc::MAP_ANONYMOUS;
        // SAFETY: new memory, which nothing else uses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::madvise(start, bytes, libc::MADV_MERGEABLE) }, 0);
        Self { start: start as usize }
    }

    pub(super) fn page(self, page: u32) -> usize {
        self.start + page as usize * PAGE_BYTES
    }

    pub(super) fn read(self, page: u32, at: usize) -> u64 {
        // SAFETY: memory of the test, of which each word is written by one thread.
        unsafe { ((self.page(page) + at * 8) as *const u64).read_volatile() }
    }

    pub(super) fn write(self, page: u32, at: usize, value: u64) {
        // SAFETY: as in `read`.
        unsafe { ((self.page(page) + at * 8) as *mut u64).write_volatile(value) };
    }

    /// Checks that a page is what the image says.
    pub(super) fn check(self, page: u32) {
        (0..WORDS).for_each(|at| self.check_word(page, at));
    }

    pub(super) fn check_word(self, page: u32, at: usize) {
        let (found, wanted) = (self.read(page, at), word(page, at));
        assert_eq!(found, wanted, "page {page}, word {at}: {found:x} for {wanted:x}");
    }

    pub(super) fn check_zero(self, page: u32) {
        let found = (0..WORDS).find(|&at| self.read(page, at) != 0);
        assert_eq!(found, None, "page {page} is not zero");
    }
}

pub(super) fn say(what: &str) {
    println!("{MARK}{what}");
}

fn wait_for(line: &str) {
    let mut said = String::new();
    std::io::stdin().lock().read_line(&mut said).unwrap();
    assert_eq!(said.trim_end(), line);
}

/// Plays the scenario that the environment names.
pub(crate) fn play() {
    let Ok(scenario) = std::env::var(SCENARIO) else { return };
    // A thread that fails is the guest's end, and the test's.
    std::panic::set_hook(Box::new(|bug| {
        eprintln!("{bug}");
        say(&format!("{bug}").replace('\n', " "));
        std::process::abort();
    }));
    if scenario == "refuse" {
        return refuse();
    }
    let memory = Memory::map(PAGES as usize, libc::MAP_PRIVATE);
    // What was there goes.
    memory.write(0, 0, 77);
    say("ready");
    wait_for("go");
    let check: Box<dyn Fn()> = match scenario.as_str() {
        "read" => Box::new(move || (0..PAGES).for_each(|page| memory.check(page))),
        "touch" => return touch(memory),
        "storm" => storm::play(memory),
        "crowd" => crowd(memory),
        "damaged" => damaged(memory),
        "calls" => calls::play(memory),
        other => panic!("no scenario {other}"),
    };
    check();
    say("done");
    wait_for("end");
    // It is managed by now.
    check();
    say("ended");
}

/// Touches every fourth page.
fn touch(memory: Memory) {
    let begun = Instant::now();
    let pages = (0..PAGES).step_by(4);
    let sum: u64 = pages.clone().map(|page| memory.read(page, 0)).fold(0, u64::wrapping_add);
    let micros = begun.elapsed().as_secs_f64() * 1e6 / pages.len() as f64;
    say(&format!("{micros:.1} µs a fault ({sum})"));
}

/// Touches pages by more threads than there is room for questions, each page by one.
fn crowd(memory: Memory) -> Box<dyn Fn()> {
    thread::scope(|scope| {
        for page in (0..PAGES).step_by(4) {
            let small = thread::Builder::new().stack_size(64 << 10);
            small.spawn_scoped(scope, move || memory.check(page)).unwrap();
        }
    });
    Box::new(move || (0..PAGES).for_each(|page| memory.check(page)))
}

fn refuse() {
    let _private = Memory::map(64, libc::MAP_PRIVATE);
    let _shared = Memory::map(64, libc::MAP_SHARED);
    let other = Memory::map(64, libc::MAP_PRIVATE);
    other.write(5, 0, 55);
    say("ready");
    wait_for("go");
    assert_eq!(other.read(5, 0), 55, "what was refused is as it was");
    // SAFETY: nobody uses it any more.
    assert_eq!(unsafe { libc::munmap(other.start as *mut _, 64 * PAGE_BYTES) }, 0);
    say("done");
    wait_for("end");
}

static LOST: [AtomicUsize; 8] = [const { AtomicUsize::new(0) }; 8];
static LOST_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Notes which page could not be read, and puts another there, so that its reader goes on.
extern "C" fn note_lost(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives this to a handler of this signal.
    let address = unsafe { (*info).si_addr() } as usize & !(PAGE_BYTES - 1);
    LOST[LOST_COUNT.fetch_add(1, Ordering::Relaxed) % LOST.len()].store(address, Ordering::Relaxed);
    let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the page is lost.
    unsafe { libc::mmap(address as *mut _, PAGE_BYTES, protection, flags, -1, 0) };
}

fn damaged(memory: Memory) -> Box<dyn Fn()> {
    let lost = [3, 690, 691];
    // A system call gets an error.
    let (_reader, writer) = std::io::pipe().unwrap();
    for page in [690, 3] {
        let buffer = memory.page(page) as *const libc::c_void;
        // SAFETY: the memory is the test's.
        let written =
            unsafe { libc::write(std::os::fd::AsRawFd::as_raw_fd(&writer), buffer, PAGE_BYTES) };
        let error = std::io::Error::last_os_error().raw_os_error();
        let is_lost = matches!(error, Some(libc::EFAULT | libc::EHWPOISON));
        assert!(written == -1 && is_lost, "{written} {error:?}");
    }
    // SAFETY: the handler is a function for it.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = note_lost as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()), 0);
    }
    for page in 0..PAGES {
        if lost.contains(&page) { memory.check_zero(page) } else { memory.check(page) }
    }
    let found = LOST[..LOST_COUNT.load(Ordering::Relaxed)].iter();
    let found: Vec<usize> = found.map(|address| address.load(Ordering::Relaxed)).collect();
    assert_eq!(found, lost.map(|page| memory.page(page)));
    let rest =
        move || (0..PAGES).filter(|page| !lost.contains(page)).for_each(|page| memory.check(page));
    Box::new(rest)
}
