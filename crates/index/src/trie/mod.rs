//! The trie: roots, nodes, leaves, and the one step that every change is made of.
//!
//! ```text
//!            roots[top bits of the head]          static
//!                 │
//!              ( node 9 )                         dynamic: a node is made where two keys part,
//!             0/        \1                        and says at which bit
//!         ( node 12 )   leaf
//!         0/      \1
//!        leaf     leaf                            a leaf is a key's head and its value
//! ```
//!
//! # Rules
//!
//! 1. Positions grow on every way down. All keys that were ever below a node agree in all bits
//!    before its position, and lie on the side that their bit there says: a node keeps its prefix
//!    for life.
//! 2. A change is one compare-and-swap of one whole word (a root or a node), from a state that was
//!    read under the same guard. Ids are not reused while a guard that saw them lives, so an equal
//!    word means an equal tree below it.
//! 3. *Insert* puts a new node `{what was there, new leaf}`, or into an empty root a leaf, on the
//!    edge of the key's way where positions pass the first difference.
//! 4. *Delete* freezes the leaf's parent: its word becomes the other child, frozen. That is the
//!    instant of deletion. Right below a root, the root becomes empty instead.
//! 5. A frozen word never changes again. Whoever needs to (and in any case whoever froze it) takes
//!    the node out by putting what is left of it on the edge above. Only live words change, so
//!    frozen nodes go top down. Whoever's exchange took the node out retires it.
//!
//! A node that is live is therefore reachable, which is why an exchange that succeeds is on the
//! tree and not on a piece cut off. Two inserts of one key meet on the same word, by rule 1, and
//! one of them fails. A reader that stands on a node taken out walks on through its frozen word to
//! what was there when it was frozen; so a key that is in the tree throughout a search is found,
//! and one that is found was there at some instant of the search.
//!
//! The shape of changes follows Shafiei (*Non-blocking Patricia tries with replace operations*,
//! arXiv 1303.3626) without its descriptors: external leaves and one-word nodes need none.

mod descend;
mod remove;
mod upsert;

use std::sync::Arc;

use crate::block::{Block, Zeroable};
use crate::epoch::Guard;
use crate::key::Keys;
use crate::limbo::Limbo;
use crate::link::{Link, NodeWord, Side};
use crate::pool::{Pool, place_of};
use crate::primitive::{AtomicU32, AtomicU64, Ordering};
use crate::slots::{GROUP_NODES, Leaf, NodeGroup};

pub(crate) use remove::Removed;
pub(crate) use upsert::{Exhausted, Upserted};

/// Most roots are 2 to the power of this.
pub(crate) const ROOT_BITS_MAX: u32 = 28;

pub(crate) struct Trie<K: Keys> {
    pub(crate) keys: K,
    pub(crate) root_bits: u32,
    pub(crate) roots: Block<AtomicU32>,
    pub(crate) nodes: Pool<NodeGroup>,
    pub(crate) leaves: Pool<Leaf>,
    pub(crate) limbo: Limbo,
}

// SAFETY: zero is a valid integer; an atomic has no drop glue.
unsafe impl Zeroable for AtomicU32 {
    #[cfg(loom)]
    fn zeroed() -> Self {
        Self::default()
    }
}

/// 2^`root_bits` roots that lead nowhere: [`Link::NOTHING`] is zero. `None` if there is no memory
/// for them.
pub(crate) fn empty_roots(root_bits: u32) -> Option<Block<AtomicU32>> {
    assert!(root_bits <= ROOT_BITS_MAX, "an index has at most 2^{ROOT_BITS_MAX} roots");
    Block::new(1 << root_bits)
}

/// The root below which keys with this head are.
#[inline]
pub(crate) fn root_of(head: u64, root_bits: u32) -> u32 {
    // Twice, because shifting by all 64 bits at once is not defined.
    (head >> (63 - root_bits) >> 1) as u32
}

/// Nodes for `keys` keys. One fewer than keys would do, but nodes that were taken out wait for
/// their readers: where an index is full, an eighth of it, and some for small ones, may do so.
pub(crate) fn node_limit(keys: u32) -> u32 {
    keys + keys / 8 + 4 * GROUP_NODES as u32
}

