//! Who has locked a range. The kernel does not say (`F_OFD_GETLK` gives no process), but it lists the
//! locks of each descriptor in `/proc/PID/fdinfo` (proc_pid_fdinfo(5)).

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The processes with a descriptor through which a byte of `range` of `file` is locked, in ascending
/// order. Processes of other users are seen by root alone. The caller's own locks count.
pub(super) fn of(file: &File, range: &Range<u64>) -> Vec<u32> {
    let Ok(status) = file.metadata() else { return Vec::new() };
    let wanted = (status.dev(), status.ino());
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut holders: Vec<u32> = ids.filter(|&process| holds(process, wanted, range)).collect();
    holders.sort_unstable();
    holders
}

fn holds(process: u32, wanted: (u64, u64), range: &Range<u64>) -> bool {
    let process = Path::new("/proc").join(process.to_string());
    let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    descriptors.into_iter().any(|descriptor| {
        // Follows the link to the file itself.
        let Ok(status) = fs::metadata(descriptor.path()) else { return false };
        let description =
            || fs::read_to_string(process.join("fdinfo").join(descriptor.file_name()));
        (status.dev(), status.ino()) == wanted
            && description().is_ok_and(|text| text.lines().any(|line| locks(line, range)))
    })
}

/// Whether a line says that a byte of `range` is locked, as in
/// `lock: 1: OFDLCK ADVISORY WRITE -1 fe:00:1234 0 4095`. The last byte may be `EOF`.
fn locks(line: &str, range: &Range<u64>) -> bool {
    let Some(lock) = line.strip_prefix("lock:") else { return false };
    let words: Vec<&str> = lock.split_whitespace().collect();
    let [_, "OFDLCK", .., first, last] = words[..] else { return false };
    let last = if last == "EOF" { Ok(u64::MAX) } else { last.parse() };
    let (Ok(first), Ok(last)) = (first.parse::<u64>(), last) else { return false };
    first < range.end && range.start <= last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_the_kernel_writes_them() {
        let line = "lock:\t1: OFDLCK  ADVISORY  WRITE -1 fe:00:1234 4096 8191";
        assert!(locks(line, &(8191..8192)) && locks(line, &(0..4097)));
        assert!(!locks(line, &(8192..9000)) && !locks(line, &(0..4096)));
        assert!(locks("lock:\t2: OFDLCK  ADVISORY  READ -1 fe:00:1 7 EOF", &(1 << 60..1 << 61)));
        for other in
            ["pos:\t0", "lock:\t1: POSIX  ADVISORY  WRITE 7 fe:00:1 0 EOF", "lock:\t1: OFDLCK"]
        {
            assert!(!locks(other, &(0..1)), "{other}");
        }
    }
}
