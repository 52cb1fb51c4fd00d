//! An apt of our own: the host's mirror and keys, but sources, lists and archives below one
//! directory, so that backports can be had without adding them to the host.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// The release whose packages the kit is made of.
const RELEASE: &str = "bookworm";

/// Never unpacked beside QEMU: a second C library under `LD_LIBRARY_PATH` would not fit the host's
/// dynamic loader.
const C_LIBRARY: &str = "libc6_";

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A repository of the host's.
struct Repository {
    uri: String,
    release: String,
}

/// Runs apt on its own state; see the module.
#[derive(Debug)]
pub(super) struct PrivateApt {
    root: PathBuf,
}

impl PrivateApt {
    /// Writes the sources and fetches the lists of packages.
    pub(super) fn prepare(root: &Path) -> Result<Self> {
        Self::with_sources(root, &sources_text(&repositories()?))
    }

    /// The same for another release of Debian alone, from the mirrors that have the host's.
    pub(super) fn prepare_release(root: &Path, release: &str) -> Result<Self> {
        let repositories = repositories()?.into_iter();
        let same_mirrors = repositories.filter(|repository| repository.release == RELEASE);
        let lines = same_mirrors.map(|Repository { uri, .. }| source_line(&uri, release));
        Self::with_sources(root, &lines.collect::<String>())
    }

    fn with_sources(root: &Path, sources: &str) -> Result<Self> {
        let apt = Self { root: root.to_path_buf() };
        for directory in ["lists/partial", "cache/archives/partial"] {
            std::fs::create_dir_all(root.join(directory))
                .with_context(|| format!("creating {}", root.join(directory).display()))?;
        }
        std::fs::write(root.join("status"), "")
            .with_context(|| format!("writing {}", root.join("status").display()))?;
        std::fs::write(apt.sources(), sources)
            .with_context(|| format!("writing {}", apt.sources().display()))?;
        run(apt.command("apt-get").args(["-qq", "update"]))?;
        Ok(apt)
    }

    /// Downloads packages by name, without what they depend on, and unpacks them.
    ///
    /// `release` picks the newest version of another suite, such as `bookworm-backports`.
    pub(super) fn unpack(
        &self,
        names: &[&str],
        release: Option<&str>,
        into: &Path,
    ) -> Result<Vec<String>> {
        let scratch = self.scratch("download")?;
        let mut command = self.command("apt-get");
        command.args(["-qq", "download"]).args(in_release(names, release)).current_dir(&scratch);
        run(&mut command)?;
        unpack_all(&scratch, into, |_| true)
    }

    /// Downloads packages with everything that they depend on, and unpacks all of it but the C
    /// library.
    ///
    /// apt is told that nothing is installed, so that what is unpacked does not depend on what the
    /// host has today.
    pub(super) fn unpack_closure(
        &self,
        names: &[&str],
        release: Option<&str>,
        into: &Path,
    ) -> Result<Vec<String>> {
        let scratch = self.scratch("closure")?;
        std::fs::create_dir_all(scratch.join("partial"))?;
        let mut command = self.command("apt-get");
        command.arg("-o").arg(format!("Dir::Cache::archives={}", scratch.display()));
        command.args(["-qq", "-y", "--no-install-recommends", "--download-only"]);
        if let Some(release) = release {
            command.args(["-t", release]);
        }
        run(command.arg("install").args(names))?;
        unpack_all(&scratch, into, |package| !package.starts_with(C_LIBRARY))
    }

    /// What a package of a suite depends on first: the kernel behind a meta-package.
    pub(super) fn first_dependency(&self, name: &str, release: Option<&str>) -> Result<String> {
        let mut command = self.command("apt-cache");
        if let Some(release) = release {
            command.args(["-t", release]);
        }
        let output = run(command.args(["depends", name]))?;
        output
            .lines()
            .find_map(|line| line.trim().strip_prefix("Depends: "))
            .map(str::to_owned)
            .with_context(|| format!("{name} depends on nothing, so it is no meta-package"))
    }

    fn sources(&self) -> PathBuf {
        self.root.join("sources.list")
    }

    fn scratch(&self, name: &str) -> Result<PathBuf> {
        let scratch = self.root.join(name);
        if scratch.exists() {
            std::fs::remove_dir_all(&scratch)?;
        }
        std::fs::create_dir_all(&scratch)
            .with_context(|| format!("creating {}", scratch.display()))?;
        Ok(scratch)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for setting in [
            format!("Dir::Etc::sourcelist={}", self.sources().display()),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            "Dir::Etc::preferences=/dev/null".to_owned(),
            "Dir::Etc::preferencesparts=/dev/null".to_owned(),
            format!("Dir::State::status={}", self.root.join("status").display()),
            format!("Dir::State::lists={}", self.root.join("lists").display()),
            format!("Dir::Cache={}", self.root.join("cache").display()),
            // Nothing is installed, so the host's lock is not ours to take. As root, apt would
            // download as a user of its own, who may not enter these directories.
            "Debug::NoLocking=1".to_owned(),
            "APT::Sandbox::User=root".to_owned(),
        ] {
            command.arg("-o").arg(setting);
        }
        command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C.UTF-8");
        command
    }
}

fn repositories() -> Result<Vec<Repository>> {
    let mut command = Command::new("apt-get");
    command.args(["indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)"]);
    command.arg("Created-By: Packages");
    let output = run(&mut command)
        .context("this set-up takes its packages from Debian 12 through apt-get")?;
    let mut found: Vec<Repository> = Vec::new();
    for line in output.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [uri, release, "main"] = fields.as_slice() else { continue };
        if release
            .strip_prefix(RELEASE)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        {
            found.push(Repository { uri: (*uri).to_owned(), release: (*release).to_owned() });
        }
    }
    if !found.iter().any(|repository| repository.release == RELEASE) {
        bail!(
            "apt on this machine has no source for Debian 12 ({RELEASE}); add one, for example \
             with a line `deb MIRROR {RELEASE} main` in /etc/apt/sources.list.d/{RELEASE}.list"
        );
    }
    Ok(found)
}

fn sources_text(repositories: &[Repository]) -> String {
    let mut text = String::new();
    for Repository { uri, release } in repositories {
        text.push_str(&source_line(uri, release));
        if release == RELEASE {
            text.push_str(&source_line(uri, &format!("{RELEASE}-backports")));
        }
    }
    text
}

fn source_line(uri: &str, release: &str) -> String {
    let signed =
        if Path::new(KEYRING).exists() { format!("[signed-by={KEYRING}] ") } else { String::new() };
    format!("deb {signed}{uri} {release} main\n")
}

fn in_release(names: &[&str], release: Option<&str>) -> Vec<String> {
    let suffix = release.map(|release| format!("/{release}")).unwrap_or_default();
    names.iter().map(|name| format!("{name}{suffix}")).collect()
}

/// Unpacks the wanted packages of a directory, removes it, and returns their file names.
fn unpack_all(packages: &Path, into: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<String>> {
    std::fs::create_dir_all(into).with_context(|| format!("creating {}", into.display()))?;
    let mut unpacked = Vec::new();
    for entry in std::fs::read_dir(packages)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.extension().is_some_and(|extension| extension == "deb") && wanted(&name) {
            run(Command::new("dpkg-deb").arg("-x").arg(&path).arg(into))?;
            unpacked.push(name);
        }
    }
    std::fs::remove_dir_all(packages)?;
    unpacked.sort();
    Ok(unpacked)
}

pub(super) fn run(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("starting {program}"))?;
    ensure!(
        output.status.success(),
        "{program} failed ({}):\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
