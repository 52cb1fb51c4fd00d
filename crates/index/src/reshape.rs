//! Another number of roots: nodes and roots are rebuilt, leaves stay where they are.
//!
//! The old trie is walked in the order of keys. Between two neighbours there, the first bit at
//! which they differ is the position of the node at which their ways part, so that no key is asked
//! for and no page is read. From the leaves in order and those bits, the new nodes follow as a
//! Cartesian tree does (Vuillemin 1980): the right spine is kept open, and a node is made when the
//! next difference is above it.

use crate::epoch::pin;
use crate::index::{Full, Index};
use crate::key::Keys;
use crate::link::{Link, NodeWord, Side, Target};
use crate::pool::Pool;
use crate::primitive::{AtomicU32, Ordering};
use crate::slots::NodeGroup;
use crate::trie::{self, Trie};

/// The spine of one root's new tree, open to the right.
struct Builder<'a> {
    nodes: &'a Pool<NodeGroup>,
    shard: usize,
    /// Positions and left children, from the root down.
    spine: Vec<(u32, Link)>,
    /// What the spine's last node gets on the right.
    last: Link,
}

/// Keys to a root between which an index keeps its shape, in twelfths: a third and three quarters.
/// More keys lengthen ways, fewer cost memory. The bounds are more than a factor of two apart, so
/// that a few keys that come and go never change the shape back and forth.
const LOAD_TWELFTHS: std::ops::RangeInclusive<u64> = 4..=9;

impl<K: Keys> Index<K> {
    /// The [`Self::root_bits`] that suit so many keys: the present ones if they do, else those
    /// nearest to them that do.
    #[must_use]
    pub fn root_bits_for(&self, keys: u64) -> u32 {
        let twelfths = keys.saturating_mul(12);
        let mut root_bits = self.root_bits();
        while root_bits < trie::ROOT_BITS_MAX && twelfths > LOAD_TWELFTHS.end() << root_bits {
            root_bits += 1;
        }
        while root_bits > 0 && twelfths < LOAD_TWELFTHS.start() << root_bits {
            root_bits -= 1;
        }
        root_bits
    }

    /// Rebuilds the index with 2^`root_bits` roots. Handles and values stay as they are. Takes some
    /// 100 ns a key, and meanwhile the memory of both shapes' roots and nodes.
    ///
    /// # Errors
    /// [`Full`] if there is no memory for the new nodes, and the index is as it was.
    ///
    /// # Panics
    /// If `root_bits` is above 28.
    pub fn reshape(&mut self, root_bits: u32) -> Result<(), Full> {
        let capacity = self.trie.leaves.capacity();
        // A new pool: ids of the old one may still be waiting to come back.
        let nodes = Pool::new(trie::node_limit(capacity));
        let full = Full { keys: self.len(), capacity };
        let roots = trie::empty_roots(root_bits).ok_or(full)?;
        self.trie.rebuild_into(root_bits, &roots, &nodes).map_err(|trie::Exhausted| full)?;
        self.trie.root_bits = root_bits;
        self.trie.roots = roots;
        self.trie.nodes = nodes;
        self.trie.limbo.forget_nodes();
        Ok(())
    }
}

