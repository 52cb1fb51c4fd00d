//! The demo's tables.

use std::time::Duration;

use bindery_units::ByteCount;

use super::engine::Merged;

/// The share of the final saving at which an engine counts as done: the rest is noise of the
/// guests' own work.
const DONE_SHARE: f64 = 0.98;

/// The share of the guests' memory by which the saving on the host may differ from that of the guests: it
/// has metadata and page tables in it, and what the machine does besides.
const APART_MAX: f64 = 0.15;

/// One look at the memory while it shrinks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    /// Since merging began.
    pub(super) time: Duration,
    /// The Pss of all guests and the engine's own processes.
    pub(super) pss: ByteCount,
    /// CPU time that merging has used.
    pub(super) cpu: Duration,
}

/// One guest, before and after.
#[derive(Debug)]
pub(super) struct GuestReport {
    pub(super) name: String,
    pub(super) work: &'static str,
    pub(super) ram: ByteCount,
    pub(super) pss_before: ByteCount,
    pub(super) pss_after: ByteCount,
    pub(super) private: ByteCount,
    pub(super) merged: Merged,
}

/// One engine's run.
#[derive(Debug)]
pub(super) struct EngineReport {
    pub(super) engine: &'static str,
    /// Memory used on the machine beyond what it used when idle, before merging.
    pub(super) used_before: ByteCount,
    pub(super) used_after: ByteCount,
    pub(super) guests: Vec<GuestReport>,
    pub(super) samples: Vec<Sample>,
    /// Somebody else has switched KSM meanwhile.
    pub(super) ksm_was_switched: bool,
}

impl EngineReport {
    /// The first sample that has nearly all of the saving.
    pub(super) fn converged(&self) -> Option<&Sample> {
        let first = self.samples.first()?;
        let least = self.samples.iter().map(|sample| sample.pss.0).min()?;
        let saving = first.pss.0.saturating_sub(least) as f64 * DONE_SHARE;
        self.samples.iter().find(|sample| first.pss.0.saturating_sub(sample.pss.0) as f64 >= saving)
    }

    /// Guests and engine together, at the end.
    pub(super) fn pss_after(&self) -> Option<ByteCount> {
        self.samples.last().map(|sample| sample.pss)
    }

    fn pss_before(&self) -> ByteCount {
        ByteCount(self.guests.iter().map(|guest| guest.pss_before.0).sum())
    }

    /// Memory that the machine uses less than before merging, in bytes.
    fn saved_on_host(&self) -> i64 {
        self.used_before.0.cast_signed() - self.used_after.0.cast_signed()
    }

    /// What shows that something else on the machine disturbed the measurement, if anything does.
    fn disturbance(&self) -> Option<String> {
        if self.ksm_was_switched {
            return Some("KSM was switched by somebody else".to_owned());
        }
        let guests = self.pss_before();
        let after = self.pss_after().unwrap_or_default();
        let by_guests = guests.0.cast_signed() - after.0.cast_signed();
        let apart = self.saved_on_host().abs_diff(by_guests);
        let is_believed = apart as f64 <= APART_MAX * guests.0 as f64;
        (!is_believed).then(|| {
            format!(
                "the machine's used memory changed by {} while its guests' changed by {}",
                signed(-self.saved_on_host()),
                signed(-by_guests)
            )
        })
    }
}

/// Prints what became of each guest, then the engines side by side.
pub(super) fn print(reports: &[EngineReport]) {
    for report in reports {
        print_guests(report);
    }
    let Some(neither) = reports.first() else { return };
    println!();
    print_row("", "neither", reports, |report| report.engine.to_owned());
    print_row("guests and engine, Pss", &mib(neither.pss_before()), reports, |report| {
        mib(report.pss_after().unwrap_or_default())
    });
    print_row("used on the host, metadata and all", &mib(neither.used_before), reports, |report| {
        mib(report.used_after)
    });
    print_row("net saving on the host", "", reports, |report| match report.disturbance() {
        None => signed(report.saved_on_host()),
        Some(_) => "disturbed".to_owned(),
    });
    print_row("time until nearly all was saved", "", reports, |report| {
        seconds(report.converged().map(|sample| sample.time))
    });
    print_row("CPU time spent until then", "", reports, |report| {
        seconds(report.converged().map(|sample| sample.cpu))
    });
    for report in reports {
        if let Some(disturbance) = report.disturbance() {
            println!(
                "\nDisturbed under {}: {disturbance}. Run the demo again when the machine does nothing else.",
                report.engine
            );
        }
    }
}

