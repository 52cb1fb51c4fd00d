//! Policy of a destination for the arguments of a VMM that a source sends. Pure.

mod options;
mod paths;
mod policy;

pub use paths::PathPolicy;
pub use policy::{ArgumentPolicy, ArgumentRefusal};
