//! The baselines that the tree was first measured beside: a packed radix-8 tree with byte nodes, all
//! of whose levels are preallocated, its lowest level as a bitmap that is scanned bit by bit, and a
//! plain list. Built from the description in Radim Krčmář's mail to the KVM list of 5 May 2016
//! ("KVM: Dirty memory tracking for performant checkpointing and improved live migration").

/// log2 of a node's children: a node is a byte.
const RADIX_SHIFT: u32 = 3;
const RADIX: u64 = 1 << RADIX_SHIFT;

/// Nodes in one array, the root first, then level by level; the lowest level is a bitmap. No atomics:
/// nothing of this was meant to be written by several threads yet.
pub(super) struct RadixTree {
    nodes: Vec<u8>,
    /// Bits before the lowest level.
    bitmap_offset: u64,
    pages: u64,
}

impl RadixTree {
    pub(super) fn new(pages: u64) -> Self {
        let (mut offset, mut level) = (0, RADIX);
        while level < pages {
            offset += level;
            level *= RADIX;
        }
        Self {
            nodes: vec![0; ((offset + pages) / RADIX + 1) as usize],
            bitmap_offset: offset,
            pages,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.nodes.len() as u64
    }

    #[inline]
    pub(super) fn insert(&mut self, page: u64) {
        let mut node = page + self.bitmap_offset + 1;
        loop {
            let child = (node - 1) % RADIX;
            node = (node - 1) / RADIX;
            self.nodes[node as usize] |= 1 << child;
            if node == 0 {
                return;
            }
        }
    }

    /// Clears what an insert has set.
    pub(super) fn remove(&mut self, page: u64) {
        let mut node = page + self.bitmap_offset + 1;
        while node != 0 {
            node = (node - 1) / RADIX;
            self.nodes[node as usize] = 0;
        }
    }

    /// Calls `found` for each page: to the next child of the nearest node upwards that has one, and
    /// down by first children.
    #[inline]
    pub(super) fn for_each(&self, mut found: impl FnMut(u64)) {
        let Some(mut leaf) = self.first_leaf(0) else { return };
        loop {
            found(leaf - self.bitmap_offset - 1);
            let Some(next) = self.next_leaf(leaf) else { return };
            leaf = next;
        }
    }

    /// The bitmap bit by bit.
    #[inline]
    pub(super) fn for_each_bit(&self, mut found: impl FnMut(u64)) {
        let first = (self.bitmap_offset / RADIX) as usize;
        let bitmap = &self.nodes[first..];
        for page in 0..self.pages {
            if bitmap[(page / RADIX) as usize] & 1 << (page % RADIX) != 0 {
                found(page);
            }
        }
    }

    #[inline]
    fn first_leaf(&self, from: u64) -> Option<u64> {
        let mut node = from;
        while node < self.bitmap_offset + 1 {
            let child = self.next_child(node, 0)?;
            node = node * RADIX + 1 + child;
        }
        Some(node)
    }

    #[inline]
    fn next_leaf(&self, leaf: u64) -> Option<u64> {
        let mut node = leaf;
        loop {
            let child = (node - 1) % RADIX;
            node = (node - 1) / RADIX;
            if let Some(child) = self.next_child(node, child + 1) {
                return self.first_leaf(node * RADIX + 1 + child);
            }
            if node == 0 {
                return None;
            }
        }
    }

    /// The first child from `child` on.
    #[inline]
    fn next_child(&self, node: u64, child: u64) -> Option<u64> {
        let bits = self.nodes[node as usize];
        (child..RADIX).find(|child| bits & 1 << child != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_tree_and_its_bitmap_are_sets() {
        for pages in [9, 64, 65, 512, 513, 100_000] {
            let mut tree = RadixTree::new(pages);
            let marked: Vec<u64> = (0..pages).filter(|page| page % 7 == 1).collect();
            marked.iter().for_each(|page| tree.insert(*page));
            let (mut found, mut bits) = (Vec::new(), Vec::new());
            tree.for_each(|page| found.push(page));
            tree.for_each_bit(|page| bits.push(page));
            assert_eq!((&found, &bits), (&marked, &marked), "{pages}");
            marked.iter().for_each(|page| tree.remove(*page));
            tree.for_each(|page| panic!("{page} is left"));
        }
    }
}
