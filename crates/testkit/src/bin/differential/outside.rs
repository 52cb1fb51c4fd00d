//! What others do to the program's memory: helpers that read and write it, debuggers, signals, and a
//! userfaultfd of the program's own.

use std::ffi::c_void;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::calls::{self, address, answer};
use crate::memory::make_one;
use crate::random::{Content, Random};
use crate::world::{PAGE, WRITABLE, World, close};

/// Has a child do something, and returns what it reports by its exit status.
fn in_helper(work: impl FnOnce() -> isize) -> String {
    // SAFETY: the child makes system calls only.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let result = work();
        // SAFETY: errno of this thread; ends the child.
        unsafe { libc::_exit(if result >= 0 { 0 } else { *libc::__errno_location() }) };
    }
    let mut status = 0;
    // SAFETY: the status is this function's.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } != child {}
    format!("status {status:x}")
}

/// The parts of a call of process_vm_readv: from one place of the arena to the same of another process.
fn parts(from: usize, to: usize, count: usize) -> (libc::iovec, libc::iovec) {
    let part = |page| libc::iovec { iov_base: address(page), iov_len: count * PAGE };
    (part(from), part(to))
}

/// A helper reads the program's memory into its own, and compares with what it has there itself.
pub(crate) fn read(world: &mut World, random: &mut Random, result: &mut String) {
    let (from, to, count) = random.two_ranges(64);
    world.touch(from, count);
    // SAFETY: no memory is involved.
    let parent = unsafe { libc::getpid() };
    let (local, remote) = parts(to, from, count);
    let read = in_helper(|| {
        // SAFETY: the helper's own arena is written.
        unsafe { libc::process_vm_readv(parent, &raw const local, 1, &raw const remote, 1, 0) }
    });
    result.push_str(&read);
}

/// A helper writes to the program's memory.
pub(crate) fn write(world: &mut World, random: &mut Random, result: &mut String) {
    let (from, to, count) = random.two_ranges(64);
    world.touch(to, count);
    // SAFETY: no memory is involved.
    let parent = unsafe { libc::getpid() };
    let (local, remote) = parts(from, to, count);
    let written = in_helper(|| {
        // SAFETY: the program's arena is written, while it waits.
        unsafe { libc::process_vm_writev(parent, &raw const local, 1, &raw const remote, 1, 0) }
    });
    result.push_str(&written);
}

/// Attaches a helper to this process as a debugger, for one request about a page.
fn debug(request: libc::c_uint, page: usize, data: usize) -> String {
    // SAFETY: no memory is involved.
    let me = unsafe {
        libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY);
        libc::getpid()
    };
    in_helper(move || {
        let mut status = 0;
        // SAFETY: the process that is stopped waits for this one; a word of its arena is concerned.
        unsafe {
            let null = std::ptr::null_mut::<c_void>();
            if libc::ptrace(libc::PTRACE_ATTACH, me, null, null) != 0 {
                return -1;
            }
            libc::waitpid(me, &raw mut status, 0);
            *libc::__errno_location() = 0;
            libc::ptrace(request, me, address(page), data);
            let failed = *libc::__errno_location() != 0;
            let errno = *libc::__errno_location();
            libc::ptrace(libc::PTRACE_DETACH, me, null, null);
            *libc::__errno_location() = errno;
            if failed { -1 } else { 0 }
        }
    })
}

pub(crate) fn peek(world: &mut World, random: &mut Random, result: &mut String) {
    let (page, _) = random.range(1);
    world.touch(page, 1);
    result.push_str(&debug(libc::PTRACE_PEEKDATA, page, 0));
}

/// A debugger may be refused; what it would have written the program writes by itself.
pub(crate) fn poke(world: &mut World, random: &mut Random, result: &mut String) {
    let (page, _) = random.range(1);
    world.touch(page, 1);
    if world.allows(page, 1, WRITABLE) && world.is_private(page, 1) {
        result.push_str(&debug(libc::PTRACE_POKEDATA, page, 0x5555));
        // SAFETY: the page is mapped for writing.
        unsafe { calls::bytes(page).write_volatile(0x5555) };
    }
}

