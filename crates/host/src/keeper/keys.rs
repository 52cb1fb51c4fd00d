//! Keys of domains, from key files that the configuration names.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use bindery_checkpoint::{CheckpointError, KeyError, Name, SecretKey, Store};

use super::{failure, names};
use crate::protocol::{Failure, FailureKind};

/// Key files of domains. Domains without one are not encrypted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointKeys {
    /// Key file of all domains that have none of their own.
    pub default: Option<PathBuf>,
    /// Key files of domains: by `NAME`, or by `UID:NAME` for that of one user.
    pub domains: BTreeMap<String, PathBuf>,
}

/// Keys of domains.
#[derive(Default)]
pub(crate) struct Keyring {
    default: Option<SecretKey>,
    domains: BTreeMap<String, SecretKey>,
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyring").finish_non_exhaustive()
    }
}

impl Keyring {
    /// Reads the key files.
    ///
    /// # Errors
    /// The first that cannot be used.
    pub(crate) fn read(keys: &CheckpointKeys) -> Result<Self, KeyError> {
        let read = |path: &PathBuf| SecretKey::read(Path::new(path));
        let domains = keys.domains.iter().map(|(domain, path)| Ok((domain.clone(), read(path)?)));
        Ok(Self {
            default: keys.default.as_ref().map(read).transpose()?,
            domains: domains.collect::<Result<_, KeyError>>()?,
        })
    }

    /// Returns the key of a store's domain, if it has one.
    fn of(&self, domain: &Name) -> Option<&SecretKey> {
        let of_user = names::split_domain(domain);
        let named = of_user.as_ref().and_then(|(uid, name)| {
            let full = self.domains.get(&format!("{uid}:{name}"));
            full.or_else(|| self.domains.get(name))
        });
        named.or(self.default.as_ref())
    }

    /// Opens the encrypted domains of a store whose keys there are, so that their checkpoints can be read.
    pub(super) fn open_all(&self, store: &Store) {
        for (domain, is_sealed) in store.domains() {
            let Some(key) = self.of(&domain).filter(|_| is_sealed) else { continue };
            if let Err(error) = store.open_domain(&domain, Some(key)) {
                tracing::warn!("checkpoints of domain {domain} cannot be read: {error}");
            }
        }
    }

    /// Opens a domain to write, or makes it: encrypted if there is a key for it.
    ///
    /// # Errors
    /// `Refused` if it is encrypted and its key is another or missing, or if it is not and there is a key.
    pub(super) fn open_for_writing(&self, store: &Store, domain: &Name) -> Result<(), Failure> {
        store.open_domain(domain, self.of(domain)).map_err(|error| match error {
            CheckpointError::NotEncrypted(_) => {
                let (_, shown) = names::split_domain(domain).unwrap_or((0, domain.to_string()));
                let message = format!(
                    "the daemon has a key for domain {shown}, and the pool has checkpoints of it from before \
                     that are not encrypted: start the guest in another domain (--domain), or use another pool; \
                     older checkpoints can still be restored, and deleted"
                );
                Failure::new(FailureKind::Refused, message)
            }
            error => failure::of_checkpoint(&error),
        })
    }
}
