//! Tests that would disturb others in their process, or be disturbed: a range that is unmapped for a
//! moment is free to be taken by any thread's mmap(2), and fork(2) shares every page of everybody.

use std::process::Command;

/// Names the test that a process is for.
const VARIABLE: &str = "BINDERY_TEST_ALONE";

/// Does `work`, which is the test `name`, in a process in which nothing else runs.
pub(crate) fn alone(name: &str, work: impl FnOnce()) {
    if std::env::var_os(VARIABLE).is_some() {
        work();
        return;
    }
    let output = Command::new(std::env::current_exe().expect("this test has a path"))
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(VARIABLE, "1")
        .output()
        .expect("this test runs again");
    let (said, complaints) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    print!("{said}");
    eprint!("{complaints}");
    // What is printed here is captured, as it is there.
    complaints.lines().filter_map(|line| line.strip_prefix("SKIPPED: ")).for_each(|why| {
        bindery_testkit::skipped!("{why}");
    });
    assert!(output.status.success(), "{name}: {}", output.status);
    assert!(said.contains("1 passed"), "{name} is the test's name");
}
