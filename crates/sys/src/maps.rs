//! `/proc/PID/maps`: the mappings of a process, one a line, or by asking for an address. See
//! proc_pid_maps(5), and Documentation/filesystems/proc.rst for the latter.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::ptr;

use bindery_units::HostAddress;

use crate::mapping::Mapping;

mod advised;

pub use advised::{Advised, AdvisedMappings};

/// One mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Its first byte.
    pub start: usize,
    /// The byte behind its last one.
    pub end: usize,
    /// As the kernel writes them: `rw-p`, the last letter `s` if it is shared.
    pub permissions: &'a str,
    /// Where in the file it begins, in bytes.
    pub offset_bytes: u64,
    /// The file's inode, 0 for none.
    pub inode: u64,
    /// The file's path up to the first blank, or what the kernel calls the mapping, or nothing.
    pub name: &'a str,
}

/// A mapping, or what of one is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    /// Its first byte.
    pub start: HostAddress,
    /// The byte behind its last one.
    pub end: HostAddress,
    /// As in [`Line::permissions`].
    permissions: [u8; 4],
    /// The file's inode, 0 for none.
    pub inode: u64,
    /// As [`Line::name`].
    pub name: String,
}

impl Area {
    /// What may be done there, as the kernel writes it: `rw-p`, the last letter `s` if it is shared.
    ///
    /// # Panics
    /// Never: the letters are ASCII.
    #[must_use]
    pub fn permissions(&self) -> &str {
        std::str::from_utf8(&self.permissions).expect("letters")
    }

    /// True if what is written there is seen by others who have it mapped.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.permissions[3] == b's'
    }

    fn of(line: &Line<'_>) -> Option<Self> {
        Some(Self {
            start: HostAddress(line.start),
            end: HostAddress(line.end),
            permissions: line.permissions.as_bytes().try_into().ok()?,
            inode: line.inode,
            name: line.name.to_owned(),
        })
    }
}

impl Line<'_> {
    fn cut(mut self, start: HostAddress, end: HostAddress) -> Option<Self> {
        self.start = self.start.max(start.0);
        self.end = self.end.min(end.0);
        (self.start < self.end).then_some(self)
    }
}

/// The mappings of this process between two addresses, ascending and cut there. Some microseconds, and
/// one for each; before Linux 6.11, 0.3 µs for each mapping that the process has.
///
/// # Errors
/// When `/proc` is not mounted, or descriptors are short.
pub fn between(start: HostAddress, end: HostAddress) -> io::Result<Vec<Area>> {
    let mut areas = Vec::new();
    each_between(start, end, |line| areas.extend(Area::of(line)))?;
    Ok(areas)
}

/// Calls `found` with each of the same. Allocates nothing.
///
/// # Errors
/// As for [`between`], and when memory or mappings are short.
pub fn each_between(
    start: HostAddress,
    end: HostAddress,
    mut found: impl FnMut(&Line<'_>),
) -> io::Result<()> {
    match Maps::of_self()?.each_between(start, end, &mut found) {
        Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
            let (list, bytes) = read_aside()?;
            // SAFETY: so many bytes of it were read into the mapping.
            let list = unsafe { std::slice::from_raw_parts(list.as_ptr(), bytes) };
            let lines = list.split(|&byte| byte == b'\n').filter_map(|line| parse(text_of(line)));
            lines.filter_map(|line| line.cut(start, end)).for_each(|line| found(&line));
            Ok(())
        }
        result => result,
    }
}

/// Reads the list of mappings into a mapping of its own. Returns how many bytes it has.
fn read_aside() -> io::Result<(Mapping, usize)> {
    let mut room = 256 << 10;
    loop {
        let memory = Mapping::anonymous(room)?;
        // SAFETY: the mapping is this function's own, zeroed and so long.
        let bytes = unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), room) };
        let (mut file, mut length) = (File::open("/proc/self/maps")?, 0);
        loop {
            match file.read(&mut bytes[length..])? {
                0 => break,
                read => length += read,
            }
        }
        if length < room {
            return Ok((memory, length));
        }
        room *= 4;
    }
}

/// As much of a line as is text: a file may have any name.
fn text_of(line: &[u8]) -> &str {
    match std::str::from_utf8(line) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&line[..error.valid_up_to()]).unwrap_or_default(),
    }
}

/// The same of what [`of_self`] gave.
#[must_use]
pub fn areas_in(maps: &str, start: HostAddress, end: HostAddress) -> Vec<Area> {
    let lines = lines(maps).filter_map(|line| line.cut(start, end));
    lines.filter_map(|line| Area::of(&line)).collect()
}

/// The mappings of this process, as text for [`lines`]. About 0.3 µs a mapping; not a snapshot if
/// other threads map or unmap meanwhile.
///
/// # Errors
/// As read(2); when `/proc` is not mounted.
pub fn of_self() -> io::Result<String> {
    fs::read_to_string("/proc/self/maps")
}

