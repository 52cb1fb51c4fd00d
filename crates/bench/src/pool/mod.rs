//! `bindery-bench pool`: what the pool costs, and what it is good for.

mod cpu;
pub mod faults;
pub mod medium;
mod one_file;
pub mod replay;
pub mod transfers;
pub mod vma;
pub mod ycsb;
