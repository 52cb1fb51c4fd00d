//! Files, pipes and rings: what the kernel reads from memory and writes to it.

use std::fmt::Write as _;
use std::os::fd::RawFd;

use io_uring::{IoUring, opcode, types};

use crate::calls::{self, address, answer};
use crate::random::Random;
use crate::world::{DISK, FILE_PAGES, FILES, PAGE, READABLE, World, close};

/// A range of the arena and as much of a file.
struct Stretch {
    first: usize,
    count: usize,
    file: RawFd,
    /// Where in the file, in bytes.
    offset: i64,
}

fn draw(world: &mut World, random: &mut Random, most: usize) -> Stretch {
    let (first, count) = random.range(most.min(FILE_PAGES));
    let offset = random.below((FILE_PAGES - count + 1) as u64) as usize * PAGE;
    let file = world.files[random.below(FILES as u64) as usize];
    world.touch(first, count);
    Stretch { first, count, file, offset: offset as i64 }
}

/// A digest of a file, read without any mapping.
fn digest(file: RawFd) -> u64 {
    let mut bytes = vec![0_u8; FILE_PAGES * PAGE];
    // SAFETY: the buffer is as long as said.
    let got = unsafe { libc::pread(file, bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    let fold = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(got as u64, fold)
}

pub(crate) fn read(world: &mut World, random: &mut Random, result: &mut String) {
    let Stretch { first, count, file, offset } = draw(world, random, 64);
    // SAFETY: the arena, or an error.
    let got = unsafe { libc::pread(file, address(first), count * PAGE, offset) };
    result.push_str(&answer(got));
}

pub(crate) fn write(world: &mut World, random: &mut Random, result: &mut String) {
    let Stretch { first, count, file, offset } = draw(world, random, 64);
    // SAFETY: the arena, or an error.
    let put = unsafe { libc::pwrite(file, address(first), count * PAGE, offset) };
    let _ = write!(result, "{} file {:016x}", answer(put), digest(file));
}

/// Makes a file shorter, and as long again: what is behind becomes zeros.
pub(crate) fn truncate(world: &mut World, random: &mut Random, result: &mut String) {
    let Stretch { file, offset, .. } = draw(world, random, 64);
    let whole = (FILE_PAGES * PAGE) as i64;
    // SAFETY: no memory of this program's own is mapped from the file.
    let ended = unsafe { (libc::ftruncate(file, offset), libc::ftruncate(file, whole)) };
    let _ = write!(result, "{ended:?} file {:016x}", digest(file));
}

pub(crate) fn allocate(world: &mut World, random: &mut Random, result: &mut String) {
    let Stretch { count, file, offset, .. } = draw(world, random, 64);
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let mode = random.one_of(&[punch, punch, 0, libc::FALLOC_FL_KEEP_SIZE]);
    // SAFETY: as above.
    let done = unsafe { libc::fallocate(file, mode, offset, (count * PAGE) as i64) };
    let _ = write!(result, "{} file {:016x}", answer(done as isize), digest(file));
}

/// Between two files of the three.
fn two_files(world: &World, random: &mut Random) -> (RawFd, RawFd) {
    let first = random.below(FILES as u64) as usize;
    (world.files[first], world.files[(first + 1) % FILES])
}

pub(crate) fn send(world: &mut World, random: &mut Random, result: &mut String) {
    let (from, to) = two_files(world, random);
    let Stretch { count, mut offset, .. } = draw(world, random, 64);
    // SAFETY: no memory but the offset is involved.
    let sent = unsafe {
        libc::lseek(to, offset, libc::SEEK_SET);
        libc::sendfile(to, from, &raw mut offset, count * PAGE)
    };
    let _ = write!(result, "{} file {:016x}", answer(sent), digest(to));
}

pub(crate) fn copy_range(world: &mut World, random: &mut Random, result: &mut String) {
    let (from, to) = two_files(world, random);
    let Stretch { count, offset, .. } = draw(world, random, 64);
    let (mut source, mut target) = (offset, offset);
    // SAFETY: no memory but the offsets is involved.
    let copied = unsafe {
        libc::copy_file_range(from, &raw mut source, to, &raw mut target, count * PAGE, 0)
    };
    let _ = write!(result, "{} file {:016x}", answer(copied), digest(to));
}

/// A pipe that holds `pages` pages without waiting.
fn pipe(pages: usize) -> [RawFd; 2] {
    let mut ends = [-1; 2];
    // SAFETY: room for two descriptors.
    unsafe {
        libc::pipe2(ends.as_mut_ptr(), libc::O_NONBLOCK | libc::O_CLOEXEC);
        libc::fcntl(ends[1], libc::F_SETPIPE_SZ, pages * PAGE);
    }
    ends
}

pub(crate) fn splice(world: &mut World, random: &mut Random, result: &mut String) {
    let (from, to) = two_files(world, random);
    let Stretch { count, mut offset, .. } = draw(world, random, 16);
    let ends = pipe(64);
    let mut target = offset;
    // SAFETY: no memory but the offsets is involved.
    let (into, out) = unsafe {
        let (null, bytes) = (std::ptr::null_mut(), count * PAGE);
        let into = libc::splice(from, &raw mut offset, ends[1], null, bytes, 0);
        (into, libc::splice(ends[0], null, to, &raw mut target, bytes, 0))
    };
    let _ = write!(result, "{} {} file {:016x}", answer(into), answer(out), digest(to));
    ends.into_iter().for_each(close);
}

/// From one place of the arena to another, by way of a pipe.
pub(crate) fn pipe_and_back(world: &mut World, random: &mut Random, result: &mut String) {
    let (from, to, count) = random.two_ranges(16);
    let ends = pipe(64);
    // SAFETY: the arena, or an error.
    let (put, got) = unsafe {
        let put = libc::write(ends[1], address(from), count * PAGE);
        (put, libc::read(ends[0], address(to), count * PAGE))
    };
    let _ = write!(result, "{} {}", answer(put), answer(got));
    ends.into_iter().for_each(close);
    world.touch(to, count);
}

/// The pages themselves go into the pipe; they are read after more was merged.
pub(crate) fn vmsplice(world: &mut World, random: &mut Random, result: &mut String) {
    let (from, to, count) = random.two_ranges(16);
    let ends = pipe(64);
    if is_unreadable(world, from, count) {
        return world.touch(to, count);
    }
    let part = libc::iovec { iov_base: address(from), iov_len: count * PAGE };
    // SAFETY: the arena, or an error.
    let put = unsafe { libc::vmsplice(ends[1], &raw const part, 1, libc::SPLICE_F_NONBLOCK) };
    world.rest(20);
    // SAFETY: as above.
    let got = unsafe { libc::read(ends[0], address(to), count * PAGE) };
    let _ = write!(result, "{} {}", answer(put), answer(got));
    ends.into_iter().for_each(close);
    world.touch(to, count);
}

/// True if some page may be written or executed, and not read. The kernel takes such pages for a pipe or a
/// device if they are resident and not its page of zeros, and otherwise gives EFAULT: which it is depends on
/// merging, as it does with KSM and `use_zero_pages`.
fn is_unreadable(world: &mut World, first: usize, count: usize) -> bool {
    world.look();
    !world.allows(first, count, READABLE)
}

/// Reads and writes of which the device takes part: the pages are pinned.
pub(crate) fn direct(world: &mut World, random: &mut Random, result: &mut String) {
    let Stretch { first, count, offset, .. } = draw(world, random, 64);
    let file = world.direct;
    let (start, bytes) = (address(first), count * PAGE);
    let writes = random.once_in(2);
    if writes && is_unreadable(world, first, count) {
        return;
    }
    // SAFETY: the arena, or an error.
    let done = unsafe {
        if writes {
            libc::pwrite(file, start, bytes, offset)
        } else {
            libc::pread(file, start, bytes, offset)
        }
    };
    let _ = write!(result, "{} file {:016x}", answer(done), digest(world.files[DISK]));
}

/// A range is registered with a ring, which pins it, and is written and read so.
pub(crate) fn uring(world: &mut World, random: &mut Random, result: &mut String) {
    let Stretch { first, count, file, offset } = draw(world, random, 16);
    match through_ring(world, (first, count), file, offset as u64) {
        Ok((written, read)) => {
            let _ = write!(result, "{written} {read} file {:016x}", digest(file));
        }
        Err(error) => {
            let _ = write!(result, "errno {:?}", error.raw_os_error());
        }
    }
}

/// Writes a range to a file and reads the page behind it in the file back into it.
fn through_ring(
    world: &mut World,
    (first, count): (usize, usize),
    file: RawFd,
    offset: u64,
) -> std::io::Result<(i32, i32)> {
    let mut ring = IoUring::new(4)?;
    let bytes = count * PAGE;
    let buffer = libc::iovec { iov_base: address(first), iov_len: bytes };
    // SAFETY: the arena stays where it is as long as the ring is there.
    unsafe { ring.submitter().register_buffers(&[buffer]) }?;
    world.rest(10);
    let start = calls::bytes(first).cast::<u8>();
    let target = types::Fd(file);
    let write = opcode::WriteFixed::new(target, start, bytes as u32, 0).offset(offset).build();
    let written = one(&mut ring, &write)?;
    world.rest(10);
    let read = opcode::ReadFixed::new(target, start, PAGE as u32, 0).offset(0).build();
    Ok((written, one(&mut ring, &read)?))
}

fn one(ring: &mut IoUring, entry: &io_uring::squeue::Entry) -> std::io::Result<i32> {
    // SAFETY: the entry's buffer is registered, and what it is about lives until it is done.
    unsafe { ring.submission().push(entry) }.expect("the ring has room");
    ring.submit_and_wait(1)?;
    Ok(ring.completion().next().expect("one is done").result())
}

/// Closes every descriptor but the standard ones, as daemons do, and opens new files.
pub(crate) fn close_all(world: &mut World, _: &mut Random, result: &mut String) {
    result.push_str(&answer(calls::raw(libc::SYS_close_range, [3, u32::MAX as usize, 0, 0, 0])));
    world.open_files();
    world.rest(50);
}

/// Puts another file over every descriptor that is open, one by one, then closes them.
pub(crate) fn dup_over_all(world: &mut World, _: &mut Random, _: &mut String) {
    world.close_files();
    for number in 3..1024 {
        // SAFETY: no memory is involved.
        unsafe {
            if libc::fcntl(number, libc::F_GETFD) >= 0 {
                libc::dup2(0, number);
            }
        }
    }
    world.rest(20);
    (3..1024).for_each(close);
    world.open_files();
}
