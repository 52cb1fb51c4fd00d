//! Loop devices and mounts, taken away at the end.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Runs a program; what it printed, or what it complained of.
pub(crate) fn run(program: &str, arguments: &[&OsStr]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    } else {
        Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }
}

/// A file as a block device.
pub(crate) struct Loop(PathBuf);

impl Loop {
    pub(crate) fn of(file: &Path) -> Result<Self, String> {
        // Another's test may take the free one in between.
        let mut attempts = (0..5).map(|_| {
            let arguments = ["--find", "--show"].map(OsStr::new);
            run("losetup", &[arguments[0], arguments[1], file.as_os_str()])
        });
        let last = attempts.find(Result::is_ok);
        let path = last.unwrap_or_else(|| Err("losetup finds no free loop device".into()))?;
        Ok(Self(path.into()))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Takes no writes from now on, or takes them again.
    pub(crate) fn set_read_only(&self, is_read_only: bool) {
        let how = if is_read_only { "--setro" } else { "--setrw" };
        run("blockdev", &[OsStr::new(how), self.0.as_os_str()]).unwrap();
    }

    /// Learns that its file has become longer.
    pub(crate) fn resize(&self) {
        run("losetup", &[OsStr::new("--set-capacity"), self.0.as_os_str()]).unwrap();
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Err(error) = run("losetup", &[OsStr::new("--detach"), self.0.as_os_str()]) {
            eprintln!("{error}");
        }
    }
}

/// A small file system of its own.
pub(crate) struct Mount {
    directory: TempDir,
    /// Detached after the unmounting.
    _loop: Option<Loop>,
}

impl Mount {
    pub(crate) fn tmpfs(bytes: u64) -> Result<Self, String> {
        let directory = tempfile::tempdir().unwrap();
        let size = format!("size={bytes}");
        let arguments = ["-t", "tmpfs", "-o", &size, "bindery-test"].map(OsStr::new);
        run("mount", &[&arguments[..], &[directory.path().as_os_str()]].concat())?;
        Ok(Self { directory, _loop: None })
    }

    /// In a file of `directory`, which outlives it.
    pub(crate) fn ext4(below: &Path, bytes: u64) -> Result<Self, String> {
        let image = below.join("image");
        std::fs::File::create(&image).unwrap().set_len(bytes).unwrap();
        let quiet = ["-q", "-m", "0"].map(OsStr::new);
        run("mkfs.ext4", &[&quiet[..], &[image.as_os_str()]].concat())?;
        let device = Loop::of(&image)?;
        let directory = tempfile::tempdir().unwrap();
        run("mount", &[device.path().as_os_str(), directory.path().as_os_str()])?;
        Ok(Self { directory, _loop: Some(device) })
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn make_read_only(&self) -> Result<(), String> {
        let arguments = ["-o", "remount,ro"].map(OsStr::new);
        run("mount", &[&arguments[..], &[self.path().as_os_str()]].concat()).map(drop)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = run("umount", &[self.path().as_os_str()]) {
            eprintln!("{error}");
            // Goes when the last file is closed.
            let _ = run("umount", &[OsStr::new("--lazy"), self.path().as_os_str()]);
        }
    }
}
