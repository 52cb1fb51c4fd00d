//! A daemon that keeps checkpoints, and guests that go on from them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use bindery_testkit::bindery::Daemon;
use bindery_testkit::guest::{GuestBuilder, Kit, Qemu, QemuGuest};
use serde_json::Value;

use super::{BOOT, bindery_and_kit, daemon_with, managed_guest, server_image};

/// A daemon that merges and keeps checkpoints, and what guests boot from.
pub(crate) struct Stage {
    pub(crate) daemon: Daemon,
    pub(crate) kit: Kit,
    pub(crate) directory: tempfile::TempDir,
}

impl Stage {
    pub(crate) fn new() -> Option<Self> {
        let (bindery, kit) = bindery_and_kit()?;
        let directory = tempfile::tempdir().unwrap();
        let pool = directory.path().join("pool");
        std::fs::create_dir(&pool).unwrap();
        make_pool(bindery.program(), &pool, directory.path());
        let daemon = daemon_with(&bindery, &["--checkpoint-pool", pool.to_str().unwrap()]);
        Some(Self { daemon, kit, directory })
    }

    pub(crate) fn builder(&self, qemu: Qemu, machine: &str, name: &str) -> GuestBuilder {
        let builder = managed_guest(&self.daemon, &self.kit, &server_image(&self.kit), qemu, name);
        builder.machine_type(machine)
    }

    /// Runs a command of the program, which may fail.
    pub(crate) fn try_command(&self, qemu: Qemu, words: &[&str]) -> Output {
        let mut command = Command::new(self.program());
        command.args(words).arg("--socket").arg(self.daemon.socket());
        command.env("LD_LIBRARY_PATH", self.kit.library_path(qemu)).output().unwrap()
    }

    /// Makes a checkpoint with overlays of the guest's disks.
    pub(crate) fn checkpoint_with_disks(&self, guest: &str, name: &str) -> Value {
        let made = self.daemon.command(&["checkpoint", "create", guest, "--name", name, "--json"]);
        serde_json::from_str(&made.unwrap_or_else(|e| panic!("{e}\n{}", self.daemon.log())))
            .unwrap()
    }

    /// Makes a checkpoint without disks.
    pub(crate) fn checkpoint(&self, guest: &str, name: &str) -> Value {
        let words = ["checkpoint", "create", guest, "--name", name, "--without-disks", "--json"];
        let made = self.daemon.command(&words);
        serde_json::from_str(&made.unwrap_or_else(|e| panic!("{e}\n{}", self.daemon.log())))
            .unwrap()
    }

    /// Starts a guest that goes on from a checkpoint, and waits until it runs commands.
    pub(crate) fn restore(&self, qemu: Qemu, checkpoint: &str, name: &str) -> QemuGuest {
        let mut guest = self.begin_restore(qemu, checkpoint, name);
        if let Err(error) = guest.wait_ready(BOOT) {
            panic!("{error}\n{}\n{}", guest.log(), self.daemon.log());
        }
        guest
    }

    /// Starts a guest that goes on from a checkpoint, and waits for nothing.
    pub(crate) fn begin_restore(&self, qemu: Qemu, checkpoint: &str, name: &str) -> QemuGuest {
        self.begin_restore_with(qemu, &[checkpoint, "--name", name])
    }

    /// As [`begin_restore`](Self::begin_restore), with all words of the command.
    pub(crate) fn begin_restore_with(&self, qemu: Qemu, restore: &[&str]) -> QemuGuest {
        let mut words = vec![self.program().into_os_string()];
        words.extend(["restore", "--socket"].map(Into::into));
        words.push(self.daemon.socket().into());
        words.extend(restore.iter().map(Into::into));
        let builder = QemuGuest::builder(&self.kit, &server_image(&self.kit)).qemu(qemu);
        builder.launcher(words).spawn_restored().unwrap()
    }

    pub(crate) fn program(&self) -> PathBuf {
        self.daemon.program().to_path_buf()
    }
}

fn make_pool(program: &Path, pool: &Path, registry: &Path) {
    let mut command = Command::new(program);
    command.args(["pool", "create", "guests", "--size", "2G", "--capacity"]).arg(pool);
    let made = command.env("BINDERY_POOLS", registry.join("registry")).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}
