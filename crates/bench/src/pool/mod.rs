//! `bindery bench pool`: what the pool costs, and what it is good for.

pub mod transfers;
pub mod vma;
pub mod ycsb;
