//! Keyed digest of 256 bits, for pages that are not compared behind it.
//!
//! AEGIS-256X2 as a message authentication code (draft-irtf-cfrg-aegis-aead), key and nonce from a secret. Without
//! the secret nobody can make two pages of one digest; decision 0026 has the reasons and the measurements.

use std::fmt;

use aegis::aegis256x2::Aegis256X2Mac;
use bindery_units::PAGE_BYTES;

/// Length of a [`KeyedDigest`], in bytes.
pub const KEYED_DIGEST_BYTES: usize = 32;

/// Length of the secret of a [`KeyedDigestKey`], in bytes: key and nonce.
pub const KEYED_SECRET_BYTES: usize = 64;

/// Digest of a page under a secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyedDigest(pub [u8; KEYED_DIGEST_BYTES]);

impl fmt::Debug for KeyedDigest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

/// Key of [`KeyedDigest`]s. Prints nothing of itself.
#[derive(Clone)]
pub struct KeyedDigestKey(Aegis256X2Mac<KEYED_DIGEST_BYTES>);

impl KeyedDigestKey {
    /// Makes the key from a secret.
    #[must_use]
    pub fn from_secret(secret: &[u8; KEYED_SECRET_BYTES]) -> Self {
        let [key, nonce] = [0, 32].map(|at| std::array::from_fn(|byte| secret[at + byte]));
        Self(Aegis256X2Mac::new_with_nonce(&key, &nonce))
    }

    /// Returns the digest of a page.
    #[must_use]
    pub fn digest(&self, page: &[u8; PAGE_BYTES]) -> KeyedDigest {
        let mut mac = self.0.clone();
        mac.update(page);
        KeyedDigest(mac.finalize())
    }
}

impl fmt::Debug for KeyedDigestKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("KeyedDigestKey").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_depend_on_every_bit_and_on_the_secret() {
        let keys = [[1; KEYED_SECRET_BYTES], [2; KEYED_SECRET_BYTES]]
            .map(|secret| KeyedDigestKey::from_secret(&secret));
        let mut page = [7; PAGE_BYTES];
        let first = keys[0].digest(&page);
        assert_ne!(first, keys[1].digest(&page));
        for at in [0, 1, 2047, PAGE_BYTES - 1] {
            page[at] ^= 1;
            assert_ne!(first, keys[0].digest(&page));
            page[at] ^= 1;
        }
        assert_eq!(first, keys[0].digest(&page));
    }
}
