//! One of KSM's files.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::DIRECTORY;

/// A setting or a counter, kept open: a look costs a microsecond or two.
#[derive(Debug)]
pub struct KsmFile {
    path: PathBuf,
    file: File,
}

impl KsmFile {
    /// Opens `name` for reading.
    ///
    /// # Errors
    /// `NotFound` where the kernel has none.
    pub fn open(name: &str) -> io::Result<Self> {
        let path = Path::new(DIRECTORY).join(name);
        Ok(Self { file: File::open(&path)?, path })
    }

    /// Opens `name` for reading and writing.
    ///
    /// # Errors
    /// `NotFound` where the kernel has none; `PermissionDenied` for all but root, and `EROFS` where
    /// `/sys` is mounted read-only, as in most containers.
    pub fn open_to_write(name: &str) -> io::Result<Self> {
        let path = Path::new(DIRECTORY).join(name);
        Ok(Self { file: OpenOptions::new().read(true).write(true).open(&path)?, path })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it says, without the line's end; of a choice (`none [scan-time]`) the chosen word.
    ///
    /// # Errors
    /// The kernel's.
    pub fn read(&self) -> io::Result<String> {
        let mut bytes = [0; 256];
        let count = self.file.read_at(&mut bytes, 0)?;
        Ok(chosen(&String::from_utf8_lossy(&bytes[..count])))
    }

    /// The number that it says.
    ///
    /// # Errors
    /// The kernel's; `InvalidData` if it says something else.
    pub fn read_number(&self) -> io::Result<u64> {
        let text = self.read()?;
        text.parse().map_err(|_| {
            let message = format!("{} says {text:?}", self.path.display());
            io::Error::new(io::ErrorKind::InvalidData, message)
        })
    }

    /// Sets it.
    ///
    /// # Errors
    /// The kernel's: `InvalidInput` (`EINVAL`) if the value is out of its range, and for
    /// `pages_to_scan` while the kernel's own advisor is on.
    pub fn write(&self, value: &str) -> io::Result<()> {
        let written = self.file.write_at(value.as_bytes(), 0)?;
        // The kernel takes a value whole or not at all.
        if written == value.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }
}

/// The word in brackets, or all of it.
fn chosen(text: &str) -> String {
    let word = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    word.map_or_else(|| text.trim(), |(word, _)| word).to_owned()
}

/// What a file says, if there is one that can be read.
pub(super) fn text(name: &str) -> Option<String> {
    KsmFile::open(name).and_then(|file| file.read()).ok()
}

/// The number that a file says, if there is one that can be read.
pub(super) fn number(name: &str) -> Option<u64> {
    text(name)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_word_is_in_brackets() {
        assert_eq!(chosen("none [scan-time]\n"), "scan-time");
        assert_eq!(chosen("[none] scan-time\n"), "none");
        assert_eq!(chosen("100\n"), "100");
    }

    #[test]
    fn a_file_that_is_not_there_is_not_found() {
        let error = KsmFile::open("no_such_setting").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert_eq!(number("no_such_setting"), None);
    }
}
