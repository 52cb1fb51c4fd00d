//! What a program does to its memory by itself.

use std::fmt::Write as _;

use libc::{
    MADV_COLD, MADV_COLLAPSE, MADV_DODUMP, MADV_DOFORK, MADV_DONTDUMP, MADV_DONTFORK,
    MADV_DONTNEED, MADV_HUGEPAGE, MADV_KEEPONFORK, MADV_NOHUGEPAGE, MADV_NORMAL, MADV_PAGEOUT,
    MADV_POPULATE_READ, MADV_POPULATE_WRITE, MADV_RANDOM, MADV_REMOVE, MADV_SEQUENTIAL,
    MADV_UNMERGEABLE, MADV_WILLNEED, MADV_WIPEONFORK, MAP_ANONYMOUS, MAP_FIXED,
    MAP_FIXED_NOREPLACE, MAP_NORESERVE, MAP_POPULATE, MAP_PRIVATE, MAP_SHARED, PROT_EXEC,
    PROT_NONE, PROT_READ, PROT_WRITE,
};

use crate::calls::{self, address, answer, answer_address};
use crate::children;
use crate::random::{Content, Random};
use crate::world::{FILE_PAGES, FILES, PAGE, PAGES, WORDS, WRITABLE, World};

const BOTH: i32 = PROT_READ | PROT_WRITE;

/// Newer than the crate's list.
const MADV_GUARD_INSTALL: i32 = 102;
const MADV_GUARD_REMOVE: i32 = 103;
const MADV_DONTNEED_LOCKED: i32 = 24;

/// All advice but MERGEABLE and FREE, which are operations of their own; COLLAPSE, whose answer depends
/// on free huge pages, below; and HWPOISON and SOFT_OFFLINE, which take the machine's memory away.
const ADVICE: [i32; 20] = [
    MADV_NORMAL,
    MADV_RANDOM,
    MADV_SEQUENTIAL,
    MADV_WILLNEED,
    MADV_DONTNEED,
    MADV_DONTNEED,
    MADV_REMOVE,
    MADV_DONTFORK,
    MADV_DOFORK,
    MADV_UNMERGEABLE,
    MADV_HUGEPAGE,
    MADV_NOHUGEPAGE,
    MADV_DONTDUMP,
    MADV_DODUMP,
    MADV_WIPEONFORK,
    MADV_KEEPONFORK,
    MADV_COLD,
    MADV_POPULATE_READ,
    MADV_POPULATE_WRITE,
    MADV_DONTNEED_LOCKED,
];

/// What is neither answered nor done the same twice.
const HINTS: [i32; 2] = [MADV_COLLAPSE, MADV_PAGEOUT];

pub(crate) fn fill(world: &mut World, random: &mut Random, _: &mut String) {
    let range = random.range(256);
    world.touch(range.0, range.1);
    world.put_range(range, random);
}

/// Writes a word here and there.
pub(crate) fn write(world: &mut World, random: &mut Random, _: &mut String) {
    let (first, count) = random.range(64);
    world.touch(first, count);
    for page in first..first + count {
        let (at, word) = (random.below(WORDS as u64) as usize, random.draw());
        if world.allows(page, 1, WRITABLE) {
            // SAFETY: the page is mapped for writing.
            unsafe { calls::bytes(page).add(at).write_volatile(word) };
        }
    }
}

/// Rests for a moment, or until memory that was just offered is managed.
pub(crate) fn rest(world: &mut World, random: &mut Random, _: &mut String) {
    let ms = if random.once_in(8) { 800 } else { 10 + random.below(40) };
    world.rest(ms);
}

pub(crate) fn offer(world: &mut World, random: &mut Random, _: &mut String) {
    let (first, count) = if random.once_in(2) { (0, PAGES) } else { random.range(PAGES) };
    calls::madvise(first, count, libc::MADV_MERGEABLE);
    world.touch(first, count);
}

/// Puts fresh memory in place of half of the arena, which is full of holes by now, and fills it.
pub(crate) fn renew(world: &mut World, random: &mut Random, result: &mut String) {
    let (first, count) = (random.below(2) as usize * PAGES / 2, PAGES / 2);
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    result.push_str(&answer_address(calls::mmap(first, count, BOTH, flags, (-1, 0))));
    calls::madvise(first, count, libc::MADV_MERGEABLE);
    world.look();
    world.put_range((first, count), random);
    world.touch(first, count);
}

/// Puts fresh private memory in place of a range and fills it; now and then it has the time to be merged.
/// What the kernel refuses for a range in several mappings is not compared: hints that cut mappings are
/// swallowed under management, and pages that come back are mappings of their own.
pub(crate) fn make_one(world: &mut World, random: &mut Random, (first, count): (usize, usize)) {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    calls::mmap(first, count, BOTH, flags, (-1, 0));
    calls::madvise(first, count, libc::MADV_MERGEABLE);
    world.look();
    world.put_range((first, count), random);
    // Offers rest for half a second before they are taken.
    world.rest(if random.once_in(4) { 700 } else { 5 });
}

