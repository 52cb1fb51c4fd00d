//! Where a process's memory lies, and where it may.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use bindery_units::NumaNode;

use super::machine::{nodes, parse_list, unknown};
use crate::process::MemorySpan;

/// CPUs and nodes that a process may use, by its cpuset and its affinity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// CPUs that its first thread may run on.
    pub cpus: Vec<u32>,
    /// Nodes that its memory may come from, among them some that the machine may not have.
    pub nodes: Vec<NumaNode>,
}

impl Allowed {
    /// Reads `/proc/PID/status`, which takes no rights.
    ///
    /// # Errors
    /// `NotFound` when the process has ended; `InvalidData` if the kernel does not tell.
    pub fn of(pid: i32) -> io::Result<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/status"))?).ok_or_else(unknown)
    }

    fn parse(status: &str) -> Option<Self> {
        let list = |name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            parse_list(line)
        };
        let (cpus, memory) = (list("Cpus_allowed_list:")?, list("Mems_allowed_list:")?);
        Some(Self { cpus, nodes: nodes(memory) })
    }
}

/// Reads how much anonymous memory of `spans` lies on each node, in bytes. What a file shows is left out, and so
/// is the kernel's zero page. The kernel walks the page tables of the whole process.
///
/// A mapping that begins outside of a span and reaches into it is counted as a whole.
///
/// # Errors
/// `NotFound` when the process has ended, or the kernel knows no nodes; `PermissionDenied` without the right to
/// trace the process.
pub fn anonymous_bytes(pid: i32, spans: &[MemorySpan]) -> io::Result<BTreeMap<NumaNode, u64>> {
    let maps = fs::read(format!("/proc/{pid}/numa_maps"))?;
    Ok(sum(&String::from_utf8_lossy(&maps), spans))
}

/// One line of numa_maps (numa(7)).
struct Line {
    start: usize,
    is_file: bool,
    bytes: Vec<(NumaNode, u64)>,
}

impl Line {
    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split_ascii_whitespace();
        let start = usize::from_str_radix(fields.next()?, 16).ok()?;
        let (mut is_file, mut page_kib, mut pages) = (false, 4, Vec::new());
        for field in fields {
            let Some((name, value)) = field.split_once('=') else { continue };
            match (name, name.strip_prefix('N').and_then(|number| number.parse().ok())) {
                ("file", _) => is_file = true,
                ("kernelpagesize_kB", _) => page_kib = value.parse().ok()?,
                (_, Some(node)) => pages.push((NumaNode(node), value.parse::<u64>().ok()?)),
                _ => {}
            }
        }
        let bytes = |(node, pages): (NumaNode, u64)| (node, pages.saturating_mul(page_kib * 1024));
        Some(Self { start, is_file, bytes: pages.into_iter().map(bytes).collect() })
    }
}

fn sum(maps: &str, spans: &[MemorySpan]) -> BTreeMap<NumaNode, u64> {
    let lines: Vec<Line> = maps.lines().filter_map(Line::parse).collect();
    let mut sums = BTreeMap::new();
    for (at, line) in lines.iter().enumerate() {
        // Lines tell where mappings begin, and no more of where they end.
        let end = lines.get(at + 1).map_or(usize::MAX, |next| next.start);
        let reaches = |span: &MemorySpan| {
            line.start < span.address.0.saturating_add(span.bytes) && end > span.address.0
        };
        if !line.is_file && spans.iter().any(reaches) {
            line.bytes.iter().for_each(|(node, bytes)| *sums.entry(*node).or_insert(0) += bytes);
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use bindery_units::HostAddress;

    use super::*;
    use crate::numa::nodes_with_memory;

    const MAPS: &str = "\
55d0c0000000 default file=/usr/bin/qemu mapped=10 N0=10 kernelpagesize_kB=4
55d0c1000000 default heap anon=100 dirty=100 N0=100 kernelpagesize_kB=4
7f0000000000 bind:1 anon=512 dirty=512 N1=500 N10=12 kernelpagesize_kB=4
7f0000200000 default file=/memfd:bindery\\040(deleted) mapped=512 mapmax=2 N0=512 kernelpagesize_kB=4
7f0000400000 default anon=3 dirty=3 N0=3 kernelpagesize_kB=4
7f0000600000 default anon=1 dirty=1 N0=1 kernelpagesize_kB=2048
7f0000900000 default stack anon=2 dirty=2 N0=2 kernelpagesize_kB=4
";

    fn summed(address: usize, bytes: usize) -> Vec<(u32, u64)> {
        let span = MemorySpan { address: HostAddress(address), bytes };
        sum(MAPS, &[span]).into_iter().map(|(node, bytes)| (node.0, bytes)).collect()
    }

    #[test]
    fn anonymous_memory_of_the_spans_is_summed_by_node() {
        assert_eq!(
            summed(0x7f00_0000_0000, 6 << 20),
            [(0, 3 * 4096), (1, 500 * 4096), (10, 12 * 4096)]
        );
        assert_eq!(summed(0x7f00_0060_0000, 1 << 20), [(0, 2 << 20)]);
        // From the middle of a mapping on.
        assert_eq!(summed(0x7f00_0010_0000, 4096), [(1, 500 * 4096), (10, 12 * 4096)]);
        assert_eq!(summed(0x7f00_0020_0000, 2 << 20), []);
        assert_eq!(summed(0x1000, 4096), []);
        assert_eq!(sum("nonsense\n\n12 N0=x\n", &[]), BTreeMap::new());
    }

    #[test]
    fn memory_that_was_touched_lies_on_nodes_that_it_may_be_on() {
        let pid = std::process::id().cast_signed();
        let allowed = Allowed::of(pid).expect("the kernel tells");
        assert!(!allowed.cpus.is_empty() && !allowed.nodes.is_empty());
        let memory = vec![7_u8; 1 << 20];
        let span = MemorySpan { address: HostAddress(memory.as_ptr().addr()), bytes: memory.len() };
        let bytes = match anonymous_bytes(pid, &[span]) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return bindery_testkit::skipped!("the kernel knows no nodes");
            }
            Err(error) => panic!("{error}"),
        };
        assert!(bytes.values().sum::<u64>() >= memory.len() as u64, "{bytes:?}");
        let there = nodes_with_memory().expect("nodes");
        assert!(bytes.keys().all(|node| there.contains(node)), "{bytes:?}");
    }
}
