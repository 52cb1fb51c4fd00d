//! The images that guests boot: a kernel, and an initramfs with a realistic userland.
//!
//! The root file system lives in the guest's memory, so that guests of one image hold the same
//! file pages, as guests of one disk image do in their page caches. An archive is written once and
//! kept; its name carries a digest of what went into it.

use std::collections::BTreeMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::cpio::Archive;
use super::{COMPLETE_MARK, GuestError, Kernel, Kit, agent};

pub(super) const INIT: &str = include_str!("init.sh");

/// Kernel modules that guests need, in the order in which they depend on each other. What a kernel
/// has built in is not in its package and is left out.
const MODULES: [&str; 8] = [
    "drivers/virtio/virtio_ring",
    "drivers/virtio/virtio",
    "drivers/virtio/virtio_pci_legacy_dev",
    "drivers/virtio/virtio_pci_modern_dev",
    "drivers/virtio/virtio_pci",
    "drivers/block/virtio_blk",
    "drivers/char/virtio_console",
    "drivers/virtio/virtio_balloon",
];

/// Parts of packages that a server does not keep in memory.
const LEFT_OUT: [&str; 10] = [
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/lintian",
    "usr/share/bash-completion",
    "usr/share/perl/5.36.0/pod",
    "usr/share/perl/5.36.0/Unicode",
    "usr/lib/x86_64-linux-gnu/gconv",
    "usr/lib/x86_64-linux-gnu/perl/5.36.0/CORE",
    "usr/lib/x86_64-linux-gnu/perl/5.36.0/auto/Encode",
];

/// Packages of both images: the C library, Perl's core, and what makes file systems.
const COMMON: &str = "libc6 libcrypt1 libselinux1 libpcre2-8-0 libacl1 libtinfo6 zlib1g perl-base \
    e2fsprogs libext2fs2 libcom-err2 libss2 libblkid1 libuuid1";

const SERVER: &str = "coreutils bash libgmp10 libattr1 python3.11-minimal libpython3.11-minimal \
    libpython3.11-stdlib libexpat1 libssl3 grep sed";

const DATABASE: &str = "perl-modules-5.36 libperl5.36 sqlite3 libsqlite3-0 libreadline8 lua5.4 \
    vim-tiny vim-common gawk libstdc++6 libgcc-s1 tar";

/// The images that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ImageKind {
    /// Debian 12's kernel; coreutils, bash, Python, OpenSSL.
    Server,
    /// The backports' kernel; busybox, Perl, SQLite, Lua, vim.
    Database,
}

impl ImageKind {
    /// Both images.
    pub const ALL: [Self; 2] = [Self::Server, Self::Database];

    /// The kernel that it boots.
    #[must_use]
    pub const fn kernel(self) -> Kernel {
        match self {
            Self::Server => Kernel::Stable,
            Self::Database => Kernel::Backports,
        }
    }

    /// The part of the kit that holds its unpacked packages.
    #[must_use]
    pub const fn userland(self) -> &'static str {
        match self {
            Self::Server => "userland-server",
            Self::Database => "userland-database",
        }
    }

    /// The Debian packages of its userland.
    #[must_use]
    pub fn packages(self) -> Vec<&'static str> {
        let own = match self {
            Self::Server => SERVER,
            Self::Database => DATABASE,
        };
        COMMON.split_whitespace().chain(own.split_whitespace()).collect()
    }
}

/// A kernel and an initramfs, ready to boot.
#[derive(Debug, Clone)]
pub struct GuestImage {
    kernel: PathBuf,
    initramfs: PathBuf,
}

impl GuestImage {
    /// The image, written now if it is not in the kit (about a second).
    ///
    /// # Errors
    /// [`GuestError`] when a part of the kit is missing, the agent does not compile, or the
    /// archive cannot be written.
    pub fn of_kit(kit: &Kit, kind: ImageKind) -> Result<Self, GuestError> {
        let kernel = kit.kernel(kind.kernel())?;
        let directory = kit.part("images");
        let initramfs = directory.join(format!("{kind:?}-{:016x}.cpio", recipe(kit, kind)?));
        if !initramfs.exists() {
            let context = || format!("writing {}", initramfs.display());
            std::fs::create_dir_all(&directory).map_err(GuestError::io(context()))?;
            let agent = agent::binary(kit)?;
            let scratch =
                tempfile::NamedTempFile::new_in(&directory).map_err(GuestError::io(context()))?;
            write_archive(kit, kind, &agent, scratch.as_file())
                .map_err(GuestError::io(context()))?;
            let readable = std::fs::Permissions::from_mode(0o644);
            scratch.as_file().set_permissions(readable).map_err(GuestError::io(context()))?;
            scratch.persist(&initramfs).map_err(|error| GuestError::io(context())(error.error))?;
        }
        Ok(Self { kernel, initramfs })
    }

    /// An image from files of one's own. The initramfs must start the agent if
    /// [`QemuGuest::run`](super::QemuGuest::run) is to be used.
    #[must_use]
    pub const fn from_files(kernel: PathBuf, initramfs: PathBuf) -> Self {
        Self { kernel, initramfs }
    }

