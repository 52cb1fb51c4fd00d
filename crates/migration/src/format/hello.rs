//! First bytes of each connection, either way.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::error::FormatError;

/// Latest version of the protocol.
pub const LATEST_VERSION: u16 = 1;

/// Oldest version of the protocol that is still spoken.
pub const LEAST_VERSION: u16 = 1;

/// Length of a [`Hello`], in bytes.
pub const HELLO_BYTES: usize = 24;

const MAGIC: [u8; 8] = *b"BndrMigr";

/// Features that a side can use. Both use those that both have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u64);

impl Features {
    /// Chunks compressed by zstd.
    pub const ZSTD: Self = Self(1);
    /// Changed words of pages that were sent before.
    pub const DELTAS: Self = Self(2);
    /// Digests of pages that the destination may have.
    pub const DIGESTS: Self = Self(4);
    /// A guest that runs before all of its pages arrived.
    pub const POST_COPY: Self = Self(8);
    /// All features of this version.
    pub const ALL: Self = Self(15);

    /// Returns true if all of `other` are among these.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the features that both have.
    #[must_use]
    pub const fn both(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// Versions and features of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Oldest version that it speaks.
    pub least: u16,
    /// Latest version that it speaks.
    pub latest: u16,
    /// Features that it has.
    pub features: Features,
}

impl Default for Hello {
    fn default() -> Self {
        Self { least: LEAST_VERSION, latest: LATEST_VERSION, features: Features::ALL }
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Wire {
    magic: [u8; 8],
    least: U16,
    latest: U16,
    zeros: U32,
    features: U64,
}

impl Hello {
    /// Encodes it.
    #[must_use]
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let wire = Wire {
            magic: MAGIC,
            least: self.least.into(),
            latest: self.latest.into(),
            zeros: 0.into(),
            features: self.features.0.into(),
        };
        let mut bytes = [0; HELLO_BYTES];
        bytes.copy_from_slice(wire.as_bytes());
        bytes
    }

    /// Decodes a peer's.
    ///
    /// # Errors
    /// [`FormatError::Foreign`] if it is none. Unknown features and later versions are no error.
    pub fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Self, FormatError> {
        let wire = Wire::read_from_bytes(bytes).map_err(|_| FormatError::Foreign)?;
        let (least, latest) = (wire.least.get(), wire.latest.get());
        if wire.magic != MAGIC || least > latest {
            return Err(FormatError::Foreign);
        }
        Ok(Self { least, latest, features: Features(wire.features.get()) })
    }

    /// Returns the version and the features to use with `peer`.
    ///
    /// # Errors
    /// [`FormatError::Version`] if none is known to both.
    pub fn agree(&self, peer: &Self) -> Result<(u16, Features), FormatError> {
        let version = self.latest.min(peer.latest);
        if version < self.least.max(peer.least) {
            return Err(FormatError::Version {
                least: peer.least,
                latest: peer.latest,
                own_least: self.least,
                own_latest: self.latest,
            });
        }
        Ok((version, self.features.both(peer.features)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn hellos_come_back(least in 0_u16..9, more in 0_u16..9, features: u64) {
            let hello = Hello { least, latest: least + more, features: Features(features) };
            prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        }

        #[test]
        fn two_sides_agree_on_the_same(a in 0_u16..9, more_a in 0_u16..3, b in 0_u16..9, more_b in 0_u16..3) {
            let side = |least, more| Hello { least, latest: least + more, ..Hello::default() };
            let (one, other) = (side(a, more_a), side(b, more_b));
            let version = one.agree(&other).map(|(version, _)| version).ok();
            prop_assert_eq!(version, other.agree(&one).map(|(version, _)| version).ok());
            let common = (0..20).filter(|it| (a..=a + more_a).contains(it) && (b..=b + more_b).contains(it));
            prop_assert_eq!(version, common.max());
        }
    }

    #[test]
    fn another_protocol_is_foreign() {
        assert_eq!(Hello::decode(b"GET / HTTP/1.1\r\nHost: a\r"), Err(FormatError::Foreign));
    }
}