/// Maps memory of every kind.
pub(crate) fn map(world: &mut World, random: &mut Random, result: &mut String) {
    let (mut first, mut count) = random.range(FILE_PAGES);
    if random.once_in(8) {
        (first, count) = (random.below(2) as usize * 512, 512);
    }
    let protection = random.one_of(&[BOTH, BOTH, BOTH, PROT_READ, PROT_NONE]);
    let more = random.one_of(&[0, 0, MAP_POPULATE, MAP_NORESERVE]);
    let fixed = if random.once_in(6) { MAP_FIXED_NOREPLACE } else { MAP_FIXED };
    let (kind, file) = match random.below(10) {
        0 => (MAP_SHARED | MAP_ANONYMOUS, (-1, 0)),
        1 if count <= FILE_PAGES => {
            let offset = random.below((FILE_PAGES - count + 1) as u64) as usize;
            let kind = random.one_of(&[MAP_SHARED, MAP_PRIVATE]);
            (kind, (world.files[random.below(FILES as u64) as usize], offset))
        }
        _ => (MAP_PRIVATE | MAP_ANONYMOUS, (-1, 0)),
    };
    let mapped = calls::mmap(first, count, protection, kind | fixed | more, file);
    result.push_str(&answer_address(mapped));
    if random.once_in(2) {
        calls::madvise(first, count, libc::MADV_MERGEABLE);
    }
    world.touch(first, count);
}

/// Leaves a hole; most are filled soon.
pub(crate) fn unmap(world: &mut World, random: &mut Random, result: &mut String) {
    let (first, count) = random.range(64);
    result.push_str(&answer(calls::munmap(address(first), count)));
    world.touch(first, count);
}

pub(crate) fn advise(world: &mut World, random: &mut Random, result: &mut String) {
    let (first, count) = random.range(256);
    if random.once_in(8) {
        let hint = random.one_of(&HINTS);
        calls::madvise(first, count, hint);
        let _ = write!(result, "hint {hint}");
    } else {
        let advice = random.one_of(&ADVICE);
        let _ = write!(result, "{advice} {}", answer(calls::madvise(first, count, advice)));
    }
    world.touch(first, count);
}

/// What is there after MADV_FREE is the kernel's choice until it is written.
pub(crate) fn free(world: &mut World, random: &mut Random, result: &mut String) {
    let (first, count) = random.range(64);
    if world.allows(first, count, WRITABLE) {
        result.push_str(&answer(calls::madvise(first, count, libc::MADV_FREE)));
        world.rest(5);
        world.put_range((first, count), random);
        world.touch(first, count);
    }
}

/// Guards pages for a moment, in which a child touches them.
pub(crate) fn guard(world: &mut World, random: &mut Random, result: &mut String) {
    let (first, count) = random.range(32);
    let _ = write!(result, "{} ", answer(calls::madvise(first, count, MADV_GUARD_INSTALL)));
    children::touch_page(world, first, result);
    let _ = write!(result, " {}", answer(calls::madvise(first, count, MADV_GUARD_REMOVE)));
    world.touch(first, count);
}

/// Protects, and mostly allows everything again.
pub(crate) fn protect(world: &mut World, random: &mut Random, result: &mut String) {
    let (first, count) = random.range(256);
    let protection = random.below(8) as i32 & (PROT_READ | PROT_WRITE | PROT_EXEC);
    result.push_str(&answer(calls::mprotect(first, count, protection)));
    children::touch_page(world, first, result);
    if !random.once_in(4) {
        world.rest(5);
        let _ = write!(result, " {}", answer(calls::mprotect(first, count, BOTH)));
    }
    world.touch(first, count);
}

/// Without keys in the CPU all of it is refused.
pub(crate) fn protect_by_key(world: &mut World, random: &mut Random, result: &mut String) {
    const NO_WRITES: usize = 2;
    let (first, count) = random.range(64);
    let key = calls::raw(libc::SYS_pkey_alloc, [0, NO_WRITES, 0, 0, 0]);
    result.push_str(&answer(key));
    if key < 0 {
        return;
    }
    let arguments = [address(first) as usize, count * PAGE, BOTH as usize, key as usize, 0];
    let _ = write!(result, " {}", answer(calls::raw(libc::SYS_pkey_mprotect, arguments)));
    children::touch_page(world, first, result);
    calls::mprotect(first, count, BOTH);
    calls::raw(libc::SYS_pkey_free, [key as usize, 0, 0, 0, 0]);
    world.touch(first, count);
}

pub(crate) fn shrink(world: &mut World, random: &mut Random, result: &mut String) {
    let (first, count) = random.range(64);
    make_one(world, random, (first, count));
    let new = 1 + random.below(count as u64) as usize;
    let shrunk = calls::mremap(address(first), count, new, 0, std::ptr::null_mut());
    result.push_str(&answer_address(shrunk));
    world.touch(first, count);
}

