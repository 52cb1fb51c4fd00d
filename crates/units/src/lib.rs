//! The vocabulary of Bindery: page indices, counts, ranges, slots, addresses and NUMA nodes.
//!
//! These are plain values. They exist so that a page index is never taken for a count, a slot of
//! the canonical store never for a page of a guest, and so that the arithmetic between them stands
//! in one place.
#![forbid(unsafe_code)]

mod address;
mod bytes;
mod node;
mod page;
mod slot;

pub use address::HostAddress;
pub use bytes::ByteCount;
pub use node::NumaNode;
pub use page::{PAGE_BYTES, PAGE_SHIFT, PageCount, PageIndex, PageRange};
pub use slot::{Slot, SlotRange};
