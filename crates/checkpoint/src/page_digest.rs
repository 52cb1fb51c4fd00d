//! Keyed digest of 256 bits by which known pages are found.
//!
//! AEGIS-256X2 as a message authentication code (draft-irtf-cfrg-aegis-aead), key and nonce from the
//! domain's secret: why, and what else was measured, is in decision 0026. Nothing is compared behind it:
//! two pages of one digest are one page.

use std::fmt;

use aegis::aegis256x2::Aegis256X2Mac;
use bindery_units::PAGE_BYTES;

/// Length of a digest, in bytes.
pub(crate) const DIGEST_BYTES: usize = 32;

/// Length of the secret, in bytes: key and nonce.
pub(crate) const SECRET_BYTES: usize = 64;

/// Digest of a page under a domain's secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PageDigest(pub(crate) [u8; DIGEST_BYTES]);

impl fmt::Debug for PageDigest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

/// Secret under which the pages of one domain are digested. Prints nothing of itself.
#[derive(Clone)]
pub(crate) struct PageDigestKey(Aegis256X2Mac<DIGEST_BYTES>);

impl PageDigestKey {
    pub(crate) fn from_secret(secret: &[u8; SECRET_BYTES]) -> Self {
        let [key, nonce] = [0, 32].map(|at| std::array::from_fn(|byte| secret[at + byte]));
        Self(Aegis256X2Mac::new_with_nonce(&key, &nonce))
    }

    pub(crate) fn digest(&self, page: &[u8; PAGE_BYTES]) -> PageDigest {
        let mut mac = self.0.clone();
        mac.update(page);
        PageDigest(mac.finalize())
    }
}

impl fmt::Debug for PageDigestKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PageDigestKey").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_depend_on_every_bit_and_on_the_secret() {
        let keys = [[1; SECRET_BYTES], [2; SECRET_BYTES]].map(|it| PageDigestKey::from_secret(&it));
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
