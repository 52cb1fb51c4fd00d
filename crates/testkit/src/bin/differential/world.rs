//! The arena, the files beside it, what remains to be done, and the log.

use std::ffi::CString;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;

use crate::calls;
use crate::random::{Content, Random};

pub(crate) const PAGE: usize = 4096;

/// Words of a page.
pub(crate) const WORDS: usize = PAGE / 8;

/// Pages of the arena: two huge ones.
pub(crate) const PAGES: usize = 1024;

/// Where the arena is: where nothing else is, and on a border of huge pages.
pub(crate) const ARENA: usize = 0x10_0000_0000;

/// Pages of every file. Nothing of the arena is ever mapped from beyond.
pub(crate) const FILE_PAGES: usize = 128;

/// Files: two memfds, one of the host's file system.
pub(crate) const FILES: usize = 3;

/// The file that is on the host's file system.
pub(crate) const DISK: usize = 2;

/// Set where the program runs under Bindery: only then it rests.
const MANAGED_VARIABLE: &str = "DIFFERENTIAL_MANAGED";

pub(crate) const READABLE: u8 = 1;
pub(crate) const WRITABLE: u8 = 2;
pub(crate) const EXECUTABLE: u8 = 4;
pub(crate) const SHARED: u8 = 8;

/// What this run is to do.
#[derive(Debug)]
pub(crate) struct Start {
    seed: u64,
    sequence: Vec<(u32, u32)>,
    sequence_text: String,
    position: u32,
    merged: u64,
    inherited: Option<RawFd>,
}

impl Start {
    /// `SEED SEQUENCE`, and after exec `POSITION MERGED DESCRIPTOR`.
    pub(crate) fn of_arguments() -> Result<Self, String> {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let [seed, sequence_text, rest @ ..] = words.as_slice() else {
            return Err("a seed and a sequence are wanted".into());
        };
        let number = |word: &str| word.parse::<u64>().map_err(|_| format!("{word} is no number"));
        let range = |part: &str| -> Result<(u32, u32), String> {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Ok((number(first)? as u32, number(last)? as u32))
        };
        let sequence = sequence_text.split(',').map(range).collect::<Result<_, _>>()?;
        let mut start = Self {
            seed: number(seed)?,
            sequence,
            sequence_text: sequence_text.clone(),
            position: 0,
            merged: 0,
            inherited: None,
        };
        if let [position, merged, file] = rest {
            start.position = number(position)? as u32;
            start.merged = number(merged)?;
            start.inherited = Some(number(file)? as RawFd);
        }
        Ok(start)
    }
}

/// Everything that operations work with.
#[derive(Debug)]
pub(crate) struct World {
    start: Start,
    managed: bool,
    /// Where in the sequence this is: a range, and the number that comes next.
    range: usize,
    next: u32,
    touched: (usize, usize),
    /// What may be done with each page, as of the last look.
    pages: [u8; PAGES],
    /// Pages seen merged, by looks while resting.
    merged: u64,
    pub(crate) files: [RawFd; FILES],
    /// The disk's file once more, without the cache; -1 where the file system cannot do that.
    pub(crate) direct: RawFd,
    /// A page that children share with this process.
    pub(crate) board: *mut u64,
    /// For /proc/self/maps: nothing is allocated in children.
    maps: Vec<u8>,
}

