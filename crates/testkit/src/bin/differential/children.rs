//! Children of every kind. Each looks at all memory at its birth and again after its parent has written
//! other things, then changes its own, looks once more, and reports by a page that both share.
//!
//! Nothing is allocated in a child: another thread may have held the allocator's lock.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::calls;
use crate::memory::make_one;
use crate::random::{Content, Random};
use crate::world::{PAGES, WORDS, World};

/// Words of the board.
const STATE: usize = 0;
const REPORTS: usize = 1;

/// States of the board: the child was born, its parent has written.
const BORN: u64 = 1;
const WRITTEN: u64 = 2;

/// What the child is to do besides looking.
#[derive(Clone, Copy)]
struct Task {
    first: usize,
    count: usize,
    content: Content,
    advice: i32,
    closes: bool,
}

unsafe extern "C" {
    /// fork without the handlers that libraries have registered (glibc 2.34).
    safe fn _Fork() -> libc::pid_t;
}

pub(crate) fn fork(world: &mut World, random: &mut Random, result: &mut String) {
    // SAFETY: the child calls nothing that allocates or locks.
    live(world, random, result, false, || unsafe { libc::fork() });
}

pub(crate) fn fork_plainly(world: &mut World, random: &mut Random, result: &mut String) {
    live(world, random, result, false, || _Fork());
}

/// The child closes all descriptors but those of the log.
pub(crate) fn fork_and_close(world: &mut World, random: &mut Random, result: &mut String) {
    // SAFETY: as above.
    live(world, random, result, true, || unsafe { libc::fork() });
}

/// clone as the C library has it, on a stack of its own.
pub(crate) fn clone(world: &mut World, random: &mut Random, result: &mut String) {
    let mut stack = vec![0_u128; 1 << 14];
    let top = stack.as_mut_ptr_range().end.cast();
    let mut birth = Birth { task: draw_task(world, random, false), world };
    // SAFETY: the function gets what it expects, and the stack lives until the child has ended.
    let child = unsafe { libc::clone(born, top, libc::SIGCHLD, (&raw mut birth).cast()) };
    let Birth { task, world } = birth;
    accompany(world, random, result, child, task);
}

struct Birth<'a> {
    task: Task,
    world: &'a mut World,
}

