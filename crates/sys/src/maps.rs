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

/// What its owner advised for a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Advised {
    /// `MADV_DONTFORK`.
    pub dont_fork: bool,
    /// `MADV_DONTDUMP`.
    pub dont_dump: bool,
}

/// What was advised for the mapping that the byte at `address` lies in; nothing where there is none.
/// Reads `/proc/self/smaps`, which takes some 10 ms for each GiB that the process has in memory.
///
/// # Errors
/// As read(2); when `/proc` is not mounted.
pub fn advised(address: usize) -> io::Result<Advised> {
    Ok(advised_in(&fs::read_to_string("/proc/self/smaps")?, address))
}

fn advised_in(smaps: &str, address: usize) -> Advised {
    let behind = smaps.lines().skip_while(|line| {
        parse(line).is_none_or(|mapping| address < mapping.start || mapping.end <= address)
    });
    let flags = behind.filter_map(|line| line.strip_prefix("VmFlags:")).next().unwrap_or("");
    let has = |flag| flags.split_ascii_whitespace().any(|word| word == flag);
    Advised { dont_fork: has("dc"), dont_dump: has("dd") }
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
    fn advice_is_that_of_the_mapping_and_not_of_the_next() {
        let smaps = "7f00030000-7f00040000 rw-s 00000000 00:01 4242 /memfd:ram (deleted)\n\
                     Size:  64 kB\n\
                     VmFlags: rd wr sh dc mr \n\
                     7f00040000-7f00050000 rw-p 00000000 00:00 0 \n\
                     VmFlags: rd wr dd \n";
        let dont = |dont_fork, dont_dump| Advised { dont_fork, dont_dump };
        assert_eq!(advised_in(smaps, 0x7f_0003_ffff), dont(true, false));
        assert_eq!(advised_in(smaps, 0x7f_0004_0000), dont(false, true));
        assert_eq!(advised_in(smaps, 0x7f_0005_0000), dont(false, false));
        assert_eq!(advised((&raw const smaps).addr()).unwrap(), dont(false, false));
    }

    #[test]
    fn our_own_code_is_mapped() {
        let here = lines_are_taken_apart as fn() as usize;
        let maps = of_self().unwrap();
        assert!(lines(&maps).any(|line| line.start <= here && here < line.end));
    }
}
