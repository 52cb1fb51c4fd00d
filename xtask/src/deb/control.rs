//! What dpkg is told about the package.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::tools::capture;
use super::tree::Tree;
use crate::cargo::root;

/// The programs that dpkg runs when it installs and removes the package.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Files that administrators change, and upgrades leave alone.
const CONFFILES: &str = "/etc/bindery/bindery.toml\n";

/// Needed by what no linker knows of: `groupadd` in the script after installing.
const MORE_DEPENDENCIES: &str = "passwd";

/// Which package it is.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) version: String,
    pub(super) architecture: String,
}

impl Control {
    /// What the package's file is called, as dpkg-name(1) would.
    pub(super) fn file_name(&self) -> String {
        format!("bindery_{}_{}.deb", self.version, self.architecture)
    }

    /// Adds the directory `DEBIAN` to the tree. `scratch` is for dpkg-shlibdeps.
    pub(super) fn write(&self, tree: &Tree, scratch: &Path) -> Result<()> {
        let files = files_below(tree.root())?;
        let sums = checksums(tree.root(), &files)?;
        let dependencies = dependencies(&tree.linked, scratch)?;
        let control = self.fields(&dependencies, installed_kib(tree.root(), &files)?)?;
        tree.write("DEBIAN/control", control.as_bytes(), 0o644)?;
        tree.write("DEBIAN/md5sums", sums.as_bytes(), 0o644)?;
        tree.write("DEBIAN/conffiles", CONFFILES.as_bytes(), 0o644)?;
        SCRIPTS.iter().try_for_each(|name| {
            let script = fs::read(root().join("packaging/debian").join(name));
            tree.write(&format!("DEBIAN/{name}"), &script.context("reading a script")?, 0o755)
        })
    }

    fn fields(&self, dependencies: &str, installed_kib: u64) -> Result<String> {
        let Self { version, architecture } = self;
        let packaging = root().join("packaging/debian");
        let description = fs::read_to_string(packaging.join("description"))?;
        let changelog = fs::read_to_string(packaging.join("changelog"))?;
        let signed = changelog.lines().find_map(|line| line.strip_prefix(" -- "));
        let maintainer = signed.and_then(|line| line.split_once("  ")).map(|(name, _)| name);
        let maintainer = maintainer.context("the changelog's first entry is not signed")?;
        Ok(format!(
            "Package: bindery\nVersion: {version}\nArchitecture: {architecture}\n\
             Maintainer: {maintainer}\nInstalled-Size: {installed_kib}\nDepends: {dependencies}\n\
             Suggests: qemu-system\nSection: admin\nPriority: optional\n\
             Description: {description}"
        ))
    }
}

/// The packages that the linked files need, with the versions that have the symbols they use.
fn dependencies(linked: &[PathBuf], scratch: &Path) -> Result<String> {
    // It wants to be where a source package is.
    fs::create_dir_all(scratch.join("debian")).context("making a directory for dpkg-shlibdeps")?;
    fs::write(
        scratch.join("debian/control"),
        "Source: bindery\n\nPackage: bindery\nArchitecture: any\n",
    )?;
    let mut command = Command::new("dpkg-shlibdeps");
    command.arg("-O").args(linked.iter().map(|path| path.as_os_str())).current_dir(scratch);
    let said = capture(&mut command)?;
    let depends = said.strip_prefix("shlibs:Depends=").context("dpkg-shlibdeps says nothing")?;
    Ok(format!("{depends}, {MORE_DEPENDENCIES}"))
}

/// All files, by their paths from `root`, in order.
fn files_below(root: &Path) -> Result<Vec<PathBuf>> {
    let (mut files, mut directories) = (Vec::new(), vec![root.to_owned()]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => directories.push(entry.path()),
                false => files.push(entry.path().strip_prefix(root)?.to_owned()),
            }
        }
    }
    files.sort();
    Ok(files)
}

/// As `dpkg --verify` wants them: without files that administrators change.
fn checksums(root: &Path, files: &[PathBuf]) -> Result<String> {
    let fixed = files.iter().filter(|file| !CONFFILES.contains(&format!("/{}\n", file.display())));
    let mut command = Command::new("md5sum");
    capture(command.args(fixed).current_dir(root)).map(|sums| sums + "\n")
}

/// As dpkg-gencontrol(1) estimates it: whole KiB for each file, and one for each directory.
fn installed_kib(root: &Path, files: &[PathBuf]) -> Result<u64> {
    let sizes = files.iter().map(|file| Ok(fs::metadata(root.join(file))?.len().div_ceil(1024)));
    let directories: std::collections::BTreeSet<&Path> =
        files.iter().flat_map(|file| file.ancestors().skip(1)).collect();
    Ok(sizes.sum::<Result<u64>>()? + directories.len() as u64)
}