impl World {
    pub(crate) fn new(start: Start) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let arena = calls::mmap(0, PAGES, both, flags | libc::MAP_FIXED_NOREPLACE, (-1, 0));
        assert_eq!(arena as usize, ARENA, "nothing else lies where the arena is");
        // SAFETY: anywhere; shared with children.
        let board = unsafe {
            let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), PAGE, both, flags, -1, 0)
        };
        assert_ne!(board, libc::MAP_FAILED, "a page for children");
        let (first, _) = start.sequence[0];
        let mut world = Self {
            managed: std::env::var_os(MANAGED_VARIABLE).is_some(),
            range: 0,
            next: first,
            touched: (0, 0),
            pages: [0; PAGES],
            merged: start.merged,
            files: [-1; FILES],
            direct: -1,
            board: board.cast(),
            maps: vec![0; 4 << 20],
            start,
        };
        world.look();
        for _ in 0..world.start.position {
            world.next();
        }
        world.open_files();
        if let Some(file) = world.start.inherited {
            world.inherit(file);
        }
        calls::madvise(0, PAGES, libc::MADV_MERGEABLE);
        world
    }

    /// What the program before exec left in a file is there.
    fn inherit(&mut self, file: RawFd) {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        let mapped = calls::mmap(0, FILE_PAGES, libc::PROT_READ, flags, (file, 0));
        assert_ne!(mapped, libc::MAP_FAILED, "a file that was kept over exec is mapped");
        println!("exec kept {:016x}", self.digest(0, FILE_PAGES));
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        calls::mmap(0, FILE_PAGES, libc::PROT_READ | libc::PROT_WRITE, flags, (-1, 0));
        close(file);
    }

    /// Opens all files anew, empty.
    pub(crate) fn open_files(&mut self) {
        for file in &mut self.files[..DISK] {
            // SAFETY: a name that ends with a zero.
            *file = unsafe { libc::memfd_create(c"file".as_ptr(), 0) };
        }
        let directory = CString::new(std::env::temp_dir().as_os_str().as_bytes()).expect("a path");
        // SAFETY: as above.
        self.files[DISK] =
            unsafe { libc::open(directory.as_ptr(), libc::O_TMPFILE | libc::O_RDWR, 0o600) };
        for file in self.files {
            // SAFETY: no memory is involved.
            let grown = unsafe { libc::ftruncate(file, (FILE_PAGES * PAGE) as i64) };
            assert_eq!(grown, 0, "a file grows");
        }
        let path = CString::new(format!("/proc/self/fd/{}", self.files[DISK])).expect("a path");
        // SAFETY: as above.
        self.direct = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_DIRECT) };
    }

    pub(crate) fn close_files(&mut self) {
        self.files.iter().chain([&self.direct]).for_each(|&file| close(file));
    }

    pub(crate) const fn seed(&self) -> u64 {
        self.start.seed
    }

    /// The number of the next operation.
    pub(crate) fn next(&mut self) -> Option<u32> {
        let &(_, last) = self.start.sequence.get(self.range)?;
        let number = self.next;
        if number < last {
            self.next += 1;
        } else {
            self.range += 1;
            self.next = self.start.sequence.get(self.range).map_or(0, |(first, _)| *first);
        }
        Some(number)
    }

    /// Says what is about to be done: the last that is heard if it ends the program.
    pub(crate) fn begin(&mut self, number: u32, name: &str) {
        self.touched = (0, 0);
        self.start.position += 1;
        say(&format!("{number} {name} "));
        self.look();
    }

    pub(crate) fn end(&self, result: &str) {
        say(&format!("{result}\n"));
    }

    /// Notes which pages the operation is about.
    pub(crate) const fn touch(&mut self, first: usize, count: usize) {
        self.touched = (first, count);
    }

    pub(crate) const fn touched(&self) -> (usize, usize) {
        self.touched
    }

    /// Finds out what may be done with each page. Allocates nothing.
    pub(crate) fn look(&mut self) {
        let length = read_whole(c"/proc/self/maps", &mut self.maps);
        self.pages = [0; PAGES];
        for line in self.maps[..length].split(|byte| *byte == b'\n') {
            let Some((start, end, permissions)) = bounds(line) else { continue };
            let inside = |at: usize| at.saturating_sub(ARENA).min(PAGES * PAGE) / PAGE;
            self.pages[inside(start)..inside(end)].fill(permissions);
        }
    }

    /// True if all of these pages allow `wanted`.
    pub(crate) fn allows(&self, first: usize, count: usize, wanted: u8) -> bool {
        self.pages[first..first + count].iter().all(|page| page & wanted == wanted)
    }

    /// True if none of these pages is shared.
    pub(crate) fn is_private(&self, first: usize, count: usize) -> bool {
        self.pages[first..first + count].iter().all(|page| page & SHARED == 0)
    }

    /// A digest of what may be done with pages and of what they hold. Allocates nothing.
    pub(crate) fn digest(&mut self, first: usize, count: usize) -> u64 {
        self.look();
        let mut sum = 0_u64;
        for page in first..first + count {
            sum = sum.rotate_left(5) ^ u64::from(self.pages[page]);
            if self.pages[page] & READABLE != 0 {
                // SAFETY: the page is mapped for reading.
                let words = unsafe { std::slice::from_raw_parts(calls::bytes(page), WORDS) };
                for word in words {
                    sum = (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
                }
            }
        }
        sum
    }

    /// Fills a page, if it may be written.
    pub(crate) fn put(&mut self, page: usize, content: Content) {
        if self.allows(page, 1, WRITABLE) {
            let start = calls::bytes(page);
            // SAFETY: the page is mapped for writing.
            (0..WORDS).for_each(|at| unsafe { start.add(at).write_volatile(content.word(at)) });
        }
    }

    /// Fills a range of pages, each with what is drawn.
    pub(crate) fn put_range(&mut self, (first, count): (usize, usize), random: &mut Random) {
        // Neighbours hold neighbouring contents, as guests of one image do.
        let run = random.below(12);
        for page in first..first + count {
            let content = match random.content() {
                Content::Common(_) if count > 2 => Content::Common((run + page as u64) % 12),
                other => other,
            };
            self.put(page, content);
        }
    }

    /// Gives merging time, and counts what is merged.
    pub(crate) fn rest(&mut self, ms: u64) {
        if !self.managed {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(ms));
        let length = read_whole(c"/proc/self/maps", &mut self.maps);
        for line in self.maps[..length].split(|byte| *byte == b'\n') {
            let Some((start, end, _)) = bounds(line) else { continue };
            if (ARENA..ARENA + PAGES * PAGE).contains(&start) && has(line, b"bindery-store") {
                self.merged += ((end - start) / PAGE) as u64;
            }
        }
    }

    /// Executes itself for what remains, with one file kept.
    pub(crate) fn exec(&mut self) {
        let kept = self.files[0];
        let words = [
            "differential".to_owned(),
            self.start.seed.to_string(),
            self.start.sequence_text.clone(),
            self.start.position.to_string(),
            self.merged.to_string(),
            kept.to_string(),
        ];
        let words = words.map(|word| CString::new(word).expect("no zeros"));
        let mut pointers: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
        pointers.push(std::ptr::null());
        self.files[1..].iter().chain([&self.direct]).for_each(|&file| close(file));
        say("\n");
        // SAFETY: a list of words that ends with null.
        unsafe { libc::execv(c"/proc/self/exe".as_ptr(), pointers.as_ptr()) };
        panic!("this program executes itself: {}", std::io::Error::last_os_error());
    }

    /// Says how much was merged, past the log that is compared.
    pub(crate) fn finish(self) {
        eprintln!("merged {}", self.merged);
    }
}

