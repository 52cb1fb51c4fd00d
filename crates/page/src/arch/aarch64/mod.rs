//! AArch64: NEON is part of the target.

pub(crate) mod neon;
