//! `bindery doctor`: is this machine ready, what works all the same, and what to change.

use std::{fs, io};

use bindery_sys::huge::Policy;
use bindery_sys::table;
use bindery_sys::userfault::{Userfault, feature};
use serde::Serialize;

use crate::args::Global;
use crate::connect::is_running;
use crate::exit::{Failure, Reason};
use crate::output::{Table, print, print_json};
use crate::run::find_shim;

/// The first kernel with all that merging needs (`UFFDIO_MOVE`).
const KERNEL_MIN: (u32, u32) = (6, 8);

/// The kernel's default for `vm.max_map_count` (`DEFAULT_MAX_MAP_COUNT`).
const MAP_COUNT_DEFAULT: u64 = 65_530;

/// Descriptors with which a daemon of a few dozen guests has some 24 GiB of canonical pages.
const OPEN_FILES_MIN: u64 = 16_384;

/// Absent pages that khugepaged fills to make a huge page, at most.
const KHUGEPAGED_HOLES: &str = "/sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none";

/// How one check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    /// As it should be.
    Ok,
    /// Something works less well.
    Limited,
    /// Merging does not work.
    Missing,
}

/// One check.
#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    verdict: Verdict,
    /// What was found.
    found: String,
    /// What still works, and what to change.
    advice: Option<String>,
}

/// Checks everything. Fails if merging cannot work here.
pub(crate) fn run(global: &Global) -> Result<(), Failure> {
    let mut checks = vec![kernel(&read("/proc/sys/kernel/osrelease"))];
    checks.push(userfaultfd(probe_userfaultfd().err().as_ref()));
    checks.push(descriptor_table(table::start().err().as_ref()));
    checks.push(map_count(&read("/proc/sys/vm/max_map_count")));
    checks.push(open_files(&read("/proc/self/limits")));
    checks.push(ksm(&read("/sys/kernel/mm/ksm/run")));
    checks.push(huge_pages(Policy::of_machine().ok(), &read(KHUGEPAGED_HOLES)));
    checks.push(shim());
    checks.push(daemon(global));
    if global.json {
        print_json(&checks)?;
    } else {
        print_checks(&checks)?;
    }
    match checks.iter().find(|check| check.verdict == Verdict::Missing) {
        None => Ok(()),
        Some(check) => {
            let message = format!("{} is missing here: {}", check.name, check.found);
            Err(Failure::new(Reason::Unsupported, message))
        }
    }
}

fn print_checks(checks: &[Check]) -> Result<(), Failure> {
    let mut table = Table::new(["CHECK", "VERDICT", "FOUND"]);
    for Check { name, verdict, found, .. } in checks {
        let verdict = match verdict {
            Verdict::Ok => "ok",
            Verdict::Limited => "limited",
            Verdict::Missing => "MISSING",
        };
        table.row([(*name).to_owned(), verdict.to_owned(), found.clone()]);
    }
    table.print()?;
    let advice = checks.iter().filter_map(|check| Some((check.name, check.advice.as_ref()?)));
    print(|out| {
        let mut advice = advice;
        advice.try_for_each(|(name, advice)| writeln!(out, "\n{name}: {advice}"))
    })
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Ok, found: found.into(), advice: None }
    }

    fn limited(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        let advice = Some(advice.into());
        Self { name, verdict: Verdict::Limited, found: found.into(), advice }
    }

    fn missing(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { verdict: Verdict::Missing, ..Self::limited(name, found, advice) }
    }
}

/// What a file of the kernel's says; empty where there is none.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn kernel(release: &str) -> Check {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let version = match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => (0, 0),
    };
    if version >= KERNEL_MIN {
        return Check::ok("kernel", format!("Linux {release}"));
    }
    Check::missing(
        "kernel",
        format!("Linux {release}"),
        "merging moves pages with UFFDIO_MOVE, which Linux has since 6.8; on Debian 12 install \
         linux-image-amd64 from bookworm-backports. `bindery scan` works all the same, and guests \
         under `bindery run` run unmerged",
    )
}

/// Opens what managing a guest's memory takes, as the library in a VMM does, and closes it again.
fn probe_userfaultfd() -> io::Result<()> {
    Userfault::open(feature::GUEST_MEMORY)?;
    Userfault::open(feature::STORE_MAPPINGS).map(drop)
}

fn userfaultfd(error: Option<&io::Error>) -> Check {
    const NAME: &str = "userfaultfd";
    let Some(error) = error else {
        return Check::ok(NAME, "permitted, with all that is needed");
    };
    if error.kind() == io::ErrorKind::PermissionDenied {
        return Check::missing(
            NAME,
            "not permitted",
            "as root, run `sysctl vm.unprivileged_userfaultfd=1`, or give the user access to \
             /dev/userfaultfd (chmod or an udev rule); until then guests run unmerged",
        );
    }
    Check::missing(
        NAME,
        format!("not usable: {error}"),
        "merging needs userfaultfd with MOVE and asynchronous write protection: Linux 6.8 or later with \
         CONFIG_USERFAULTFD=y; until then guests run unmerged",
    )
}

fn descriptor_table(error: Option<&io::Error>) -> Check {
    const NAME: &str = "descriptor table";
    match error {
        None => Check::ok(NAME, "the library may have one of its own"),
        Some(error) => Check::missing(
            NAME,
            format!("not to be had: {error}"),
            "permit close_range(2) with CLOSE_RANGE_UNSHARE, or unshare(2) with CLONE_FILES, in the \
             filter of system calls (seccomp); until then guests run unmerged",
        ),
    }
}

