//! `bindery bench pool`.

pub mod ycsb;
