//! The machine's nodes, as sysfs lists them.

use std::fs;
use std::io;

use bindery_units::NumaNode;

/// Lists in which the kernel numbers things name no more than so many.
const NUMBERS_MAX: usize = 1 << 16;

/// Reads which nodes have memory, in order. The first one alone where the kernel knows no nodes.
///
/// # Errors
/// As reading `/sys/devices/system/node/has_memory`; `InvalidData` if it is no list.
pub fn nodes_with_memory() -> io::Result<Vec<NumaNode>> {
    match fs::read_to_string("/sys/devices/system/node/has_memory") {
        Ok(text) => parse_list(&text).map(nodes).ok_or_else(unknown),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(vec![NumaNode(0)]),
        Err(error) => Err(error),
    }
}

/// Reads the CPUs of a node, in order; none of one that has memory alone.
///
/// # Errors
/// As reading the node's `cpulist`; `InvalidData` if it is no list.
pub fn cpus_of(node: NumaNode) -> io::Result<Vec<u32>> {
    let text = fs::read_to_string(format!("/sys/devices/system/node/node{}/cpulist", node.0))?;
    parse_list(&text).ok_or_else(unknown)
}

pub(super) fn nodes(numbers: Vec<u32>) -> Vec<NumaNode> {
    numbers.into_iter().map(NumaNode).collect()
}

pub(super) fn unknown() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the kernel's list is not known")
}

/// Reads a list as the kernel prints bitmaps: `0-3,8`. Empty is a list of nothing.
pub(super) fn parse_list(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last < first || numbers.len() + (last - first) as usize >= NUMBERS_MAX {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_the_kernel_prints_them() {
        assert_eq!(parse_list("0\n"), Some(vec![0]));
        assert_eq!(parse_list("0-2,8,10-11\n"), Some(vec![0, 1, 2, 8, 10, 11]));
        assert_eq!(parse_list("\n"), Some(Vec::new()));
        for wrong in ["a", "1-", "2-1", "0-4294967295", "-"] {
            assert_eq!(parse_list(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn this_machine_has_a_node_with_memory_and_cpus() {
        let nodes = nodes_with_memory().expect("nodes");
        assert!(!nodes.is_empty() && nodes.is_sorted());
        match cpus_of(nodes[0]) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                bindery_testkit::skipped!("the kernel knows no nodes");
            }
            Err(error) => panic!("{error}"),
        }
    }
}