fn map_count(text: &str) -> Check {
    const NAME: &str = "vm.max_map_count";
    match text.parse::<u64>() {
        Ok(count) if count > MAP_COUNT_DEFAULT => Check::ok(NAME, text),
        Ok(_) => Check::limited(
            NAME,
            text,
            "each run of merged pages takes one mapping of the guest's process. Merging goes on \
             within what is allowed, longest runs first; a guest of a few GiB with scattered \
             duplicates stops short of all it could save. To lift it: `sysctl -w \
             vm.max_map_count=1048576`, and the same line in /etc/sysctl.d/bindery.conf",
        ),
        Err(_) => Check::limited(NAME, "unknown", "is /proc mounted?"),
    }
}

fn open_files(limits: &str) -> Check {
    const NAME: &str = "open files";
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let hard = line.and_then(|line| line.split_ascii_whitespace().nth(1)).unwrap_or("unknown");
    let enough = match hard.parse::<u64>() {
        Ok(count) => count >= OPEN_FILES_MIN,
        Err(_) => hard == "unlimited",
    };
    if enough {
        return Check::ok(NAME, format!("up to {hard}"));
    }
    Check::limited(
        NAME,
        format!("up to {hard}"),
        "the daemon holds a descriptor for every 2 MiB of canonical pages, and a handful for each guest \
         and worker. When they run out merging pauses (descriptors-short), and guests are turned away. \
         Raise the hard limit: `ulimit -Hn 1048576`, or LimitNOFILE= in a systemd unit",
    )
}

fn ksm(run: &str) -> Check {
    if run != "1" {
        return Check::ok("KSM", "not running");
    }
    Check::limited(
        "KSM",
        "running",
        "memory of managed guests is not shown to KSM, but pages that it shared before cannot be \
         merged by bindery. To undo its work: `echo 2 > /sys/kernel/mm/ksm/run`",
    )
}

fn huge_pages(policy: Option<Policy>, holes: &str) -> Check {
    const NAME: &str = "huge pages";
    match policy {
        Some(Policy::Always) if holes == "511" => Check::limited(
            NAME,
            "always, and khugepaged makes them of single pages",
            "memory that a guest gave back may be filled with zeros again. With `echo madvise > \
             /sys/kernel/mm/transparent_hugepage/enabled` guests whose VMM asks for huge pages, as QEMU \
             does, have them all the same",
        ),
        Some(Policy::Always) => Check::ok(NAME, "always"),
        Some(Policy::Madvise) => Check::ok(NAME, "where they are asked for, as QEMU does"),
        Some(Policy::Never) => Check::limited(
            NAME,
            "never",
            "guests' memory is slower than it could be. With `echo madvise > \
             /sys/kernel/mm/transparent_hugepage/enabled` they have huge pages, and `bindery` splits \
             those alone in which enough can be merged",
        ),
        None => {
            Check::limited(NAME, "the kernel has none", "guests' memory is slower than it could be")
        }
    }
}

fn shim() -> Check {
    match find_shim() {
        Ok(path) => Check::ok("preload library", path.display().to_string()),
        Err(failure) => Check::missing("preload library", "not found", failure.to_string()),
    }
}

fn daemon(global: &Global) -> Check {
    let socket = global.socket();
    match is_running(global) {
        Ok(true) => Check::ok("daemon", format!("listens on {}", socket.display())),
        Ok(false) => Check::ok("daemon", "none runs; `bindery run` starts one"),
        Err(failure) => Check::limited("daemon", "does not answer", failure.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_compared_by_number() {
        let verdict = |release: &str| kernel(release).verdict;
        for release in ["6.8.0", "6.18.44-fc", "7.0-rc1", "10.1.2", "6.10-amd64"] {
            assert_eq!(verdict(release), Verdict::Ok, "{release}");
        }
        for release in ["6.7.12", "6.1.0-18-amd64", "5.15", "", "unknown"] {
            assert_eq!(verdict(release), Verdict::Missing, "{release}");
        }
    }

    #[test]
    fn machines_without_huge_pages_are_limited() {
        let verdict = |policy, holes| huge_pages(policy, holes).verdict;
        assert_eq!(verdict(Some(Policy::Madvise), "511"), Verdict::Ok);
        assert_eq!(verdict(Some(Policy::Always), "64"), Verdict::Ok);
        assert_eq!(verdict(Some(Policy::Always), "511"), Verdict::Limited);
        assert_eq!(verdict(Some(Policy::Never), ""), Verdict::Limited);
        assert_eq!(verdict(None, ""), Verdict::Limited);
    }

    #[test]
    fn the_default_map_count_is_limited() {
        assert_eq!(map_count("65530").verdict, Verdict::Limited);
        assert_eq!(map_count("1048576").verdict, Verdict::Ok);
    }

    #[test]
    fn the_hard_limit_of_open_files_counts() {
        let limits = |hard: &str| format!("Max open files            1024     {hard}     files\n");
        assert_eq!(open_files(&limits("524288")).verdict, Verdict::Ok);
        assert_eq!(open_files(&limits("unlimited")).verdict, Verdict::Ok);
        assert_eq!(open_files(&limits("1024")).verdict, Verdict::Limited);
        assert_eq!(open_files("").verdict, Verdict::Limited);
    }
}
