//! x86-64: SSE2 is part of the target, but wins nothing over words once AVX2 is there, as it is on
//! every machine since 2015 that hosts guests.

pub(crate) mod avx2;
pub(crate) mod avx512;
