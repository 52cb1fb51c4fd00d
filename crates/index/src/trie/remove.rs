//! Delete by leaf: the key is the leaf's own, nothing is searched by content.

use std::sync::Arc;

use crate::epoch::Guard;
use crate::key::{Keys, Stored};
use crate::limbo::Gathered;
use crate::link::{Link, NodeWord, Target};
use crate::primitive::Ordering;

use super::{Edge, Holder, Trie};

/// What a deletion took out of the tree.
#[must_use = "what is not retired is never used again"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Removed {
    pub(crate) leaf: u32,
    /// Its parent, if there was one and no other thread took it out.
    pub(crate) node: Option<u32>,
}

impl<K: Keys> Trie<K> {
    /// The key of a leaf that is, or was under this guard, in the tree.
    pub(crate) fn stored(&self, leaf: u32) -> Stored<'_, K> {
        let leaf = self.leaf(leaf);
        // Relaxed: as in `difference`. Acquire: pairs with the Release of `Index::exchange_value`.
        let head = leaf.head.load(Ordering::Relaxed);
        let value = leaf.value.load(Ordering::Acquire);
        Stored { keys: &self.keys, head, value }
    }

    /// Takes the leaf out of the tree, for the one caller that did. What it was made of is to be
    /// retired: it is not in the tree any more, but others may be looking at it yet.
    pub(crate) fn remove(&self, leaf: u32, guard: &Guard) -> Option<Removed> {
        let key = self.stored(leaf);
        loop {
            let trail = self.descend(&key);
            if trail.leaf != Some(leaf) {
                return None;
            }
            match trail.edge.holder {
                Holder::Root(_) => {
                    if self.replace_child(&trail.edge, Link::NOTHING) {
                        return Some(Removed { leaf, node: None });
                    }
                }
                Holder::Node(_) if trail.edge.is_frozen() => self.clear_way(&key, guard),
                Holder::Node(parent) => {
                    let left = trail.edge.word.child(trail.edge.side.other());
                    // The instant of deletion.
                    if self.exchange_word(parent, trail.edge.word, NodeWord::frozen(left)) {
                        let buried = self.bury(parent, left, &trail.above, &key, guard);
                        return Some(Removed { leaf, node: buried.then_some(parent) });
                    }
                }
            }
        }
    }

    /// After the deletion: takes the frozen parent out, or sees to it that somebody did. Whether it
    /// was this thread, which has to retire it then.
    fn bury(
        &self,
        parent: u32,
        left: Link,
        above: &Edge,
        key: &Stored<'_, K>,
        guard: &Guard,
    ) -> bool {
        debug_assert_eq!(above.child().target(), Target::Node(parent));
        let taken = self.replace_child(above, left);
        if !taken {
            self.clear_way(key, guard);
        }
        taken
    }

    /// Has what deletions took out used again, once enough has gathered and every guard of that time
    /// is gone.
    pub(crate) fn retire(&self, removed: &[Removed], guard: &Guard) {
        let shard = guard.shard();
        let (leaves, nodes) = (self.leaves.shard(shard), self.nodes.shard(shard));
        let room = || Gathered { leaves: leaves.room(), nodes: nodes.room() };
        let Some(gathered) = self.limbo.gather(shard, removed, room) else { return };
        let is_batch = self.limbo.is_batch(gathered.leaves.len());
        self.hand_over(gathered, guard);
        if is_batch {
            // The epochs gather as well, 64 closures a thread, which nobody else reaches.
            guard.flush();
            leaves.link_ripe();
            nodes.link_ripe();
        }
    }

    /// Has all that gathers used again, once every guard of now is gone.
    pub(crate) fn retire_gathered(&self, guard: &Guard) {
        self.limbo.take_all().for_each(|gathered| self.hand_over(gathered, guard));
    }

    fn hand_over(&self, gathered: Gathered, guard: &Guard) {
        let Gathered { leaves, nodes } = gathered;
        if leaves.is_empty() {
            return;
        }
        let leaf_shard = Arc::clone(self.leaves.shard(guard.shard()));
        let node_shard = Arc::clone(self.nodes.shard(guard.shard()));
        guard.defer(move || {
            leaf_shard.take_back_batch(leaves);
            node_shard.take_back_batch(nodes);
        });
    }
}
