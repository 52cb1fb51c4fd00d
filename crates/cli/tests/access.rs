//! Who may use a daemon with a group: its user, root and the members, by what the kernel says of them.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;
#[path = "common/guest.rs"]
mod guest;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use bindery_sys::group::group_id;
use common::{Ended, NOBODY, PATIENCE, TestDaemon, bindery, can_change_user, program_for_all, run};
use guest::{TestGuest, can_manage};

/// Groups that machines have, none of which is anybody's: members of one, and of the other.
const GROUPS: [&str; 2] = ["users", "games"];

#[test]
#[ignore = "a guest's process, which tests start"]
fn guest_process() {
    guest::live();
}

/// A daemon of root's with a group, and somebody who is not root.
struct Stage {
    daemon: TestDaemon,
    program: PathBuf,
    gid: u32,
    other_gid: u32,
}

impl Stage {
    /// `None`, and says so loudly, where this machine has not what it takes.
    fn set(test: &str) -> Option<Self> {
        let gids = GROUPS.map(|name| group_id(name).unwrap());
        let [Some(gid), Some(other_gid)] = gids else {
            bindery_testkit::skipped!("{test}: this machine has no groups {GROUPS:?}");
            return None;
        };
        if !can_change_user(test) {
            return None;
        }
        let daemon = TestDaemon::start(&["--group", GROUPS[0]]);
        let program = program_for_all(daemon.directory());
        Some(Self { daemon, program, gid, other_gid })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).arg("--socket").arg(self.daemon.socket()).current_dir("/");
        command
    }

    /// Has nobody ask, in this group alone.
    fn ask_as(&self, gid: u32, arguments: &[&str]) -> Ended {
        let mut command = self.command(arguments);
        command.uid(NOBODY).gid(gid);
        run(command)
    }

    /// Has nobody ask, with this group as a supplementary one.
    fn ask_with(&self, gid: u32, arguments: &[&str]) -> Ended {
        let asked = self.command(arguments);
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--groups"]).arg(gid.to_string());
        command.arg("--").arg(asked.get_program()).args(asked.get_args()).current_dir("/");
        run(command)
    }
}

#[test]
fn members_are_served_by_either_kind_of_group_and_others_refused() {
    let Some(stage) = Stage::set("members_are_served_by_either_kind_of_group") else { return };
    let file = std::fs::metadata(stage.daemon.socket()).unwrap();
    assert_eq!((file.mode() & 0o7777, file.uid(), file.gid()), (0o660, 0, stage.gid));
    assert_eq!(stage.ask_as(stage.gid, &["status"]).code, Some(0));
    assert_eq!(stage.ask_with(stage.gid, &["ps"]).code, Some(0));
    // By the socket's mode, and by the daemon where the mode lets everybody in.
    for mode in [0o660, 0o666] {
        let mode = PermissionsExt::from_mode(mode);
        std::fs::set_permissions(stage.daemon.socket(), mode).unwrap();
        assert_eq!(stage.ask_as(stage.other_gid, &["status"]).code, Some(5));
        assert_eq!(stage.ask_as(NOBODY, &["status"]).code, Some(5));
    }
    let refused = stage.ask_with(stage.other_gid, &["status"]);
    assert_eq!(refused.code, Some(5), "{}", refused.err);
    assert!(refused.err.contains("user 0 and group users"), "{}", refused.err);
    assert_eq!(stage.daemon.ask(&["status"]).code, Some(0));
}

#[test]
fn members_see_everything_and_change_nothing_of_others() {
    let Some(stage) = Stage::set("members_see_everything_and_change_nothing_of_others") else {
        return;
    };
    let before = stage.daemon.ask(&["set"]).out;
    assert_eq!(stage.ask_as(stage.gid, &["set"]).out, before);
    for arguments in [&["set", "workers=7"][..], &["reload"], &["stop"], &["stop", "--unmerge"]] {
        let refused = stage.ask_as(stage.gid, arguments);
        assert_eq!(refused.code, Some(5), "{arguments:?}: {}", refused.err);
        assert!(refused.err.contains("only root"), "{arguments:?}: {}", refused.err);
    }
    assert_eq!(stage.daemon.ask(&["set"]).out, before);
    if !can_manage("members_see_everything_and_change_nothing_of_others") {
        return;
    }
    let mut roots = TestGuest::start(&stage.daemon.socket(), "roots", "web");
    // It comes by itself, once it is there.
    let deadline = Instant::now() + PATIENCE;
    while !stage.ask_as(stage.gid, &["ps"]).out.contains("roots") {
        assert!(Instant::now() < deadline, "the guest never came: {}", stage.daemon.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    for command in ["unmerge", "merge", "unmanage", "dirty"] {
        let refused = stage.ask_as(stage.gid, &[command, "roots"]);
        assert_eq!(refused.code, Some(5), "{command}: {}", refused.err);
        assert!(refused.err.contains("another user's guest"), "{command}: {}", refused.err);
        assert_eq!(stage.ask_as(stage.gid, &[command, "nobodys"]).code, Some(4), "{command}");
    }
    assert!(!roots.has_ended());
    roots.write(1);
    roots.check();
    assert_eq!(stage.daemon.ask(&["unmerge", "roots"]).code, Some(0));
}

#[test]
fn a_group_that_is_not_there_starts_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("new").join("b.sock");
    let file = directory.path().join("bindery.toml");
    std::fs::write(&file, "# who\ngroup = \"no-such-group\"\n").unwrap();
    let by_file: &[&str] = &["--config", file.to_str().unwrap()];
    for (arguments, code, word) in [
        (by_file, 8, "bindery.toml:2: group: there is no group no-such-group"),
        (&["--group", "no-such-group"], 2, "--group"),
    ] {
        let mut command = bindery(["daemon"]);
        command.args(arguments).arg("--socket").arg(&socket);
        let ended = run(command);
        assert_eq!(ended.code, Some(code), "{}", ended.err);
        assert!(ended.err.contains(word) && ended.err.contains("groupadd"), "{}", ended.err);
    }
    assert!(!socket.parent().unwrap().exists());
}

#[test]
fn in_the_background_the_directory_that_is_made_lets_the_group_pass() {
    let test = "in_the_background_the_directory_that_is_made_lets_the_group_pass";
    let Some(gid) = group_id(GROUPS[0]).unwrap() else {
        return bindery_testkit::skipped!("{test}: this machine has no group {}", GROUPS[0]);
    };
    if !can_change_user(test) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bindery.toml");
    std::fs::write(&file, format!("group = \"{}\"\n", GROUPS[0])).unwrap();
    for (name, arguments) in
        [("flag", ["--group", GROUPS[0]]), ("file", ["--config", file.to_str().unwrap()])]
    {
        let socket = directory.path().join(name).join("b.sock");
        let ask = |arguments: &[&str]| {
            let mut command = bindery(arguments);
            command.arg("--socket").arg(&socket);
            run(command)
        };
        let started = ask(&[&["daemon", "--background"], &arguments[..]].concat());
        let made = [socket.parent().unwrap(), &socket].map(|path| {
            let file = std::fs::metadata(path).unwrap();
            (file.mode() & 0o7777, file.gid())
        });
        let ended = ask(&["stop"]);
        assert_eq!(started.code, Some(0), "{}", started.err);
        assert_eq!(made, [(0o750, gid), (0o660, gid)], "{name}");
        assert_eq!(ended.code, Some(0), "{}", ended.err);
    }
}
