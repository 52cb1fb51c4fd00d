//! A little swap, for memory that is to go there.

use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::Command,
};

/// A swap file in use, until dropped: then what is in it comes back to memory.
#[derive(Debug)]
pub struct SwapGuard {
    file: PathBuf,
}

impl SwapGuard {
    /// Adds `mebibytes` of swap in a file of `directory`, whose file system must be able to hold one
    /// (tmpfs and overlayfs are not). Needs root.
    ///
    /// # Errors
    /// What mkswap(8) or swapon(8) said.
    pub fn add(directory: &Path, mebibytes: u64) -> io::Result<Self> {
        let file = directory.join("swap");
        write_zeros(&file, mebibytes << 20)?;
        run("mkswap", &file)?;
        run("swapon", &file)?;
        Ok(Self { file })
    }
}

impl Drop for SwapGuard {
    fn drop(&mut self) {
        if let Err(error) = run("swapoff", &self.file) {
            eprintln!("{} is left in use as swap: {error}", self.file.display());
        }
    }
}

/// Without holes, which swapon(8) refuses.
fn write_zeros(file: &Path, bytes: u64) -> io::Result<()> {
    let mut swap = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
    io::copy(&mut io::Read::take(io::repeat(0), bytes), &mut swap)?;
    swap.sync_all()
}

fn run(program: &str, file: &Path) -> io::Result<()> {
    // They are not in every user's PATH.
    let path = ["/usr/sbin", "/sbin"].map(|directory| Path::new(directory).join(program));
    let program = path.iter().find(|path| fs::exists(path).unwrap_or(false)).unwrap_or(&path[0]);
    let output = Command::new(program).arg(file).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{}: {}", program.display(), said.trim())))
}
