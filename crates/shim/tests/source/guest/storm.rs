//! Everything at once. What a page may hold is told by its number.
//!
//! | page % 4 | touched by |
//! |---|---|
//! | 0 | readers |
//! | 1 | a writer, one word of each |
//! | 2 | a thread that discards, and a reader meanwhile |
//! | 3 | system calls |

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::thread;

use bindery_units::PAGE_BYTES;

use super::{Memory, WORDS};
use crate::content::{PAGES, word};

const WRITTEN: u64 = 0x5555;
const PIPED: u8 = 0x66;
const DIRECT: u8 = 0x77;

pub(super) fn play(memory: Memory) -> Box<dyn Fn()> {
    thread::scope(|scope| {
        scope.spawn(|| pages(0, 5).for_each(|page| memory.check(page)));
        scope.spawn(|| pages(0, 1237).for_each(|page| memory.check(page)));
        scope.spawn(|| pages(1, 11).for_each(|page| write(memory, page)));
        scope.spawn(|| pages(2, 17).for_each(|page| discard(memory, page)));
        scope.spawn(|| pages(2, 601).for_each(|page| peek(memory, page)));
        scope.spawn(|| system_calls(memory));
    });
    Box::new(move || check(memory))
}

/// Every page of a kind once, in an order of its own.
fn pages(kind: u32, stride: u32) -> impl Iterator<Item = u32> {
    (0..PAGES / 4).map(move |n| n.wrapping_mul(stride) % (PAGES / 4) * 4 + kind)
}

fn write(memory: Memory, page: u32) {
    let own = page as usize % WORDS;
    memory.write(page, own, WRITTEN);
    check_written(memory, page);
}

fn check_written(memory: Memory, page: u32) {
    let own = page as usize % WORDS;
    assert_eq!(memory.read(page, own), WRITTEN, "page {page}");
    (0..WORDS).filter(|&at| at != own).for_each(|at| memory.check_word(page, at));
}

/// Discards a page, also in the midst of its way here, and writes to every other one.
fn discard(memory: Memory, page: u32) {
    if page % 12 == 2 {
        memory.check(page);
    }
    for _ in 0..2 {
        let address = memory.page(page) as *mut libc::c_void;
        // SAFETY: the page is the test's.
        assert_eq!(unsafe { libc::madvise(address, PAGE_BYTES, libc::MADV_DONTNEED) }, 0);
        memory.check_zero(page);
    }
    if page % 8 == 2 {
        memory.write(page, 9, WRITTEN);
    }
}

/// Sees what the image says or zeros, and the one word that is written.
fn peek(memory: Memory, page: u32) {
    for at in (0..WORDS).step_by(7) {
        let found = memory.read(page, at);
        let is_fine = found == 0 || found == word(page, at) || (at == 9 && found == WRITTEN);
        assert!(is_fine, "page {page}, word {at}: {found:x}");
    }
}

fn system_calls(memory: Memory) {
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let direct = direct_file();
    for (n, page) in pages(3, 23).enumerate() {
        let address = memory.page(page);
        match n % 3 {
            0 => {
                // SAFETY: the page is the test's.
                let sent =
                    unsafe { libc::write(writer.as_raw_fd(), address as *const _, PAGE_BYTES) };
                assert_eq!(sent, PAGE_BYTES as isize, "{}", std::io::Error::last_os_error());
                let mut bytes = [0; PAGE_BYTES];
                reader.read_exact(&mut bytes).unwrap();
                let words =
                    bytes.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
                assert!(
                    words.enumerate().all(|(at, found)| found == word(page, at)),
                    "page {page}"
                );
            }
            1 => {
                writer.write_all(&[PIPED; PAGE_BYTES / 2]).unwrap();
                // SAFETY: the page is the test's.
                let came =
                    unsafe { libc::read(reader.as_raw_fd(), address as *mut _, PAGE_BYTES / 2) };
                assert_eq!(came, PAGE_BYTES as isize / 2, "{}", std::io::Error::last_os_error());
            }
            _ => {
                let file = direct.as_ref().map_or(-1, AsRawFd::as_raw_fd);
                // SAFETY: the page is the test's.
                let came = unsafe { libc::pread(file, address as *mut _, PAGE_BYTES, 0) };
                assert_eq!(came == PAGE_BYTES as isize, direct.is_some());
            }
        }
        check_called(memory, n, page, direct.is_some());
    }
    if direct.is_none() {
        // What the other pages are to hold then.
        for (n, page) in pages(3, 23).enumerate().filter(|(n, _)| n % 3 == 2) {
            check_called(memory, n, page, false);
            (0..WORDS).for_each(|at| memory.write(page, at, u64::from_ne_bytes([DIRECT; 8])));
        }
    }
}

fn check_called(memory: Memory, n: usize, page: u32, is_direct: bool) {
    match n % 3 {
        1 => {
            let piped = u64::from_ne_bytes([PIPED; 8]);
            (0..WORDS / 2).for_each(|at| assert_eq!(memory.read(page, at), piped, "page {page}"));
            (WORDS / 2..WORDS).for_each(|at| memory.check_word(page, at));
        }
        2 if is_direct => {
            let read = u64::from_ne_bytes([DIRECT; 8]);
            (0..WORDS).for_each(|at| assert_eq!(memory.read(page, at), read, "page {page}"));
        }
        _ => memory.check(page),
    }
}

/// A page in a file that is read past the page cache, where that can be done.
fn direct_file() -> Option<File> {
    let place = option_env!("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, Into::into);
    let file = tempfile::NamedTempFile::new_in(place).unwrap();
    file.as_file().write_all_at(&[DIRECT; PAGE_BYTES], 0).unwrap();
    file.as_file().sync_all().unwrap();
    File::options().read(true).custom_flags(libc::O_DIRECT).open(file.path()).ok()
}

fn check(memory: Memory) {
    pages(0, 1).for_each(|page| memory.check(page));
    pages(1, 1).for_each(|page| check_written(memory, page));
    for page in pages(2, 1) {
        let written = if page % 8 == 2 { WRITTEN } else { 0 };
        assert_eq!(memory.read(page, 9), written, "page {page}");
        assert!((0..WORDS).all(|at| at == 9 || memory.read(page, at) == 0), "page {page}");
    }
    for (n, page) in pages(3, 23).enumerate() {
        check_called(memory, n, page, true);
    }
}
