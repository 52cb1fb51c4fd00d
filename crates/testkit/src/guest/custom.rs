//! Images made for one test: any kernel of the kit, busybox, the agent, and what the test adds. Small, so
//! that they boot in a second or two.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::cpio::Archive;
use super::image::{INIT, collect, in_guest, write_entry, write_modules, write_skeleton};
use super::{GuestError, GuestImage, Kernel, Kit, agent};

/// What an image is to have; [`CustomImage::write`] makes it.
#[derive(Debug)]
#[must_use]
pub struct CustomImage {
    kit: Kit,
    kernel: Kernel,
    /// Where what is made for the image is kept.
    directory: PathBuf,
    /// Files of the host's, by their path in the guest.
    files: BTreeMap<String, PathBuf>,
    texts: BTreeMap<String, String>,
    links: BTreeMap<String, String>,
}

impl CustomImage {
    /// An image with nothing of its own yet. `directory` is to be there for as long as the image is used.
    ///
    /// # Errors
    /// [`GuestError`] when the kernel is not in the kit or the agent does not compile.
    pub fn new(kit: &Kit, kernel: Kernel, directory: &Path) -> Result<Self, GuestError> {
        kit.kernel(kernel)?;
        let files = BTreeMap::from([
            ("usr/bin/guest_agent".to_owned(), agent::binary(kit)?),
            ("usr/lib/busybox".to_owned(), kit.busybox()),
        ]);
        let links = BTreeMap::from([("usr/bin/sh".to_owned(), "../lib/busybox".to_owned())]);
        Ok(Self {
            kit: kit.clone(),
            kernel,
            directory: directory.into(),
            files,
            texts: BTreeMap::from([("init".to_owned(), INIT.to_owned())]),
            links,
        })
    }

    /// Adds a program of the host's, in the guest's `PATH` under its own name, without what is there for
    /// debuggers, and the libraries that it is linked to.
    ///
    /// # Errors
    /// [`GuestError`] when it, or a library of it, is not there.
    pub fn program(mut self, program: &Path) -> Result<Self, GuestError> {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        let stripped = self.directory.join(&*name);
        strip(program, &stripped).map_err(GuestError::io(format!("strip {name}")))?;
        self.files.insert(format!("usr/bin/{name}"), stripped);
        let libraries = libraries(program).map_err(GuestError::io(format!("ldd {name}")))?;
        self.files.extend(libraries.into_iter().map(|path| (place(&path), path)));
        Ok(self)
    }

    /// Adds all of a part of the kit.
    ///
    /// # Errors
    /// [`GuestError::NoKit`] when it is not there.
    pub fn part(mut self, name: &str) -> Result<Self, GuestError> {
        let root = self.kit.part(name);
        if !self.kit.is_complete(name) {
            return Err(GuestError::NoKit { part: root });
        }
        let mut tree = BTreeMap::new();
        collect(&root, &root, &mut tree).map_err(GuestError::io(format!("reading {name}")))?;
        tree.extend(std::mem::take(&mut self.files));
        self.files = tree;
        Ok(self)
    }

    /// Adds a file that says `text`. `init` is the first process of the guest.
    pub fn text(mut self, path: &str, text: &str) -> Self {
        self.texts.insert(path.into(), text.into());
        self
    }

    /// Adds a symbolic link, instead of the file that was there, if one was.
    pub fn link(mut self, path: &str, target: &str) -> Self {
        self.texts.remove(path);
        self.links.insert(path.into(), target.into());
        self
    }

    /// Writes the archive.
    ///
    /// # Errors
    /// [`GuestError::Io`] when that cannot be done.
    pub fn write(self) -> Result<GuestImage, GuestError> {
        let archive = self.directory.join("initramfs.cpio");
        File::create(&archive)
            .and_then(|file| self.write_to(file))
            .map_err(GuestError::io(format!("writing {}", archive.display())))?;
        Ok(GuestImage::from_files(self.kit.kernel(self.kernel)?, archive))
    }

    fn write_to(&self, file: File) -> io::Result<()> {
        let mut archive = Archive::new(BufWriter::with_capacity(1 << 20, file));
        write_skeleton(&mut archive)?;
        for directory in self.directories() {
            archive.directory(&directory.to_string_lossy(), 0o755)?;
        }
        let is_own = |path: &str| self.texts.contains_key(path) || self.links.contains_key(path);
        for (path, source) in self.files.iter().filter(|(path, _)| !is_own(path)) {
            // A library's name is a link on the host, and part of what it links to here.
            let source = if source.starts_with(self.kit.root()) {
                source
            } else {
                &source.canonicalize()?
            };
            if !source.is_dir() || source.is_symlink() {
                write_entry(&mut archive, path, source)?;
            }
        }
        for (path, text) in &self.texts {
            let mode = if path == "init" { 0o755 } else { 0o644 };
            archive.file(path, mode, text.as_bytes())?;
        }
        for (path, target) in &self.links {
            archive.symlink(path, target)?;
        }
        write_modules(&self.kit, self.kernel, &mut archive)?;
        archive.finish()?.flush()
    }

    /// Every directory that something is in, parents first.
    fn directories(&self) -> BTreeSet<&Path> {
        let paths = self.files.keys().chain(self.texts.keys()).chain(self.links.keys());
        let needed = ["usr/sbin", "usr/lib/busybox-bin", "usr/lib/guest-modules"].map(Path::new);
        let parents = paths.filter_map(|path| Path::new(path).parent()).chain(needed);
        // Those of the kit that are empty are there for whoever mounts something on them.
        let empty = self.files.iter().filter(|(_, source)| source.is_dir() && !source.is_symlink());
        let all = parents.chain(empty.map(|(path, _)| Path::new(path)));
        all.flat_map(Path::ancestors).filter(|path| !path.as_os_str().is_empty()).collect()
    }
}

/// strip(1), which every machine has that links programs: what debuggers want of a program is five times
/// the program, and a guest would keep all of it in memory.
fn strip(program: &Path, stripped: &Path) -> io::Result<()> {
    let status = Command::new("strip").arg("-o").arg(stripped).arg(program).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(status.to_string())) }
}

/// Where a library of the host's is found in the guest: under the name that the program knows.
fn place(path: &Path) -> String {
    in_guest(path.strip_prefix("/").unwrap_or(path))
}

/// The libraries of a program and its dynamic loader, as ldd(1) names them; none of a static one.
fn libraries(program: &Path) -> io::Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    // `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)`, and `/lib64/ld-linux-x86-64.so.2 (0x…)`.
    let paths = text.lines().filter_map(|line| {
        if line.contains("not found") {
            return Some(Err(io::Error::new(io::ErrorKind::NotFound, line.trim().to_owned())));
        }
        line.split_whitespace().find(|word| word.starts_with('/')).map(|path| Ok(path.into()))
    });
    paths.collect()
}
