//! A managed address space: regions, fault handlers, the merge primitive
