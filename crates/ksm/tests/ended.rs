//! What a pilot leaves that has ended: KSM as it was found.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use bindery_advisor::Mode;
use bindery_ksm::{Options, Pilot};
use bindery_testkit::machine::SettingGuard;
use bindery_testkit::skipped;
use common::{Memory, file, ksm, settings};

/// How often a pilot ends. Scans of so few pages end all the time, with no rest between: one of a few
/// pilots would meet one where it matters.
const ENDS: usize = 200;

/// The kernel's advisor sets `pages_to_scan` whenever a scan ends. It is switched on again only once KSM
/// is stopped, where the pilot had started it.
#[test]
fn the_kernels_advisor_finds_ksm_stopped() {
    let test = "the_kernels_advisor_finds_ksm_stopped";
    let Some(ksm) = ksm(test) else { return };
    ksm.pause().unwrap();
    let set = |name: &str, value: &str| {
        SettingGuard::set(format!("/sys/kernel/mm/ksm/{name}"), value).ok()
    };
    let Some(_advisor) = set("advisor_mode", "scan-time") else {
        return skipped!("{test}: this kernel has no advisor");
    };
    let _no_rest = set("sleep_millisecs", "0").unwrap();
    let names = ["run", "advisor_mode", "pages_to_scan", "sleep_millisecs"];
    let before = names.map(file);
    let _memory = Memory::offer(50);
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("ksm.json");
    for end in 0..ENDS {
        let settings = settings(Mode::Steady, 1);
        let pilot = Pilot::start(&Options { settings, state: state.clone(), start: true }).unwrap();
        assert_eq!(file("run"), "1");
        drop(pilot);
        assert_eq!(names.map(file), before, "after {end} others");
    }
}
