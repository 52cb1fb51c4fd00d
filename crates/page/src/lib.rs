//! Kernels over one 4096-byte page: is it zero, do two agree, what is its digest.
//!
//! Every question comes in two spellings:
//!
//! - **over a reference** ([`is_zero`], [`equal`], [`digest`], [`examine`]), at any alignment, for
//!   memory that this process owns;
//! - **over a pointer** ([`is_zero_at`], [`equal_at`], [`digest_at`], [`examine_at`]), for memory
//!   of a guest, which may be written while it is read, and to which no reference may therefore
//!   exist. Each byte is loaded once, volatile, in the widest vectors that the machine has; what
//!   is digested is a copy on the stack that no one else can write to.
//!
//! [`examine_at`] is the pass that a scan makes over a page: it reads every byte from memory once
//! and says both whether the page is zero and, if not, its digest, of one and the same bytes.
//!
//! # Layout
//!
//! The algorithms stand once, in `generic`, over a small `Vector` trait. `arch` instantiates them
//! for each instruction set, which makes a [`Form`]; the widest form that pays on the machine is
//! chosen on first use. All forms give the same answers, digests included. From DRAM every form is bound
//! by memory (`docs/decisions/0001-page-digest.md` has the numbers); the width pays for pages that
//! are still in a cache.
//!
//! # Concurrency
//!
//! Nothing here has state besides the choice of form. Every function may be called from any
//! number of threads at once, does not block and does not allocate.

mod arch;
mod digest;
mod form;
mod generic;
mod keyed;
mod vector;

pub use bindery_units::PAGE_BYTES;
pub use digest::{Digest, DigestKey, DigestKeyError};
pub use form::{Examined, Form, VECTOR_ALIGN};
pub use keyed::{KEYED_DIGEST_BYTES, KEYED_SECRET_BYTES, KeyedDigest, KeyedDigestKey};

/// Whether every byte of `page` is zero. Stops at the first block that is not.
#[must_use]
pub fn is_zero(page: &[u8; PAGE_BYTES]) -> bool {
    Form::active().is_zero(page)
}

/// Whether every byte of the page at `page` is zero. Stops at the first block that is not.
///
/// Where the page is written meanwhile, the answer is that of some mixture of old and new bytes.
///
/// # Safety
/// - `page` is readable for [`PAGE_BYTES`] bytes until the call returns. Faults that the kernel or
///   a userfaultfd handler resolves are fine, and may make the call wait for them.
/// - `page` is aligned to [`VECTOR_ALIGN`] bytes, as every page of a mapping is.
#[must_use]
pub unsafe fn is_zero_at(page: *const u8) -> bool {
    // SAFETY: the caller promises what `Form::is_zero_at` asks for.
    unsafe { Form::active().is_zero_at(page) }
}

/// Whether two pages hold the same bytes. Stops at the first block in which they differ.
#[must_use]
pub fn equal(a: &[u8; PAGE_BYTES], b: &[u8; PAGE_BYTES]) -> bool {
    Form::active().equal(a, b)
}

/// Whether the pages at `a` and `b` hold the same bytes. Stops at the first block in which they
/// differ. The two may be one page.
///
/// Where a page is written meanwhile, the answer is that of some mixture of old and new bytes: to
/// merge on it, keep writers out first.
///
/// # Safety
/// What [`is_zero_at`] asks for, of both pages.
#[must_use]
pub unsafe fn equal_at(a: *const u8, b: *const u8) -> bool {
    // SAFETY: the caller promises what `Form::equal_at` asks for.
    unsafe { Form::active().equal_at(a, b) }
}

/// The digest of `page` under `key`.
#[must_use]
pub fn digest(page: &[u8; PAGE_BYTES], key: &DigestKey) -> Digest {
    key.digest(page)
}

/// The digest under `key` of what the page at `page` held when it was read, each byte once.
///
/// # Safety
/// What [`is_zero_at`] asks for.
#[must_use]
pub unsafe fn digest_at(page: *const u8, key: &DigestKey) -> Digest {
    // SAFETY: the caller promises what `Form::digest_at` asks for.
    unsafe { Form::active().digest_at(page, key) }
}

/// Whether `page` is zero and, if not, its digest under `key`.
#[must_use]
pub fn examine(page: &[u8; PAGE_BYTES], key: &DigestKey) -> Examined {
    Form::active().examine(page, key)
}

/// Whether the page at `page` is zero and, if not, its digest under `key`, both of the same
/// bytes: each is read from memory once.
///
/// `next` is the page that the caller examines next, if it knows: where that pays, its first lines are
/// fetched meanwhile. It is not read, and may be any address.
///
/// # Safety
/// What [`is_zero_at`] asks for, of `page`.
#[must_use]
pub unsafe fn examine_at(page: *const u8, next: *const u8, key: &DigestKey) -> Examined {
    // SAFETY: the caller promises what `Form::examine_at` asks for.
    unsafe { Form::active().examine_at(page, next, key) }
}

/// The examples of the README are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
