//! Groups of users, by name.

use std::ffi::CString;
use std::fs;
use std::io;

/// Room for a group's entry at first; it grows with the group's members.
const ENTRY_BYTES: usize = 4 << 10;

/// More than any entry that is not a mistake: some 100,000 members.
const ENTRY_BYTES_MAX: usize = 4 << 20;

/// The number of the group called `name`, wherever this machine keeps its groups (nsswitch.conf(5));
/// `None` if there is no such group. Blocks as long as that place takes to answer.
///
/// # Errors
/// As getgrnam_r(3). A name with a zero byte is no group's.
pub fn group_id(name: &str) -> io::Result<Option<u32>> {
    let Ok(name) = CString::new(name) else { return Ok(None) };
    let mut buffer: Vec<libc::c_char> = vec![0; ENTRY_BYTES];
    loop {
        // SAFETY: an all-zero `group` is null pointers and a number: plain data.
        let mut entry: libc::group = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        // SAFETY: the name ends in a zero byte, the buffer is as long as is said, and the other two
        // are live locals. All outlive the call, which keeps none of them.
        let error = unsafe {
            libc::getgrnam_r(
                name.as_ptr(),
                &raw mut entry,
                buffer.as_mut_ptr(),
                buffer.len(),
                &raw mut found,
            )
        };
        match error {
            0 if found.is_null() => return Ok(None),
            0 => return Ok(Some(entry.gr_gid)),
            libc::EINTR => {}
            libc::ERANGE if buffer.len() < ENTRY_BYTES_MAX => buffer.resize(buffer.len() * 2, 0),
            // What some sources of groups answer instead of "there is none" (getgrnam(3)).
            libc::ENOENT | libc::ESRCH => return Ok(None),
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// The group that the kernel names in place of every group that it has no number for in our user
/// namespace (user_namespaces(7)): to be in it says nothing about a process.
#[must_use]
pub fn overflow_group() -> u32 {
    const DEFAULT: u32 = 65_534;
    let text = fs::read_to_string("/proc/sys/kernel/overflowgid");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(DEFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_numbers() {
        assert_eq!(group_id("root").unwrap(), Some(0));
        for none in ["", "no-such-group-here", "root\0"] {
            assert_eq!(group_id(none).unwrap(), None, "{none:?}");
        }
        assert_ne!(overflow_group(), 0);
    }
}
