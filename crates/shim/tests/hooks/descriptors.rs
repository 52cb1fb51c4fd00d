//! Programs that close, replace and hand on descriptors which they do not know.

use std::io::Write;
use std::process::Stdio;

use crate::vmm::Vmm;
use crate::{act, can_manage};

/// Those that give some of their memory back in the end.
pub(crate) fn steps_aside(action: &str) -> bool {
    !matches!(action, "exec-keeping") && CLOSING.contains(&action)
}

const CLOSING: &[&str] = &[
    "close-range",
    "close-range-unshare",
    "closefrom",
    "close-each",
    "dup-over",
    "few-descriptors",
    "own-pipes",
    "nothing-of-ours",
    "daemon",
    "exec-keeping",
];

macro_rules! closing {
    ($($test:ident: $action:literal;)*) => {
        $(
            #[test]
            fn $test() {
                act("anonymous", $action);
            }
        )*
    };
}

closing! {
    all_numbers_can_be_closed: "close-range";
    all_numbers_can_be_closed_in_a_new_table: "close-range-unshare";
    closefrom_closes_nothing_of_ours: "closefrom";
    each_number_can_be_closed: "close-each";
    every_number_can_be_replaced: "dup-over";
    a_limit_of_eight_is_enough: "few-descriptors";
    what_a_program_writes_to_its_pipes_comes_out: "own-pipes";
    the_programs_table_holds_nothing_of_ours: "nothing-of-ours";
    a_daemon_closes_all: "daemon";
    another_program_gets_nothing_of_ours: "exec-keeping";
}

/// Runs an action with standard error for the shim's messages, and no daemon.
fn with_errors(action: &str) {
    if !can_manage() {
        return;
    }
    let directory = tempfile::tempdir().expect("directory");
    let mut command = Vmm::command(&directory, &["anonymous", action]);
    let mut child = command.stderr(Stdio::inherit()).spawn().expect("the little VMM");
    writeln!(child.stdin.take().expect("piped"), "go").expect("the VMM listens");
    let output = child.wait_with_output().expect("the VMM ends");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.ends_with("ok\n") && output.status.success(), "{said} {}", output.status);
}

#[test]
fn standard_error_ends_when_the_program_closes_it() {
    with_errors("errors-end");
}

#[test]
fn a_message_that_nobody_reads_raises_no_signal() {
    with_errors("errors-broken");
}