/// Grows where it is or elsewhere, and comes back.
pub(crate) fn grow(world: &mut World, random: &mut Random, result: &mut String) {
    let (first, count) = random.range(64);
    make_one(world, random, (first, count));
    let flags = random.one_of(&[0, libc::MREMAP_MAYMOVE]);
    let grown = calls::mremap(address(first), count, count + 8, flags, std::ptr::null_mut());
    result.push_str(&answer_address(grown));
    if grown != libc::MAP_FAILED && grown != address(first) {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let back = calls::mremap(grown, count + 8, count, flags, address(first));
        let _ = write!(result, " {}", answer_address(back));
    }
    world.touch(first, count);
}

pub(crate) fn move_fixed(world: &mut World, random: &mut Random, result: &mut String) {
    let (from, to, count) = random.two_ranges(128);
    make_one(world, random, (from, count));
    let new = if random.once_in(4) { count.div_ceil(2) } else { count };
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let moved = calls::mremap(address(from), count, new, flags, address(to));
    result.push_str(&answer_address(moved));
    world.touch(to, count);
    if !random.once_in(3) {
        // The hole is filled.
        let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
        let filled = calls::mmap(from, count, BOTH, flags, (-1, 0));
        let _ = write!(result, " {}", answer_address(filled));
    }
}

/// MREMAP_DONTUNMAP: the pages go, the mapping stays.
pub(crate) fn move_and_keep(world: &mut World, random: &mut Random, result: &mut String) {
    let (from, to, count) = random.two_ranges(64);
    make_one(world, random, (from, count));
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    let moved = calls::mremap(address(from), count, count, flags, address(to));
    let _ = write!(result, "{} {:016x}", answer_address(moved), world.digest(from, count));
    world.touch(to, count);
}

/// An old length of 0: a second mapping of shared memory, an error for private.
pub(crate) fn alias(world: &mut World, random: &mut Random, result: &mut String) {
    let (from, to, count) = random.two_ranges(32);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let alias = calls::mremap(address(from), 0, count, flags, address(to));
    result.push_str(&answer_address(alias));
    world.touch(to, count);
}

pub(crate) fn lock(world: &mut World, random: &mut Random, result: &mut String) {
    let (first, count) = random.range(64);
    let (start, bytes) = (address(first), count * PAGE);
    // SAFETY: locking changes no content.
    let locked = unsafe {
        match random.below(3) {
            0 => libc::mlock2(start, bytes, libc::MLOCK_ONFAULT),
            _ => libc::mlock(start, bytes),
        }
    };
    result.push_str(&answer(locked as isize));
    world.rest(5);
    // SAFETY: as above.
    let _ = write!(result, " {}", answer(unsafe { libc::munlock(start, bytes) } as isize));
    world.touch(first, count);
}

pub(crate) fn lock_all(_: &mut World, _: &mut Random, result: &mut String) {
    // SAFETY: locking changes no content.
    let (locked, unlocked) = unsafe { (libc::mlockall(libc::MCL_CURRENT), libc::munlockall()) };
    let _ = write!(result, "{} {}", answer(locked as isize), answer(unlocked as isize));
}

pub(crate) fn resident(world: &mut World, random: &mut Random, _: &mut String) {
    let (first, count) = random.range(64);
    let mut vector = [0_u8; PAGES];
    // SAFETY: the vector has a byte for every page of the arena.
    unsafe { libc::mincore(address(first), count * PAGE, vector.as_mut_ptr()) };
    world.touch(first, count);
}

pub(crate) fn sync(world: &mut World, random: &mut Random, result: &mut String) {
    let (first, count) = random.range(64);
    let flags =
        random.one_of(&[libc::MS_ASYNC, libc::MS_SYNC, libc::MS_SYNC | libc::MS_INVALIDATE]);
    // SAFETY: no content changes.
    let synced = unsafe { libc::msync(address(first), count * PAGE, flags) };
    result.push_str(&answer(synced as isize));
    world.touch(first, count);
}

/// Threads write beside each other, each to pages of its own, over and over.
pub(crate) fn threads(world: &mut World, random: &mut Random, _: &mut String) {
    let (first, count) = (random.below((PAGES - 96) as u64) as usize, 96);
    world.touch(first, count);
    if !world.allows(first, count, WRITABLE) || !world.is_private(first, count) {
        return;
    }
    let contents: Vec<Content> = (0..6).map(|_| random.content()).collect();
    std::thread::scope(|scope| {
        for part in 0..3 {
            let contents = &contents;
            scope.spawn(move || {
                for (turn, content) in contents.iter().enumerate() {
                    for page in first + part * 32..first + (part + 1) * 32 {
                        let start = calls::bytes(page);
                        let at = turn * 80 % WORDS;
                        // SAFETY: the page is mapped for writing, and this thread's alone.
                        (at..WORDS).for_each(|at| unsafe {
                            start.add(at).write_volatile(content.word(at));
                        });
                    }
                }
            });
        }
        world.rest(20);
    });
}

/// Goes on as another program, which is this one.
pub(crate) fn exec(world: &mut World, _: &mut Random, _: &mut String) {
    world.exec();
}
