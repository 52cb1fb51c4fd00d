//! Answers in the C library's manner.

/// An `errno`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

impl Errno {
    /// What the last failed call of this thread left.
    pub(crate) fn last() -> Self {
        // SAFETY: the location is this thread's own, for as long as it runs.
        Self(unsafe { *libc::__errno_location() })
    }

    /// Leaves it for the caller of a hook.
    pub(crate) fn set(self) {
        // SAFETY: as in `last`.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// A result of the C library's kind, from a system call that just returned it.
pub(crate) fn checked(result: i32) -> Result<(), Errno> {
    if result == -1 { Err(Errno::last()) } else { Ok(()) }
}

/// Does what a hook does, and leaves `errno` as the C library would: set by a failure, untouched by
/// anything else that happened on the way.
pub(crate) fn answer(work: impl FnOnce() -> Result<(), Errno>) -> i32 {
    let before = Errno::last();
    let (result, errno) = match work() {
        Ok(()) => (0, before),
        Err(errno) => (-1, errno),
    };
    errno.set();
    result
}

/// Does `work` without a trace in `errno`.
pub(crate) fn aside<T>(work: impl FnOnce() -> T) -> T {
    let before = Errno::last();
    let result = work();
    before.set();
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_is_what_the_c_library_would_leave() {
        Errno(7).set();
        assert_eq!(
            answer(|| {
                Errno(9).set();
                Ok(())
            }),
            0
        );
        assert_eq!(Errno::last(), Errno(7));
        assert_eq!(
            answer(|| {
                Errno(9).set();
                Err(Errno(libc::EINVAL))
            }),
            -1
        );
        assert_eq!(Errno::last(), Errno(libc::EINVAL));
        aside(|| Errno(3).set());
        assert_eq!(Errno::last(), Errno(libc::EINVAL));
    }
}
