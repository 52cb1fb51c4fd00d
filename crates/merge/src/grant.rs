//! Secret and store given to the guests of a domain.

use crate::settings::MergeSettings;
use crate::store::segment_slots;

/// Error of making a domain.
#[derive(Debug, thiserror::Error)]
pub enum DomainError {
    /// Drawing a secret failed.
    #[error("cannot draw a domain's secret from the kernel's random source: {0}")]
    Secret(getrandom::Error),
}

/// Grant to a domain's guests: the secret, and what they must know of the store. Where merging stays within nodes,
/// the domain has as many stores of that shape as there are nodes.
#[derive(Debug)]
pub struct Grant {
    name: String,
    pub(crate) secret: [u8; 32],
    pub(crate) slots: u32,
    pub(crate) index_keys: u32,
}

impl Grant {
    pub(crate) fn new(name: &str, settings: &MergeSettings) -> Result<Self, DomainError> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(DomainError::Secret)?;
        let (slots, index_keys) = (settings.store_slots, settings.index_keys);
        Ok(Self { name: name.to_owned(), secret, slots, index_keys })
    }

    /// The domain's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The secret under which pages of the domain are digested.
    #[must_use]
    pub fn digest_key(&self) -> [u8; 32] {
        self.secret
    }

    /// Number of slots that a store of it can ever have.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Number of slots of each segment of its stores.
    #[must_use]
    pub fn segment_slots(&self) -> u32 {
        segment_slots(self.slots)
    }
}
