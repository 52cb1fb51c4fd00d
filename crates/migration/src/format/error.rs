//! Errors of decoders of the stream.

use thiserror::Error;

/// Reason why bytes of a peer are not of the stream.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FormatError {
    /// Something else speaks there.
    #[error(
        "the peer does not speak Bindery's migration protocol: is the port right, and TLS used by both?"
    )]
    Foreign,
    /// No version is known to both sides.
    #[error(
        "the peer speaks versions {least} to {latest} of the protocol, and this Bindery {own_least} to \
         {own_latest}: update the older side"
    )]
    Version {
        /// Oldest version that the peer speaks.
        least: u16,
        /// Latest version that the peer speaks.
        latest: u16,
        /// Oldest version that this side speaks.
        own_least: u16,
        /// Latest version that this side speaks.
        own_latest: u16,
    },
    /// A frame contradicts the format.
    #[error("the peer sent an impossible {what}: {why}")]
    Impossible {
        /// Part that is wrong.
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
