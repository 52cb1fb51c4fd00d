//! Keys of a domain: of the digests of its pages, and of its objects.

use zeroize::Zeroizing;

use crate::catalogue::{DomainEntry, Protection};
use crate::error::CheckpointError;
use crate::page_digest::PageDigestKey;
use crate::seal::{SecretKey, random};

/// Keys of a domain that was opened.
pub(crate) struct DomainKeys {
    digest: PageDigestKey,
    secret: Option<SecretKey>,
}

impl DomainKeys {
    pub(crate) const fn digest(&self) -> &PageDigestKey {
        &self.digest
    }

    /// Returns the key of the domain's objects, if they are encrypted.
    pub(crate) const fn secret(&self) -> Option<&SecretKey> {
        self.secret.as_ref()
    }

    /// Returns the keys of a domain, if `key` is what it is protected with.
    pub(crate) fn of(
        entry: &DomainEntry,
        key: Option<&SecretKey>,
    ) -> Result<Self, CheckpointError> {
        let name = || entry.name.clone();
        match (&entry.protection, key) {
            (Protection::Plain { secret }, None) => {
                Ok(Self { digest: PageDigestKey::from_secret(secret), secret: None })
            }
            (Protection::Plain { .. }, Some(_)) => Err(CheckpointError::NotEncrypted(name())),
            (Protection::Key { .. }, None) => Err(CheckpointError::Locked(name())),
            (Protection::Key { salt, check }, Some(key)) if derive_check(key, salt) == *check => {
                let secret = Zeroizing::new(key.derive(salt, b"bindery digests 1"));
                let digest = PageDigestKey::from_secret(&secret);
                Ok(Self { digest, secret: Some(key.clone()) })
            }
            (Protection::Key { .. }, Some(_)) => Err(CheckpointError::WrongKey(name())),
        }
    }
}

fn derive_check(key: &SecretKey, salt: &[u8; 32]) -> [u8; 32] {
    key.derive(salt, b"bindery key check 1")
}

/// Draws the protection of a new domain: encrypted if there is a key.
pub(crate) fn new_protection(key: Option<&SecretKey>) -> Result<Protection, CheckpointError> {
    let Some(key) = key else { return Ok(Protection::Plain { secret: random()? }) };
    let salt = random()?;
    Ok(Protection::Key { salt, check: derive_check(key, &salt) })
}