extern "C" fn born(birth: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `clone` gives it a birth, of which this process has a copy.
    let birth = unsafe { &mut *birth.cast::<Birth<'_>>() };
    child_lives(birth.world, birth.task)
}

/// clone as a system call.
pub(crate) fn clone_raw(world: &mut World, random: &mut Random, result: &mut String) {
    let flags = libc::SIGCHLD as usize;
    live(world, random, result, false, || {
        calls::raw(libc::SYS_clone, [flags, 0, 0, 0, 0]) as libc::pid_t
    });
}

fn live(
    world: &mut World,
    random: &mut Random,
    result: &mut String,
    closes: bool,
    make: impl FnOnce() -> libc::pid_t,
) {
    let task = draw_task(world, random, closes);
    board(world, STATE).store(0, Ordering::Release);
    let child = make();
    if child == 0 {
        let status = child_lives(world, task);
        // SAFETY: ends the child, without what its parent would do at its end.
        unsafe { libc::_exit(status) };
    }
    accompany(world, random, result, child, task);
}

fn draw_task(world: &mut World, random: &mut Random, closes: bool) -> Task {
    let (first, count) = random.range(128);
    make_one(world, random, (first, count));
    let advices = [
        libc::MADV_DONTNEED,
        libc::MADV_DONTNEED,
        libc::MADV_WIPEONFORK,
        libc::MADV_HUGEPAGE,
        libc::MADV_POPULATE_WRITE,
        libc::MADV_UNMERGEABLE,
    ];
    Task { first, count, content: random.content(), advice: random.one_of(&advices), closes }
}

/// A word that parent and children share.
fn board(world: &World, at: usize) -> &AtomicU64 {
    // SAFETY: the board is a page of words, mapped as long as the program runs.
    unsafe { AtomicU64::from_ptr(world.board.add(at)) }
}

/// The life of a child; its exit status.
fn child_lives(world: &mut World, task: Task) -> i32 {
    if task.closes {
        calls::raw(libc::SYS_close_range, [3, u32::MAX as usize, 0, 0, 0]);
    }
    let at_birth = world.digest(0, PAGES);
    board(world, REPORTS).store(at_birth, Ordering::Relaxed);
    board(world, STATE).store(BORN, Ordering::Release);
    await_state(world, WRITTEN);
    let later = world.digest(0, PAGES);
    board(world, REPORTS + 1).store(later, Ordering::Relaxed);
    let advised = calls::madvise(task.first, task.count, task.advice);
    let after_advice = world.digest(task.first, task.count);
    for page in task.first..task.first + task.count / 2 {
        world.put(page, task.content);
    }
    let moved = calls::mremap(
        calls::address(task.first),
        task.count,
        task.count + 1,
        libc::MREMAP_MAYMOVE,
        std::ptr::null_mut(),
    );
    let unmapped = calls::munmap(calls::address(task.first), task.count.div_ceil(2));
    let at_end = world.digest(0, PAGES);
    let reports =
        [after_advice, advised as u64, (moved == libc::MAP_FAILED).into(), unmapped as u64, at_end];
    for (at, report) in reports.into_iter().enumerate() {
        board(world, REPORTS + 2 + at).store(report, Ordering::Relaxed);
    }
    7
}

fn await_state(world: &World, state: u64) {
    while board(world, STATE).load(Ordering::Acquire) != state {
        // SAFETY: no memory is involved.
        unsafe { libc::usleep(200) };
    }
}

/// What the parent does meanwhile.
fn accompany(
    world: &mut World,
    random: &mut Random,
    result: &mut String,
    child: libc::pid_t,
    task: Task,
) {
    if child < 0 {
        result.push_str(&calls::answer(-1));
        return;
    }
    world.touch(task.first, task.count);
    let mut status = 0;
    // SAFETY: the status is this function's.
    let has_ended =
        |status: &mut i32, flags| unsafe { libc::waitpid(child, status, flags) } == child;
    while board(world, STATE).load(Ordering::Acquire) != BORN {
        if has_ended(&mut status, libc::WNOHANG) {
            let _ = write!(result, "ended before it was born: {status:x}");
            return;
        }
        // SAFETY: no memory is involved.
        unsafe { libc::usleep(200) };
    }
    for _ in 0..2 {
        world.put_range(random.range(256), random);
        world.rest(15);
    }
    board(world, STATE).store(WRITTEN, Ordering::Release);
    has_ended(&mut status, 0);
    let _ = write!(result, "status {status:x}");
    for at in 0..7 {
        let _ = write!(result, " {:x}", board(world, REPORTS + at).load(Ordering::Relaxed));
    }
    board(world, STATE).store(0, Ordering::Release);
}

/// A child with the same memory, as vfork and posix_spawn make them, writes to it and ends.
pub(crate) fn share_with_child(world: &mut World, random: &mut Random, result: &mut String) {
    let mut task = draw_task(world, random, false);
    task.count = task.count.min(16);
    let mut stack = vec![0_u128; 1 << 14];
    let top = stack.as_mut_ptr_range().end.cast();
    world.touch(task.first, task.count);
    let mut birth = Birth { task, world };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: this process rests until the child has ended; otherwise as in `clone`.
    let child = unsafe { libc::clone(writes, top, flags, (&raw mut birth).cast()) };
    let mut status = 0;
    // SAFETY: the status is this function's.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    let _ = write!(result, "status {status:x}");
}

extern "C" fn writes(birth: *mut libc::c_void) -> libc::c_int {
    // SAFETY: as in `born`; the other process rests.
    let Birth { task, world } = unsafe { &mut *birth.cast::<Birth<'_>>() };
    for page in task.first..task.first + task.count {
        world.put(page, task.content);
    }
    5
}

/// Another program is started, and ends.
pub(crate) fn spawn(_: &mut World, _: &mut Random, result: &mut String) {
    let ended = std::process::Command::new("/bin/true").status();
    let _ = write!(result, "{:?}", ended.map(|status| status.code()).map_err(|error| error.kind()));
}

pub(crate) fn touch(world: &mut World, random: &mut Random, result: &mut String) {
    let (first, _) = random.range(1);
    touch_page(world, first, result);
    world.touch(first, 1);
}

/// Has children read and write a page, and says what signal ended each.
pub(crate) fn touch_page(_: &World, page: usize, result: &mut String) {
    for is_write in [false, true] {
        // SAFETY: the child does one thing to the arena, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            try_out(page, is_write);
        }
        let mut status = 0;
        // SAFETY: the status is this function's.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        let _ = write!(result, " {} {status:x}", if is_write { "write" } else { "read" });
    }
}

fn try_out(page: usize, is_write: bool) -> ! {
    let middle = calls::bytes(page).wrapping_add(WORDS / 2);
    // SAFETY: a page that may not be touched ends this process, as is wanted. Rust's handler would say
    // so at length.
    unsafe {
        libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        libc::signal(libc::SIGBUS, libc::SIG_DFL);
        if is_write {
            middle.write_volatile(1);
        } else {
            let _ = middle.read_volatile();
        }
        libc::_exit(0)
    }
}