    /// The kernel's boot image.
    #[must_use]
    pub fn kernel(&self) -> &Path {
        &self.kernel
    }

    /// The archive of the root file system.
    #[must_use]
    pub fn initramfs(&self) -> &Path {
        &self.initramfs
    }
}

/// A digest of all that goes into an archive.
fn recipe(kit: &Kit, kind: ImageKind) -> Result<u64, GuestError> {
    let mut hasher = DefaultHasher::new();
    (INIT, MODULES, LEFT_OUT, kind.packages(), agent::binary(kit)?).hash(&mut hasher);
    for part in [kind.userland(), kind.kernel().directory(), "busybox"] {
        let mark = kit.part(part).join(COMPLETE_MARK);
        let text = std::fs::read(&mark).map_err(|_| GuestError::NoKit { part: kit.part(part) })?;
        text.hash(&mut hasher);
    }
    Ok(hasher.finish())
}

fn write_archive(kit: &Kit, kind: ImageKind, agent: &Path, file: &File) -> io::Result<()> {
    let mut archive = Archive::new(BufWriter::with_capacity(1 << 20, file));
    write_skeleton(&mut archive)?;
    let mut tree = BTreeMap::new();
    let userland = kit.part(kind.userland());
    collect(&userland, &userland, &mut tree)?;
    // The guest's own programs come last: they replace what a package put there.
    tree.insert("usr/bin/guest_agent".to_owned(), agent.to_path_buf());
    tree.insert("usr/lib/busybox".to_owned(), kit.busybox());
    for directory in ["usr", "usr/bin", "usr/lib", "usr/lib/busybox-bin", "usr/lib/guest-modules"] {
        tree.entry(directory.to_owned()).or_insert_with(|| userland.clone());
    }
    for (path, source) in &tree {
        write_entry(&mut archive, path, source)?;
    }
    if !tree.contains_key("usr/bin/sh") {
        archive.symlink("usr/bin/sh", "../lib/busybox")?;
    }
    write_modules(kit, kind.kernel(), &mut archive)?;
    archive.file("init", 0o755, INIT.as_bytes())?;
    archive.finish()?.flush()
}

/// What every root file system has.
pub(super) fn write_skeleton<W: Write>(archive: &mut Archive<W>) -> io::Result<()> {
    for directory in ["dev", "proc", "sys", "tmp", "run", "root", "etc", "mnt", "var"] {
        archive.directory(directory, 0o755)?;
    }
    archive.device("dev/console", 5, 1)?;
    for merged in ["bin", "sbin", "lib", "lib64"] {
        archive.symlink(merged, &format!("usr/{merged}"))?;
    }
    Ok(())
}

/// All entries below `directory` by their path in the guest, parents before children.
pub(super) fn collect(
    root: &Path,
    directory: &Path,
    tree: &mut BTreeMap<String, PathBuf>,
) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let name = in_guest(path.strip_prefix(root).map_err(io::Error::other)?);
        if LEFT_OUT.contains(&name.as_str()) || name == COMPLETE_MARK {
            continue;
        }
        if path.is_dir() && !path.is_symlink() {
            collect(root, &path, tree)?;
        }
        tree.insert(name, path);
    }
    Ok(())
}

/// Packages of Debian 12 still install into `/bin`, `/lib` and so on, which are links to their
/// namesakes below `/usr` on a running system.
pub(super) fn in_guest(path: &Path) -> String {
    let path = path.to_string_lossy();
    let top = path.split('/').next().unwrap_or_default();
    if ["bin", "sbin", "lib", "lib64"].contains(&top) { format!("usr/{path}") } else { path.into() }
}

pub(super) fn write_entry<W: Write>(
    archive: &mut Archive<W>,
    path: &str,
    source: &Path,
) -> io::Result<()> {
    let kind = source.symlink_metadata()?;
    if kind.is_symlink() {
        archive.symlink(path, &std::fs::read_link(source)?.to_string_lossy())
    } else if kind.is_dir() {
        archive.directory(path, 0o755)
    } else {
        archive.file(path, kind.permissions().mode() & 0o755, &std::fs::read(source)?)
    }
}

pub(super) fn write_modules<W: Write>(
    kit: &Kit,
    kernel: Kernel,
    archive: &mut Archive<W>,
) -> io::Result<()> {
    let modules = kit.modules(kernel).map_err(io::Error::other)?;
    let mut order = String::new();
    for module in MODULES {
        let plain = modules.join(format!("{module}.ko"));
        let packed = modules.join(format!("{module}.ko.xz"));
        let content = if plain.exists() {
            std::fs::read(plain)?
        } else if packed.exists() {
            Command::new(kit.busybox()).args(["xz", "-dc"]).arg(packed).output()?.stdout
        } else {
            continue;
        };
        let name = format!("{}.ko", module.rsplit('/').next().unwrap_or(module));
        archive.file(&format!("usr/lib/guest-modules/{name}"), 0o644, &content)?;
        order.push_str(&name);
        order.push('\n');
    }
    archive.file("usr/lib/guest-modules/order", 0o644, order.as_bytes())
}
