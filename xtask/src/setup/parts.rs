//! The parts of the kit and the packages that each is made of.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use bindery_testkit::guest::{
    BROWSER, COMPLETE_MARK, ImageKind, Kernel, Kit, MOTO, PROMTOOL, PYTHON_PACKAGES, Qemu, SYSTEMD,
};

use super::apt::{PrivateApt, run};
use super::python::{self, MOTO_PACKAGES};

const BACKPORTS: &str = "bookworm-backports";

/// The package that depends on the newest cloud kernel of a suite. Cloud kernels have few drivers
/// and boot in two seconds under TCG.
const KERNEL: &str = "linux-image-cloud-amd64";

/// The release that has [`Kernel::Oldest`].
pub(super) const OLDEST_RELEASE: &str = "bullseye";

/// The system emulator, and `qemu-img` for disks with snapshots.
const QEMU: [&str; 2] = ["qemu-system-x86", "qemu-utils"];

/// The browser without its window, and letters for it to draw.
const BROWSER_PACKAGES: [&str; 2] = ["chromium-headless-shell", "fonts-dejavu-core"];

/// The C compiler's library and headers, with which RocksDB's interface is read.
const LIBCLANG_PACKAGES: [&str; 2] = ["libclang1-14", "libclang-common-14-dev"];

/// One directory of the kit.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    Busybox,
    Kernel(Kernel),
    Qemu(Qemu),
    Userland(ImageKind),
    Systemd,
    Promtool,
    Browser,
    /// For `cargo xtask rivals` alone.
    Libclang,
    Moto,
    /// For `cargo xtask stressors` alone.
    StressNg,
    /// For `cargo xtask selftests` alone.
    LinuxSource,
}

impl Part {
    /// What not every mirror has any more, of [`OLDEST_RELEASE`]: tests do without, loudly.
    pub(super) const fn of_oldest_release() -> Self {
        Self::Kernel(Kernel::Oldest)
    }

    /// What every test may need.
    pub(super) fn all() -> Vec<Self> {
        let mut parts = vec![Self::Busybox];
        parts.extend([Kernel::Stable, Kernel::Backports].map(Self::Kernel));
        parts.extend(Qemu::ALL.map(Self::Qemu));
        parts.extend(ImageKind::ALL.map(Self::Userland));
        parts.extend([Self::Systemd, Self::Promtool, Self::Browser, Self::Moto]);
        parts
    }

    /// What the demo's guests need.
    pub(super) const fn of_demo() -> [Self; 4] {
        let kernel = Self::Kernel(Kernel::Stable);
        [Self::Busybox, kernel, Self::Qemu(Qemu::V7), Self::Userland(ImageKind::Server)]
    }

