//! What a run leaves that is killed while its medium is mounted: nobody answers for the disk any more, but the
//! mounts, the loop device and the priority of the kernel's threads stay. The next run puts it in order.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::io::Errno;

use super::disk::FILE;
use super::interrupts::Interrupts;
use super::mounted::unmount;
use super::{ABOVE, NAME, perform};

/// Clears what runs have left that are no more, and says so; what cannot be cleared does not keep anybody
/// from making another medium.
pub(super) fn clear() -> io::Result<()> {
    let mounts = media(&fs::read("/proc/self/mountinfo")?);
    let (dead, living): (Vec<_>, Vec<_>) = mounts.into_iter().partition(|place| is_dead(place));
    for below in &dead {
        match clear_one(below) {
            Ok(()) => eprintln!("{}: cleared what a run left that was killed", below.display()),
            Err(error) => eprintln!(
                "{} is left of a run that was killed: {error:#}; end who uses it (fuser -vm), unmount \
                 {ABOVE} beside it, detach its loop device (losetup --list), and unmount it",
                below.display(),
            ),
        }
    }
    // The threads are raised while something is mounted, and for all that is.
    if !dead.is_empty() && living.is_empty() {
        drop(Interrupts::left());
    }
    Ok(())
}

/// Where media's file systems in user space are mounted, according to proc_pid_mountinfo(5).
fn media(mountinfo: &[u8]) -> Vec<PathBuf> {
    let lines = mountinfo.split(|byte| *byte == b'\n');
    let places = lines.filter_map(|line| {
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let kind = words.iter().position(|word| *word == b"-")?;
        let is_medium = words.get(kind + 2) == Some(&NAME.as_bytes());
        is_medium.then(|| unescape(words[4]))
    });
    places.collect()
}

/// A path as mountinfo shows it: blanks and backslashes are three octal digits.
fn unescape(text: &[u8]) -> PathBuf {
    let (mut path, mut rest) = (Vec::new(), text);
    while let Some((&byte, after)) = rest.split_first() {
        let digits = (byte == b'\\').then(|| after.get(..3)).flatten();
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        path.push(escaped.unwrap_or(byte));
        rest = if escaped.is_some() { &after[3..] } else { after };
    }
    std::ffi::OsString::from_vec(path).into()
}

/// Whether nobody answers there: statfs(2) is not answered from what the kernel has been told before.
fn is_dead(place: &Path) -> bool {
    matches!(rustix::fs::statfs(place), Err(Errno::NOTCONN | Errno::CONNABORTED))
}

fn clear_one(below: &Path) -> Result<()> {
    let places = below.parent().context("it is mounted in no directory")?;
    let above = places.join(ABOVE);
    match unmount(&above) {
        // It was not mounted yet, or not any more.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
        Err(error) => return Err(error).context(format!("unmounting {}", above.display())),
    }
    for device in loops_on(&below.join(FILE))? {
        perform("losetup", ["--detach".as_ref(), device.as_os_str()])?;
    }
    unmount(below).context("unmounting it")?;
    // Directories alone, and only if they are empty.
    for place in [below, &above, places] {
        fs::remove_dir(place).with_context(|| format!("removing {}", place.display()))?;
    }
    Ok(())
}

/// The loop devices on a file.
fn loops_on(file: &Path) -> io::Result<Vec<PathBuf>> {
    let mut devices = Vec::new();
    for device in fs::read_dir("/sys/block")? {
        let device = device?;
        // Others are no loop devices, or have no file.
        let backing = fs::read(device.path().join("loop/backing_file")).unwrap_or_default();
        if backing.strip_suffix(b"\n") == Some(file.as_os_str().as_encoded_bytes()) {
            devices.push(Path::new("/dev").join(device.file_name()));
        }
    }
    Ok(devices)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_are_found_among_mounts() {
        let mountinfo = b"22 1 254:0 / / rw - ext4 /dev/vda rw\n\
            90 22 0:50 / /a\\040b/device rw,nosuid shared:3 - fuse bindery-medium rw,user_id=0\n\
            91 22 0:51 / /c/bindery-medium rw - fuse other rw\n\
            92 22 0:52 / /d\\134e/device rw - fuse bindery-medium rw\n";
        assert_eq!(media(mountinfo), [PathBuf::from("/a b/device"), "/d\\e/device".into()]);
        assert!(media(b"").is_empty());
    }
}