/// /proc/self/mem, read and written; as for [`poke`].
pub(crate) fn memory_file(world: &mut World, random: &mut Random, _: &mut String) {
    let (page, _) = random.range(1);
    world.touch(page, 1);
    if !world.allows(page, 1, WRITABLE) || !world.is_private(page, 1) {
        return;
    }
    let (mut seen, word) = (0_u64, 0x6666_u64);
    let place = address(page) as i64;
    // SAFETY: a word is read and written, in a page that is mapped for writing.
    unsafe {
        let file = libc::open(c"/proc/self/mem".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        libc::pread(file, (&raw mut seen).cast(), 8, place);
        libc::pwrite(file, (&raw const word).cast(), 8, place);
        close(file);
        calls::bytes(page).write_volatile(word);
    }
}

const UFFD_API: u64 = 0xaa;
const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFDIO_COPY: u64 = 0xc028_aa03;
const UFFDIO_MOVE: u64 = 0xc028_aa05;
const MISSING: u64 = 1;

fn ioctl<const WORDS: usize>(file: i32, request: u64, mut words: [u64; WORDS]) -> String {
    // SAFETY: the words are the structure of the request; its ranges are in the arena.
    let done = unsafe { libc::ioctl(file, request, words.as_mut_ptr()) };
    answer(done as isize)
}

/// A range is watched by the program itself, which fills it from another.
fn fill_by_userfault(world: &mut World, random: &mut Random, result: &mut String, request: u64) {
    let (from, to, count) = random.two_ranges(32);
    world.touch(to, count);
    make_one(world, random, (from, count));
    make_one(world, random, (to, count));
    let file = calls::raw(libc::SYS_userfaultfd, [libc::O_CLOEXEC as usize, 0, 0, 0, 0]) as i32;
    if file < 0 || !world.allows(to, count, WRITABLE) || !world.allows(from, count, WRITABLE) {
        return close(file);
    }
    let (start, bytes) = (address(to) as u64, (count * PAGE) as u64);
    let _ = write!(result, "{}", ioctl(file, UFFDIO_API, [UFFD_API, 0, 0]));
    let _ = write!(result, " {}", ioctl(file, UFFDIO_REGISTER, [start, bytes, MISSING, 0]));
    let _ = write!(result, " {}", answer(calls::madvise(to, count, libc::MADV_DONTNEED)));
    let source = address(from) as u64;
    let _ = write!(result, " {}", ioctl(file, request, [start, source, bytes, 0, 0]));
    close(file);
    let _ = write!(result, " from {:016x}", world.digest(from, count));
}

pub(crate) fn userfault_copy(world: &mut World, random: &mut Random, result: &mut String) {
    fill_by_userfault(world, random, result, UFFDIO_COPY);
}

pub(crate) fn userfault_move(world: &mut World, random: &mut Random, result: &mut String) {
    fill_by_userfault(world, random, result, UFFDIO_MOVE);
}

/// What a signal's handler is to write to, as the word's address.
static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn handle(signal: libc::c_int) {
    let word: *mut u64 = std::ptr::with_exposed_provenance_mut(HANDLED.load(Ordering::Relaxed));
    // SAFETY: the page was mapped for writing when the signal was raised.
    unsafe { word.write_volatile(word.read_volatile() ^ signal as u64) };
}

/// A signal's handler writes to memory.
pub(crate) fn signal(world: &mut World, random: &mut Random, _: &mut String) {
    let (page, _) = random.range(1);
    world.touch(page, 1);
    if !world.allows(page, 1, WRITABLE) {
        return;
    }
    if random.once_in(2) {
        world.put(page, Content::Common(random.below(12)));
        world.rest(20);
    }
    HANDLED.store(calls::bytes(page).addr(), Ordering::Relaxed);
    let handler: extern "C" fn(libc::c_int) = handle;
    // SAFETY: the handler does no more than a store.
    unsafe {
        libc::signal(libc::SIGUSR1, handler as libc::sighandler_t);
        libc::raise(libc::SIGUSR1);
    }
}
