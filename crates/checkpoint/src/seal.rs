//! Keys, and the check of every stored piece: a checksum, or encryption with a tag.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bindery_sys::process::effective_user;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};
use ring::rand::{SecureRandom, SystemRandom};
use thiserror::Error;
use zeroize::{Zeroize, Zeroizing};

use crate::checksum::crc32c;
use crate::format_error::FormatError;

/// Length of a key, in bytes.
const KEY_BYTES: usize = 32;

/// Length of a check, in bytes: a tag of AES-256-GCM, or a CRC-32C and zeros.
pub(crate) const CHECK_BYTES: usize = 16;

/// Check of a stored piece.
pub(crate) type Check = [u8; CHECK_BYTES];

/// Key of a domain, of an export or of what is pushed, from a key file. Prints nothing of itself, and is wiped from
/// memory when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretKey([u8; KEY_BYTES]);

/// Reason why there is no key.
#[derive(Debug, Error)]
pub enum KeyError {
    /// The file could not be read.
    #[error("cannot read the key file {}: {source}", path.display())]
    Read {
        /// Path of the key file.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The file is not as long as a key.
    #[error(
        "{} is no key file: it must hold {KEY_BYTES} bytes, or {KEY_BYTES} in hexadecimal; make one \
         with `head -c {KEY_BYTES} /dev/urandom`", path.display()
    )]
    Form {
        /// Path of the key file.
        path: PathBuf,
    },
    /// Others may read the file.
    #[error("others than its owner may use the key file {}: chmod 600 it", path.display())]
    Open {
        /// Path of the key file.
        path: PathBuf,
    },
    /// The file is another user's.
    #[error(
        "the key file {} belongs to user {owner}, who could replace it: chown it to root or to user {}",
        path.display(), effective_user()
    )]
    Owner {
        /// Path of the key file.
        path: PathBuf,
        /// User who owns it.
        owner: u32,
    },
    /// The kernel gave no random bytes.
    #[error("the kernel gave no random bytes: allow getrandom(2), or make /dev/urandom readable")]
    Random,
}

impl SecretKey {
    /// Makes a key of bytes that are to be uniformly random.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// Reads a key file: 32 bytes, or 64 hexadecimal digits and perhaps a line feed. It belongs to this process's
    /// user or to root, and nobody else may read it.
    ///
    /// # Errors
    /// See [`KeyError`].
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let failed = |source| KeyError::Read { path: path.into(), source };
        let file = File::open(path).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        if found.mode() & 0o077 != 0 {
            return Err(KeyError::Open { path: path.into() });
        }
        if ![0, effective_user()].contains(&found.uid()) {
            return Err(KeyError::Owner { path: path.into(), owner: found.uid() });
        }
        // As much room as is needed: what grows leaves copies behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(4 * KEY_BYTES));
        file.take(2 * KEY_BYTES as u64 + 2).read_to_end(&mut bytes).map_err(failed)?;
        let key = bytes.as_slice().try_into().ok().or_else(|| hexadecimal(bytes.trim_ascii_end()));
        key.map(Self).ok_or_else(|| KeyError::Form { path: path.into() })
    }

    /// Returns the key's bytes, for a process that is to use it.
    #[must_use]
    pub const fn expose(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// Derives bytes for one purpose, apart from those for any other (HKDF-SHA-256, RFC 5869).
    pub(crate) fn derive<const N: usize>(&self, salt: &[u8], purpose: &[u8]) -> [u8; N] {
        let mut derived = [0; N];
        let secret = Salt::new(HKDF_SHA256, salt).extract(&self.0);
        let purpose = [purpose];
        let expanded = secret.expand(&purpose, Length(N)).expect("N is short enough for HKDF");
        expanded.fill(&mut derived).expect("the length is that which was asked for");
        derived
    }
}

impl Drop for SecretKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SecretKey").finish_non_exhaustive()
    }
}

/// Number of bytes to derive.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

fn hexadecimal(digits: &[u8]) -> Option<[u8; KEY_BYTES]> {
    let value = |digit: &u8| char::from(*digit).to_digit(16);
    let pairs = digits.chunks_exact(2);
    let bytes = pairs.map(|pair| Some((value(&pair[0])? * 16 + value(&pair[1])?) as u8));
    let bytes: Option<Vec<u8>> = bytes.collect();
    bytes.filter(|_| digits.len() == 2 * KEY_BYTES)?.try_into().ok()
}

/// Draws random bytes of the kernel.
///
/// # Errors
/// [`KeyError::Random`].
pub(crate) fn random<const N: usize>() -> Result<[u8; N], KeyError> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| KeyError::Random)?;
    Ok(bytes)
}

/// Checks the pieces of one object, and encrypts them where it has a key.
///
/// The key is derived for the object alone, by its id, which is drawn at random and used once. The nonce
/// is the ordinal of the piece, which no two pieces of an object have in common. So no nonce is ever used
/// twice with a key, whatever is written again after a crash: that is another object.
pub(crate) struct ObjectCipher {
    id: [u8; 16],
    key: Option<LessSafeKey>,
}

impl ObjectCipher {
    pub(crate) fn new(id: u128, key: Option<&SecretKey>) -> Self {
        let id = id.to_le_bytes();
        let key = key.map(|key| {
            let key = Zeroizing::new(key.derive::<KEY_BYTES>(&id, b"bindery object 1"));
            let key =
                UnboundKey::new(&AES_256_GCM, &*key).expect("the key is as long as it must be");
            LessSafeKey::new(key)
        });
        Self { id, key }
    }

