//! Fetches what tests need: two versions of QEMU, three kernels, busybox, two userlands, systemd; a
//! browser and promtool for what the daemon serves over HTTP; moto for what the pool keeps in S3.
//!
//! Packages come from Debian by the host's own apt, are verified by it, and are *unpacked* below
//! `target/kit`: nothing is installed, nothing of the host's apt is changed, root is not needed,
//! and both versions of QEMU run beside each other. moto, which Debian does not have, comes from PyPI
//! the same way. Every part is marked when complete, so that a
//! second run costs milliseconds and an interrupted one goes on where it stopped.

mod apt;
mod parts;
mod python;

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bindery_testkit::guest::{GuestImage, ImageKind, Kit, Qemu};

use crate::strangers::stressors::StressNg;
use apt::PrivateApt;
use parts::{OLDEST_RELEASE, Part};

/// Makes the kit complete and returns it.
pub(crate) fn run() -> Result<Kit> {
    let kit = Kit::of_checkout();
    if fetch(&kit, &Part::all())? {
        for version in Qemu::ALL {
            println!("  {}", qemu_version(&kit, version)?);
        }
    }
    fetch_oldest(&kit);
    for kind in ImageKind::ALL {
        GuestImage::of_kit(&kit, kind).with_context(|| format!("writing the {kind:?} image"))?;
    }
    Ok(kit)
}

/// Fetches what the demo's guests need, a quarter of the kit, and returns the kit.
pub(crate) fn for_demo() -> Result<Kit> {
    let kit = Kit::of_checkout();
    fetch(&kit, &Part::of_demo())?;
    GuestImage::of_kit(&kit, ImageKind::Server).context("writing the server's image")?;
    Ok(kit)
}

/// Where libclang lies, which the tests do not need.
pub(crate) fn libclang() -> Result<PathBuf> {
    let kit = Kit::of_checkout();
    fetch(&kit, &[Part::Libclang])?;
    Ok(kit.part(Part::Libclang.directory()).join("usr/lib/llvm-14/lib"))
}

/// stress-ng, which the tests do not need.
pub(crate) fn stress_ng() -> Result<StressNg> {
    let kit = Kit::of_checkout();
    fetch(&kit, &[Part::StressNg])?;
    Ok(StressNg { directory: kit.part(Part::StressNg.directory()) })
}

/// Where the kernel's own tests lie, which ours do not need.
pub(crate) fn linux_source() -> Result<PathBuf> {
    let kit = Kit::of_checkout();
    fetch(&kit, &[Part::LinuxSource])?;
    Ok(kit.part(Part::LinuxSource.directory()))
}

/// Fetches the kernel of a release that mirrors drop some day, if it is missing and can be had.
fn fetch_oldest(kit: &Kit) {
    let part = Part::of_oldest_release();
    if part.is_current(kit) {
        return;
    }
    println!("Fetching {} into {}", part.description(), kit.root().display());
    let fetched = PrivateApt::prepare_release(&kit.part("apt-oldest"), OLDEST_RELEASE)
        .and_then(|apt| part.fetch(&apt, kit));
    if let Err(error) = fetched {
        eprintln!(
            "SKIPPED: {}: tests of that kernel will be, too. The mirror of this machine's apt may not \
             have Debian's release {OLDEST_RELEASE} any more. {error:#}",
            part.description()
        );
    }
}

/// Fetches what is missing of `parts`; whether anything was.
fn fetch(kit: &Kit, parts: &[Part]) -> Result<bool> {
    let missing: Vec<&Part> = parts.iter().filter(|part| !part.is_current(kit)).collect();
    if missing.is_empty() {
        return Ok(false);
    }
    let start = Instant::now();
    println!("Fetching into {} (nothing is installed on this machine):", kit.root().display());
    for part in &missing {
        println!("  {}", part.description());
    }
    let apt = PrivateApt::prepare(&kit.part("apt"))?;
    for part in &missing {
        part.fetch(&apt, kit).with_context(|| format!("fetching {}", part.description()))?;
    }
    println!("  done in {:.1} s", start.elapsed().as_secs_f64());
    Ok(true)
}

/// Runs an unpacked QEMU: a library that its packages forgot shows here, not in a test.
fn qemu_version(kit: &Kit, version: Qemu) -> Result<String> {
    let output = Command::new(kit.qemu(version))
        .arg("--version")
        .env("LD_LIBRARY_PATH", kit.library_path(version))
        .output()
        .with_context(|| format!("starting {}", kit.qemu(version).display()))?;
    ensure!(
        output.status.success(),
        "{} does not run:\n{}",
        kit.qemu(version).display(),
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or_default().to_owned())
}
