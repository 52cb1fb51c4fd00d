//! Delete by leaf: the key is the leaf's own, nothing is searched by content.

use crate::epoch::Guard;
use crate::key::{Keys, Stored};
use crate::link::{Link, NodeWord, Target};
use crate::primitive::Ordering;

use super::{Edge, Holder, Trie};

impl<K: Keys> Trie<K> {
    /// The key of a leaf that is, or was under this guard, in the tree.
    pub(crate) fn stored(&self, leaf: u32) -> Stored<'_, K> {
        let leaf = self.leaf(leaf);
        // Relaxed: as in `difference`. Acquire: pairs with the Release of `Index::exchange_value`.
        let head = leaf.head.load(Ordering::Relaxed);
        let value = leaf.value.load(Ordering::Acquire);
        Stored { keys: &self.keys, head, value }
    }

    /// Takes the leaf out of the tree. True for the one caller that did.
    pub(crate) fn remove(&self, leaf: u32, guard: &Guard) -> bool {
        let key = self.stored(leaf);
        loop {
            let trail = self.descend(&key);
            if trail.leaf != Some(leaf) {
                return false;
            }
            match trail.edge.holder {
                Holder::Root(_) => {
                    if self.replace_child(&trail.edge, Link::NOTHING) {
                        self.retire_leaf(leaf, guard);
                        return true;
                    }
                }
                Holder::Node(_) if trail.edge.is_frozen() => self.clear_way(&key, guard),
                Holder::Node(parent) => {
                    let left = trail.edge.word.child(trail.edge.side.other());
                    // The instant of deletion.
                    if self.exchange_word(parent, trail.edge.word, NodeWord::frozen(left)) {
                        self.bury(leaf, parent, left, &trail.above, &key, guard);
                        return true;
                    }
                }
            }
        }
    }

    /// After the deletion: takes the frozen parent out, or sees to it that somebody did, and
    /// retires what this thread owns.
    fn bury(
        &self,
        leaf: u32,
        parent: u32,
        left: Link,
        above: &Edge,
        key: &Stored<'_, K>,
        guard: &Guard,
    ) {
        debug_assert_eq!(above.child().target(), Target::Node(parent));
        if self.replace_child(above, left) {
            let leaves = self.leaves.shard(guard.shard());
            let nodes = self.nodes.shard(guard.shard());
            // Three words of captures: more would be boxed.
            guard.defer(move || {
                leaves.take_back(leaf);
                nodes.take_back(parent);
            });
        } else {
            self.retire_leaf(leaf, guard);
            self.clear_way(key, guard);
        }
    }

    fn retire_leaf(&self, id: u32, guard: &Guard) {
        let leaves = self.leaves.shard(guard.shard());
        guard.defer(move || leaves.take_back(id));
    }
}
