//! Memory of guests, and of all that merging them takes.

use anyhow::Result;
use bindery_testkit::machine::ProcessMemory;
use bindery_units::ByteCount;

use super::{Merger, Metadata};

impl Merger {
    /// Memory that the processes of `guests` use together with whoever merges them: their Pss and the
    /// daemon's, what of the store nobody maps, and what the kernel keeps for merging and shows in no
    /// process. Other programs do not disturb it, as they do the machine's figures.
    pub(crate) fn footprint(&self, guests: impl Iterator<Item = u32>) -> Result<ByteCount> {
        let mut processes = Vec::new();
        for pid in guests {
            processes.push(ProcessMemory::of(pid)?);
        }
        let (mut store, kernel) = (ByteCount(0), self.metadata()?.kernel());
        if let Self::Bindery(daemon) = self {
            processes.push(ProcessMemory::of(daemon.pid()?)?);
            let status = daemon.status()?;
            store = ByteCount(status.domains.iter().map(|domain| domain.store_bytes).sum());
        }
        Ok(sum(&processes, store, kernel))
    }
}

/// Shared memory of the processes is the part of the store that any of them maps.
fn sum(processes: &[ProcessMemory], store: ByteCount, kernel: ByteCount) -> ByteCount {
    let pss: u64 = processes.iter().map(|process| process.pss.0).sum();
    let mapped: u64 = processes.iter().map(|process| process.pss_shared_memory.0).sum();
    ByteCount(pss + store.0.saturating_sub(mapped) + kernel.0)
}

impl Metadata {
    /// Part that lies in the kernel: all of KSM's, and the mappings of merged pages.
    const fn kernel(&self) -> ByteCount {
        ByteCount(self.mappings_bytes + if self.is_kernels { self.tables_bytes } else { 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_counts_once() {
        let process = |pss, pss_shared_memory| ProcessMemory {
            pss: ByteCount(pss),
            pss_shared_memory: ByteCount(pss_shared_memory),
            ..ProcessMemory::default()
        };
        let processes = [process(100, 20), process(90, 20)];
        assert_eq!(sum(&processes, ByteCount(0), ByteCount(7)).0, 197);
        assert_eq!(sum(&processes, ByteCount(40), ByteCount(0)).0, 190, "all of it is mapped");
        assert_eq!(sum(&processes, ByteCount(50), ByteCount(0)).0, 200, "10 are not");
    }
}
