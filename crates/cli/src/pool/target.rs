//! The file that `pool get` writes: as it was, or all of the object, never half of it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// Names of what a process has open.
const SPECIAL: [&str; 4] = ["/dev/stdout", "/dev/stderr", "/dev/fd", "/proc"];

/// Target that an object is written to.
pub(crate) enum Target {
    /// A file beside the one that it is to take the place of.
    Beside(NamedTempFile, PathBuf),
    /// Writes in place to a target that cannot be replaced: a device, a pipe, a terminal.
    Direct(File),
}

impl Target {
    /// Opens what an object is to be written to at a path.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let there = match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            there => Some(there?),
        };
        if there.as_ref().is_some_and(|there| !there.is_file()) {
            return File::options().write(true).open(path).map(Self::Direct);
        }
        if SPECIAL.iter().any(|special| path.starts_with(special)) {
            // What this process has open already, which may be a file that others write to.
            return File::options().append(true).open(path).map(Self::Direct);
        }
        // A link stays one, and what it leads to is replaced.
        let place = if there.is_some() { path.canonicalize()? } else { path.to_path_buf() };
        if there.is_some() {
            // Whoever may not write the file may not replace it either.
            File::options().write(true).open(&place)?;
        }
        let name = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let directory = place.parent().filter(|parent| !parent.as_os_str().is_empty());
        let mut builder = tempfile::Builder::new();
        let prefix = format!(".{name}.");
        builder.prefix(&prefix).permissions(permissions(there.as_ref()));
        let file = builder.tempfile_in(directory.unwrap_or(Path::new(".")))?;
        if let Some(there) = there {
            // The umask does not count for what was there before.
            file.as_file().set_permissions(there.permissions())?;
        }
        Ok(Self::Beside(file, place))
    }

    /// Puts the file in its place. All of it is there then, after a crash too.
    pub(crate) fn finish(self) -> io::Result<()> {
        match self {
            Self::Direct(file) => drop(file),
            Self::Beside(file, place) => {
                file.as_file().sync_all()?;
                file.persist(place)?;
            }
        }
        Ok(())
    }
}

/// As a file gets them that is made, or those of the one that is there.
fn permissions(there: Option<&fs::Metadata>) -> fs::Permissions {
    let new = || std::os::unix::fs::PermissionsExt::from_mode(0o666);
    there.map_or_else(new, fs::Metadata::permissions)
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Beside(file, _) => file.write(bytes),
            Self::Direct(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Beside(file, _) => file.flush(),
            Self::Direct(file) => file.flush(),
        }
    }
}
