//! The SD tree: a lock-free index of page contents.
//!
//! It answers one question for the merge engine, from any number of threads at once: *has this
//! content been seen, and where?* It is a compressed binary trie over the bits of a key (a digest
//! of the page, and below that the page itself, if wanted), under a static array of roots. The
//! design is PageONE's SD tree of 2017 in spirit: every change is one compare-and-swap, a search
//! looks at each bit of its key at most once, and long common prefixes cost nothing. Layout and
//! protocol are Bindery's own; `docs/decisions/0002-index-layout.md` says what was chosen and why.
//!
//! ```
//! use bindery_index::{Heads, Index, Inserted, pin};
//!
//! let index = Index::new(4, Heads);
//! let guard = pin();
//! let Inserted::New(handle) = index.insert(&0xfeed, 7, &guard)? else { unreachable!() };
//! assert_eq!(index.query(&0xfeed, &guard), Some((handle, 7)));
//! assert_eq!(index.insert(&0xfeed, 8, &guard)?, Inserted::Found(handle, 7));
//! assert!(index.delete(handle, &guard));
//! assert_eq!(index.query(&0xfeed, &guard), None);
//! # Ok::<(), bindery_index::Full>(())
//! ```
//!
//! # What holds
//!
//! - Operations are linearizable. Inserts, deletes and exchanges are lock-free; a query never
//!   waits, never writes and never starts again.
//! - A key is in the index at most once. Of any number of racing inserts of one key, one gets
//!   [`Inserted::New`]; of racing deletes of one handle, one gets `true`.
//! - Memory is 25 to 30 bytes a key while there is between a third of a key and three quarters of
//!   one to a root ([`Index::root_bits_for`] and [`Index::reshape`] keep it so), everything counted:
//!   16 a leaf, 11 a node, 4 a root. Small indexes add up to half a mebibyte.
//! - Nothing here ever dereferences a stale pointer, whatever a caller does with handles: ids are
//!   indices into chunks that live as long as the index.
//!
//! # Concurrency
//!
//! Everything but [`Index::reshape`] takes `&self` and a [`Guard`] from [`pin`]. `trie` states the
//! rules that the shared words obey. The models that check them are in `tests/loom.rs`:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p bindery-index --test loom --release
//! ```

mod arena;
mod audit;
mod batch;
mod block;
mod epoch;
mod index;
mod key;
mod limbo;
mod link;
mod pool;
mod primitive;
mod reshape;
mod ripe;
mod slots;
mod trie;

pub use audit::Audit;
pub use epoch::{Guard, pin};
pub use index::{Full, Handle, Index, Inserted};
pub use key::{HEAD_BITS, Heads, Keys, TAIL_BITS_MAX, first_difference};

/// The examples of the README are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
