//! The kernel's traps, each brought about on purpose. docs/testing.md says which test is for which.

mod alone;
#[path = "../common/mod.rs"]
mod common;

mod errors;
mod faults;
mod guest;
mod kernel;
mod long;
mod order;
mod owners;
mod pins;
mod plan;
mod ring;
mod scan;
mod zeros;