pub(crate) fn close(file: RawFd) {
    // SAFETY: a descriptor of this program's own, or none.
    unsafe { libc::close(file) };
}

/// Writes to standard output at once.
fn say(text: &str) {
    // SAFETY: the bytes are there.
    let written = unsafe { libc::write(1, text.as_ptr().cast(), text.len()) };
    assert_eq!(written, text.len() as isize, "whoever compares listens");
}

/// Reads a file into a buffer; returns how much there was.
fn read_whole(path: &std::ffi::CStr, into: &mut [u8]) -> usize {
    // SAFETY: a path that ends with a zero.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    let mut length = 0;
    loop {
        let rest = &mut into[length..];
        // SAFETY: the buffer is as long as said.
        let got = unsafe { libc::read(file, rest.as_mut_ptr().cast(), rest.len()) };
        if got <= 0 {
            close(file);
            return length;
        }
        length += got as usize;
    }
}

/// Where a line of /proc/self/maps begins and ends, and what may be done there.
fn bounds(line: &[u8]) -> Option<(usize, usize, u8)> {
    let mut words = line.split(|byte| *byte == b' ');
    let mut range = words.next()?.split(|byte| *byte == b'-');
    let mut number = || usize::from_str_radix(str::from_utf8(range.next()?).ok()?, 16).ok();
    let (start, end) = (number()?, number()?);
    let permissions = words.next()?;
    let bit =
        |at: usize, letter: u8, bit: u8| if permissions.get(at) == Some(&letter) { bit } else { 0 };
    let access = bit(0, b'r', READABLE) | bit(1, b'w', WRITABLE) | bit(2, b'x', EXECUTABLE);
    Some((start, end, access | bit(3, b's', SHARED) | 0x80))
}

fn has(line: &[u8], word: &[u8]) -> bool {
    line.windows(word.len()).any(|window| window == word)
}
