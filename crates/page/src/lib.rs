//! Kernels over one page: zero, equal, digest
