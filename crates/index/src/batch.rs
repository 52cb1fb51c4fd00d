//! Many operations at a time, so that their cache misses overlap.
//!
//! A search misses the cache two to three times in a row: the root, perhaps a node, the leaf. The
//! merge engine has thousands of digests at hand. For a group of keys, each step of every way down
//! is requested before any is waited for; the operations themselves then find their lines present.

use std::borrow::Borrow;

use crate::epoch::Guard;
use crate::index::{Full, Handle, Index, Inserted};
use crate::key::{HEAD_BITS, Keys, Searched};
use crate::link::{Link, Side, Target};
use crate::primitive::{Ordering, prefetch};
use crate::slots::Leaf;

/// Keys whose ways are followed together. More than a core has misses in flight at a time: 32 was a
/// seventh faster than 16, and 64 no faster than 32.
const GROUP: usize = 32;

/// Levels that are worth requesting: roots, two nodes, leaves. Deeper ways have their upper part
/// in common, and in the cache.
const LEVELS: usize = 4;

impl<K: Keys> Index<K> {
    /// Queries all `keys` and tells `visit` what each came to, in their order.
    pub fn query_many<T: Borrow<K::Key>>(
        &self,
        keys: &[T],
        guard: &Guard,
        mut visit: impl FnMut(&T, Option<(Handle, u64)>),
    ) {
        self.in_groups(keys, |key, searched| visit(key, self.query_searched(&searched)), guard);
    }

    /// Inserts all `keys`, each with the value that `value_of` gives it, and tells `visit` what
    /// each came to, in their order.
    pub fn insert_many<T: Borrow<K::Key>>(
        &self,
        keys: &[T],
        guard: &Guard,
        mut value_of: impl FnMut(&T) -> u64,
        mut visit: impl FnMut(&T, Result<Inserted, Full>),
    ) {
        let insert = |key: &T, searched: Searched<'_, K>| {
            let inserted = self.insert_searched(&searched, value_of(key), guard);
            visit(key, inserted);
        };
        self.in_groups(keys, insert, guard);
    }

    /// Deletes all `handles` as [`Self::delete`] does, and tells how many of them this call
    /// deleted.
    pub fn delete_many(&self, handles: &[Handle], guard: &Guard) -> u64 {
        let mut deleted = 0;
        let mut removed = Vec::with_capacity(GROUP);
        for group in handles.chunks(GROUP) {
            for leaf in group.iter().filter_map(|handle| self.leaf_checked(*handle)) {
                prefetch(leaf);
            }
            let mut heads = [0; GROUP];
            for (head, handle) in heads.iter_mut().zip(group) {
                // Relaxed: a hint. The deletion reads the head again.
                let leaf = self.leaf_checked(*handle);
                *head = leaf.map_or(0, |leaf| leaf.head.load(Ordering::Relaxed));
            }
            self.prefetch_ways(&heads[..group.len()], guard);
            removed.extend(group.iter().filter_map(|handle| self.remove(*handle, guard)));
            self.retire(&removed, guard);
            deleted += removed.len() as u64;
            removed.clear();
        }
        deleted
    }

    fn in_groups<T: Borrow<K::Key>>(
        &self,
        keys: &[T],
        mut operate: impl FnMut(&T, Searched<'_, K>),
        guard: &Guard,
    ) {
        for group in keys.chunks(GROUP) {
            let mut heads = [0; GROUP];
            for (head, key) in heads.iter_mut().zip(group) {
                *head = self.keys().head(key.borrow());
            }
            self.prefetch_ways(&heads[..group.len()], guard);
            for (key, head) in group.iter().zip(heads) {
                operate(key, Searched { keys: self.keys(), key: key.borrow(), head });
            }
        }
    }

    /// Follows the ways of `heads` level by level, requesting each level's lines before it reads
    /// the first of them. Changes nothing but the cache.
    fn prefetch_ways(&self, heads: &[u64], _guard: &Guard) {
        let trie = &self.trie;
        for head in heads {
            prefetch(&trie.roots[trie.root_of(*head) as usize]);
        }
        let mut ways = [Link::NOTHING; GROUP];
        for (way, head) in ways.iter_mut().zip(heads) {
            *way = trie.root_link(trie.root_of(*head));
            self.prefetch_link(*way);
        }
        for _ in 2..LEVELS {
            for (way, head) in ways.iter_mut().zip(heads) {
                let Target::Node(id) = way.target() else { continue };
                // Deeper than the head, a key's bits may cost a page read.
                let position = trie.position(id);
                if position < HEAD_BITS {
                    let side = Side::of_bit(head << position >> (HEAD_BITS - 1) != 0);
                    *way = trie.word(id).child(side);
                    self.prefetch_link(*way);
                }
            }
        }
    }

    fn leaf_checked(&self, handle: Handle) -> Option<&Leaf> {
        self.trie.leaves.row_checked(handle.to_bits())
    }

    #[inline]
    fn prefetch_link(&self, link: Link) {
        match link.target() {
            Target::Leaf(id) => prefetch(self.trie.leaf(id)),
            Target::Node(id) => prefetch(self.trie.node_group(id)),
            Target::Nothing => {}
        }
    }
}
