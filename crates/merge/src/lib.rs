//! PageONE in user space: identical pages of running guests become one.
//!
//! An [`Engine`] works in periods. In each, every guest says which pages it wrote; pages that were
//! not written for two periods are digested *in the guest's own process*, looked up in an index of
//! all contents of the domain (or inferred to be what their neighbours' place says, `between`), and,
//! when a content turns up again, copied to the domain's store
//! and mapped from there by everybody who has it, after a comparison byte for byte under which
//! nobody can write. Pages that stay unwritten are never read again.
//!
//! # What holds
//! - **Domains share nothing** with each other: each has its own secret, index and store. Where merging stays within
//!   NUMA nodes, each node's guests of a domain have an index and a store of their own, under one secret (`arrivals`).
//! - **A slot's content never changes while any process maps it**, known or not, or I/O reads it: it is
//!   written once in the life of its segment's file (`store`). References show which slots are in use. They are
//!   taken before a guest is asked to map and given back when it has said that it does not
//!   (`slots`); when it says nothing, they stay (`resync`); when its connection fails, they
//!   stay until its process has ended.
//! - **A guest that lies, stops or dies** disturbs no other: it is left alone, and whatever it said
//!   about a content is checked by who depends on it. One that answers too slowly holds up a period for
//!   seconds (`patience`).
//! - **Metadata** stays below 32 bytes a managed page: 4 for its link, 0.5 for its writes and 0.125 for maps,
//!   1 where pages broke, 24 to 27 in the index if it is unique, 8 if it is canonical.
//!
//! # Concurrency
//! One thread runs periods; each phase of a period spreads over as many workers as are wanted
//! (`period` has the phases, `workers` the threads). A worker asks one guest at a time, over a lane
//! of its own, so the work itself is done by as many threads in guests' processes.
#![forbid(unsafe_code)]

mod admit;
mod agenda;
mod apply;
mod appraise;
mod arrivals;
mod between;
mod classes;
mod compact;
mod domain;
mod engine;
mod examine;
mod extents;
mod fill;
mod gains;
mod grant;
mod guest;
mod headroom;
mod home;
mod huge;
mod index_entry;
mod limit;
mod links;
mod lock;
mod look;
mod losses;
mod meter;
mod nodes;
mod observe;
mod pace;
mod patience;
mod period;
mod phases;
mod plan;
mod pressure;
mod queue;
mod rehome;
mod resync;
mod retry_pause;
mod rhythm;
mod room;
mod rows;
mod runs;
mod scan;
mod settings;
mod slots;
mod spread;
mod stable;
pub mod status;
mod stayed;
mod stop;
mod store;
mod tally;
#[cfg(test)]
mod tests;
mod troubles;
mod unmerge;
mod visit;
mod workers;

pub use engine::{Connected, Engine, GuestsManaged};
pub use grant::{DomainError, Grant};
pub use huge::{HugeMode, HugeSettings, MemoryLevel};
pub use nodes::{MachineNodes, Nodes, Placement};
pub use pressure::{
    DomainState, FULL_PAUSE, STORM_BREAKS_MIN, STORM_PAUSE_MAX, STORM_SHARE, Shortage,
};
pub use settings::{
    INDEX_KEYS, INDEX_KEYS_MAX, MAPPING_BYTES, MergeSettings, PERIOD, REST, STORE_SLOTS,
};
pub use tally::{LinkCounts, PageMap, TALLY_PAGES};
pub use troubles::{Troubles, guest_of};
pub use unmerge::{UnmergeError, Unmerging};
pub use workers::WORKERS_MAX;
