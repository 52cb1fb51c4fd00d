//! Insert, unless it is there.

use crate::epoch::Guard;
use crate::key::{Bits, Keys, Searched};
use crate::link::{Link, NodeWord, Side};
use crate::primitive::Ordering;

use super::{Edge, Trie, prepare_node};

/// The leaf that holds the key now.
pub(crate) enum Upserted {
    New(u32),
    Found(u32),
}

/// No id or no memory is left.
pub(crate) struct Exhausted;

/// A leaf and a node made ready before the exchange that publishes them, kept from one attempt to
/// the next, and given back if it turns out that they are not needed.
struct Parts<'a, K: Keys> {
    trie: &'a Trie<K>,
    shard: usize,
    leaf: Option<u32>,
    node: Option<u32>,
}

impl<K: Keys> Trie<K> {
    /// The leaf with this key, if there is one at some instant of the call.
    #[inline]
    pub(crate) fn find(&self, key: &Searched<'_, K>) -> Option<u32> {
        let leaf = self.descend(key).leaf?;
        self.difference(key, leaf).is_none().then_some(leaf)
    }

    #[inline]
    pub(crate) fn upsert(
        &self,
        key: &Searched<'_, K>,
        value: u64,
        guard: &Guard,
    ) -> Result<Upserted, Exhausted> {
        let mut parts = Parts { trie: self, shard: guard.shard(), leaf: None, node: None };
        loop {
            let trail = self.descend(key);
            let Some(found) = trail.leaf else {
                let leaf = parts.leaf(key.head, value)?;
                if self.replace_child(&trail.edge, Link::leaf(leaf)) {
                    return Ok(parts.publish_leaf());
                }
                continue;
            };
            let Some(position) = self.difference(key, found) else {
                return Ok(Upserted::Found(found));
            };
            // Most often keys part below the last node, and the edge is at hand.
            let edge = if trail.position.is_none_or(|last| last < position) {
                if trail.edge.is_frozen() {
                    self.clear_way(key, guard);
                    continue;
                }
                trail.edge
            } else {
                let Some(edge) = self.edge_across(key, position, found, guard) else { continue };
                edge
            };
            let node = parts.fork(key, value, position, &edge)?;
            if self.replace_child(&edge, Link::node(node)) {
                return Ok(parts.publish());
            }
        }
    }
}

impl<K: Keys> Parts<'_, K> {
    fn leaf(&mut self, head: u64, value: u64) -> Result<u32, Exhausted> {
        if let Some(id) = self.leaf {
            return Ok(id);
        }
        let id = self.trie.leaves.allocate(self.shard).ok_or(Exhausted)?;
        let leaf = self.trie.leaf(id);
        // Relaxed: the exchange that links the leaf publishes both.
        leaf.head.store(head, Ordering::Relaxed);
        leaf.value.store(value, Ordering::Relaxed);
        self.leaf = Some(id);
        Ok(id)
    }

    /// A node at `position` that has what `edge` leads to on one side and the new leaf on the
    /// other.
    fn fork(
        &mut self,
        key: &Searched<'_, K>,
        value: u64,
        position: u32,
        edge: &Edge,
    ) -> Result<u32, Exhausted> {
        let leaf = self.leaf(key.head, value)?;
        let id = match self.node {
            Some(id) => id,
            None => self.trie.nodes.allocate(self.shard).ok_or(Exhausted)?,
        };
        self.node = Some(id);
        let side = Side::of_bit(key.bit(position));
        let word = NodeWord::fork(side, Link::leaf(leaf), edge.child());
        prepare_node(&self.trie.nodes, id, position, word);
        Ok(id)
    }

    /// The leaf is in the tree; a node that an earlier attempt made is not.
    fn publish_leaf(mut self) -> Upserted {
        Upserted::New(self.leaf.take().expect("an exchange published it"))
    }

    /// The leaf and the node are in the tree.
    fn publish(mut self) -> Upserted {
        self.node = None;
        self.publish_leaf()
    }
}

impl<K: Keys> Drop for Parts<'_, K> {
    fn drop(&mut self) {
        if let Some(id) = self.leaf.take() {
            self.trie.leaves.give_back(self.shard, id);
        }
        if let Some(id) = self.node.take() {
            self.trie.nodes.give_back(self.shard, id);
        }
    }
}