    /// Returns the cipher of an object that is read. One that is not encrypted is refused where a key is
    /// given: whoever put it there did not have the key.
    ///
    /// # Errors
    /// [`FormatError::NoKey`], [`FormatError::NotSealed`], with `what`.
    pub(crate) fn reading(
        what: &'static str,
        id: u128,
        is_sealed: bool,
        key: Option<&SecretKey>,
    ) -> Result<Self, FormatError> {
        match (is_sealed, key) {
            (true, None) => Err(FormatError::NoKey { what }),
            (false, Some(_)) => Err(FormatError::NotSealed { what }),
            _ => Ok(Self::new(id, key)),
        }
    }

    pub(crate) const fn is_sealed(&self) -> bool {
        self.key.is_some()
    }

    /// Encrypts a piece in place, if there is a key. `bound` is what the check covers beside it.
    pub(crate) fn seal(&self, ordinal: u64, bound: &[u8], piece: &mut [u8]) -> Check {
        let Some(key) = &self.key else { return self.checksum(ordinal, bound, piece) };
        let bound = Aad::from([&self.id, bound].concat());
        let sealed = key.seal_in_place_separate_tag(nonce(ordinal), bound, piece);
        let tag = sealed.expect("no piece is as long as 64 GiB");
        tag.as_ref().try_into().expect("a tag has 16 bytes")
    }

    /// Computes the check of a piece that is not encrypted, without touching it.
    ///
    /// # Panics
    /// If there is a key.
    pub(crate) fn check_plain(&self, ordinal: u64, bound: &[u8], piece: &[u8]) -> Check {
        assert!(self.key.is_none(), "what is encrypted has a tag");
        self.checksum(ordinal, bound, piece)
    }

    /// Checks a piece, and decrypts it in place.
    ///
    /// # Errors
    /// [`FormatError::Checksum`] or [`FormatError::Sealed`], with `what`.
    pub(crate) fn open(
        &self,
        what: &'static str,
        (ordinal, bound): (u64, &[u8]),
        check: &Check,
        piece: &mut [u8],
    ) -> Result<(), FormatError> {
        let Some(key) = &self.key else {
            let is_right = self.checksum(ordinal, bound, piece) == *check;
            return if is_right { Ok(()) } else { Err(FormatError::Checksum { what }) };
        };
        let bound = Aad::from([&self.id, bound].concat());
        let tag = (*check).into();
        let opened = key.open_in_place_separate_tag(nonce(ordinal), bound, tag, piece, 0..);
        opened.map(drop).map_err(|_| FormatError::Sealed { what })
    }

    fn checksum(&self, ordinal: u64, bound: &[u8], piece: &[u8]) -> Check {
        let mut check = [0; CHECK_BYTES];
        let checksum = crc32c([&self.id, &ordinal.to_le_bytes(), bound, piece]);
        check[..4].copy_from_slice(&checksum.to_le_bytes());
        check
    }
}

fn nonce(ordinal: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[..8].copy_from_slice(&ordinal.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_piece_opens_in_its_place_alone() {
        for key in [None, Some(SecretKey::from_bytes([3; 32]))] {
            let cipher = ObjectCipher::new(7, key.as_ref());
            let mut piece = *b"memory of a guest";
            let check = cipher.seal(5, b"bound", &mut piece);
            assert_eq!(piece == *b"memory of a guest", key.is_none());
            let open = |cipher: &ObjectCipher, place, check: &Check| {
                cipher.open("piece", place, check, &mut piece.clone())
            };
            open(&cipher, (5, b"bound"), &check).unwrap();
            open(&cipher, (6, b"bound"), &check).unwrap_err();
            open(&cipher, (5, b"other"), &check).unwrap_err();
            open(&ObjectCipher::new(8, key.as_ref()), (5, b"bound"), &check).unwrap_err();
            let other = SecretKey::from_bytes([4; 32]);
            open(&ObjectCipher::new(7, Some(&other)), (5, b"bound"), &check).unwrap_err();
        }
    }

    #[test]
    fn key_files_are_bytes_or_digits_and_nobody_elses() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let written = |content: &[u8], mode: u32| {
            std::fs::write(&path, content).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            SecretKey::read(&path)
        };
        let key = SecretKey::from_bytes([0xab; 32]);
        assert_eq!(written(&[0xab; 32], 0o600).unwrap(), key);
        assert_eq!(written("aB".repeat(32).as_bytes(), 0o400).unwrap(), key);
        assert_eq!(written(format!("{}\n", "ab".repeat(32)).as_bytes(), 0o600).unwrap(), key);
        for bad in ["", "ab", &"a".repeat(33), &"g".repeat(64), &"ab".repeat(33)] {
            assert!(matches!(written(bad.as_bytes(), 0o600), Err(KeyError::Form { .. })), "{bad}");
        }
        assert!(matches!(written(&[0xab; 32], 0o640), Err(KeyError::Open { .. })));
        if effective_user() == 0 {
            std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
            assert!(matches!(written(&[0xab; 32], 0o600), Err(KeyError::Owner { .. })));
        }
    }
}