/// The mappings in `maps`, ascending. Lines that are none are passed over.
pub fn lines(maps: &str) -> impl Iterator<Item = Line<'_>> {
    maps.lines().filter_map(parse)
}

/// The mappings of a process, to be asked about (`PROCMAP_QUERY`, Linux 6.11).
#[derive(Debug)]
pub struct Maps(File);

/// `struct procmap_query` of `include/uapi/linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct MapQuery {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_bytes: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_bytes: u32,
    build_id_bytes: u32,
    name: u64,
    build_id: u64,
}

const IOC_QUERY: libc::c_ulong = 0xc068_6611;
const _: () = assert!(size_of::<MapQuery>() == 104);

/// The mapping that an address lies in, or the next one (`PROCMAP_QUERY_COVERING_OR_NEXT_VMA`).
const OR_NEXT: u64 = 0x10;

/// Room for a name. Where it does not suffice, the mapping is told without.
const NAME_BYTES: usize = 512;

/// What may be done in a mapping: the bits of `vma_flags`, with the letters that maps has for them.
const LETTERS: [(u64, u8, u8); 4] =
    [(0x1, b'r', b'-'), (0x2, b'w', b'-'), (0x4, b'x', b'-'), (0x8, b's', b'p')];

impl Maps {
    /// The mappings of this process.
    ///
    /// # Errors
    /// As open(2).
    pub fn of_self() -> io::Result<Self> {
        File::open("/proc/self/maps").map(Self)
    }

