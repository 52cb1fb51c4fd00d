//! Guests in the background that `bindery clone` and `bindery fork` have started.

use std::process::{Command, Output};

use bindery_testkit::guest::{Qemu, QemuGuest};
use serde_json::Value;
use tempfile::TempDir;

use super::stage::Stage;

/// Directories of guests that are to be started.
pub(crate) struct Nursery(Vec<TempDir>);

impl Nursery {
    pub(crate) fn new(count: u32) -> Self {
        let drawn = tempfile::Builder::new().prefix("bindery-child-").tempdir().unwrap();
        let name = drawn.path().file_name().unwrap().to_str().unwrap().to_owned();
        let numbered = |number| {
            let exact = format!("{name}-{number}");
            tempfile::Builder::new().prefix(&exact).rand_bytes(0).tempdir().unwrap()
        };
        Self((1..=count).map(numbered).collect())
    }

    /// Returns a command of the program whose guests have their sockets here.
    pub(crate) fn command(&self, stage: &Stage, qemu: Qemu, words: &[&str]) -> Command {
        let mut command = Command::new(stage.program());
        command.args(words).args(["--json", "--socket"]).arg(stage.daemon.socket());
        command.env("LD_LIBRARY_PATH", stage.kit.library_path(qemu)).arg("--");
        let first = self.0[0].path().to_str().unwrap();
        let at = |name: &str| format!("{}{{}}/{name}", first.strip_suffix('1').unwrap());
        command.args(["-qmp", &format!("unix:{},server=on,wait=off", at("qmp.sock"))]);
        command.args(["-chardev", &format!("file,id=console,path={}", at("console.log"))]);
        let agent = format!("socket,id=agent,path={},server=on,wait=off", at("agent.sock"));
        command.args(["-chardev", &agent]);
        command
    }

    /// Takes over the guests that a command has started.
    pub(crate) fn adopt(self, started: &Value) -> Vec<QemuGuest> {
        let guests = started["guests"].as_array().unwrap();
        let own = guests.iter().map(|guest| {
            let number = guest["guest"].as_str().unwrap().rsplit('-').next().unwrap();
            (number.parse::<usize>().unwrap(), guest["pid"].as_u64().unwrap() as u32)
        });
        let own: std::collections::BTreeMap<usize, u32> = own.collect();
        let directories = (1..).zip(self.0);
        let adopted = directories.filter_map(|(number, directory)| {
            Some(QemuGuest::adopt(*own.get(&number)?, directory).unwrap())
        });
        adopted.collect()
    }
}

/// Returns what a command that has succeeded printed.
pub(crate) fn answer(output: &Output, stage: &Stage) -> Value {
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}{}", stage.daemon.log());
    serde_json::from_slice(&output.stdout).unwrap()
}
