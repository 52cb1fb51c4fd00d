//! Where the unpacked QEMUs, guest kernels and userlands lie.
//!
//! `cargo xtask setup` fills the kit; this module only names what is in it, so that the one who
//! writes and those who read agree. Nothing of it is installed on the host: every package is
//! unpacked below one directory, and QEMU runs from there with its own libraries beside it.
//!
//! Concurrency: files are put in place by rename, so a reader sees all of a file or none.

use std::path::{Path, PathBuf};

use super::GuestError;

/// Names a directory other than `target/kit` of the checkout.
pub const KIT_VARIABLE: &str = "BINDERY_KIT";

/// Written last into each part of the kit; a part without it is incomplete.
pub const COMPLETE_MARK: &str = ".complete";

/// The directory of the kit that holds promtool.
pub const PROMTOOL: &str = "promtool";

/// The directory of the kit that holds a browser without a window.
pub const BROWSER: &str = "browser";

/// The directory of the kit that holds systemd with its libraries, for guests.
pub const SYSTEMD: &str = "systemd";

/// The directory of the kit that holds moto, a server that behaves as S3 does.
pub const MOTO: &str = "moto";

/// Where a part that is written in Python has its packages.
pub const PYTHON_PACKAGES: &str = "packages";

/// A version of QEMU that the tests run guests under.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Qemu {
    /// 7.2, of Debian 12 itself.
    V7,
    /// 10, of Debian 12's backports.
    V10,
}

impl Qemu {
    /// Both versions, the older first.
    pub const ALL: [Self; 2] = [Self::V7, Self::V10];

    /// The directory of the kit that holds it.
    #[must_use]
    pub const fn directory(self) -> &'static str {
        match self {
            Self::V7 => "qemu-7",
            Self::V10 => "qemu-10",
        }
    }
}

/// A kernel that guests boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// The cloud kernel of Debian 11, 5.10: the oldest that anything here is for. Not every mirror has
    /// it, so it is no part of what [`Kit::locate`] asks for.
    Oldest,
    /// Debian 12's cloud kernel, 6.1.
    Stable,
    /// The cloud kernel of Debian 12's backports, 6.12.
    Backports,
}

impl Kernel {
    /// The directory of the kit that holds it.
    #[must_use]
    pub const fn directory(self) -> &'static str {
        match self {
            Self::Oldest => "kernel-oldest",
            Self::Stable => "kernel-stable",
            Self::Backports => "kernel-backports",
        }
    }
}

/// The unpacked parts, below one directory.
#[derive(Debug, Clone)]
pub struct Kit {
    root: PathBuf,
}

impl Kit {
    /// The kit of this checkout, or the one that [`KIT_VARIABLE`] names; it need not exist yet.
    #[must_use]
    pub fn of_checkout() -> Self {
        let root = std::env::var_os(KIT_VARIABLE).map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/kit"),
            PathBuf::from,
        );
        Self { root: std::path::absolute(&root).map_or(root, |path| normalise(&path)) }
    }

    /// The kit of this checkout, when set-up has completed.
    ///
    /// # Errors
    /// [`GuestError::NoKit`] when a part is missing; the message names the command to run.
    pub fn locate() -> Result<Self, GuestError> {
        let kit = Self::of_checkout();
        for part in [
            Qemu::V7.directory(),
            Qemu::V10.directory(),
            Kernel::Stable.directory(),
            Kernel::Backports.directory(),
        ] {
            if !kit.is_complete(part) {
                return Err(GuestError::NoKit { part: kit.root.join(part) });
            }
        }
        Ok(kit)
    }

    /// The directory that holds all parts.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A part's directory.
    #[must_use]
    pub fn part(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Whether a part was unpacked to its end.
    #[must_use]
    pub fn is_complete(&self, part: &str) -> bool {
        self.part(part).join(COMPLETE_MARK).exists()
    }

    /// The QEMU system emulator of a version.
    #[must_use]
    pub fn qemu(&self, version: Qemu) -> PathBuf {
        self.part(version.directory()).join("usr/bin/qemu-system-x86_64")
    }

    /// `qemu-img` of a version.
    #[must_use]
    pub fn qemu_img(&self, version: Qemu) -> PathBuf {
        self.part(version.directory()).join("usr/bin/qemu-img")
    }

    /// The value of `LD_LIBRARY_PATH` under which a version's unchanged binary finds the
    /// libraries it was built with.
    #[must_use]
    pub fn library_path(&self, version: Qemu) -> String {
        let part = self.part(version.directory());
        ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"]
            .map(|sub| part.join(sub).display().to_string())
            .join(":")
    }

    /// The directories of firmware and option ROMs of a version, for `-L`.
    #[must_use]
    pub fn firmware(&self, version: Qemu) -> [PathBuf; 3] {
        let share = self.part(version.directory()).join("usr");
        [share.join("share/qemu"), share.join("share/seabios"), share.join("lib/ipxe/qemu")]
    }

    /// promtool, which checks metrics; `None` where set-up has not fetched it.
    #[must_use]
    pub fn promtool(&self) -> Option<PathBuf> {
        self.is_complete(PROMTOOL).then(|| self.part(PROMTOOL).join("usr/bin/promtool"))
    }

    /// The directory of a browser without a window and of what it needs; `None` where set-up has not
    /// fetched it.
    #[must_use]
    pub fn browser(&self) -> Option<PathBuf> {
        self.is_complete(BROWSER).then(|| self.part(BROWSER))
    }

    /// moto with what it needs, for `PYTHONPATH`; `None` where set-up has not fetched it.
    #[must_use]
    pub fn moto(&self) -> Option<PathBuf> {
        self.is_complete(MOTO).then(|| self.part(MOTO).join(PYTHON_PACKAGES))
    }

    /// A kernel's boot image.
    ///
    /// # Errors
    /// [`GuestError::NoKit`] when the kernel is not there.
    pub fn kernel(&self, kernel: Kernel) -> Result<PathBuf, GuestError> {
        let boot = self.part(kernel.directory()).join("boot");
        first_entry(&boot, "vmlinuz-").ok_or(GuestError::NoKit { part: boot })
    }

    /// The directory of a kernel's modules (`lib/modules/VERSION/kernel`).
    ///
    /// # Errors
    /// [`GuestError::NoKit`] when the kernel is not there.
    pub fn modules(&self, kernel: Kernel) -> Result<PathBuf, GuestError> {
        let part = self.part(kernel.directory());
        ["lib/modules", "usr/lib/modules"]
            .iter()
            .find_map(|sub| first_entry(&part.join(sub), ""))
            .map(|version| version.join("kernel"))
            .ok_or(GuestError::NoKit { part })
    }

    /// The static busybox, which runs in the guests and, for unpacking, on the host.
    #[must_use]
    pub fn busybox(&self) -> PathBuf {
        let part = self.part("busybox");
        let old = part.join("bin/busybox");
        if old.exists() { old } else { part.join("usr/bin/busybox") }
    }
}

/// Removes `..` by name: the kit's path is shown to people.
fn normalise(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            std::path::Component::ParentDir => {
                clean.pop();
            }
            other => clean.push(other),
        }
    }
    clean
}

fn first_entry(directory: &Path, prefix: &str) -> Option<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(directory)
        .ok()?
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found.into_iter().next()
}
