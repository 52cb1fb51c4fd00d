//! The rule by which a guest belongs to a node.

use std::collections::BTreeSet;

use bindery_units::NumaNode;

use crate::nodes::Placement;

/// Returns the node that a guest belongs to. `None` while less than `enough_bytes` of its memory is there.
///
/// 1. The one node that its memory may come from, if it may come from no other.
/// 2. The node that most of its memory lies on. With nothing there, all nodes that it may come from are equal.
/// 3. Of equal ones the only one whose CPUs it may run on, or else the first.
pub(crate) fn home_of(placement: &Placement, enough_bytes: u64) -> Option<NumaNode> {
    if let [only] = placement.memory_nodes[..] {
        return Some(only);
    }
    if placement.bytes.values().sum::<u64>() < enough_bytes {
        return None;
    }
    let equal = fullest(placement);
    match placement.cpu_nodes[..] {
        [only] if equal.contains(&only) => Some(only),
        _ => equal.first().copied(),
    }
}

/// Returns the nodes that more of the guest's memory lies on than on any other.
fn fullest(placement: &Placement) -> BTreeSet<NumaNode> {
    match placement.bytes.values().copied().max().unwrap_or(0) {
        0 => placement.memory_nodes.iter().copied().collect(),
        most => {
            let full = placement.bytes.iter().filter(|(_, bytes)| **bytes == most);
            full.map(|(node, _)| *node).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(numbers: &[u32]) -> Vec<NumaNode> {
        numbers.iter().copied().map(NumaNode).collect()
    }

    /// Returns the home of a guest with so much memory on each of four nodes.
    fn home(bytes: [u64; 4], memory: &[u32], cpus: &[u32], enough_bytes: u64) -> Option<u32> {
        let bytes = (0..).map(NumaNode).zip(bytes).filter(|(_, bytes)| *bytes > 0).collect();
        let (memory_nodes, cpu_nodes) = (nodes(memory), nodes(cpus));
        home_of(&Placement { bytes, memory_nodes, cpu_nodes }, enough_bytes).map(|node| node.0)
    }

    const ALL: &[u32] = &[0, 1, 2, 3];

    #[test]
    fn most_of_the_memory_decides() {
        assert_eq!(home([5, 90, 0, 80], ALL, ALL, 1), Some(1));
        assert_eq!(home([5, 90, 0, 80], ALL, &[3], 1), Some(1), "where it runs says less");
    }

    #[test]
    fn memory_of_one_node_alone_decides_at_once() {
        assert_eq!(home([0; 4], &[2], ALL, 100), Some(2));
        assert_eq!(home([0, 90, 0, 0], &[2], &[1], 1), Some(2), "what was there before may move");
    }

    #[test]
    fn of_equal_nodes_the_one_that_it_runs_on_is_home() {
        assert_eq!(home([0, 7, 0, 7], ALL, &[3], 1), Some(3));
        assert_eq!(
            home([0, 7, 0, 7], ALL, &[2, 3], 1),
            Some(1),
            "the first, where CPUs do not tell"
        );
        assert_eq!(home([0, 7, 0, 7], ALL, &[0], 1), Some(1), "none of them");
        assert_eq!(home([0; 4], &[1, 2], &[2], 0), Some(2));
        assert_eq!(home([0; 4], &[1, 2], ALL, 0), Some(1));
    }

    #[test]
    fn too_little_memory_says_nothing() {
        assert_eq!(home([3, 6, 0, 0], ALL, &[1], 10), None);
        assert_eq!(home([4, 6, 0, 0], ALL, &[1], 10), Some(1));
        assert_eq!(home([0; 4], ALL, ALL, 1), None);
        assert_eq!(home([0; 4], &[], &[], 0), None);
    }
}