    /// The mappings that another process has now; those of a program that it executes later are others.
    ///
    /// # Errors
    /// `NotFound` if there is no such process; `PermissionDenied` without the right to trace it.
    pub fn of(pid: i32) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/maps")).map(Self)
    }

    /// The first byte of a range that is not mapped, if there is one. Less than a microsecond for each
    /// mapping in the range.
    ///
    /// # Errors
    /// `ENOTTY` before Linux 6.11; `ESRCH` if the process has ended, or executes another program.
    pub fn first_hole(&self, start: HostAddress, bytes: usize) -> io::Result<Option<HostAddress>> {
        let (mut at, end) = (start, start.plus(bytes));
        while at < end {
            match self.end_of_mapping(at) {
                Ok(end) => at = end,
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(Some(at)),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Calls `found` with the mappings between two addresses, ascending and cut there.
    ///
    /// # Errors
    /// As for [`first_hole`](Self::first_hole).
    fn each_between(
        &self,
        start: HostAddress,
        end: HostAddress,
        found: &mut impl FnMut(&Line<'_>),
    ) -> io::Result<()> {
        let mut at = start;
        let mut name = [0u8; NAME_BYTES];
        while at < end {
            let mut query =
                MapQuery { flags: OR_NEXT, address: at.0 as u64, ..MapQuery::default() };
            query.name = name.as_mut_ptr() as u64;
            query.name_bytes = NAME_BYTES as u32;
            let mut asked = self.ask(&mut query);
            if asked.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::ENAMETOOLONG)) {
                (query.name, query.name_bytes) = (0, 0);
                asked = self.ask(&mut query);
            }
            match asked {
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
                result => result?,
            }
            let permissions =
                LETTERS.map(|(bit, yes, no)| if query.vma_flags & bit != 0 { yes } else { no });
            let line = query.line(text_of(&permissions), &name);
            at = HostAddress(line.end);
            if let Some(line) = line.cut(start, end) {
                found(&line);
            }
        }
        Ok(())
    }

    /// The end of the mapping that an address lies in; `ENOENT` if it lies in none.
    fn end_of_mapping(&self, address: HostAddress) -> io::Result<HostAddress> {
        let mut query = MapQuery { address: address.0 as u64, ..MapQuery::default() };
        self.ask(&mut query)?;
        Ok(HostAddress(query.end as usize))
    }

    fn ask(&self, query: &mut MapQuery) -> io::Result<()> {
        query.size = size_of::<MapQuery>() as u64;
        let query = ptr::from_mut(query);
        // SAFETY: the argument is the structure that the request expects, of the size that it says. There
        // is room for a name as it says, of which the caller keeps the bytes, and none for a build id.
        let result =
            unsafe { crate::syscall!(libc::SYS_ioctl, self.0.as_raw_fd(), IOC_QUERY, query) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl MapQuery {
    /// What the kernel answered, with the bytes that it had for the name.
    fn line<'a>(&self, permissions: &'a str, name: &'a [u8]) -> Line<'a> {
        // Its length has the zero behind it.
        let name = &name[..(self.name_bytes as usize).saturating_sub(1).min(name.len())];
        Line {
            start: self.start as usize,
            end: self.end as usize,
            permissions,
            offset_bytes: self.offset,
            inode: self.inode,
            name: text_of(name).split_ascii_whitespace().next().unwrap_or(""),
        }
    }
}

fn parse(line: &str) -> Option<Line<'_>> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let permissions = fields.next()?;
    let offset_bytes = u64::from_str_radix(fields.next()?, 16).ok()?;
    let inode = fields.nth(1)?.parse().ok()?;
    let name = fields.next().unwrap_or("");
    let hex = |digits| usize::from_str_radix(digits, 16).ok();
    Some(Line { start: hex(start)?, end: hex(end)?, permissions, offset_bytes, inode, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_apart() {
        let maps = "7f00030000-7f00040000 rw-s 00001000 00:01 4242       /memfd:ram (deleted)\n\
                    nonsense\n\
                    7f00050000-7f00060000 r--p 00000000 00:00 0 \n";
        let found: Vec<_> = lines(maps).collect();
        let ram = Line {
            start: 0x7f_0003_0000,
            end: 0x7f_0004_0000,
            permissions: "rw-s",
            offset_bytes: 4096,
            inode: 4242,
            name: "/memfd:ram",
        };
        assert_eq!(found.len(), 2);
        assert_eq!((found[0], found[1].name), (ram, ""));
    }

    #[test]
    fn holes_are_found_where_they_begin() {
        const PAGE: usize = bindery_units::PAGE_BYTES;
        let maps = Maps::of_self().unwrap();
        // Far below where the kernel places what other tests map.
        let start = HostAddress(0x1000_0000_0000);
        crate::mapping::fill_gap(start, 8 * PAGE).unwrap();
        match maps.first_hole(start, 8 * PAGE) {
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
                bindery_testkit::skipped!("this kernel has no PROCMAP_QUERY (Linux 6.11)");
                return;
            }
            found => assert_eq!(found.unwrap(), None),
        }
        // Mappings of two kinds, one behind the other, and a hole.
        // SAFETY: the pages are ours, and hold nothing.
        unsafe {
            crate::mapping::advise(start.plus(PAGE), PAGE, libc::MADV_DONTFORK).unwrap();
            crate::mapping::unmap(start.plus(5 * PAGE), PAGE).unwrap();
        }
        assert_eq!(maps.first_hole(start, 5 * PAGE).unwrap(), None);
        for (first, pages) in [(0, 6), (0, 8), (4, 2), (5, 1)] {
            let found = maps.first_hole(start.plus(first * PAGE), pages * PAGE).unwrap();
            assert_eq!(found, Some(start.plus(5 * PAGE)), "{pages} pages from {first} on");
        }
        assert_eq!(maps.first_hole(start.plus(6 * PAGE), 2 * PAGE).unwrap(), None);
        assert_eq!(maps.first_hole(start.plus(5 * PAGE), 0).unwrap(), None);
        // SAFETY: as above.
        unsafe { crate::mapping::unmap(start, 8 * PAGE).unwrap() };
    }

    /// Asked for or read, whatever kinds there are.
    #[test]
    fn areas_are_those_of_the_list() {
        const PAGE: usize = bindery_units::PAGE_BYTES;
        let start = HostAddress(0x1100_0000_0000);
        crate::mapping::fill_gap(start, 8 * PAGE).unwrap();
        let file = crate::memfd::create("areas", PAGE as u64).unwrap();
        // SAFETY: the pages are ours, and hold nothing.
        unsafe {
            use std::os::fd::AsFd;
            let over = start.plus(2 * PAGE);
            crate::mapping::replace_with_file(over, PAGE, file.as_fd(), 0).unwrap();
            crate::mapping::unmap(start.plus(5 * PAGE), PAGE).unwrap();
        }
        for (first, pages) in [(0, 8), (1, 3), (2, 1), (5, 1), (4, 3)] {
            let (from, to) = (start.plus(first * PAGE), start.plus((first + pages) * PAGE));
            let found = between(from, to).unwrap();
            assert_eq!(found, areas_in(&of_self().unwrap(), from, to), "{pages} from {first} on");
        }
        let all = between(start, start.plus(8 * PAGE)).unwrap();
        assert_eq!(all.len(), 4);
        assert_eq!((all[1].permissions(), all[1].name.as_str()), ("rw-p", "/memfd:areas"));
        assert!(!all[1].is_shared() && all[1].inode != 0);
        // SAFETY: as above.
        unsafe { crate::mapping::unmap(start, 8 * PAGE).unwrap() };
    }

    #[test]
    fn our_own_code_is_mapped() {
        let here = lines_are_taken_apart as fn() as usize;
        let maps = of_self().unwrap();
        assert!(lines(&maps).any(|line| line.start <= here && here < line.end));
    }
}
