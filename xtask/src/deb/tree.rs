//! What is in the package, and where.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::tools::{output, run_tool};
use crate::cargo::root;

/// Files of the checkout, and where they go. Those that end in `.gz` are compressed.
const FILES: [(&str, &str); 7] = [
    ("packaging/bindery.service", "usr/lib/systemd/system/bindery.service"),
    ("packaging/bindery-ksm.service", "usr/lib/systemd/system/bindery-ksm.service"),
    ("packaging/bindery.sysctl.conf", "usr/lib/sysctl.d/50-bindery.conf"),
    ("packaging/debian/copyright", "usr/share/doc/bindery/copyright"),
    ("packaging/debian/changelog", "usr/share/doc/bindery/changelog.gz"),
    ("docs/operators-guide.md", "usr/share/doc/bindery/operators-guide.md.gz"),
    ("crates/shim/include/bindery.h", "usr/include/bindery/bindery.h"),
];

/// What the program prints for each shell, and where shells look for it.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/bindery"),
    ("zsh", "usr/share/zsh/vendor-completions/_bindery"),
    ("fish", "usr/share/fish/vendor_completions.d/bindery.fish"),
];

/// The package's files below one directory.
#[derive(Debug)]
pub(super) struct Tree {
    root: PathBuf,
    /// Programs and libraries, whose dependencies are the package's.
    pub(super) linked: Vec<PathBuf>,
}

impl Tree {
    /// Puts everything below `into` as it will be installed.
    pub(super) fn lay_out(programs: &Path, into: &Path) -> Result<Self> {
        let mut tree = Self { root: into.into(), linked: Vec::new() };
        let program = programs.join("bindery");
        tree.add_linked(&program, "usr/bin/bindery", 0o755)?;
        let multiarch = format!("usr/lib/{}-linux-gnu/bindery", std::env::consts::ARCH);
        let shim = "libbindery_shim.so";
        tree.add_linked(&programs.join(shim), &format!("{multiarch}/{shim}"), 0o644)?;
        for (from, to) in FILES {
            tree.add(to, &read(&root().join(from))?)?;
        }
        for (shell, to) in COMPLETIONS {
            tree.add(to, &print(&program, &["completions", shell])?)?;
        }
        tree.add("etc/bindery/bindery.toml", &print(&program, &["daemon", "--print-config"])?)?;
        tree.add_manual(&program)?;
        Ok(tree)
    }

    /// Where it is.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Adds a file; where `to` ends in `.gz`, compressed.
    pub(super) fn add(&self, to: &str, content: &[u8]) -> Result<()> {
        let Some(plain) = to.strip_suffix(".gz") else { return self.write(to, content, 0o644) };
        self.write(plain, content, 0o644)?;
        // Without name and time, which would differ from one build to the next.
        run_tool(Command::new("gzip").args(["-9", "--no-name"]).arg(self.root.join(plain)))
    }

    /// Writes a file, and the directories above it, with modes that do not depend on the umask.
    pub(super) fn write(&self, to: &str, content: &[u8], mode: u32) -> Result<()> {
        let path = self.root.join(to);
        self.make_parents(&path)?;
        fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
        set_mode(&path, mode)
    }

    fn make_parents(&self, path: &Path) -> Result<()> {
        let directory = path.parent().context("a file lies in a directory")?;
        fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
        let above = directory.ancestors().take_while(|above| above.starts_with(&self.root));
        for directory in above {
            set_mode(directory, 0o755)?;
        }
        Ok(())
    }

    /// Adds what was linked, without what only debuggers need.
    fn add_linked(&mut self, from: &Path, to: &str, mode: u32) -> Result<()> {
        let path = self.root.join(to);
        self.make_parents(&path)?;
        let mut strip = Command::new("strip");
        strip.args(["--strip-unneeded", "--remove-section=.comment", "-o"]).arg(&path).arg(from);
        run_tool(&mut strip)?;
        self.linked.push(path.clone());
        set_mode(&path, mode)
    }

    fn add_manual(&self, program: &Path) -> Result<()> {
        let pages = self.root.with_file_name("manual");
        output(Command::new(program).arg("man").arg(&pages))?;
        for page in fs::read_dir(&pages).context("reading the manual")? {
            let page = page?;
            let name = page.file_name().into_string().ok().context("a page's name is text")?;
            self.add(&format!("usr/share/man/man1/{name}.gz"), &read(&page.path())?)?;
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("reading {}", path.display()))
}

fn print(program: &Path, arguments: &[&str]) -> Result<Vec<u8>> {
    Ok(output(Command::new(program).args(arguments))?.stdout)
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))
        .with_context(|| format!("setting the mode of {}", path.display()))
}
