//! Memory of the machine and of processes.

use std::collections::HashMap;
use std::io;
use std::thread;
use std::time::Duration;

use bindery_units::{ByteCount, PAGE_BYTES};

/// The machine's memory at one moment, from `/proc/meminfo` and `/proc/zoneinfo`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemorySnapshot {
    /// All of it.
    pub total: ByteCount,
    /// Used by nobody. What was freed lately lies on lists of the CPUs that freed it, for seconds and
    /// up to an eighth of all memory (`zone_highsize` in the kernel's mm/page_alloc.c); the kernel's
    /// own figure leaves that out, this one does not.
    pub free: ByteCount,
    /// What new programs could have without swapping.
    pub available: ByteCount,
    /// Anonymous pages.
    pub anonymous: ByteCount,
    /// Shared memory: tmpfs and memfds.
    pub shared: ByteCount,
    /// Files' pages, shared memory among them.
    pub cached: ByteCount,
    /// Pages of block devices.
    pub buffers: ByteCount,
    /// The kernel's own structures that it can give back.
    pub slab_reclaimable: ByteCount,
    /// The kernel's own structures, mappings among them, that it cannot.
    pub slab_unreclaimable: ByteCount,
    /// Page tables.
    pub page_tables: ByteCount,
}

impl MemorySnapshot {
    /// Reads it now.
    ///
    /// # Errors
    /// What `/proc` answers.
    pub fn take() -> io::Result<Self> {
        let fields = fields("/proc/meminfo")?;
        let field = |name: &str| fields.get(name).copied().unwrap_or_default();
        Ok(Self {
            total: field("MemTotal"),
            free: ByteCount(field("MemFree").0 + on_cpu_lists()?.0),
            available: field("MemAvailable"),
            anonymous: field("AnonPages"),
            shared: field("Shmem"),
            cached: field("Cached"),
            buffers: field("Buffers"),
            slab_reclaimable: field("SReclaimable"),
            slab_unreclaimable: field("SUnreclaim"),
            page_tables: field("PageTables"),
        })
    }
}

impl MemorySnapshot {
    /// The one of several in half a second by which least is used.
    ///
    /// A kernel that tells its hypervisor which memory is free takes it off all lists meanwhile, up to
    /// 32 of its largest blocks at a time (`page_reporting_cycle`, mm/page_reporting.c): 128 MiB seem
    /// used that are not, for some 0.1 s.
    ///
    /// # Errors
    /// What `/proc` answers.
    pub fn take_settled() -> io::Result<Self> {
        const SNAPSHOTS: u32 = 10;
        let mut least = Self::take()?;
        for _ in 1..SNAPSHOTS {
            thread::sleep(Duration::from_millis(500) / SNAPSHOTS);
            let now = Self::take()?;
            if now.used() < least.used() {
                least = now;
            }
        }
        Ok(least)
    }

    /// What is used and cannot be taken back: all but free memory and caches of files. It counts
    /// what no process shows: page tables, mappings, KSM's trees, memfds that nobody maps.
    #[must_use]
    pub const fn used(&self) -> ByteCount {
        let files = self.cached.0.saturating_sub(self.shared.0) + self.buffers.0;
        ByteCount(self.total.0.saturating_sub(self.free.0 + files + self.slab_reclaimable.0))
    }
}

/// Free memory on the CPUs' own lists.
fn on_cpu_lists() -> io::Result<ByteCount> {
    let zones = std::fs::read_to_string("/proc/zoneinfo")?;
    let counts = zones.lines().filter_map(|line| line.trim().strip_prefix("count:"));
    let pages: u64 = counts.filter_map(|count| count.trim().parse::<u64>().ok()).sum();
    Ok(ByteCount(pages * PAGE_BYTES as u64))
}

