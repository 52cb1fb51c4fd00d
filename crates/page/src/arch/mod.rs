//! The instruction sets. Each module names its vector and instantiates the algorithms over it.

use crate::form::Form;

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86_64;

/// Every form that this target can hold, the widest first.
pub(crate) static FORMS: &[&Form] = &[
    #[cfg(target_arch = "x86_64")]
    &x86_64::avx512::FORM,
    #[cfg(target_arch = "x86_64")]
    &x86_64::avx2::FORM,
    #[cfg(target_arch = "aarch64")]
    &aarch64::neon::FORM,
    &portable::FORM,
];

/// Instantiates the algorithms over `$vector` as `FORM`, which runs where `$is_detected`, and is
/// to be preferred there where `$is_preferred`. The feature named, if any, is enabled in all of
/// them. `$fetch_ahead` fetches what is read next, where that pays.
macro_rules! instantiate {
    (
        $name:literal, $vector:ty, detected: $is_detected:expr, preferred: $is_preferred:expr,
        fetch_ahead: $fetch_ahead:expr $(, feature: $feature:literal)?
    ) => {
        /// The algorithms of `generic` over this module's vector.
        pub(crate) static FORM: crate::form::Form = crate::form::Form {
            name: $name,
            is_detected: $is_detected,
            is_preferred: $is_preferred,
            is_zero: is_zero::<crate::vector::Owned>,
            is_zero_at: is_zero::<crate::vector::Shared>,
            equal: equal::<crate::vector::Owned>,
            equal_at: equal::<crate::vector::Shared>,
            copy_at,
            fetch_ahead: $fetch_ahead,
        };

        $(#[target_feature(enable = $feature)])?
        unsafe fn is_zero<A: crate::vector::Access>(page: *const u8) -> bool {
            // SAFETY: the instruction set is enabled here; the rest is the caller's promise.
            unsafe { crate::generic::is_zero::<$vector, A>(page) }
        }

        $(#[target_feature(enable = $feature)])?
        unsafe fn equal<A: crate::vector::Access>(a: *const u8, b: *const u8) -> bool {
            // SAFETY: the instruction set is enabled here; the rest is the caller's promise.
            unsafe { crate::generic::equal::<$vector, A>(a, b) }
        }

        $(#[target_feature(enable = $feature)])?
        unsafe fn copy_at(page: *const u8, to: *mut u8) -> bool {
            // SAFETY: the instruction set is enabled here; the rest is the caller's promise.
            unsafe { crate::generic::copy::<$vector>(page, to) }
        }
    };
}

pub(crate) use instantiate;
