//! Which processes gain by KSM, and which lose.

use std::fs;
use std::io;

use bindery_sys::ksm::ProcessStat;
use serde::Serialize;

use crate::claim::command_of;

/// One process that KSM has to do with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessLine {
    /// Its process id.
    pub pid: u32,
    /// Its name.
    pub command: String,
    /// What it gains, in bytes, less what KSM keeps for its pages; `None` where the kernel does not
    /// tell (before Linux 6.1).
    pub profit_bytes: Option<i64>,
    /// Pages that share a page.
    pub merging_pages: u64,
    /// Pages merged with the kernel's zero page.
    pub zero_pages: Option<u64>,
    /// Pages that KSM keeps an item for.
    pub rmap_items: Option<u64>,
    /// Whether all of its memory is offered.
    pub merge_any: Option<bool>,
}

/// All processes that KSM has to do with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Processes {
    /// Those that gain or lose most first.
    pub lines: Vec<ProcessLine>,
    /// Whether the kernel tells who gains and who loses (since Linux 6.1).
    pub tells_profit: bool,
    /// Processes that gain.
    pub gaining: usize,
    /// Processes that lose.
    pub losing: usize,
    /// Processes that this user may not ask about.
    pub unreadable: usize,
}

impl Processes {
    /// Asks about every process; keeps the `top` of them that gain or lose most. About 10 µs a
    /// process.
    ///
    /// # Errors
    /// The kernel's, if `/proc` cannot be read.
    pub fn read(top: usize) -> io::Result<Self> {
        let own = ProcessStat::of(std::process::id());
        let tells_profit = own.is_ok_and(|stat| stat.profit_bytes().is_some());
        let mut processes = Self { tells_profit, ..Self::default() };
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            match ProcessStat::of(pid) {
                Ok(stat) if stat.is_known() => processes.lines.push(line(pid, &stat)),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    processes.unreadable += 1;
                }
                // Nothing to tell, or it has ended.
                _ => {}
            }
        }
        processes.sort(top);
        Ok(processes)
    }

    fn sort(&mut self, top: usize) {
        let count = |test: fn(i64) -> bool| {
            self.lines.iter().filter(|line| line.profit_bytes.is_some_and(test)).count()
        };
        (self.gaining, self.losing) = (count(|profit| profit > 0), count(|profit| profit < 0));
        let weight = |line: &ProcessLine| {
            (line.profit_bytes.unwrap_or(0).unsigned_abs(), line.merging_pages)
        };
        self.lines.sort_by_key(|line| std::cmp::Reverse(weight(line)));
        self.lines.truncate(top);
    }
}

fn line(pid: u32, stat: &ProcessStat) -> ProcessLine {
    ProcessLine {
        pid,
        command: command_of(pid).unwrap_or_default(),
        profit_bytes: stat.profit_bytes(),
        merging_pages: stat.merging_pages,
        zero_pages: stat.zero_pages,
        rmap_items: stat.rmap_items,
        merge_any: stat.merge_any,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losers_stand_beside_winners_by_how_much() {
        let of = |pid, profit_bytes| ProcessLine {
            profit_bytes,
            ..line(pid, &ProcessStat { merging_pages: 1, ..ProcessStat::default() })
        };
        let lines = vec![of(1, Some(10)), of(2, Some(-500)), of(3, None), of(4, Some(300))];
        let mut processes = Processes { lines, ..Processes::default() };
        processes.sort(3);
        let order: Vec<u32> = processes.lines.iter().map(|line| line.pid).collect();
        assert_eq!(order, [2, 4, 1]);
        assert_eq!((processes.gaining, processes.losing), (2, 1));
    }
}