/// A process's memory, from `/proc/PID/smaps_rollup`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Everything mapped and present.
    pub rss: ByteCount,
    /// The same, with each shared page divided by the number of its users.
    pub pss: ByteCount,
    /// Present and mapped by nobody else.
    pub private: ByteCount,
    /// The part of the Pss that is anonymous.
    pub pss_anonymous: ByteCount,
    /// The part of the Pss that belongs to files.
    pub pss_file: ByteCount,
    /// The part of the Pss that is shared memory.
    pub pss_shared_memory: ByteCount,
    /// Anonymous memory in huge pages.
    pub huge: ByteCount,
    /// Memory that KSM merged.
    pub ksm: ByteCount,
}

impl ProcessMemory {
    /// Reads it now. Costs a walk over the process's page tables, under its mmap lock.
    ///
    /// # Errors
    /// What `/proc` answers, `NotFound` when the process has ended.
    pub fn of(pid: u32) -> io::Result<Self> {
        let fields = fields(&format!("/proc/{pid}/smaps_rollup"))?;
        let field = |name: &str| fields.get(name).copied().unwrap_or_default();
        Ok(Self {
            rss: field("Rss"),
            pss: field("Pss"),
            private: ByteCount(field("Private_Clean").0 + field("Private_Dirty").0),
            pss_anonymous: field("Pss_Anon"),
            pss_file: field("Pss_File"),
            pss_shared_memory: field("Pss_Shmem"),
            huge: field("AnonHugePages"),
            ksm: field("KSM"),
        })
    }
}

/// The Pss of several processes together: with all users of a shared page among them, the memory
/// that they use.
///
/// # Errors
/// As [`ProcessMemory::of`].
pub fn sum_pss(pids: impl IntoIterator<Item = u32>) -> io::Result<ByteCount> {
    let mut sum = 0;
    for pid in pids {
        sum += ProcessMemory::of(pid)?.pss.0;
    }
    Ok(ByteCount(sum))
}

/// Drops the page cache's clean pages, so that two snapshots of the machine's free memory can be
/// compared.
///
/// # Errors
/// `PermissionDenied` without root.
pub fn drop_caches() -> io::Result<()> {
    std::fs::write("/proc/sys/vm/drop_caches", "3")
}

/// Lines of the form `Name:   123 kB`.
fn fields(path: &str) -> io::Result<HashMap<String, ByteCount>> {
    let parse = |line: &str| {
        let (name, rest) = line.split_once(':')?;
        let kib: u64 = rest.trim().strip_suffix(" kB")?.trim().parse().ok()?;
        Some((name.to_owned(), ByteCount(kib << 10)))
    };
    Ok(std::fs::read_to_string(path)?.lines().filter_map(parse).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;

    /// Held by whoever compares memory before and after: tests of one process see each other's.
    fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a process gives back is free at once, on whichever list.
    #[test]
    fn memory_given_back_is_free() {
        const BYTES: u64 = 256 << 20;
        let _alone = alone();
        let block = std::hint::black_box(vec![1_u8; BYTES as usize]);
        let before = MemorySnapshot::take().unwrap();
        drop(block);
        let after = MemorySnapshot::take().unwrap();
        // Others use memory meanwhile; without the CPUs' lists nearly all would be missing.
        assert!(after.used().0 + BYTES / 2 < before.used().0, "{before:?} {after:?}");
    }

    #[test]
    fn new_memory_shows_in_the_process() {
        let _alone = alone();
        let pid = std::process::id();
        let before = ProcessMemory::of(pid).unwrap();
        let block = std::hint::black_box(vec![1_u8; 32 << 20]);
        let after = ProcessMemory::of(pid).unwrap();
        assert!(after.pss_anonymous.0 >= before.pss_anonymous.0 + (30 << 20));
        assert!(sum_pss([pid]).unwrap().0 >= 30 << 20);
        assert_eq!(block.len(), 32 << 20);
        let machine = MemorySnapshot::take().unwrap();
        assert!(machine.total.0 >= machine.free.0 && machine.free.0 > 0);
        assert!(machine.anonymous.0 >= 30 << 20 && machine.used().0 >= machine.anonymous.0);
    }
}
