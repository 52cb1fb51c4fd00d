//! Errors of decoders.

use thiserror::Error;

/// Reason why bytes are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FormatError {
    /// The bytes end before the structure does.
    #[error("its {what} ends early")]
    Short {
        /// Structure that ends early.
        what: &'static str,
    },
    /// Something else begins there.
    #[error("it is no {what} of Bindery's")]
    Foreign {
        /// Structure that was expected.
        what: &'static str,
    },
    /// A later Bindery wrote it.
    #[error("its {what} is of format {found}, and this Bindery knows {known}: use a later one")]
    Newer {
        /// Structure that has the version.
        what: &'static str,
        /// Version that was found.
        found: u32,
        /// Latest version that is known.
        known: u32,
    },
    /// The bytes are not those that were written.
    #[error("the checksum of its {what} is wrong: it is damaged")]
    Checksum {
        /// Structure that is damaged.
        what: &'static str,
    },
    /// The tag does not fit: the bytes are damaged, or were sealed with another key.
    #[error("its {what} cannot be opened with this key: it is damaged, or the key is another")]
    Sealed {
        /// Structure that is sealed.
        what: &'static str,
    },
    /// The structure is sealed, and no key was given.
    #[error("its {what} is encrypted: give its key file")]
    NoKey {
        /// Structure that is sealed.
        what: &'static str,
    },
    /// The structure is not encrypted, and a key was given.
    #[error("its {what} is not encrypted, though there is a key: somebody else wrote it")]
    NotSealed {
        /// Structure that is not sealed.
        what: &'static str,
    },
    /// Checksummed, and yet impossible.
    #[error("its {what} is impossible: {why}")]
    Impossible {
        /// Structure that is wrong.
        what: &'static str,
        /// Description of what is wrong.
        why: &'static str,
    },
}

impl FormatError {
    pub(crate) const fn impossible(what: &'static str, why: &'static str) -> Self {
        Self::Impossible { what, why }
    }
}
