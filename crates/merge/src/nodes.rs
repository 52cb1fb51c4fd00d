//! The machine's NUMA nodes, for merging that stays within them.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use bindery_sys::numa::{self, Allowed};
use bindery_sys::process::MemorySpan;
use bindery_units::{NumaNode, PageCount};
use bindery_wire::control::Region;

/// Memory of a guest by node, and the nodes that it is bound to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Managed memory that is there, in bytes, by node.
    pub bytes: BTreeMap<NumaNode, u64>,
    /// Nodes that the guest's memory may come from, in order.
    pub memory_nodes: Vec<NumaNode>,
    /// Nodes of the CPUs that the guest may run on, in order.
    pub cpu_nodes: Vec<NumaNode>,
}

/// Source of what merging within nodes has to know and do. Asked only where merging stays within nodes.
pub trait Nodes: fmt::Debug + Send + Sync {
    /// Reads which nodes have memory, in order. Where there is one alone, nothing else is asked.
    ///
    /// # Errors
    /// The kernel's, if it does not tell.
    fn with_memory(&self) -> io::Result<Vec<NumaNode>>;

    /// Looks where the managed memory of process `pid` lies. `there` are the nodes that have memory.
    ///
    /// # Errors
    /// The kernel's: the process has ended, or this one may not look at it.
    fn placement(&self, pid: i32, regions: &[Region], there: &[NumaNode]) -> io::Result<Placement>;

    /// Makes the memory that the first `bytes` of a store's file get come from `node`.
    ///
    /// # Errors
    /// The kernel's: this process may use no memory of that node.
    fn prefer(&self, file: &File, bytes: u64, node: NumaNode) -> io::Result<()>;
}

/// Node that a domain's canonical pages are to lie on, and how they get there.
#[derive(Clone, Debug)]
pub(crate) struct StoreNode {
    pub(crate) node: NumaNode,
    pub(crate) nodes: Arc<dyn Nodes>,
}

/// The nodes of this machine, as the kernel tells.
#[derive(Clone, Copy, Debug, Default)]
pub struct MachineNodes;

impl Nodes for MachineNodes {
    fn with_memory(&self) -> io::Result<Vec<NumaNode>> {
        numa::nodes_with_memory()
    }

    fn placement(&self, pid: i32, regions: &[Region], there: &[NumaNode]) -> io::Result<Placement> {
        let allowed = Allowed::of(pid)?;
        let may_be_used = |node: &NumaNode| allowed.nodes.contains(node);
        let memory_nodes: Vec<NumaNode> = there.iter().copied().filter(may_be_used).collect();
        // All of it is there, then.
        if memory_nodes.len() == 1 {
            return Ok(Placement { memory_nodes, ..Placement::default() });
        }
        let bytes = numa::anonymous_bytes(pid, &spans(regions))?;
        let may_run_on = |node: &NumaNode| {
            let cpus = numa::cpus_of(*node).unwrap_or_default();
            cpus.iter().any(|cpu| allowed.cpus.contains(cpu))
        };
        let cpu_nodes = there.iter().copied().filter(may_run_on).collect();
        Ok(Placement { bytes, memory_nodes, cpu_nodes })
    }

    fn prefer(&self, file: &File, bytes: u64, node: NumaNode) -> io::Result<()> {
        numa::prefer(file.as_fd(), bytes as usize, node)
    }
}

fn spans(regions: &[Region]) -> Vec<MemorySpan> {
    let span = |region: &Region| {
        let bytes = PageCount(u64::from(region.pages.count)).bytes().0 as usize;
        MemorySpan { address: region.address, bytes }
    };
    regions.iter().map(span).collect()
}
