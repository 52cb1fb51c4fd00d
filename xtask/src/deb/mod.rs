//! `cargo xtask deb`: a Debian package, made by dpkg-deb of what the programs themselves print.
//!
//! The same programs give the same bytes: files are sorted by dpkg-deb, belong to root, have modes that
//! no umask changes, and are as old as `SOURCE_DATE_EPOCH` says, or the last commit.

mod control;
mod tools;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cargo::{build_programs, root, target_directory};
use control::Control;
use tools::{capture, check_tools, run_tool};
use tree::Tree;

/// Options of the package.
#[derive(Debug, clap::Args)]
pub(crate) struct DebArgs {
    /// Take `bindery` and `libbindery_shim.so` from here instead of building them
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    /// Where to put the package [default: target/debian]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Builds the package and says where it is.
pub(crate) fn run(arguments: &DebArgs) -> Result<()> {
    check_tools()?;
    let programs = match &arguments.programs {
        Some(directory) => directory.clone(),
        None => build_programs()?.parent().context("programs lie in a directory")?.to_owned(),
    };
    let out = arguments.out.clone().unwrap_or_else(|| target_directory().join("debian"));
    fs::create_dir_all(&out).with_context(|| format!("making {}", out.display()))?;
    let staging = out.join("staging");
    if staging.exists() {
        fs::remove_dir_all(&staging).context("removing what an earlier run left")?;
    }
    let package = build(&programs, &staging, &out)?;
    fs::remove_dir_all(&staging).context("removing the staging directory")?;
    println!("{}", package.display());
    Ok(())
}

/// Lays the package out below `staging` and packs it into `out`.
fn build(programs: &Path, staging: &Path, out: &Path) -> Result<PathBuf> {
    let architecture = capture(Command::new("dpkg").arg("--print-architecture"))?;
    let tree = Tree::lay_out(programs, &staging.join("root"))?;
    let control = Control { version: version()?, architecture };
    control.write(&tree, &staging.join("shlibs"))?;
    let package = out.join(control.file_name());
    let mut pack = Command::new("dpkg-deb");
    // xz is what the oldest dpkg at hand unpacks; one thread, so that CPUs do not change the bytes.
    pack.args(["--root-owner-group", "-Zxz", "--threads-max=1", "--build"]);
    pack.arg(tree.root()).arg(&package).env("SOURCE_DATE_EPOCH", epoch()?);
    run_tool(&mut pack)?;
    Ok(package)
}

/// The version, which the changelog has to know.
fn version() -> Result<String> {
    let version = env!("CARGO_PKG_VERSION");
    let changelog = root().join("packaging/debian/changelog");
    let text = fs::read_to_string(&changelog).context("reading the changelog")?;
    ensure!(
        text.starts_with(&format!("bindery ({version})")),
        "{} begins with another version than {version}: add an entry",
        changelog.display()
    );
    Ok(version.to_owned())
}

/// When everything in the package was made, in seconds.
fn epoch() -> Result<String> {
    if let Ok(epoch) = std::env::var("SOURCE_DATE_EPOCH") {
        return Ok(epoch);
    }
    let mut git = Command::new("git");
    git.args(["log", "-1", "--format=%ct"]).current_dir(root());
    capture(&mut git).context("outside a git checkout, set SOURCE_DATE_EPOCH")
}
