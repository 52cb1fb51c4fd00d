//! The kernel's threads that end the requests of a loop device, one a processor, before all others: those of
//! a disk end in its interrupts. They are bound to their processors, and would wait there for the end of a
//! time slice while another is idle.

use std::fs;
use std::path::Path;

use anyhow::Result;

use super::{PRIORITY, complain, perform};

/// Of sched(7): `SCHED_OTHER` and `SCHED_FIFO`, with the priority among the latter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Other,
    Fifo(u32),
}

const RAISED: Policy = Policy::Fifo(PRIORITY);

/// Threads that are before all others until this is dropped.
#[derive(Debug)]
pub(super) struct Interrupts(Vec<String>);

impl Interrupts {
    /// Takes those that share the processors like all others; what somebody has set himself stays.
    pub(super) fn before_all() -> Result<Self> {
        let mut threads = Self(Vec::new());
        for pid in threads_with(Policy::Other) {
            perform("chrt", ["--fifo", "--pid", &PRIORITY.to_string(), &pid])?;
            threads.0.push(pid);
        }
        Ok(threads)
    }

    /// Those that a run left so that was killed.
    pub(super) fn left() -> Self {
        Self(threads_with(RAISED))
    }
}

/// Whether none is raised.
#[cfg(test)]
pub(super) fn are_as_others() -> bool {
    threads_with(RAISED).is_empty()
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        for pid in &self.0 {
            complain("ksoftirqd's priority", perform("chrt", ["--other", "--pid", "0", pid]));
        }
    }
}

fn threads_with(policy: Policy) -> Vec<String> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let threads = processes.filter_map(|process| {
        let pid = process.file_name().into_string().ok()?;
        // Others end meanwhile.
        let stat = fs::read_to_string(Path::new("/proc").join(&pid).join("stat")).ok()?;
        let (name, rest) = stat.split_once(" (")?.1.rsplit_once(") ")?;
        (name.starts_with("ksoftirqd/") && policy_of(rest) == Some(policy)).then_some(pid)
    });
    threads.collect()
}

/// From what follows a process's name in its `stat` (proc_pid_stat(5), fields 40 and 41).
fn policy_of(rest: &str) -> Option<Policy> {
    let mut fields = rest.split(' ').skip(40 - 3);
    let priority = fields.next()?.parse().ok()?;
    match fields.next()? {
        "0" => Some(Policy::Other),
        "1" => Some(Policy::Fifo(priority)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_as_the_kernel_writes_them() {
        let stat = |priority, policy| format!("S{} {priority} {policy} 0 0", " 7".repeat(36));
        assert_eq!(policy_of(&stat(0, 0)), Some(Policy::Other));
        assert_eq!(policy_of(&stat(1, 1)), Some(Policy::Fifo(1)));
        assert_eq!(policy_of(&stat(1, 2)), None);
        assert_eq!(policy_of("S 7"), None);
    }
}
