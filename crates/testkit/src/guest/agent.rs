//! Compiles the program that runs inside guests.
//!
//! It is compiled by `rustc` alone and linked statically: cargo would build this whole crate for
//! it, and for the host's C library.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{GuestError, Kit};

/// The sources are part of this library so that a change of them is noticed.
const SOURCES: [&str; 9] = [
    include_str!("../bin/guest_agent/main.rs"),
    include_str!("../bin/guest_agent/content.rs"),
    include_str!("../bin/guest_agent/heartbeat.rs"),
    include_str!("../bin/guest_agent/load.rs"),
    include_str!("../bin/guest_agent/mergeable.rs"),
    include_str!("../bin/guest_agent/options.rs"),
    include_str!("../bin/guest_agent/probe.rs"),
    include_str!("../bin/guest_agent/serve.rs"),
    include_str!("../bin/guest_agent/writer.rs"),
];

/// The agent's binary of the current sources, compiled now if it is not there (about a second).
pub(crate) fn binary(kit: &Kit) -> Result<PathBuf, GuestError> {
    let mut hasher = DefaultHasher::new();
    SOURCES.hash(&mut hasher);
    let directory = kit.part("agent");
    let path = directory.join(format!("guest_agent-{:016x}", hasher.finish()));
    if path.exists() {
        return Ok(path);
    }
    std::fs::create_dir_all(&directory)
        .map_err(GuestError::io(format!("creating {}", directory.display())))?;
    let scratch = tempfile::tempdir_in(&directory)
        .map_err(GuestError::io(format!("creating a directory in {}", directory.display())))?;
    let output = scratch.path().join("guest_agent");
    compile(&output)?;
    std::fs::rename(&output, &path)
        .map_err(GuestError::io(format!("placing {}", path.display())))?;
    Ok(path)
}

fn compile(output: &Path) -> Result<(), GuestError> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bin/guest_agent/main.rs");
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let run = Command::new(compiler)
        .args(["--edition", "2024", "--crate-name", "guest_agent", "-O"])
        .args(["-C", "target-feature=+crt-static", "-C", "strip=symbols", "-o"])
        .arg(output)
        .arg(source)
        .output()
        .map_err(GuestError::io("starting rustc for the guest agent"))?;
    if run.status.success() {
        Ok(())
    } else {
        Err(GuestError::Agent { output: String::from_utf8_lossy(&run.stderr).into_owned() })
    }
}
