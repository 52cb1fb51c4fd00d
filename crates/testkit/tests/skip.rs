//! A skip is seen by whoever runs the tests, though the harness captures what tests print.

use std::process::Command;

use bindery_testkit::skipped;

#[test]
#[ignore = "run by the other test"]
fn a_test_that_is_skipped() {
    eprintln!("printed as usual");
    skipped!("there is no {}", "reason");
}

#[test]
fn a_skip_is_seen_though_the_harness_captures() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", "a_test_that_is_skipped", "--ignored"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let seen = String::from_utf8_lossy(&output.stderr);
    assert!(seen.contains("SKIPPED: there is no reason\n"), "{seen}");
    assert!(!seen.contains("printed as usual"), "the harness does not capture: {seen}");
}