impl<K: Keys> Trie<K> {
    fn rebuild_into(
        &mut self,
        root_bits: u32,
        roots: &[AtomicU32],
        nodes: &Pool<NodeGroup>,
    ) -> Result<(), trie::Exhausted> {
        // Relaxed, here and below: `&mut self` keeps all others out.
        let shard = pin().shard();
        let mut builder = Builder { nodes, shard, spine: Vec::new(), last: Link::NOTHING };
        let mut current = None;
        let mut previous_head = 0_u64;
        self.walk(|leaf, parted| {
            let head = self.leaf(leaf).head.load(Ordering::Relaxed);
            let root = trie::root_of(head, root_bits);
            if current != Some(root) {
                if let Some(done) = current.replace(root) {
                    roots[done as usize].store(builder.finish()?.bits(), Ordering::Relaxed);
                }
                builder.last = Link::leaf(leaf);
            } else {
                // Keys from two old roots differ within their heads.
                let parted = parted.unwrap_or_else(|| (head ^ previous_head).leading_zeros());
                builder.append(leaf, parted)?;
            }
            previous_head = head;
            Ok(())
        })?;
        if let Some(done) = current {
            roots[done as usize].store(builder.finish()?.bits(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Visits all leaves in the order of their keys, each with the position of the node at which
    /// its way parts from that of the one before, if they are below the same root.
    fn walk<E>(&self, mut visit: impl FnMut(u32, Option<u32>) -> Result<(), E>) -> Result<(), E> {
        let mut pending = Vec::new();
        for root in 0..self.roots.len() as u32 {
            pending.push((self.root_link(root), None));
            while let Some((link, parted)) = pending.pop() {
                match link.target() {
                    Target::Nothing => {}
                    Target::Leaf(leaf) => visit(leaf, parted)?,
                    Target::Node(id) => {
                        let word = self.word(id);
                        if !word.is_frozen() {
                            let position = self.position(id);
                            pending.push((word.child(Side::Right), Some(position)));
                        }
                        pending.push((word.child(Side::Left), parted));
                    }
                }
            }
        }
        Ok(())
    }
}

impl Builder<'_> {
    /// Adds the next leaf, which parts from the one before at bit `position`.
    fn append(&mut self, leaf: u32, position: u32) -> Result<(), trie::Exhausted> {
        while self.spine.last().is_some_and(|(open, _)| *open > position) {
            self.close()?;
        }
        self.spine.push((position, self.last));
        self.last = Link::leaf(leaf);
        Ok(())
    }

    /// The tree of all leaves since the last call.
    fn finish(&mut self) -> Result<Link, trie::Exhausted> {
        while !self.spine.is_empty() {
            self.close()?;
        }
        Ok(self.last)
    }

    /// Makes the last node of the spine, which gets nothing more.
    fn close(&mut self) -> Result<(), trie::Exhausted> {
        let (position, left) = self.spine.pop().expect("called with an open node");
        let id = self.nodes.allocate(self.shard).ok_or(trie::Exhausted)?;
        let word = NodeWord::fork(Side::Left, left, self.last);
        trie::prepare_node(self.nodes, id, position, word);
        self.last = Link::node(id);
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use rand::{Rng, SeedableRng, rngs::SmallRng};

    use super::*;
    use crate::{Handle, Heads, Inserted};

    fn filled(keys: usize) -> (Index<Heads>, Vec<(u64, Handle)>) {
        let index = Index::with_capacity(3, keys as u32, Heads);
        let mut random = SmallRng::seed_from_u64(1);
        let guard = pin();
        let entries = (0..keys as u64)
            .map(|value| {
                loop {
                    let key = random.random::<u64>() & 0x00ff_ff00_0000_0fff;
                    if let Ok(Inserted::New(handle)) = index.insert(&key, value, &guard) {
                        return (key, handle);
                    }
                }
            })
            .collect();
        (index, entries)
    }

    #[test]
    fn a_shape_that_suits_is_kept_and_others_change_to_one_that_does() {
        let mut index = Index::with_capacity(0, 10, Heads);
        let shapes: Vec<u32> = [0, 1, 2, 96, 97, 45, 43, 42, 1000, 0]
            .map(|keys| {
                let root_bits = index.root_bits_for(keys);
                index.reshape(root_bits).unwrap();
                root_bits
            })
            .to_vec();
        assert_eq!(shapes, [0, 1, 2, 7, 8, 7, 7, 6, 11, 0]);
        assert_eq!(index.root_bits_for(u64::MAX), 28);
    }

    #[test]
    fn every_key_keeps_its_handle_and_its_value_in_every_shape() {
        let (mut index, entries) = filled(if cfg!(miri) { 60 } else { 3000 });
        for root_bits in [0, 1, 9, 14, 3] {
            index.reshape(root_bits).unwrap();
            let guard = pin();
            for (value, (key, handle)) in entries.iter().enumerate() {
                assert_eq!(index.query(key, &guard), Some((*handle, value as u64)));
            }
            assert_eq!(index.query(&1, &guard), None);
        }
        let guard = pin();
        assert!(entries.iter().all(|(_, handle)| index.delete(*handle, &guard)));
        assert!(index.is_empty());
    }

    /// Nodes that were deleted belong to the old shape's pool: given back to the new one, each would be
    /// there twice.
    #[test]
    fn no_node_that_was_deleted_gathers_across_a_change_of_shape() {
        let mut index = Index::with_capacity(3, 1 << 17, Heads);
        let guard = pin();
        let mut gathered = |reshape: bool| {
            for key in 0..10_u64 {
                let Ok(Inserted::New(handle)) = index.insert(&(key << 50), key, &guard) else {
                    panic!("the index was empty");
                };
                // A sibling, so that there is a node between.
                assert!(index.insert(&(key << 50 | 1), key, &guard).is_ok());
                assert!(index.delete(handle, &guard));
            }
            if reshape {
                index.reshape(0).unwrap();
            }
            let gathered = index.trie.limbo.take_all();
            gathered.fold((0, 0), |(leaves, nodes), gathered| {
                (leaves + gathered.leaves.len(), nodes + gathered.nodes.len())
            })
        };
        assert_eq!(gathered(false), (10, 10), "so few gather");
        assert_eq!(gathered(true), (10, 0));
    }
}
