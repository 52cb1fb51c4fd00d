//! The command line: help, manuals, and what is wrong with a VMM.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use common::{bindery, run};
use serde_json::Value;

#[test]
fn wrong_flags_are_a_usage_error() {
    let wrong: [&[&str]; 6] = [
        &["--wrong"],
        &["dance"],
        &["scan"],
        &["set", "workers"],
        &["daemon", "--period", "fast"],
        &["run", "--name", "a b", "--", "true"],
    ];
    for arguments in wrong {
        let ended = run(bindery(arguments));
        assert_eq!(ended.code, Some(2), "{arguments:?}");
        assert!(ended.out.is_empty() && !ended.err.is_empty());
    }
}

/// The one JSON object that a failed command writes to standard error.
fn error_of(arguments: &[&str]) -> (Option<i32>, Value) {
    let ended = run(bindery(arguments));
    assert_eq!(ended.out, "", "{arguments:?}");
    let object: Value = serde_json::from_str(&ended.err)
        .unwrap_or_else(|error| panic!("{arguments:?}: {error}: {}", ended.err));
    let error = object["error"].clone();
    assert_eq!(error["exit_code"].as_i64().map(|code| code as i32), ended.code, "{arguments:?}");
    assert!(error["message"].is_string(), "{arguments:?}: {error}");
    (ended.code, error)
}

/// Every command, and those below it: `pool`, `pool create`, …
fn commands(above: &[String]) -> Vec<Vec<String>> {
    let help = run(bindery(above.iter().map(String::as_str).chain(["--help"]))).out;
    let listed = help.split_once("\nCommands:\n").map_or("", |(_, rest)| rest);
    let lines = listed.lines().take_while(|line| !line.is_empty());
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_ascii_whitespace().next());
    let mut found = Vec::new();
    for name in names.filter(|name| *name != "help") {
        let command = [above, &[name.to_owned()]].concat();
        found.extend(commands(&command));
        found.push(command);
    }
    found
}

#[test]
fn every_command_says_in_json_what_is_wrong_with_its_line() {
    let all = commands(&[]);
    assert!(all.len() > 30 && all.contains(&vec!["pool".into(), "create".into()]), "{all:?}");
    // All that follows these is another program's.
    let programs = ["run", "ksm enable"];
    for command in all.iter().filter(|command| !programs.contains(&command.join(" ").as_str())) {
        let words = || command.iter().map(String::as_str);
        let before: Vec<&str> =
            std::iter::once("--json").chain(words()).chain(["--nonsense"]).collect();
        let behind: Vec<&str> = words().chain(["--nonsense", "--json"]).collect();
        for arguments in [before, behind] {
            let (code, error) = error_of(&arguments);
            assert_eq!(code, Some(2), "{arguments:?}");
            let message = error["message"].as_str().unwrap();
            assert!(message.contains("--nonsense") && !message.contains('\n'), "{message}");
        }
    }
    for arguments in
        [&["--json"][..], &["--json", "pool"], &["--json", "dance"], &["--json", "set", "foo"]]
    {
        assert_eq!(error_of(arguments).0, Some(2), "{arguments:?}");
    }
}

#[test]
fn every_failure_is_one_json_object() {
    const NONE: &str = "/nonexistent/x";
    let failures: [(&[&str], i32); 29] = [
        (&["ps"], 3),
        (&["top"], 3),
        (&["status"], 3),
        (&["set", "workers=1"], 3),
        (&["reload"], 3),
        (&["unmerge", "web1"], 3),
        (&["merge", "web1"], 3),
        (&["unmanage", "web1"], 3),
        (&["dirty", "web1"], 3),
        (&["stop"], 3),
        (&["daemon", "--config", NONE], 4),
        (&["daemon", "--background", "--config", NONE], 4),
        (&["daemon", "--set", "workers=0"], 2),
        (&["run", "--", NONE], 4),
        (&["scan", NONE], 4),
        (&["scan", "/dev/null"], 8),
        (&["man", "/dev/null/x"], 1),
        (&["ksm", "enable", "--", NONE], 4),
        (&["ksm", "restore", "--state", "/dev/null"], 8),
        (&["pool", "stat", "none"], 4),
        (&["pool", "objects", "none"], 4),
        (&["pool", "put", "none", "/dev/null"], 4),
        (&["pool", "get", "none", "0x1"], 4),
        (&["pool", "delete", "none", "0x1"], 4),
        (&["pool", "verify", "none"], 4),
        (&["pool", "destroy", "none"], 4),
        (&["checkpoint", "list"], 3),
        (&["checkpoint", "verify", "--all"], 3),
        (&["checkpoint", "show", "web@a", "--pool", "none"], 4),
    ];
    for (arguments, expected) in failures {
        let arguments = [&["--json", "--socket", "/nonexistent/b.sock"], arguments].concat();
        let (code, error) = error_of(&arguments);
        assert_eq!(code, Some(expected), "{arguments:?}: {error}");
    }
}

