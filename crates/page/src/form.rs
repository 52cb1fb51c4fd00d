//! A form of the kernels for one instruction set, and the choice among forms.

use std::mem::MaybeUninit;
use std::sync::OnceLock;

use bindery_units::PAGE_BYTES;

use crate::arch;
use crate::digest::{Digest, DigestKey};

/// The alignment, in bytes, that the functions over pointers ask for: that of the widest vector.
/// Every page of a mapping has it.
pub const VECTOR_ALIGN: usize = 64;

/// What one pass over a page found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Examined {
    /// Every byte is zero.
    Zero,
    /// At least one is not; the digest of all of them.
    Content(Digest),
}

/// The kernels built for one instruction set.
///
/// Code that only wants an answer calls the functions of the crate, which use the best form.
/// Forms are named for tests and benchmarks, which compare them.
///
/// Invariant: a `&Form` that leaves this crate was detected on this machine, so that its
/// instructions may be executed.
pub struct Form {
    pub(crate) name: &'static str,
    pub(crate) is_detected: fn() -> bool,
    /// Whether the form beats the ones listed after it, where it is detected.
    pub(crate) is_preferred: fn() -> bool,
    pub(crate) is_zero: unsafe fn(*const u8) -> bool,
    pub(crate) is_zero_at: unsafe fn(*const u8) -> bool,
    pub(crate) equal: unsafe fn(*const u8, *const u8) -> bool,
    pub(crate) equal_at: unsafe fn(*const u8, *const u8) -> bool,
    pub(crate) copy_at: unsafe fn(*const u8, *mut u8) -> bool,
    /// Has the processor fetch the first lines of a page while something else is computed, where
    /// that pays. Any address does: fetching ahead never faults.
    pub(crate) fetch_ahead: fn(*const u8),
}

/// Room for a copy of a page, on the stack.
#[repr(C, align(64))]
struct Copied(MaybeUninit<[u8; PAGE_BYTES]>);

const _: () = assert!(align_of::<Copied>() == VECTOR_ALIGN);

impl Form {
    /// The form that the functions of the crate use: the widest that pays on this machine.
    #[must_use]
    pub fn active() -> &'static Self {
        static ACTIVE: OnceLock<&'static Form> = OnceLock::new();
        ACTIVE.get_or_init(|| {
            let mut preferred = Self::available().filter(|form| (form.is_preferred)());
            preferred.next().expect("the portable form runs, and pays, on every machine")
        })
    }

    /// All forms that this machine can run, the widest first, the portable one last.
    pub fn available() -> impl Iterator<Item = &'static Self> {
        arch::FORMS.iter().copied().filter(|form| (form.is_detected)())
    }

    /// The name of the form's instruction set.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// [`crate::is_zero`] by this form.
    #[must_use]
    pub fn is_zero(&self, page: &[u8; PAGE_BYTES]) -> bool {
        // SAFETY: the form was detected (invariant of `Form`); a reference is readable, and is not
        // written while it is borrowed.
        unsafe { (self.is_zero)(page.as_ptr()) }
    }

    /// [`crate::is_zero_at`] by this form.
    ///
    /// # Safety
    /// What [`crate::is_zero_at`] asks for.
    #[must_use]
    pub unsafe fn is_zero_at(&self, page: *const u8) -> bool {
        debug_assert_aligned(page);
        // SAFETY: the form was detected (invariant of `Form`); the rest is the caller's promise.
        unsafe { (self.is_zero_at)(page) }
    }

    /// [`crate::equal`] by this form.
    #[must_use]
    pub fn equal(&self, a: &[u8; PAGE_BYTES], b: &[u8; PAGE_BYTES]) -> bool {
        // SAFETY: as in `is_zero`, for both pages.
        unsafe { (self.equal)(a.as_ptr(), b.as_ptr()) }
    }

    /// [`crate::equal_at`] by this form.
    ///
    /// # Safety
    /// What [`crate::is_zero_at`] asks for, of both pages.
    #[must_use]
    pub unsafe fn equal_at(&self, a: *const u8, b: *const u8) -> bool {
        debug_assert_aligned(a);
        debug_assert_aligned(b);
        // SAFETY: the form was detected (invariant of `Form`); the rest is the caller's promise.
        unsafe { (self.equal_at)(a, b) }
    }

    /// [`crate::digest_at`] by this form.
    ///
    /// # Safety
    /// What [`crate::is_zero_at`] asks for.
    #[must_use]
    pub unsafe fn digest_at(&self, page: *const u8, key: &DigestKey) -> Digest {
        // SAFETY: the caller's promise.
        unsafe { self.with_copy(page, |_, copy| key.digest(copy)) }
    }

    /// [`crate::examine`] by this form.
    #[must_use]
    pub fn examine(&self, page: &[u8; PAGE_BYTES], key: &DigestKey) -> Examined {
        // Most pages that are not zero show it in the first block, which is in L1 thereafter.
        if self.is_zero(page) { Examined::Zero } else { Examined::Content(key.digest(page)) }
    }

    /// [`crate::examine_at`] by this form.
    ///
    /// # Safety
    /// What [`crate::is_zero_at`] asks for.
    #[must_use]
    pub unsafe fn examine_at(&self, page: *const u8, next: *const u8, key: &DigestKey) -> Examined {
        let examine = |is_zero, copy: &_| match is_zero {
            true => Examined::Zero,
            false => {
                // Memory has nothing to do while the copy is digested.
                (self.fetch_ahead)(next);
                Examined::Content(key.digest(copy))
            }
        };
        // SAFETY: the caller's promise.
        unsafe { self.with_copy(page, examine) }
    }

    /// Copies the page, each byte read once, and calls `then` with whether the copy is zero and
    /// the copy.
    ///
    /// # Safety
    /// What [`crate::is_zero_at`] asks for.
    unsafe fn with_copy<T>(
        &self,
        page: *const u8,
        then: impl FnOnce(bool, &[u8; PAGE_BYTES]) -> T,
    ) -> T {
        debug_assert_aligned(page);
        let mut copied = Copied(MaybeUninit::uninit());
        // SAFETY: the form was detected (invariant of `Form`); the copy is a local, so apart from
        // the page, large enough and aligned; the rest is the caller's promise.
        let is_zero = unsafe { (self.copy_at)(page, copied.0.as_mut_ptr().cast()) };
        // SAFETY: `copy_at` has written every byte.
        then(is_zero, unsafe { copied.0.assume_init_ref() })
    }
}

/// A misaligned page would fault in some forms and not in others; builds with assertions say which
/// call it was.
fn debug_assert_aligned(page: *const u8) {
    debug_assert!(
        page.addr().is_multiple_of(VECTOR_ALIGN),
        "the page at {page:p} is not aligned to {VECTOR_ALIGN} bytes"
    );
}