/// Writes the node `id`, which nobody else can see yet.
pub(crate) fn prepare_node(nodes: &Pool<NodeGroup>, id: u32, position: u32, word: NodeWord) {
    let (group, slot) = place_of::<NodeGroup>(id);
    let group = nodes.row(group);
    let position = u16::try_from(position).expect("keys end before bit 65536");
    // Relaxed: the exchange that links the node publishes both.
    group.positions[slot as usize].store(position, Ordering::Relaxed);
    group.words[slot as usize].store(word.bits(), Ordering::Relaxed);
}

/// The word that an edge was read from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holder {
    Root(u32),
    Node(u32),
}

/// A link, and where and when it was read.
#[derive(Clone, Copy)]
struct Edge {
    holder: Holder,
    /// The holder's word then; of a root, a word whose left child is the root's link.
    word: NodeWord,
    side: Side,
}

impl Edge {
    #[inline]
    fn child(&self) -> Link {
        self.word.child(self.side)
    }

    fn is_frozen(&self) -> bool {
        self.word.is_frozen()
    }
}

impl<K: Keys> Trie<K> {
    #[inline]
    pub(crate) fn leaf(&self, id: u32) -> &Leaf {
        self.leaves.row(id)
    }

    #[inline]
    fn node_word(&self, id: u32) -> &AtomicU64 {
        let (group, slot) = place_of::<NodeGroup>(id);
        &self.nodes.row(group).words[slot as usize]
    }

    /// The word of a node that was reached by a link.
    #[inline]
    pub(crate) fn word(&self, id: u32) -> NodeWord {
        // Acquire: pairs with the Release of `replace_child`, so that whatever the word's links
        // lead to is seen as it was published.
        NodeWord::from_bits(self.node_word(id).load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn position(&self, id: u32) -> u32 {
        let (group, slot) = place_of::<NodeGroup>(id);
        // Relaxed: written before the node was published, and the link that led here was acquired.
        u32::from(self.nodes.row(group).positions[slot as usize].load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn node_group(&self, id: u32) -> &NodeGroup {
        self.nodes.row(place_of::<NodeGroup>(id).0)
    }

    #[inline]
    pub(crate) fn root_of(&self, head: u64) -> u32 {
        root_of(head, self.root_bits)
    }

    /// Where a root leads.
    #[inline]
    pub(crate) fn root_link(&self, root: u32) -> Link {
        // Acquire: as in `word`.
        Link::from_bits(self.roots[root as usize].load(Ordering::Acquire))
    }

    /// The edge out of a root, as it is now.
    #[inline]
    fn root_edge(&self, root: u32) -> Edge {
        let word = NodeWord::fork(Side::Left, self.root_link(root), Link::NOTHING);
        Edge { holder: Holder::Root(root), word, side: Side::Left }
    }

    /// Puts `child` on `edge`, if the holder still is as it was read. This is the one step of rule
    /// 2; a frozen holder is never as it should be.
    fn replace_child(&self, edge: &Edge, child: Link) -> bool {
        if edge.is_frozen() {
            return false;
        }
        // Release: publishes what `child` leads to, for the Acquire of `word` and `root_edge`; it
        // also carries on what was acquired with the old word, for those below it.
        let order = Ordering::AcqRel;
        match edge.holder {
            Holder::Root(root) => self.roots[root as usize]
                .compare_exchange(edge.child().bits(), child.bits(), order, Ordering::Relaxed)
                .is_ok(),
            Holder::Node(id) => {
                let word = edge.word.with_child(edge.side, child);
                self.exchange_word(id, edge.word, word)
            }
        }
    }

    /// Replaces a node's word. Release and Acquire as in [`Self::replace_child`].
    fn exchange_word(&self, id: u32, current: NodeWord, new: NodeWord) -> bool {
        self.node_word(id)
            .compare_exchange(current.bits(), new.bits(), Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    fn retire_node(&self, id: u32, guard: &Guard) {
        let nodes = Arc::clone(self.nodes.shard(guard.shard()));
        guard.defer(move || nodes.take_back(id));
    }
}
