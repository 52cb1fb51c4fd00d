//! The guard over KSM: it merges while it lives, and the machine is as before when it is gone.

use std::time::{Duration, Instant};

use bindery_testkit::machine::{
    KsmCounters, KsmGuard, KsmSettings, ProcessMemory, SettingGuard, ksmd_cpu_time,
};
use bindery_testkit::skipped;

const PAGE: usize = 4096;
const NAMES: [&str; 3] = ["run", "sleep_millisecs", "pages_to_scan"];

fn settings() -> Option<Vec<String>> {
    NAMES
        .iter()
        .map(|name| std::fs::read_to_string(format!("/sys/kernel/mm/ksm/{name}")).ok())
        .collect()
}

#[test]
fn ksm_merges_under_the_guard_and_is_as_before_afterwards() {
    // Another process's guard may hold other settings now: look only while holding one.
    let quiet = match KsmGuard::stopped() {
        Ok(quiet) => quiet,
        Err(error) => return skipped!("{error}"),
    };
    drop(quiet);
    let before = settings();
    let block = vec![0x5A_u8; 512 * PAGE + PAGE];
    let start = block.as_ptr().addr().next_multiple_of(PAGE);
    // SAFETY: the range is inside the block, which lives to the end of the test; the advice changes
    // no content.
    let advised = unsafe {
        libc::madvise(
            std::ptr::with_exposed_provenance_mut(start),
            512 * PAGE,
            libc::MADV_MERGEABLE,
        )
    };
    assert_eq!(advised, 0, "{}", std::io::Error::last_os_error());
    let cpu_before = ksmd_cpu_time().unwrap();
    let guard = KsmGuard::start(KsmSettings::full_speed()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while ProcessMemory::of(std::process::id()).unwrap().ksm.0 < (500 * PAGE) as u64 {
        assert!(Instant::now() < deadline, "{:?}", KsmCounters::read());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(KsmCounters::read().unwrap().pages_sharing >= 500);
    assert!(ksmd_cpu_time().unwrap() > cpu_before);
    assert!(SettingGuard::set("/sys/kernel/mm/ksm/no_such_setting", 1).is_err());
    drop(guard);
    assert_eq!(settings(), before);
    assert_eq!(ProcessMemory::of(std::process::id()).unwrap().ksm.0, 0);
    assert!(block.iter().all(|&byte| byte == 0x5A));
}
