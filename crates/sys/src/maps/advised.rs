//! What the owner of memory advised for it: `/proc/PID/smaps`, see proc_pid_smaps(5).

use std::fs;
use std::io;
use std::ops::Range;

use bindery_units::HostAddress;

use super::parse;
use crate::huge::Advice;
use crate::numa::Policy;

/// What its owner advised for a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Advised {
    /// `MADV_DONTFORK`.
    pub dont_fork: bool,
    /// `MADV_DONTDUMP`.
    pub dont_dump: bool,
    /// `MADV_HUGEPAGE` or `MADV_NOHUGEPAGE`.
    pub huge: Advice,
    /// Nodes that its pages come from, by mbind(2). `smaps` does not tell.
    pub nodes: Policy,
}

impl Advised {
    /// Returns the advice that makes memory so that was advised as `before`, or nobody knows how; but for
    /// huge pages and nodes.
    pub fn changes(self, before: Option<Self>) -> impl Iterator<Item = libc::c_int> {
        let fork = if self.dont_fork { libc::MADV_DONTFORK } else { libc::MADV_DOFORK };
        let dump = if self.dont_dump { libc::MADV_DONTDUMP } else { libc::MADV_DODUMP };
        let changed = |of: fn(Self) -> bool| before.is_none_or(|before| of(before) != of(self));
        let fork = changed(|advised| advised.dont_fork).then_some(fork);
        let dump = changed(|advised| advised.dont_dump).then_some(dump);
        fork.into_iter().chain(dump)
    }

    /// Returns the advice that makes new memory so, for which nothing was advised yet; but for nodes.
    pub fn changes_of_new(self) -> impl Iterator<Item = libc::c_int> {
        let huge = match self.huge {
            Advice::None => None,
            Advice::Wanted => Some(libc::MADV_HUGEPAGE),
            Advice::Unwanted => Some(libc::MADV_NOHUGEPAGE),
        };
        self.changes(Some(Self::default())).chain(huge)
    }
}

/// What was advised for each mapping of a process at one time, ascending.
#[derive(Debug, Default)]
pub struct AdvisedMappings(Vec<Described>);

/// What one mapping is like.
#[derive(Debug)]
struct Described {
    range: Range<usize>,
    advised: Advised,
    is_special: bool,
}

impl AdvisedMappings {
    /// Reads `/proc/self/smaps`, which takes some 10 ms for each GiB that the process has in small
    /// pages.
    ///
    /// # Errors
    /// As read(2); when `/proc` is not mounted.
    pub fn of_self() -> io::Result<Self> {
        Ok(Self::parse(&fs::read_to_string("/proc/self/smaps")?))
    }

    fn parse(smaps: &str) -> Self {
        let mut mappings: Vec<Described> = Vec::new();
        for line in smaps.lines() {
            if let Some(flags) = line.strip_prefix("VmFlags:") {
                let has = |flag| flags.split_ascii_whitespace().any(|word| word == flag);
                if let Some(mapping) = mappings.last_mut() {
                    let huge = match (has("hg"), has("nh")) {
                        (true, _) => Advice::Wanted,
                        (false, true) => Advice::Unwanted,
                        (false, false) => Advice::None,
                    };
                    mapping.advised = Advised {
                        dont_fork: has("dc"),
                        dont_dump: has("dd"),
                        huge,
                        ..Advised::default()
                    };
                    mapping.is_special |= ["wf", "gd", "sl"].into_iter().any(has);
                }
            } else if let Some(key) = line.strip_prefix("ProtectionKey:") {
                if let Some(mapping) = mappings.last_mut() {
                    mapping.is_special = key.trim() != "0";
                }
            } else if let Some(line) = parse(line) {
                let (range, advised) = (line.start..line.end, Advised::default());
                mappings.push(Described { range, advised, is_special: false });
            }
        }
        Self(mappings)
    }

    /// Returns what was advised for the mapping that the byte at `address` lies in; nothing where there
    /// was none.
    #[must_use]
    pub fn at(&self, address: HostAddress) -> Advised {
        let behind = self.0.partition_point(|mapping| mapping.range.start <= address.0);
        let found = self.0[..behind].last().filter(|mapping| address.0 < mapping.range.end);
        found.map_or(Advised::default(), |mapping| mapping.advised)
    }

    /// Returns what was advised for each mapping between two addresses, by its first byte there, ascending.
    #[must_use]
    pub fn between(&self, start: HostAddress, end: HostAddress) -> Vec<(HostAddress, Advised)> {
        let within = self.within(start, end);
        within
            .map(|mapping| (start.max(HostAddress(mapping.range.start)), mapping.advised))
            .collect()
    }

