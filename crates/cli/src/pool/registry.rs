//! Pools of this machine and their devices: one small file a pool, so that a pool
//! is named and not its devices.
//!
//! It is a convenience and nothing depends on it: the devices say themselves what they are of, and
//! `bindery pool import` finds them again.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bindery_pool::PoolName;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Directory of root's registry; others have one below their home directory.
const SYSTEM: &str = "/var/lib/bindery/pools";

/// Names another place for it.
const VARIABLE: &str = "BINDERY_POOLS";

/// Entry of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    /// Id of the pool in hexadecimal digits, which stays the same whatever the pool is called.
    pub(super) id: String,
    /// The files and block devices that it lies on.
    pub(super) devices: Vec<PathBuf>,
    /// URL of the pool's archive, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) archive: Option<String>,
}

/// Why the registry is of no help.
#[derive(Debug, Error)]
pub(super) enum RegistryError {
    /// No such pool is known here.
    #[error(
        "no pool called {name} is known here (in {}): see `bindery pool list`, or find its devices \
         with `bindery pool import`", directory.display()
    )]
    Unknown {
        /// The name.
        name: PoolName,
        /// Directory that was looked in.
        directory: PathBuf,
    },
    /// There is one of that name.
    #[error(
        "there is a pool called {name} already, on {}: take another name, or destroy or export that \
         one first", devices.first().map(|path| path.display().to_string()).unwrap_or_default()
    )]
    Taken {
        /// The name.
        name: PoolName,
        /// Devices of that pool.
        devices: Vec<PathBuf>,
    },
    /// A file is not what was written.
    #[error("{}: {source}; remove it, and find the pool again with `bindery pool import`", path.display())]
    Unreadable {
        /// Path of the file or directory.
        path: PathBuf,
        /// Description of what is wrong with the file.
        source: serde_json::Error,
    },
    /// The file system.
    #[error("{}: {source}", path.display())]
    File {
        /// Path of the file or directory.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
}

/// The directory with the files.
#[derive(Debug)]
pub(super) struct Registry {
    directory: PathBuf,
}

impl Registry {
    /// The user's own, or the one that the environment names.
    pub(super) fn of_user() -> Self {
        let named = std::env::var_os(VARIABLE).map(PathBuf::from);
        let home =
            || std::env::var_os("HOME").map(PathBuf::from).unwrap_or_else(std::env::temp_dir);
        let directory = named.unwrap_or_else(|| match rustix::process::geteuid().is_root() {
            true => SYSTEM.into(),
            false => home().join(".local/state/bindery/pools"),
        });
        Self { directory }
    }

    fn path(&self, name: &PoolName) -> PathBuf {
        self.directory.join(format!("{name}.json"))
    }

    /// All pools, by name.
    pub(super) fn list(&self) -> Result<Vec<(PoolName, Entry)>, RegistryError> {
        let failed = |source| RegistryError::File { path: self.directory.clone(), source };
        let files = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            files => files.map_err(failed)?,
        };
        let mut pools = Vec::new();
        for file in files {
            let path = file.map_err(failed)?.path();
            let name = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".json"));
            let Some(name) = name.and_then(|name| name.parse::<PoolName>().ok()) else { continue };
            pools.extend(read(&path)?.map(|entry| (name, entry)));
        }
        pools.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(pools)
    }

    /// Returns the entry of a pool.
    pub(super) fn find(&self, name: &PoolName) -> Result<Entry, RegistryError> {
        let unknown =
            || RegistryError::Unknown { name: name.clone(), directory: self.directory.clone() };
        read(&self.path(name))?.ok_or_else(unknown)
    }

    /// Fails if the name is that of another pool than the one with this id, if any.
    pub(super) fn require_free(
        &self,
        name: &PoolName,
        id: Option<&str>,
    ) -> Result<(), RegistryError> {
        match read(&self.path(name))? {
            Some(entry) if Some(&*entry.id) != id => {
                Err(RegistryError::Taken { name: name.clone(), devices: entry.devices })
            }
            _ => Ok(()),
        }
    }

    /// Remembers a pool, or what has changed about it. Whole or not at all.
    pub(super) fn put(&self, name: &PoolName, entry: &Entry) -> Result<(), RegistryError> {
        let path = self.path(name);
        let write = || {
            fs::create_dir_all(&self.directory)?;
            let mut file = tempfile::NamedTempFile::new_in(&self.directory)?;
            serde_json::to_writer_pretty(&mut file, entry)?;
            file.write_all(b"\n")?;
            file.as_file().sync_all()?;
            file.persist(&path)?;
            fs::File::open(&self.directory)?.sync_all()
        };
        write().map_err(|source| RegistryError::File { path: path.clone(), source })
    }

    /// Forgets a pool; its devices are left as they are.
    pub(super) fn forget(&self, name: &PoolName) -> Result<(), RegistryError> {
        let path = self.path(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(|source| RegistryError::File { path, source }),
        }
    }
}

fn read(path: &Path) -> Result<Option<Entry>, RegistryError> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|source| RegistryError::File { path: path.into(), source })?,
    };
    let entry = serde_json::from_slice(&text);
    entry.map(Some).map_err(|source| RegistryError::Unreadable { path: path.into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever a file holds: an error says which file it is.
        #[test]
        fn any_file_is_an_entry_or_named(
            text in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..200),
                "[\\[{]{1,200}".prop_map(String::into_bytes),
                r#"\{"id": ?("[0-9a-f]{0,40}"|[0-9]{1,30}), ?"devices": ?\[("/[a-z\\]{0,9}",?){0,3}\](, ?"archive": ?(null|"[a-z:/]*"))?\}"#
                    .prop_map(String::into_bytes),
            ],
        ) {
            let directory = tempfile::tempdir().unwrap();
            let registry = Registry { directory: directory.path().into() };
            let name: PoolName = "guests".parse().unwrap();
            fs::write(registry.path(&name), text).unwrap();
            match registry.find(&name) {
                Ok(entry) => {
                    let text = serde_json::to_vec(&entry).unwrap();
                    prop_assert_eq!(serde_json::from_slice::<Entry>(&text).unwrap(), entry);
                }
                Err(error) => prop_assert!(error.to_string().contains("guests.json"), "{}", error),
            }
        }
    }

    #[test]
    fn pools_are_remembered_found_and_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry { directory: directory.path().join("pools") };
        let name = |name: &str| name.parse::<PoolName>().unwrap();
        assert_eq!(registry.list().unwrap(), []);
        let devices = vec!["/dev/nvme0n1".into()];
        let entry = Entry { id: "7".repeat(32), devices, archive: None };
        registry.require_free(&name("guests"), None).unwrap();
        registry.put(&name("guests"), &entry).unwrap();
        registry.put(&name("builds"), &entry).unwrap();
        let taken = registry.require_free(&name("guests"), None).unwrap_err().to_string();
        assert!(taken.contains("/dev/nvme0n1"), "{taken}");
        registry.require_free(&name("guests"), Some(&entry.id)).unwrap();
        let names: Vec<_> = registry.list().unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, [name("builds"), name("guests")]);

        registry.forget(&name("guests")).unwrap();
        let unknown = registry.find(&name("guests")).unwrap_err().to_string();
        assert!(unknown.contains("import"), "{unknown}");
        fs::write(registry.path(&name("builds")), "{").unwrap();
        let broken = registry.find(&name("builds")).unwrap_err().to_string();
        assert!(broken.contains("builds.json"), "{broken}");
    }
}
