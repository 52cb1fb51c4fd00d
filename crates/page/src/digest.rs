//! The keyed digest of a page.
//!
//! AEGIS-128X2 as a message authentication code (draft-irtf-cfrg-aegis-aead, "AEGIS as a MAC"),
//! from the `aegis` crate, which carries libaegis and picks its own instructions (VAES, AES-NI,
//! Arm's AES, software) at run time; all of them give the same tag. Why this one, and what else
//! was measured: `docs/decisions/0001-page-digest.md`.
//!
//! The 32 secret bytes serve as key and as nonce, half each. The nonce is the same for every page:
//! a MAC, unlike encryption, permits that, and it lets the keyed state be prepared once.

use std::fmt;

use aegis::aegis128x2::Aegis128X2Mac;
use bindery_units::PAGE_BYTES;

/// The digest of a page: 128 bits that tell nothing about the page to whoever has not the key.
///
/// Two pages with different digests differ. Two pages with the same digest are almost certainly
/// equal, and are compared byte for byte before anything depends on it.
///
/// Digests are ordered as byte strings, which is the order of their [words](Self::to_words) and
/// of their bits, most significant first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Digest([u8; 16]);

impl Digest {
    /// The digest whose bytes are `bytes`.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The digest's bytes.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// The digest as two words, the first bytes in the most significant bits of the first word:
    /// words compare as digests do.
    #[must_use]
    pub const fn to_words(self) -> [u64; 2] {
        let bits = u128::from_be_bytes(self.0);
        [(bits >> 64) as u64, bits as u64]
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// The secret under which the pages of one domain are digested.
///
/// Digests made under different keys say nothing about each other: with a key for each domain,
/// a guest can neither build pages that collide nor compare its pages with another domain's.
///
/// Prints nothing of itself. It is not wiped when dropped: its owner maps its guests' memory, so
/// whoever can read the one can read the other.
#[derive(Clone)]
pub struct DigestKey {
    /// The state that has absorbed the secret and no page yet; cloned for every page.
    keyed: Aegis128X2Mac<16>,
}

/// No key could be drawn.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot draw a digest key from the kernel's random source; \
     allow getrandom(2), or make /dev/urandom readable"
)]
pub struct DigestKeyError(#[source] getrandom::Error);

impl DigestKey {
    /// Draws a key from the kernel's random source. Blocks only early in boot, until the kernel
    /// has randomness to give.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn generate() -> Result<Self, DigestKeyError> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(DigestKeyError)?;
        Ok(Self::from_secret(&secret))
    }

    /// The key made of a secret, which is to be 32 uniformly random bytes.
    #[must_use]
    pub fn from_secret(secret: &[u8; 32]) -> Self {
        let [key, nonce] = [0, 16].map(|at| std::array::from_fn(|byte| secret[at + byte]));
        Self { keyed: Aegis128X2Mac::new_with_nonce(&key, &nonce) }
    }

    /// The digest of `page`.
    pub(crate) fn digest(&self, page: &[u8; PAGE_BYTES]) -> Digest {
        let mut mac = self.keyed.clone();
        mac.update(page);
        Digest(mac.finalize())
    }
}

impl fmt::Debug for DigestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DigestKey").finish_non_exhaustive()
    }
}