fn print_guests(report: &EngineReport) {
    println!("\nGuests under {}:", report.engine);
    println!(
        "{:<12} {:>9} {:>10} {:>10} {:>10} {:>10} {:>10} {:>8}  what it does",
        "guest", "RAM", "before", "after", "private", "merged", "zero", "breaks"
    );
    for guest in &report.guests {
        let breaks = guest.merged.breaks.map_or_else(|| "-".to_owned(), |count| count.to_string());
        println!(
            "{:<12} {:>9} {:>10} {:>10} {:>10} {:>10} {:>10} {breaks:>8}  {}",
            guest.name,
            mib(guest.ram),
            mib(guest.pss_before),
            mib(guest.pss_after),
            mib(guest.private),
            mib(guest.merged.merged),
            mib(guest.merged.zero),
            guest.work,
        );
    }
}

fn print_row(
    label: &str,
    neither: &str,
    reports: &[EngineReport],
    cell: impl Fn(&EngineReport) -> String,
) {
    print!("{label:<36} {neither:>12}");
    for report in reports {
        print!(" {:>12}", cell(report));
    }
    println!();
}

fn seconds(time: Option<Duration>) -> String {
    time.map_or_else(|| "-".to_owned(), |time| format!("{:.1} s", time.as_secs_f64()))
}

/// One unit for all, so that a column can be compared at a glance.
pub(super) fn mib(bytes: ByteCount) -> String {
    format!("{:.0} MiB", bytes.mib())
}

fn signed(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "" };
    format!("{sign}{}", mib(ByteCount(bytes.unsigned_abs())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(pss_mib: &[u64]) -> EngineReport {
        let samples = pss_mib.iter().zip(0..).map(|(&mib, second)| Sample {
            time: Duration::from_secs(second),
            pss: ByteCount::from_mib(mib),
            cpu: Duration::from_millis(second * 100),
        });
        EngineReport {
            engine: "none",
            used_before: ByteCount(0),
            used_after: ByteCount(0),
            guests: Vec::new(),
            samples: samples.collect(),
            ksm_was_switched: false,
        }
    }

    /// A run whose guests had 1000 MiB and have 400.
    fn run_of(used_before_mib: u64, used_after_mib: u64) -> EngineReport {
        let guest = GuestReport {
            name: "zeros-1".to_owned(),
            work: "has freed much memory",
            ram: ByteCount::from_mib(1024),
            pss_before: ByteCount::from_mib(1000),
            pss_after: ByteCount::from_mib(400),
            private: ByteCount::from_mib(400),
            merged: Merged::default(),
        };
        EngineReport {
            used_before: ByteCount::from_mib(used_before_mib),
            used_after: ByteCount::from_mib(used_after_mib),
            guests: vec![guest],
            ..report(&[1000, 400])
        }
    }

    #[test]
    fn a_saving_that_is_not_the_guests_is_a_disturbance() {
        assert_eq!(run_of(1200, 620).disturbance(), None);
        for (before, after) in [(1700, 43), (1200, 1100), (1200, 1300)] {
            let disturbance = run_of(before, after).disturbance();
            assert!(disturbance.is_some_and(|said| said.contains("-600 MiB")), "{before} {after}");
        }
        let switched = EngineReport { ksm_was_switched: true, ..run_of(1200, 620) };
        assert!(switched.disturbance().is_some_and(|said| said.contains("KSM")));
    }

    #[test]
    fn converged_is_where_nearly_all_is_saved() {
        let report = report(&[1000, 900, 510, 501, 500, 502]);
        let found = report.converged().unwrap();
        assert_eq!(found.time, Duration::from_secs(2));
        assert_eq!(found.cpu, Duration::from_millis(200));
        assert_eq!(report.pss_after(), Some(ByteCount::from_mib(502)));
    }

    #[test]
    fn nothing_saved_has_converged_at_once() {
        assert_eq!(report(&[100, 100]).converged().unwrap().time, Duration::ZERO);
    }
}
