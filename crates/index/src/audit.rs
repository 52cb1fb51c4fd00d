//! A full count of ids, for tests and for whoever doubts: none lost, none there twice.

use crate::epoch::pin;
use crate::index::Index;
use crate::key::Keys;
use crate::link::Target;
use crate::pool::{Pool, Slots};
use crate::trie::Trie;

/// Where the ids of an index are that have ever been used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Audit {
    /// Leaves in the tree: one a key.
    pub leaves: usize,
    /// Nodes in the tree: at least one fewer than leaves below each root that leads somewhere.
    pub nodes: usize,
    /// Deleted leaves that wait until every guard of the time of their hand-over is gone.
    pub leaves_waiting: usize,
    /// Nodes that wait likewise.
    pub nodes_waiting: usize,
}

/// Marks ids as seen; an id must be seen only once.
struct Seen {
    kind: &'static str,
    ids: Vec<bool>,
}

impl<K: Keys> Index<K> {
    /// Counts every leaf and every node, in the tree and free. What has gathered to be reused is handed
    /// over before.
    ///
    /// # Panics
    /// If one is in the tree twice, is free twice, or is free and in the tree.
    pub fn audit(&mut self) -> Audit {
        self.trie.retire_gathered(&pin());
        let mut leaves = Seen { kind: "leaf", ids: Vec::new() };
        let mut nodes = Seen { kind: "node", ids: Vec::new() };
        self.trie.visit(|target| match target {
            Target::Leaf(id) => leaves.mark(id),
            Target::Node(id) => nodes.mark(id),
            Target::Nothing => {}
        });
        let (leaves_linked, nodes_linked) = (leaves.count(), nodes.count());
        Audit {
            leaves: leaves_linked,
            nodes: nodes_linked,
            leaves_waiting: leaves.missing_from(&self.trie.leaves),
            nodes_waiting: nodes.missing_from(&self.trie.nodes),
        }
    }
}

impl<K: Keys> Trie<K> {
    fn visit(&self, mut see: impl FnMut(Target)) {
        let mut pending = Vec::new();
        for root in 0..self.roots.len() as u32 {
            pending.push(self.root_link(root));
            while let Some(link) = pending.pop() {
                see(link.target());
                if let Target::Node(id) = link.target() {
                    pending.extend(self.word(id).links());
                }
            }
        }
    }
}

impl Seen {
    fn mark(&mut self, id: u32) {
        let id = id as usize;
        if self.ids.len() <= id {
            self.ids.resize(id + 1, false);
        }
        assert!(!std::mem::replace(&mut self.ids[id], true), "{} {id} is there twice", self.kind);
    }

    fn count(&self) -> usize {
        self.ids.iter().filter(|seen| **seen).count()
    }

    /// Adds the pool's free ids, and tells how many it has given out that were not seen.
    fn missing_from<S: Slots>(&mut self, pool: &Pool<S>) -> usize {
        // Counted first: what comes back meanwhile is then merely still waiting.
        let used = pool.used();
        pool.for_each_free(|id| self.mark(id));
        used - self.count()
    }
}
