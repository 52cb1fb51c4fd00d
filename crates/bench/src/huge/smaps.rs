//! Huge pages of a process, mapping by mapping, from `/proc/PID/smaps` (proc_pid_smaps(5)).

use std::{fs, io};

use bindery_units::ByteCount;

/// One mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapping<'a> {
    pub(super) start: usize,
    /// End of the mapping, not in it.
    pub(super) end: usize,
    /// Permissions, as in `rw-p`.
    pub(super) permissions: &'a str,
}

impl Mapping<'_> {
    /// Returns true if code can be run from it, as from an emulator's translations.
    pub(super) fn is_executable(&self) -> bool {
        self.permissions.contains('x')
    }
}

/// Returns the anonymous memory of a process that is in huge pages, of mappings that are wanted.
///
/// # Errors
/// Errors of `/proc`, `NotFound` when the process has ended.
pub(super) fn huge_pages(
    pid: u32,
    is_wanted: impl Fn(&Mapping<'_>) -> bool,
) -> io::Result<ByteCount> {
    Ok(sum(&fs::read_to_string(format!("/proc/{pid}/smaps"))?, is_wanted))
}

fn sum(smaps: &str, is_wanted: impl Fn(&Mapping<'_>) -> bool) -> ByteCount {
    let (mut kib, mut wanted) = (0, false);
    for line in smaps.lines() {
        if let Some(mapping) = heading(line) {
            wanted = is_wanted(&mapping);
        } else if wanted && let Some(value) = line.strip_prefix("AnonHugePages:") {
            kib += value.trim().trim_end_matches(" kB").parse().unwrap_or(0);
        }
    }
    ByteCount(kib << 10)
}

/// A line such as `7f00-7f20 rw-p 00000000 00:00 0`.
fn heading(line: &str) -> Option<Mapping<'_>> {
    let mut words = line.split(' ');
    let (start, end) = words.next()?.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some(Mapping { start: address(start)?, end: address(end)?, permissions: words.next()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0 
Rss:                4096 kB
AnonHugePages:      4096 kB
VmFlags: rd wr mr mw me ac hg mg 
7f0000400000-7f0000600000 rwxp 00000000 00:00 0 
AnonHugePages:      2048 kB
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
AnonHugePages:         0 kB
";

    #[test]
    fn mappings_are_chosen() {
        assert_eq!(sum(SMAPS, |_| true).mib(), 6.0);
        assert_eq!(sum(SMAPS, |mapping| !mapping.is_executable()).mib(), 4.0);
        assert_eq!(sum(SMAPS, |mapping| mapping.start == 0x7f00_0040_0000).mib(), 2.0);
        assert_eq!(heading("AnonHugePages:      2048 kB"), None);
        assert_eq!(heading("VmFlags: rd wr"), None);
    }

    #[test]
    fn this_process_can_be_looked_at() {
        assert!(huge_pages(std::process::id(), |_| true).is_ok());
        assert_eq!(huge_pages(0, |_| true).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
