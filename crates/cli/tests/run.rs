//! `bindery run`: the VMM that takes the command's place. Any library stands in for the shim here:
//! these tests are about what happens before it is loaded.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Ended, bindery, run};

/// A library that preloading does no harm with: the C library of this very program.
fn harmless_library() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let library = maps.split_ascii_whitespace().find(|word| word.contains("/libc.so"));
    if library.is_none() {
        bindery_testkit::skipped!(
            "this program is not linked with a C library that could be preloaded"
        );
    }
    library.map(PathBuf::from)
}

/// `bindery run`, with `script` as the VMM.
fn run_script(socket: &Path, library: &Path, flags: &[&str], script: &str) -> Command {
    let mut command = bindery(["run", "--socket"]);
    command.arg(socket).args(flags).args(["--", "sh", "-c", script]).env("BINDERY_SHIM", library);
    command
}

#[test]
fn the_vmm_takes_the_commands_place_and_a_daemon_is_there() {
    let Some(library) = harmless_library() else { return };
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("b.sock");
    let script = r#"echo "$$ $LD_PRELOAD $BINDERY_SOCKET $BINDERY_NAME $BINDERY_DOMAIN"; exit 42"#;
    let flags = ["--name", "web1", "--domain", "web"];
    let child = run_script(&socket, &library, &flags, script)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(42), "the exit code is the VMM's");
    let expected = format!("{pid} {} {} web1 web\n", library.display(), socket.display());
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("started one in the background"), "{said}");

    // The next one finds the daemon, and has nothing to say.
    let second = run(run_script(&socket, &library, &[], "true"));
    assert_eq!((second.code, second.err.as_str()), (Some(0), ""));
    let mut stop = bindery(["stop", "--socket"]);
    stop.arg(&socket);
    assert_eq!(run(stop).code, Some(0));
}

#[test]
fn several_at_once_start_one_daemon() {
    let Some(library) = harmless_library() else { return };
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("b.sock");
    let children: Vec<_> = (0..6)
        .map(|number| {
            let flags = ["--name", &format!("guest{number}")];
            run_script(&socket, &library, &flags, "true").stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let mut started = 0;
    for child in children {
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
        started += usize::from(said.contains("started one"));
    }
    assert_eq!(started, 1);
    let mut stop = bindery(["stop", "--socket"]);
    stop.arg(&socket);
    assert_eq!(run(stop).code, Some(0));
}

#[test]
fn other_preloaded_libraries_stay() {
    let Some(library) = harmless_library() else { return };
    let daemon = common::TestDaemon::start(&[]);
    let mut command = run_script(&daemon.socket(), &library, &[], "echo $LD_PRELOAD");
    command.env("LD_PRELOAD", &library);
    let ended = run(command);
    assert_eq!(ended.out, format!("{0}:{0}\n", library.display()));
}

#[test]
fn a_library_that_cannot_be_named_is_refused() {
    let Some(library) = harmless_library() else { return };
    let directory = tempfile::tempdir().unwrap();
    let spaced = directory.path().join("my shim.so");
    std::fs::copy(library, &spaced).unwrap();
    let socket = directory.path().join("b.sock");
    let ended = run(run_script(&socket, &spaced, &[], "true"));
    assert_eq!(ended.code, Some(7), "{}", ended.err);
    assert!(ended.err.contains("space or colon"), "{}", ended.err);
    assert!(!socket.exists(), "a daemon was started for nothing");
}

/// What `program` says when it is run as it is, and when `bindery run` starts it; both from a shell that
/// has done `setting` first.
fn plain_and_run(setting: &str, library: &Path, program: &[&str]) -> [Ended; 2] {
    let daemon = common::TestDaemon::start(&[]);
    let of_shell = |words: &Command| {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{setting}; exec \"$@\""), "sh"]).arg(words.get_program());
        shell.args(words.get_args()).env("BINDERY_SHIM", library);
        run(shell)
    };
    let mut plain = Command::new(program[0]);
    plain.args(&program[1..]);
    let mut managed = bindery(["run", "--socket"]);
    managed.arg(daemon.socket()).arg("--").args(program);
    [of_shell(&plain), of_shell(&managed)]
}

/// Descriptors that are closed stay closed, and none of ours is left open.
#[test]
fn the_vmm_gets_the_callers_descriptors_alone() {
    let Some(library) = harmless_library() else { return };
    for setting in ["exec 7>&1 9</dev/null", "exec 0<&- 7>&1", "exec 0<&- 2>&-", ":"] {
        let [plain, managed] = plain_and_run(setting, &library, &["ls", "/proc/self/fd"]);
        assert_eq!((plain.code, managed.code), (Some(0), Some(0)), "{setting}: {}", managed.err);
        assert_eq!(managed.out, plain.out, "{setting}");
    }
}

/// Rust's runtime ignores `SIGPIPE`, and this command `SIGXFSZ`.
#[test]
fn the_vmm_gets_the_callers_signals() {
    let Some(library) = harmless_library() else { return };
    for setting in ["trap '' PIPE XFSZ HUP", "umask 0123", ":"] {
        let grep = ["grep", "-E", "^(Sig(Blk|Ign)|Umask)", "/proc/self/status"];
        let blocked = [&["env", "--block-signal=USR1"], &grep[..]].concat();
        for program in [&grep[..], &blocked] {
            let [plain, managed] = plain_and_run(setting, &library, program);
            assert_eq!(managed.out, plain.out, "{setting}: {}", managed.err);
        }
    }
}
