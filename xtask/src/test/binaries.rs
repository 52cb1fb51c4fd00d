//! The test binaries of the workspace, as cargo builds them.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::cargo::Cargo;

/// One test binary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TestBinary {
    pub(super) program: PathBuf,
    /// The package's directory, where cargo runs it.
    pub(super) directory: PathBuf,
    /// Target of the package, as cargo is asked for it: `--lib`, `--test NAME`.
    pub(super) target: String,
}

/// A line of what cargo says with `--message-format=json`.
#[derive(Deserialize)]
struct Message {
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Builds all tests of the workspace. Returns one entry a binary, in cargo's order.
///
/// # Errors
/// When one of them does not compile.
pub(super) fn build() -> Result<Vec<TestBinary>> {
    let arguments = ["test", "--workspace", "--all-features", "--no-run"];
    let format = ["--message-format", "json-render-diagnostics"];
    let said = Cargo::new(&[&arguments[..], &format].concat()).output()?;
    said.lines().filter_map(|line| binary_of(line).transpose()).collect()
}

impl TestBinary {
    /// Returns the name of the package's directory.
    pub(super) fn package(&self) -> &str {
        self.directory.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    /// Returns the command that builds it and runs it by itself.
    pub(super) fn command(&self) -> String {
        let manifest = self.directory.join("Cargo.toml");
        format!("cargo test --manifest-path {} {}", manifest.display(), self.target)
    }
}

impl fmt::Display for TestBinary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.package(), self.target)
    }
}

/// Returns the test binary that a line of cargo's says was built, if it says so of one.
fn binary_of(line: &str) -> Result<Option<TestBinary>> {
    let message: Message = serde_json::from_str(line).context("cargo says something new")?;
    let Message { manifest_path, target, profile, executable } = message;
    let (Some(manifest), Some(target), Some(profile), Some(program)) =
        (manifest_path, target, profile, executable)
    else {
        return Ok(None);
    };
    let directory = manifest.parent().unwrap_or(Path::new("/")).to_path_buf();
    let kind = target.kind.first().map_or("", String::as_str);
    let target = match kind {
        "bin" | "example" | "test" => format!("--{kind} {}", target.name),
        _ => "--lib".to_owned(),
    };
    Ok(profile.test.then_some(TestBinary { program, directory, target }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST: &str = r#"{"reason":"compiler-artifact","package_id":"x","manifest_path":
        "/src/crates/pool/Cargo.toml","target":{"kind":["test"],"name":"pools","src_path":"x"},
        "profile":{"opt_level":"2","test":true},"executable":"/target/debug/deps/pools-1"}"#;

    #[test]
    fn test_binaries_are_known_from_others() {
        let binary = binary_of(TEST).unwrap().unwrap();
        assert_eq!(binary.to_string(), "pool --test pools");
        assert_eq!(binary.directory, Path::new("/src/crates/pool"));
        let command = "cargo test --manifest-path /src/crates/pool/Cargo.toml --test pools";
        assert_eq!(binary.command(), command);
        let library = TEST.replace(r#"["test"]"#, r#"["cdylib","rlib"]"#);
        assert_eq!(binary_of(&library).unwrap().unwrap().target, "--lib");
        let program = TEST.replace("\"test\":true", "\"test\":false");
        assert_eq!(binary_of(&program).unwrap(), None);
        assert_eq!(binary_of(r#"{"reason":"build-finished","success":true}"#).unwrap(), None);
    }
}
