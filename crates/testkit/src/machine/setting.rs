//! One value below `/proc/sys` or `/sys`, changed for a while.

use std::io;
use std::path::{Path, PathBuf};

/// The number of mappings that a process may have.
pub const MAX_MAP_COUNT: &str = "/proc/sys/vm/max_map_count";

/// Why a setting could not be changed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}; this needs root and a kernel that has it", path.display())]
pub struct SettingError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl SettingError {
    pub(crate) fn locking(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self { action: "lock", path, source }
    }
}

/// Puts the old value back when dropped.
#[derive(Debug)]
pub struct SettingGuard {
    path: PathBuf,
    before: String,
    set: String,
}

impl SettingGuard {
    /// Writes `value` and remembers what was there.
    ///
    /// # Errors
    /// [`SettingError`] when the file is not there or may not be written.
    pub fn set(path: impl AsRef<Path>, value: impl ToString) -> Result<Self, SettingError> {
        let path = path.as_ref();
        let before = read(path)?;
        let set = value.to_string();
        write(path, &set)?;
        Ok(Self { path: path.to_path_buf(), before, set })
    }

    /// Returns true if the value is still the one that was set: nobody else has changed it.
    ///
    /// # Errors
    /// [`SettingError`] when the file cannot be read any more.
    pub fn is_as_set(&self) -> Result<bool, SettingError> {
        Ok(read(&self.path)? == self.set)
    }

    /// The value that will be put back.
    #[must_use]
    pub fn before(&self) -> &str {
        &self.before
    }
}

impl Drop for SettingGuard {
    fn drop(&mut self) {
        if let Err(error) = write(&self.path, &self.before) {
            eprintln!("{} is left changed: {error}", self.path.display());
        }
    }
}

/// A setting's value without the line's end; of a choice (`one [two] three`) the chosen word.
pub(crate) fn read(path: &Path) -> Result<String, SettingError> {
    let text = std::fs::read_to_string(path).map_err(|source| SettingError {
        action: "read",
        path: path.to_path_buf(),
        source,
    })?;
    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    Ok(chosen.map_or_else(|| text.trim().to_owned(), |(word, _)| word.to_owned()))
}

pub(crate) fn write(path: &Path, value: &str) -> Result<(), SettingError> {
    std::fs::write(path, value).map_err(|source| SettingError {
        action: "write",
        path: path.to_path_buf(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_value_comes_back_also_after_a_panic() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "always [madvise] never\n").unwrap();
        let path = file.path().to_path_buf();
        let inside = path.clone();
        let panicked = std::thread::spawn(move || {
            let _guard = SettingGuard::set(&inside, 7).unwrap();
            assert_eq!(read(&inside).unwrap(), "7");
            panic!("on purpose");
        })
        .join();
        assert!(panicked.is_err());
        assert_eq!(read(&path).unwrap(), "madvise");
    }
}