#[test]
fn every_exit_code_is_explained() {
    let help = run(bindery(["help", "exit-codes"]));
    assert_eq!(help.code, Some(0));
    let codes = run(bindery(["exit-codes", "--json"])).json();
    for code in codes.as_array().unwrap() {
        assert!(help.out.contains(code["meaning"].as_str().unwrap()));
    }
}

#[test]
fn manuals_and_completions_are_generated() {
    let directory = tempfile::tempdir().unwrap();
    let ended = run(bindery(["man".as_ref(), directory.path().as_os_str()]));
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    for page in ["bindery.1", "bindery-run.1", "bindery-scan.1", "bindery-pool-create.1"] {
        let page = std::fs::read_to_string(directory.path().join(page)).unwrap();
        assert!(page.contains(".TH bindery"), "{page}");
    }
    let main = std::fs::read_to_string(directory.path().join("bindery.1")).unwrap();
    assert!(main.contains("Exit codes"), "{main}");
    for shell in ["bash", "zsh", "fish"] {
        let script = run(bindery(["completions", shell])).out;
        assert!(script.contains("_BINDERY_COMPLETE") && script.contains("bindery"), "{shell}");
    }
}

#[test]
fn the_doctor_speaks_json() {
    let ended = run(bindery(["doctor", "--json", "--socket", "/nonexistent/b.sock"]));
    let checks = ended.json();
    let checks = checks.as_array().unwrap();
    let missing = checks.iter().any(|check| check["verdict"] == "missing");
    assert_eq!(ended.code, Some(if missing { 7 } else { 0 }), "{}", ended.err);
    let unwell = |check: &&Value| check["verdict"] != "ok";
    assert!(checks.iter().filter(unwell).all(|check| check["advice"].is_string()));
    assert!(checks.iter().any(|check| check["name"] == "vm.max_map_count"));
}

/// Runs `program` as a VMM; nothing of this gets as far as a daemon.
fn run_vmm(program: &Path) -> common::Ended {
    // Any file will do: it is looked for, not looked at.
    let shim = std::env::current_exe().unwrap();
    let mut command = bindery(["run", "--socket", "/nonexistent/b.sock", "--"]);
    command.arg(program).env("BINDERY_SHIM", shim);
    run(command)
}

#[test]
fn vmms_that_cannot_be_preloaded_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(run_vmm(Path::new("/nonexistent/vmm")).code, Some(4));
    assert_eq!(run_vmm(directory.path()).code, Some(4));

    let vmm = directory.path().join("vmm");
    std::fs::copy("/bin/true", &vmm).unwrap();
    std::fs::set_permissions(&vmm, PermissionsExt::from_mode(0o4755)).unwrap();
    let ended = run_vmm(&vmm);
    assert_eq!(ended.code, Some(7), "{}", ended.err);
    assert!(ended.err.contains("setuid"), "{}", ended.err);

    std::fs::set_permissions(&vmm, PermissionsExt::from_mode(0o755)).unwrap();
    let capable = Command::new("setcap").args(["cap_net_admin=ep"]).arg(&vmm).status();
    if capable.is_ok_and(|status| status.success()) {
        let ended = run_vmm(&vmm);
        assert_eq!(ended.code, Some(7), "{}", ended.err);
        assert!(ended.err.contains("file capabilities"), "{}", ended.err);
    } else {
        bindery_testkit::skipped!(
            "a VMM with file capabilities: only root can make one, with setcap"
        );
    }

    // An ELF file with no program header at all: none that names a dynamic linker.
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(64, 0);
    std::fs::write(&vmm, elf).unwrap();
    std::fs::set_permissions(&vmm, PermissionsExt::from_mode(0o755)).unwrap();
    let ended = run_vmm(&vmm);
    assert_eq!(ended.code, Some(7), "{}", ended.err);
    assert!(ended.err.contains("statically"), "{}", ended.err);
}

#[test]
fn a_shim_that_is_not_there_is_named() {
    let mut command = bindery(["run", "--socket", "/nonexistent/b.sock", "--", "true"]);
    command.env("BINDERY_SHIM", "/nonexistent/shim.so");
    let ended = run(command);
    assert_eq!(ended.code, Some(4));
    assert!(ended.err.contains("/nonexistent/shim.so"), "{}", ended.err);
}