    /// Returns true if any mapping between two addresses is wiped on fork, grows downwards, is sealed, or
    /// has a protection key of its own, as no mapping would be that is made in its place.
    #[must_use]
    pub fn are_special(&self, start: HostAddress, end: HostAddress) -> bool {
        self.within(start, end).any(|mapping| mapping.is_special)
    }

    fn within(&self, start: HostAddress, end: HostAddress) -> impl Iterator<Item = &Described> {
        let first = self.0.partition_point(|mapping| mapping.range.end <= start.0);
        self.0[first..].iter().take_while(move |mapping| mapping.range.start < end.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_that_of_the_mapping_and_not_of_the_next() {
        let smaps = "7f00030000-7f00040000 rw-s 00000000 00:01 4242 /memfd:ram (deleted)\n\
                     Size:  64 kB\n\
                     VmFlags: rd wr sh dc mr \n\
                     7f00040000-7f00050000 rw-p 00000000 00:00 0 \n\
                     VmFlags: rd wr dd hg \n";
        let dont = |dont_fork, dont_dump| Advised { dont_fork, dont_dump, ..Advised::default() };
        let advised = AdvisedMappings::parse(smaps);
        assert_eq!(advised.at(HostAddress(0x7f_0003_ffff)), dont(true, false));
        let second = Advised { huge: Advice::Wanted, ..dont(false, true) };
        assert_eq!(advised.at(HostAddress(0x7f_0004_0000)), second);
        for nowhere in [0x7f_0002_ffff, 0x7f_0005_0000] {
            assert_eq!(advised.at(HostAddress(nowhere)), dont(false, false));
        }
        let (from, to) = (HostAddress(0x7f_0003_8000), HostAddress(0x7f_0004_8000));
        let second = (HostAddress(0x7f_0004_0000), second);
        assert_eq!(advised.between(from, to), [(from, dont(true, false)), second]);
        let behind = HostAddress(0x7f_0005_0000);
        assert_eq!(advised.between(behind, HostAddress(usize::MAX)), []);
        assert!(!advised.are_special(HostAddress(0), HostAddress(usize::MAX)));
        let here = HostAddress((&raw const smaps).addr());
        // Stacks may be advised against huge pages, by the C library.
        let stack = Advised { huge: Advice::None, ..AdvisedMappings::of_self().unwrap().at(here) };
        assert_eq!(stack, dont(false, false));
    }

    #[test]
    fn memory_that_no_other_mapping_would_be_like_is_special() {
        let (start, end) = (HostAddress(0x7f_0004_0000), HostAddress(0x7f_0005_0000));
        for (more, special) in [
            ("ProtectionKey:         0\nVmFlags: rd wr mr mw me ac \n", false),
            ("ProtectionKey:         3\nVmFlags: rd wr mr mw me ac \n", true),
            ("VmFlags: rd wr wf \n", true),
            ("VmFlags: rd wr gd \n", true),
            ("VmFlags: rd wr sl \n", true),
        ] {
            let smaps = format!(
                "7f00030000-7f00040000 rw-p 00000000 00:00 0 \nVmFlags: rd wr \n\
                 7f00040000-7f00050000 rw-p 00000000 00:00 0 \n{more}"
            );
            let advised = AdvisedMappings::parse(&smaps);
            assert_eq!(advised.are_special(start, end), special, "{more}");
            assert!(!advised.are_special(HostAddress(0), start) && !advised.are_special(end, end));
        }
    }

    #[test]
    fn only_advice_that_changes_something_is_given() {
        let dont = |dont_fork, dont_dump| Advised { dont_fork, dont_dump, ..Advised::default() };
        let changes = |advised: Advised, before| advised.changes(before).collect::<Vec<_>>();
        let plain = Some(Advised::default());
        assert_eq!(changes(Advised::default(), plain), [0_i32; 0]);
        assert_eq!(changes(dont(true, false), plain), [libc::MADV_DONTFORK]);
        assert_eq!(changes(dont(true, true), plain), [libc::MADV_DONTFORK, libc::MADV_DONTDUMP]);
        assert_eq!(changes(dont(true, true), Some(dont(true, false))), [libc::MADV_DONTDUMP]);
        let turned = [libc::MADV_DOFORK, libc::MADV_DONTDUMP];
        assert_eq!(changes(dont(false, true), Some(dont(true, false))), turned);
        assert_eq!(changes(dont(false, true), None), turned);
        assert_eq!(changes(dont(false, false), None), [libc::MADV_DOFORK, libc::MADV_DODUMP]);
    }
}
