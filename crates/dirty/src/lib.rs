//! The dirty set: which pages of a guest were written since somebody last asked.
//!
//! A [`Tree`] is one preallocated array and no pointers. Its lowest level is, bit for bit, the dirty
//! bitmap that `KVM_GET_DIRTY_LOG` fills and VMMs exchange: 64-bit little-endian words, a bit a page.
//! Above it lie summaries, in which a bit stands for a word of the level below: 1/63 of the bitmap.
//! Marking sets a few bits at places that arithmetic finds; harvesting goes only where bits lead, and
//! where most are set, it scans and lists with the machine's widest vectors.
//!
//! ```
//! use bindery_dirty::Tree;
//! use bindery_units::{PageIndex, PageRange};
//!
//! // A guest of 16 GiB: half a MiB of bitmap, backed where it is touched.
//! let tree = Tree::new(4 << 20)?;
//! let whole = PageRange::new(PageIndex(0), 4 << 20);
//!
//! // Any number of threads mark.
//! tree.mark(PageIndex(77))?;
//! tree.mark_range(PageIndex(1000), 512)?;
//!
//! // The pages since the last time, in order; others may go on marking meanwhile.
//! let mut pages = Vec::new();
//! tree.harvest_into(whole, &mut pages)?;
//! assert_eq!((pages.len(), pages[0]), (513, PageIndex(77)));
//! assert!(tree.is_empty());
//!
//! // They could not be saved: they are dirty again.
//! tree.mark_pages(0, &pages)?;
//! assert_eq!(tree.runs().collect::<Vec<_>>(), [77..78, 1000..1512]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What holds while others mark
//!
//! - A mark that was made before a harvest began is returned by that harvest or an earlier one,
//!   wherever other markers have stopped half way. One that is made meanwhile is returned by this
//!   harvest or left for the next. None is lost, and none is returned that was never made.
//! - Whoever harvests a page and then reads it sees what was written to it before the mark. This
//!   holds for marks of pages that were marked already, too: a page that is written, found marked,
//!   and harvested in between is not read too early.
//! - Several may harvest at once; each mark goes to one of them. One that began later may then return
//!   before the other has returned what it took.
//!
//! `mark` has the argument, `tests/loom.rs` the models, `tests/stress.rs` writers that know what they
//! wrote.
//!
//! # Ways to read
//!
//! | | clears | others mark | allocates |
//! |---|---|---|---|
//! | [`Tree::harvest_into`] | yes | yes | where the list grows |
//! | [`Tree::harvest_some`] | yes | yes | no: as much as a buffer holds, and then the rest |
//! | [`Tree::harvest_alone`] | yes | no (`&mut`) | where the list grows |
//! | [`Tree::harvest_runs_into`] | yes | yes | where the list grows |
//! | [`Tree::harvest_runs`] | yes | yes | no: through a buffer |
//! | [`Tree::harvest_runs_alone`] | yes | no (`&mut`) | where the list grows |
//! | [`Tree::list_into`] | no | yes | where the list grows |
//! | [`Tree::iter`], [`Tree::runs`] | no | yes | no |
//!
//! Lists name pages by 32 bits. A tree of more than 2^32 pages is read [window](Window) by window.
//!
//! # Around the tree
//!
//! - [`Feed`]: one source of marks, several readers, each with a tree of its own.
//! - [`bitmap()`]: a bitmap of one marker, as of a vCPU, which marks at the cost of a plain store.
//! - [`ring()`]: a bounded list for one marker, as for a vCPU, whose overflow goes to the tree.
//! - [`source`]: where marks come from: scans of written pages, KVM's bitmap and rings, soft-dirty bits,
//!   and software, each behind one trait.
//! - `vm_memory`, with the feature of that name: the tree where `vm-memory`'s `AtomicBitmap` stands.

mod algebra;
mod decode;
mod error;
mod feed;
mod geometry;
mod harvest;
mod iterate;
mod mark;
mod marker_bitmap;
pub mod marks;
mod primitive;
mod ring;
#[cfg(not(any(loom, miri)))]
pub mod source;
mod storage;
mod take;
mod tree;
#[cfg(feature = "vm-memory")]
pub mod vm_memory;
mod window;

pub use error::{MismatchError, OutOfRange, SizeError};
pub use feed::{Feed, JoinError, Joining, MOST_READERS, Reader};
pub use harvest::Harvest;
pub use iterate::{Pages, Runs};
pub use marker_bitmap::{BitmapMarker, BitmapReader, bitmap};
pub use ring::{Drained, RingMarker, RingReader, ring};
pub use tree::Tree;
pub use window::Window;

/// The examples of the README are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
