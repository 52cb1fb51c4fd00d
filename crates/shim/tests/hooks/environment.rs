//! Programs that never offer memory, and machines on which it cannot be managed.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::can_manage;
use crate::vmm::{Vmm, build, shim};

/// What a program prints with the shim in front.
fn run(program: &str, arguments: &[&str]) -> (String, String) {
    let output = Command::new(program)
        .args(arguments)
        .env("LD_PRELOAD", shim())
        .env("BINDERY_SOCKET", "/nonexistent/bindery.sock")
        .stdin(Stdio::null())
        .output()
        .expect("the program runs");
    assert!(output.status.success(), "{program}: {output:?}");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn an_allocator_may_call_us_from_within_itself() {
    if !can_manage() {
        return;
    }
    let program = build("allocator", &["-fno-builtin"], &[]);
    let (said, _) = run(program.to_str().expect("a path of ours"), &[]);
    let calls = said.strip_prefix("ok ").and_then(|calls| calls.trim().parse::<u64>().ok());
    assert!(calls.is_some_and(|calls| calls > 1000), "{said}");
}

#[test]
fn a_program_that_offers_nothing_gets_nothing() {
    let (status, said) = run("grep", &["-E", "Threads|FDSize", "/proc/self/status"]);
    assert!(status.contains("Threads:\t1\n"), "{status}");
    let (files, _) = run("ls", &["-l", "/proc/self/fd"]);
    assert!(!files.contains("userfaultfd") && !files.contains("socket"), "{files}");
    assert_eq!(said, "");
}

/// Without permission, and with all memory locked, memory is left to KSM and the log says why.
#[test]
fn what_cannot_be_managed_is_left_to_ksm() {
    if !can_manage() {
        return;
    }
    for (how, why) in [
        ("unprivileged", "userfaultfd"),
        ("locked", "mem-lock=off"),
        ("filtered", "CLOSE_RANGE_UNSHARE"),
    ] {
        let directory = tempfile::tempdir().expect("directory");
        std::fs::set_permissions(
            directory.path(),
            std::os::unix::fs::PermissionsExt::from_mode(0o777),
        )
        .expect("a directory for everybody");
        let mut vmm = Vmm::start(directory, &["anonymous", how]);
        assert_eq!(vmm.line(), "ready");
        let ended = vmm.go();
        if ended.said == "skipped" {
            bindery_testkit::skipped!(
                "{how}: this user or this machine's settings do not allow it"
            );
            continue;
        }
        assert_eq!(ended.said, "ok", "{}", ended.log);
        assert!(ended.log.contains(why), "{how}: {}", ended.log);
    }
}

/// `BINDERY_LOG` is the daemon's level: a VMM that inherits it keeps its messages on standard error.
#[test]
fn the_daemons_log_level_names_no_file() {
    if !can_manage() {
        return;
    }
    let directory = tempfile::tempdir().expect("directory");
    let mut command = Vmm::command(&directory, &["anonymous", "locked"]);
    command.env("BINDERY_LOG", "debug").current_dir(directory.path()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the little VMM");
    writeln!(child.stdin.take().expect("piped"), "go").expect("the VMM listens");
    let output = child.wait_with_output().expect("the VMM ends");
    let said = String::from_utf8_lossy(&output.stderr);
    if output.stdout.ends_with(b"skipped\n") {
        bindery_testkit::skipped!("this user may not lock memory");
        return;
    }
    assert!(said.contains("mem-lock=off"), "{said}");
    assert!(!directory.path().join("debug").exists());
}
