//! A managed address space: regions, fault handlers, the merge primitive.

pub mod wire;