    pub(super) const fn directory(self) -> &'static str {
        match self {
            Self::Busybox => "busybox",
            Self::Kernel(kernel) => kernel.directory(),
            Self::Qemu(qemu) => qemu.directory(),
            Self::Userland(kind) => kind.userland(),
            Self::Systemd => SYSTEMD,
            Self::Promtool => PROMTOOL,
            Self::Browser => BROWSER,
            Self::Libclang => "libclang",
            Self::Moto => MOTO,
            Self::StressNg => "stress-ng",
            Self::LinuxSource => "linux-source",
        }
    }

    pub(super) const fn description(self) -> &'static str {
        match self {
            Self::Busybox => "busybox, static, for the guests",
            Self::Kernel(Kernel::Oldest) => "a guest kernel: Debian 11's cloud kernel",
            Self::Kernel(Kernel::Stable) => "a guest kernel: Debian 12's cloud kernel",
            Self::Kernel(Kernel::Backports) => "a guest kernel: the cloud kernel of its backports",
            Self::Qemu(Qemu::V7) => "QEMU 7.2 with its libraries",
            Self::Qemu(Qemu::V10) => "QEMU 10 with its libraries, from backports",
            Self::Userland(ImageKind::Server) => "a guest's userland: coreutils, bash, Python",
            Self::Systemd => "systemd, which starts the units in a guest",
            Self::Promtool => "promtool, which checks metrics",
            Self::Moto => "moto, which behaves as S3 does",
            Self::Browser => "Chromium without a window, which looks at the dashboard",
            Self::Libclang => "libclang, which reads RocksDB's header",
            Self::StressNg => "stress-ng, which maps and fills memory in every way there is",
            Self::LinuxSource => "the kernel's tests of memory management, from its source package",
            Self::Userland(ImageKind::Database) => "a guest's userland: Perl, SQLite, Lua, vim",
        }
    }

    /// Whether the part is there with every package that it is made of today.
    pub(super) fn is_current(self, kit: &Kit) -> bool {
        let mark = kit.part(self.directory()).join(COMPLETE_MARK);
        let Ok(unpacked) = std::fs::read_to_string(mark) else { return false };
        let has = |name: &str| unpacked.lines().any(|file| file.split('_').next() == Some(name));
        match self {
            Self::Userland(kind) => kind.packages().into_iter().all(has),
            Self::Moto => unpacked == MOTO_PACKAGES.join("\n"),
            _ => true,
        }
    }

    /// Unpacks the part beside its place and moves it there when it is whole.
    pub(super) fn fetch(self, apt: &PrivateApt, kit: &Kit) -> Result<()> {
        let place = kit.part(self.directory());
        let beside = kit.part(&format!("{}.partial", self.directory()));
        for leftover in [&place, &beside] {
            if leftover.exists() {
                std::fs::remove_dir_all(leftover)
                    .with_context(|| format!("removing {}", leftover.display()))?;
            }
        }
        let packages = self.unpack(apt, &beside)?;
        std::fs::write(beside.join(COMPLETE_MARK), packages.join("\n"))?;
        std::fs::rename(&beside, &place).with_context(|| format!("placing {}", place.display()))
    }

    fn unpack(self, apt: &PrivateApt, into: &Path) -> Result<Vec<String>> {
        match self {
            Self::Busybox => apt.unpack(&["busybox-static"], None, into),
            Self::Kernel(kernel) => {
                let release = matches!(kernel, Kernel::Backports).then_some(BACKPORTS);
                let package = apt.first_dependency(KERNEL, release)?;
                apt.unpack(&[&package], release, into)
            }
            Self::Qemu(Qemu::V7) => apt.unpack_closure(&QEMU, None, into),
            Self::Qemu(Qemu::V10) => apt.unpack_closure(&QEMU, Some(BACKPORTS), into),
            Self::Userland(kind) => apt.unpack(&kind.packages(), None, into),
            Self::Systemd => apt.unpack_closure(&["systemd"], None, into),
            Self::Promtool => {
                let packages = apt.unpack(&["prometheus"], None, into)?;
                // The server itself is twice the size of all else, and is not run.
                std::fs::remove_file(into.join("usr/bin/prometheus"))?;
                Ok(packages)
            }
            Self::Browser => apt.unpack_closure(&BROWSER_PACKAGES, None, into),
            Self::Libclang => apt.unpack_closure(&LIBCLANG_PACKAGES, None, into),
            Self::StressNg => apt.unpack_closure(&["stress-ng"], None, into),
            Self::LinuxSource => {
                let package = apt.first_dependency("linux-source", Some(BACKPORTS))?;
                let packages = apt.unpack(&[&package], Some(BACKPORTS), into)?;
                unpack_tests(&into.join("usr/src").join(format!("{package}.tar.xz")), into)?;
                Ok(packages)
            }
            Self::Moto => python::install(apt, &MOTO_PACKAGES, into, PYTHON_PACKAGES),
        }
    }
}

/// Unpacks the kernel's tests of memory and the headers that they include, and removes all else.
fn unpack_tests(archive: &Path, into: &Path) -> Result<()> {
    let mut command = Command::new("tar");
    command
        .arg("-C")
        .arg(into)
        .arg("-xf")
        .arg(archive)
        .args(["--strip-components=1", "--wildcards"]);
    command.args(["*/tools/testing/selftests/mm", "*/tools/testing/selftests/*.h"]);
    command.args(["*/tools/include/uapi", "*/tools/arch/*/include/uapi", "*/mm/gup_test.h"]);
    run(&mut command)?;
    std::fs::remove_dir_all(into.join("usr")).context("removing the rest of the source")
}
