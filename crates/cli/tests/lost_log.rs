//! A log that cannot be written is lost; the daemon is not.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;
#[path = "common/shim.rs"]
mod shim;

use std::process::Command;

use common::{TestDaemon, daemon_command};

/// How the log is lost, as a shell that executes the daemon's command line does it. `$LOG` is a file that
/// is not there yet.
const WAYS: [&str; 7] = [
    // Files may not grow beyond a block: a write raises SIGXFSZ.
    r#"ulimit -f 1; exec "$@" 2>"$LOG""#,
    r#"ulimit -f 1; exec "$@" --log "$LOG""#,
    // The disk is full.
    r#"exec "$@" 2>/dev/full"#,
    r#"exec "$@" --log /dev/full"#,
    // Nobody reads: a write raises SIGPIPE.
    r#"mkfifo "$LOG"; exec 3<>"$LOG" 2>"$LOG" 3<&-; exec "$@""#,
    // Standard error is closed.
    r#"exec "$@" 2>&-"#,
    r#"exec "$@" 0<&- 1>&- 2>&-"#,
];

#[test]
fn a_log_that_cannot_be_written_is_lost_alone() {
    for way in WAYS {
        let directory = tempfile::tempdir().unwrap();
        let (socket, log) = (directory.path().join("b.sock"), directory.path().join("log"));
        let command = daemon_command(&socket, &["--period", "20ms"]);
        let mut shell = Command::new("sh");
        shell.args(["-c", way, "sh"]).arg(command.get_program()).args(command.get_args());
        shell.env("LOG", &log).env("BINDERY_LOG", "debug");
        let mut daemon = TestDaemon::spawn(shell, &socket);
        // Each is worth some lines.
        for number in 0..40 {
            drop(shim::hello(&socket, &format!("guest{number}")));
        }
        let status = daemon.ask(&["status", "--json"]);
        assert_eq!(status.code, Some(0), "{way}: {}", status.err);
        if way.contains("ulimit") {
            let bytes = std::fs::metadata(&log).unwrap().len();
            assert!((1..=1024).contains(&bytes), "{way}: {bytes} bytes are logged");
        }
        assert_eq!(daemon.end_with("TERM"), Some(0), "{way}");
    }
}
