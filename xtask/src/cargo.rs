//! Runs cargo as the one that runs this program.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// The root of the checkout.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(1).unwrap_or(Path::new(".")).into()
}

/// Where builds go: what cargo was told, or `target` of the checkout.
pub(crate) fn target_directory() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The toolchain that has what stable ones have not.
pub(crate) const NIGHTLY: &str = "nightly";

/// What this machine is called by rustc.
pub(crate) fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("starting rustc")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not say what it builds for")?.to_owned())
}

/// One run of cargo in the checkout.
#[derive(Debug)]
pub(crate) struct Cargo {
    command: Command,
}

impl Cargo {
    pub(crate) fn new(arguments: &[&str]) -> Self {
        Self::of(
            Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())),
            arguments,
        )
    }

    /// Cargo of the [`NIGHTLY`] toolchain.
    pub(crate) fn nightly(arguments: &[&str]) -> Self {
        let mut command = Command::new("rustup");
        command.args(["run", NIGHTLY, "cargo"]);
        Self::of(command, arguments)
    }

    fn of(mut command: Command, arguments: &[&str]) -> Self {
        command.args(arguments).current_dir(root());
        // Set by the cargo that runs this program, about this program; they would make the build
        // scripts of all packages run anew.
        for variable in ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_PKG_VERSION"] {
            command.env_remove(variable);
        }
        Self { command }
    }

    pub(crate) fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Runs it and returns what it printed. Errors and progress are shown.
    pub(crate) fn output(mut self) -> Result<String> {
        let output = self.command.stderr(Stdio::inherit()).output().context("starting cargo")?;
        ensure!(output.status.success(), "cargo ended with {}", output.status);
        String::from_utf8(output.stdout).context("cargo says what is no text")
    }

    /// Runs it with its output shown.
    pub(crate) fn run(mut self) -> Result<()> {
        let status = self.command.status().context("starting cargo")?;
        ensure!(status.success(), "cargo ended with {status}");
        Ok(())
    }
}

/// Builds `bindery` and its shim at full speed; returns the program. The shim lies beside it.
pub(crate) fn build_programs() -> Result<PathBuf> {
    Cargo::new(&["build", "--release", "--package", "bindery-cli", "--package", "bindery-shim"])
        .run()?;
    Ok(target_directory().join("release/bindery"))
}
