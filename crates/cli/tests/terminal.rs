//! Commands on terminals: those that take escape sequences, and those that do not.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;

use std::fs::File;
use std::io::Read;
use std::process::Command;

use common::{TestDaemon, bindery};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// Runs a command with its output and errors on a terminal until that has shown `word` twice, and
/// returns all that it has shown.
fn shown(mut command: Command, word: &str) -> String {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let other_end = || File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    command.stdin(other_end()).stdout(other_end()).stderr(other_end());
    let mut child = command.spawn().unwrap();
    // Ours are closed: if the command ends, reading fails.
    drop(command);
    let (mut terminal, mut text) = (File::from(terminal), String::new());
    let mut bytes = [0; 4096];
    while text.matches(word).count() < 2 {
        let read = terminal.read(&mut bytes).unwrap_or_else(|error| panic!("{error}: {text}"));
        text.push_str(&String::from_utf8_lossy(&bytes[..read]));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    text
}

fn with_term(mut command: Command, term: Option<&str>) -> Command {
    match term {
        Some(term) => command.env("TERM", term),
        None => command.env_remove("TERM"),
    };
    command
}

#[test]
fn dumb_terminals_get_no_escape_sequences() {
    let daemon = TestDaemon::start(&[]);
    for (term, is_smart) in [(Some("dumb"), false), (None, false), (Some("xterm"), true)] {
        let mut top = bindery(["top", "--interval", "100ms", "--socket"]);
        top.arg(daemon.socket());
        let text = shown(with_term(top, term), "0 guests");
        assert_eq!(text.contains('\x1b'), is_smart, "TERM={term:?}: {text:?}");

        let directory = tempfile::tempdir().unwrap();
        let mut log = bindery(["daemon", "--socket"]);
        log.arg(directory.path().join("b.sock")).env("BINDERY_LOG", "debug");
        log.args(["--http", "127.0.0.1:0"]);
        let text = shown(with_term(log, term), "INFO");
        assert_eq!(text.contains('\x1b'), is_smart, "TERM={term:?}: {text:?}");
    }
}
