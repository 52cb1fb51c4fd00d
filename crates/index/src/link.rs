//! Links and node words: how the trie's edges are packed.
//!
//! ```text
//! Link      31 bits   id << 1 | 1   a leaf
//!                     id << 1       a node (id 0 is never given out, so 0 is "nothing")
//! NodeWord  64 bits   frozen:1 | unused:1 | right:31 | left:31
//! ```
//!
//! A node is one word, so that whatever happens to it is one compare-and-swap. A frozen node has
//! lost one child: it holds the link to the other one on *both* sides, so that readers pass it
//! without looking at its state, and it never changes again.

const LINK_BITS: u32 = 31;
const LINK_MASK: u64 = (1 << LINK_BITS) - 1;
const FROZEN: u64 = 1 << 63;

/// Ids of leaves and of nodes are below this.
pub(crate) const ID_LIMIT: u32 = 1 << (LINK_BITS - 1);

/// Where an edge leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link(u32);

/// A [`Link`] taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Nothing,
    Leaf(u32),
    Node(u32),
}

impl Link {
    pub(crate) const NOTHING: Self = Self(0);

    pub(crate) fn leaf(id: u32) -> Self {
        debug_assert!(id < ID_LIMIT);
        Self(id << 1 | 1)
    }

    pub(crate) fn node(id: u32) -> Self {
        debug_assert!(id != 0 && id < ID_LIMIT);
        Self(id << 1)
    }

    pub(crate) fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    pub(crate) fn bits(self) -> u32 {
        self.0
    }

    #[inline]
    pub(crate) fn target(self) -> Target {
        if self.0 & 1 == 1 {
            Target::Leaf(self.0 >> 1)
        } else if self.0 == 0 {
            Target::Nothing
        } else {
            Target::Node(self.0 >> 1)
        }
    }
}

/// Which child: the one whose keys have a 0 at the node's bit, or a 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Left = 0,
    Right = 1,
}

impl Side {
    #[inline]
    pub(crate) fn of_bit(bit: bool) -> Self {
        if bit { Self::Right } else { Self::Left }
    }

    pub(crate) fn other(self) -> Self {
        Self::of_bit(self == Self::Left)
    }

    #[inline]
    fn shift(self) -> u32 {
        self as u32 * LINK_BITS
    }
}

/// Both children of a node and its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeWord(u64);

impl NodeWord {
    /// A live node with `inner` on `side` and `outer` on the other.
    pub(crate) fn fork(side: Side, inner: Link, outer: Link) -> Self {
        Self(u64::from(inner.0) << side.shift() | u64::from(outer.0) << side.other().shift())
    }

    /// A node that has lost a child, and has only `remaining` left.
    pub(crate) fn frozen(remaining: Link) -> Self {
        Self(FROZEN | u64::from(remaining.0) << LINK_BITS | u64::from(remaining.0))
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    pub(crate) fn is_frozen(self) -> bool {
        self.0 & FROZEN != 0
    }

    #[inline]
    pub(crate) fn child(self, side: Side) -> Link {
        Link((self.0 >> side.shift() & LINK_MASK) as u32)
    }

    /// The children, once each: a frozen word has one.
    pub(crate) fn links(self) -> impl Iterator<Item = Link> {
        let right = (!self.is_frozen()).then(|| self.child(Side::Right));
        std::iter::once(self.child(Side::Left)).chain(right)
    }

    /// The word with the child on `side` replaced. Only live nodes change.
    pub(crate) fn with_child(self, side: Side, child: Link) -> Self {
        debug_assert!(!self.is_frozen());
        Self(self.0 & !(LINK_MASK << side.shift()) | u64::from(child.0) << side.shift())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn links_come_apart_as_they_were_made() {
        for id in [1, 2, 77, ID_LIMIT - 1] {
            assert_eq!(Link::leaf(id).target(), Target::Leaf(id));
            assert_eq!(Link::node(id).target(), Target::Node(id));
        }
        assert_eq!(Link::leaf(0).target(), Target::Leaf(0));
        assert_eq!(Link::NOTHING.target(), Target::Nothing);
    }

    #[test]
    fn children_do_not_disturb_each_other() {
        let (a, b) = (Link::leaf(ID_LIMIT - 1), Link::node(ID_LIMIT - 1));
        for side in [Side::Left, Side::Right] {
            let word = NodeWord::fork(side, a, b);
            assert_eq!((word.child(side), word.child(side.other())), (a, b));
            let word = word.with_child(side, Link::leaf(5));
            assert_eq!((word.child(side), word.child(side.other())), (Link::leaf(5), b));
            assert!(!word.is_frozen());
        }
    }

    #[test]
    fn a_frozen_node_leads_to_what_is_left_on_both_sides() {
        let word = NodeWord::frozen(Link::node(9));
        assert!(word.is_frozen());
        assert_eq!(word.child(Side::Left), Link::node(9));
        assert_eq!(word.child(Side::Right), Link::node(9));
    }
}
