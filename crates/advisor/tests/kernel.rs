//! The kernel's law does what the kernel does, quirks and all.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

use bindery_advisor::kernel::ScanTime;
use bindery_advisor::recorded::Recording;
use bindery_advisor::{Advisor, AdvisorSettings, Mode, Scan};
use proptest::prelude::*;

fn recordings() -> Vec<(String, Recording)> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/traces");
    let files = std::fs::read_dir(directory).expect("the recordings are in the crate");
    let paths = files.map(|file| file.unwrap().path());
    let of_advisor = paths.filter(|path| !path.ends_with("start-up.json"));
    let recordings = of_advisor.map(|path| {
        let text = std::fs::read_to_string(&path).unwrap();
        (path.display().to_string(), serde_json::from_str(&text).unwrap())
    });
    recordings.collect()
}

#[test]
fn the_law_gives_what_the_kernel_gave_every_time() {
    let recordings = recordings();
    let mut events = 0;
    for (path, Recording { kernel, segments }) in recordings {
        for segment in segments {
            let mut law = ScanTime::new(&segment.settings);
            for (scan, event) in segment.events.iter().enumerate() {
                let ours = law.step(&segment.settings, event.scan_time_s, event.cpu_percent);
                assert_eq!(ours, *event, "{path}, {kernel}, {:?}, scan {scan}", segment.name);
                events += 1;
            }
        }
    }
    assert!(events >= 200, "only {events} events are recorded: `cargo xtask record-advisor`");
}

/// The recordings are only worth something where they show what is peculiar.
#[test]
fn the_recordings_have_every_quirk() {
    let segments: Vec<_> = recordings().into_iter().flat_map(|(_, it)| it.segments).collect();
    let any = |what: &str, is_so: &dyn Fn(&bindery_advisor::recorded::Segment) -> bool| {
        assert!(segments.iter().any(is_so), "no recording shows {what}");
    };
    any("the life's CPU time in the first scan", &|it| it.events[0].cpu_percent > 1000);
    any("batches below the least", &|it| {
        it.events.iter().any(|event| event.pages_to_scan < it.settings.min_pages_to_scan)
    });
    any("the largest batch", &|it| {
        it.events.iter().any(|event| event.pages_to_scan == it.settings.max_pages_to_scan)
    });
    any("a scan that counts from the machine's start", &|it| it.events[0].scan_time_s > 1000);
    any("more CPU time than the ceiling allows", &|it| {
        it.events.iter().skip(2).any(|event| event.cpu_percent > it.settings.max_cpu_percent + 2)
    });
    any("scans that stay far below the target", &|it| {
        let last = it.events.last().expect("no recording is empty");
        last.scan_time_s * 2 <= it.settings.target_scan_time_s
    });
}

#[test]
fn the_first_change_counts_a_third() {
    let settings = AdvisorSettings::of_kernel(Mode::ScanTime);
    let mut advisor = Advisor::new(settings, 100, 20_000);
    assert_eq!(advisor.pace().pages_to_scan, 500);
    // Exactly on the target, at 30% of a CPU: nothing should change, and yet three tenths of it are left
    // (and what a tenth of a CPU can do), and then the average creeps up: 0.30, 0.51, 0.65.
    let on_target =
        Scan { time_us: 200_999_999, busy_us: 60_300_000, cpu_us: 60_300_000, pages: 1 << 20 };
    let batches: Vec<u64> =
        (0..3).map(|_| advisor.end_scan(on_target, Some(7)).pages_to_scan).collect();
    assert_eq!(batches, [160, 81, 52]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..<_>::default() })]

    #[test]
    fn no_input_has_it_panic(
        target in any::<u64>(), max_cpu in any::<u64>(), bounds in any::<(u64, u64)>(),
        scans in prop::collection::vec(any::<(u64, u64, u64)>(), 1..20),
    ) {
        let settings = AdvisorSettings {
            mode: Mode::ScanTime,
            target_scan_time_s: target,
            max_cpu_percent: max_cpu,
            min_pages_to_scan: bounds.0,
            max_pages_to_scan: bounds.1,
        };
        let mut advisor = Advisor::new(settings, 1, 20_000);
        for (time_us, cpu_us, pages) in scans {
            let pace = advisor.end_scan(Scan { time_us, busy_us: cpu_us, cpu_us, pages }, None);
            prop_assert!(pace.pages_to_scan <= bounds.1);
            prop_assert_eq!(pace.rest_us, 20_000);
        }
    }
}
