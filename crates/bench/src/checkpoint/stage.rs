//! A daemon that keeps checkpoints, and guests under it and beside it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bindery_host::protocol::checkpoint::Created;
use bindery_testkit::bindery::{Bindery, Daemon};
use bindery_testkit::guest::{GuestBuilder, GuestImage, ImageKind, Kit, Qemu, QemuGuest};
use tempfile::TempDir;

use super::Common;

/// Booting takes three seconds of CPU time; many guests share few cores.
const BOOT_PATIENCE: Duration = Duration::from_secs(180);

/// File in a guest's memory with random data.
pub(super) const DATA: &str = "/tmp/data";

/// File in a guest's memory that is written between checkpoints.
const DIRTIED: &str = "/tmp/dirtied";

/// A daemon with a pool, and what guests boot from.
pub(super) struct Stage {
    pub(super) daemon: Daemon,
    pub(super) kit: Kit,
    image: GuestImage,
    directory: TempDir,
}

impl Stage {
    /// Makes a pool that may grow to so many MiB, and starts a daemon that keeps checkpoints in it.
    pub(super) fn new(common: &Common, pool_mib: u64) -> Result<Self> {
        let kit = Kit::locate()?;
        let image = GuestImage::of_kit(&kit, ImageKind::Server)?;
        let directory =
            tempfile::Builder::new().prefix("bindery-bench-").tempdir_in(&common.directory);
        let directory =
            directory.with_context(|| format!("a directory in {}", common.directory.display()))?;
        let bindery = Bindery::at(&common.program).with_log_level("warn");
        let pool = bindery.create_pool(directory.path(), pool_mib)?;
        let pool = pool.to_str().context("the directory's name is no text")?;
        let daemon = bindery.daemon(&["--checkpoint-pool", pool])?;
        Ok(Self { daemon, kit, image, directory })
    }

    /// Returns a path in the directory that everything is in.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Describes a guest that nobody manages.
    pub(super) fn plain(&self, memory_mib: u32) -> GuestBuilder {
        QemuGuest::builder(&self.kit, &self.image).qemu(Qemu::V10).memory_mib(memory_mib)
    }

    /// Describes a guest under the daemon.
    pub(super) fn managed(&self, name: &str, memory_mib: u32) -> GuestBuilder {
        self.plain(memory_mib).launcher(self.daemon.launcher(name))
    }

    /// Starts a guest that goes on from a checkpoint.
    pub(super) fn restore(&self, checkpoint: &str, name: &str) -> Result<QemuGuest> {
        let mut words = vec![self.daemon.program().as_os_str().to_owned()];
        words.extend(["restore", "--socket"].map(OsString::from));
        words.push(self.daemon.socket().into());
        words.extend([checkpoint, "--name", name].map(OsString::from));
        Ok(self.plain(256).launcher(words).spawn_restored()?)
    }

    /// Makes a checkpoint of a guest without its disks. Returns the time that the command took, from its start to
    /// its end.
    pub(super) fn checkpoint(&self, guest: &str, name: &str) -> Result<(Duration, Created)> {
        self.checkpoint_with(guest, name, &[])
    }

    /// As [`Self::checkpoint`], with more options.
    pub(super) fn checkpoint_with(
        &self,
        guest: &str,
        name: &str,
        more: &[&str],
    ) -> Result<(Duration, Created)> {
        let words = ["checkpoint", "create", guest, "--name", name, "--without-disks", "--json"];
        let words = [&words, more].concat();
        let start = Instant::now();
        let made = self.daemon.command(&words)?;
        let took = start.elapsed();
        let created = serde_json::from_str(&made).with_context(|| format!("an answer: {made}"))?;
        Ok((took, created))
    }

    /// Deletes all checkpoints of a guest.
    pub(super) fn delete_all(&self, guest: &str) -> Result<()> {
        self.daemon.command(&["checkpoint", "delete", guest, "--keep", "0"])?;
        Ok(())
    }

    /// Makes an empty disk that QEMU can keep snapshots in.
    pub(super) fn qcow2(&self, name: &str, mib: u32) -> Result<PathBuf> {
        let path = self.path(name);
        let mut command = Command::new(self.kit.qemu_img(Qemu::V10));
        command.env("LD_LIBRARY_PATH", self.kit.library_path(Qemu::V10));
        command.args(["create", "-q", "-f", "qcow2"]).arg(&path).arg(format!("{mib}M"));
        let made = command.output().context("starting qemu-img")?;
        ensure!(made.status.success(), "no disk: {}", String::from_utf8_lossy(&made.stderr));
        Ok(path)
    }
}

/// Starts a guest and waits until it runs commands.
pub(super) fn boot(builder: GuestBuilder) -> Result<QemuGuest> {
    let mut guest = builder.spawn()?;
    guest.wait_ready(BOOT_PATIENCE)?;
    Ok(guest)
}

/// Fills so much of a guest's memory with random data, and the file that [`dirty`] writes.
pub(super) fn fill(guest: &mut QemuGuest, random_mib: u32, dirty_mib: u32) -> Result<()> {
    guest.check("mount -o remount,size=95% /tmp")?;
    write_random(guest, DATA, random_mib)?;
    dirty(guest, dirty_mib)
}

/// Writes so much of a guest's memory anew, the same pages each time.
pub(super) fn dirty(guest: &mut QemuGuest, dirty_mib: u32) -> Result<()> {
    write_random(guest, DIRTIED, dirty_mib)
}

fn write_random(guest: &mut QemuGuest, file: &str, mib: u32) -> Result<()> {
    if mib > 0 {
        guest.check(&format!("dd if=/dev/urandom of={file} bs=1M count={mib} conv=notrunc"))?;
    }
    Ok(())
}

/// Number of bytes of a file that the file system keeps.
pub(super) fn bytes_on_disk(path: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let metadata = path.metadata().with_context(|| format!("looking at {}", path.display()))?;
    Ok(metadata.blocks() * 512)
}
