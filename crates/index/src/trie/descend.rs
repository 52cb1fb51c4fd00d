//! Ways down: the blind one that every operation starts with, and those that look at states.

use crate::epoch::Guard;
use crate::key::{Bits, HEAD_BITS, Keys, Searched};
use crate::link::{Link, Side, Target};
use crate::primitive::Ordering;

use super::{Edge, Holder, Trie};

/// Where a blind descent ended.
pub(super) struct Trail {
    /// The edge to the leaf, or out of an empty root.
    pub(super) edge: Edge,
    /// The edge to the holder of `edge`; the same edge if that is a root.
    pub(super) above: Edge,
    /// The leaf reached.
    pub(super) leaf: Option<u32>,
    /// Position of the holder of `edge`, if that is a node.
    pub(super) position: Option<u32>,
}

impl<K: Keys> Trie<K> {
    /// Follows the bits of a key from node to node, looking only at those that the nodes name.
    /// The leaf at the end holds that key if any does: one comparison decides. No other bit is
    /// read on the way, however long the prefix that keys have in common.
    #[inline]
    pub(super) fn descend(&self, bits: &impl Bits) -> Trail {
        let root = self.root_edge(self.root_of(bits.head()));
        let mut trail = Trail { edge: root, above: root, leaf: None, position: None };
        loop {
            match trail.edge.child().target() {
                Target::Node(id) => {
                    let position = self.position(id);
                    trail.position = Some(position);
                    trail.above = trail.edge;
                    trail.edge = self.edge_out_of(id, position, bits);
                }
                Target::Leaf(id) => {
                    trail.leaf = Some(id);
                    return trail;
                }
                Target::Nothing => return trail,
            }
        }
    }

    #[inline]
    fn edge_out_of(&self, id: u32, position: u32, bits: &impl Bits) -> Edge {
        let side = Side::of_bit(bits.bit(position));
        Edge { holder: Holder::Node(id), word: self.word(id), side }
    }

    /// The first bit at which `key` and the leaf differ; `None` if they are equal.
    #[inline]
    pub(super) fn difference(&self, key: &Searched<'_, K>, leaf: u32) -> Option<u32> {
        let leaf = self.leaf(leaf);
        // Relaxed: written before the leaf was published, and the link to it was acquired.
        let differing = leaf.head.load(Ordering::Relaxed) ^ key.head;
        if differing != 0 {
            return Some(differing.leading_zeros());
        }
        // Acquire: pairs with the Release of `Index::exchange_value`, whose caller may have
        // prepared what the new value names.
        let value = leaf.value.load(Ordering::Acquire);
        Some(HEAD_BITS + self.keys.tail_difference(key.key, value)?)
    }

    /// The edge of the way to `leaf` on which positions pass `position`, if that way still leads to
    /// `leaf`. Seeing the leaf below makes sure that what hangs on the edge has the leaf's prefix,
    /// so that `position` is where `bits` parts from all of it. Frozen nodes on the way are taken
    /// out, and then the answer is `None`: search again.
    pub(super) fn edge_across(
        &self,
        bits: &impl Bits,
        position: u32,
        leaf: u32,
        guard: &Guard,
    ) -> Option<Edge> {
        let mut edge = self.root_edge(self.root_of(bits.head()));
        let mut across = None;
        loop {
            match edge.child().target() {
                Target::Node(id) => {
                    let below = self.position(id);
                    if below >= position {
                        across.get_or_insert(edge);
                    }
                    let next = self.edge_out_of(id, below, bits);
                    if next.is_frozen() {
                        self.take_out(&edge, id, next.child(), guard);
                        return None;
                    }
                    edge = next;
                }
                Target::Leaf(id) if id == leaf => return across.or(Some(edge)),
                Target::Leaf(_) | Target::Nothing => return None,
            }
        }
    }

    /// Takes every frozen node out of the way of `bits`, from the top. When this returns, no node
    /// that was frozen and on that way before the call is in the tree.
    #[cold]
    pub(super) fn clear_way(&self, bits: &impl Bits, guard: &Guard) {
        let mut edge = self.root_edge(self.root_of(bits.head()));
        while let Target::Node(id) = edge.child().target() {
            let next = self.edge_out_of(id, self.position(id), bits);
            if next.is_frozen() {
                // Whether it was this thread or another that did it: look again from the top.
                self.take_out(&edge, id, next.child(), guard);
                edge = self.root_edge(self.root_of(bits.head()));
            } else {
                edge = next;
            }
        }
    }

    /// Puts what is left of the frozen node `id` on the edge that leads to it. The one thread that
    /// succeeds retires the node. False if the edge has changed.
    pub(super) fn take_out(&self, edge: &Edge, id: u32, left: Link, guard: &Guard) -> bool {
        let taken = self.replace_child(edge, left);
        if taken {
            self.retire_node(id, guard);
        }
        taken
    }
}
