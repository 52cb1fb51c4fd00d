//! The seed's first objection: "We need access to how much cpu the ksmd kernel thread spent during
//! the last scan".
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::fs;
use std::path::PathBuf;

use bindery_advisor::Scan;
use bindery_ksm::{Meter, Scans};
use bindery_testkit::machine::SettingGuard;
use bindery_testkit::skipped;
use common::{Memory, ksm, wait_until};

/// A tenth of a second of ksmd's time or more: what is compared is not noise.
const PAGES: usize = 100_000;

/// Scans that are compared.
const SCANS: usize = 4;

/// Two looks that follow one another at once, and a look itself, in microseconds.
const LOOK_US: u64 = 20_000;

/// The kernel's trace event `ksm:ksm_advisor`, in a trace of our own.
struct Trace(PathBuf);

/// What the kernel says of a scan: whole seconds, at least one, and whole percents of them.
#[derive(Clone, Copy, Debug)]
struct Reported {
    scan_time_s: u64,
    cpu_percent: u64,
}

impl Trace {
    fn start() -> Option<Self> {
        let name = format!("bindery-{}", std::process::id());
        let directory = PathBuf::from("/sys/kernel/tracing/instances").join(name);
        fs::create_dir(&directory).ok()?;
        let trace = Self(directory);
        fs::write(trace.0.join("events/ksm/ksm_advisor/enable"), "1").ok()?;
        Some(trace)
    }

    fn reported(&self) -> Vec<Reported> {
        let text = fs::read_to_string(self.0.join("trace")).unwrap();
        let after = |line: &str, what: &str| -> Option<u64> {
            let (_, rest) = line.split_once(what)?;
            rest.split_whitespace().next()?.parse().ok()
        };
        let line = |line: &str| {
            let scan_time_s = after(line, "scan time ")?;
            Some(Reported { scan_time_s, cpu_percent: after(line, "cpu percent ")? })
        };
        text.lines().filter_map(line).collect()
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// The kernel's own advisor, at a scan in a second or two.
fn kernels_advisor() -> Option<Vec<SettingGuard>> {
    let values = [
        ("advisor_target_scan_time", "2"),
        ("advisor_max_cpu", "90"),
        ("advisor_min_pages_to_scan", "2000"),
        ("advisor_mode", "scan-time"),
    ];
    let mut guards = Vec::new();
    for (name, value) in values {
        guards.insert(0, SettingGuard::set(format!("/sys/kernel/mm/ksm/{name}"), value).ok()?);
    }
    Some(guards)
}

/// Both clocks say the same of a scan. Figures of the kernel's are rounded down; ours are a look late.
fn agree(ours: Scan, kernels: Reported) -> bool {
    let cpu_ms = kernels.scan_time_s * 10 * kernels.cpu_percent;
    let percent_ms = kernels.scan_time_s * 10;
    let ours_ms = ours.cpu_us / 1000;
    // The kernel starts its clock when it begins the next scan; a tick may be charged late.
    let slack_ms = 10 + ours_ms / 50;
    let is_cpu = ours_ms + slack_ms >= cpu_ms && ours_ms <= cpu_ms + percent_ms + slack_ms;
    let time_ms = ours.time_us / 1000;
    let least_ms = if kernels.scan_time_s == 1 { 0 } else { kernels.scan_time_s * 1000 };
    let is_time = time_ms + 200 >= least_ms && time_ms <= (kernels.scan_time_s + 1) * 1000 + 200;
    is_cpu && is_time
}

#[test]
fn userspace_knows_how_much_cpu_ksmd_spent_in_the_last_scan() {
    let test = "userspace_knows_how_much_cpu_ksmd_spent_in_the_last_scan";
    let Some(_ksm) = ksm(test) else { return };
    let Some(trace) = Trace::start() else {
        return skipped!("{test}: there is no tracefs, or it has no event ksm:ksm_advisor");
    };
    let Some(_advisor) = kernels_advisor() else {
        return skipped!("{test}: this kernel has no advisor to compare with");
    };
    let _memory = Memory::offer(PAGES);
    let meter = Meter::new().unwrap();
    let mut scans = Scans::new(meter.sample().unwrap());
    // Scans that ended before we looked are told of by the kernel alone.
    let mut unseen = trace.reported().len();
    let mut ours: Vec<Option<Scan>> = Vec::new();
    let mut was_late = false;
    wait_until("the end of enough scans", || {
        let sample = meter.sample().unwrap();
        if let Some(ended) = scans.observe(sample, 20_000) {
            // Whoever looks late takes what the next scan has spent for what the last one did.
            let is_late = sample.at_us - ended.after_us > LOOK_US;
            let scan = (ended.is_whole && !is_late && !was_late).then_some(ended.scan);
            // Of several between two looks none is known.
            let scan = scan.filter(|_| ended.count == 1);
            ours.extend(std::iter::repeat_n(scan, ended.count as usize));
            was_late = is_late;
        }
        ours.iter().flatten().count() >= SCANS
    });
    let reported = trace.reported();
    assert!(reported.len() >= unseen + ours.len(), "{reported:?}");
    // A scan that ended between the first look at the trace and ours counts as unseen.
    if reported.len() > unseen + ours.len() {
        unseen = reported.len() - ours.len();
    }
    let compared: Vec<_> = ours.iter().zip(&reported[unseen..]).skip(1).collect();
    let mut agreed = 0;
    for (ours, kernels) in compared {
        let Some(ours) = ours else { continue };
        println!(
            "pilot {} ms in {} ms, kernel {kernels:?}",
            ours.cpu_us / 1000,
            ours.time_us / 1000
        );
        assert!(agree(*ours, *kernels), "{ours:?} {kernels:?}");
        agreed += 1;
    }
    assert!(agreed >= SCANS - 1, "{agreed} scans were compared");
}
