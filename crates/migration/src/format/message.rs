//! Messages of the hand-over, as frames have them.

use super::error::FormatError;
use super::offer::MigrationId;

/// Message of the hand-over. The first three go to the destination, the others to the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Message {
    /// All that the guest needs was sent: load it, and say that it is ready.
    Prepare = 1,
    /// The guest is the destination's: let it run.
    Take = 2,
    /// The guest stays at the source: drop it.
    Cancel = 3,
    /// The source has ended its part: notes about this migration can go.
    Settled = 4,
    /// The guest is loaded, and is not run without [`Take`](Self::Take).
    Ready = 16,
    /// The guest runs at the destination.
    Taken = 17,
    /// The guest never ran at the destination, and never will.
    Dropped = 18,
    /// The destination took the guest, and its VMM has ended: the guest may have run.
    Lost = 19,
    /// The destination has no note of this migration.
    Unknown = 20,
    /// All pages have arrived: the source's copy is needed no more.
    Complete = 21,
    /// Notes about this migration are gone.
    Forgotten = 22,
}

const ALL: [Message; 11] = {
    use Message::{
        Cancel, Complete, Dropped, Forgotten, Lost, Prepare, Ready, Settled, Take, Taken, Unknown,
    };
    [Prepare, Take, Cancel, Settled, Ready, Taken, Dropped, Lost, Unknown, Complete, Forgotten]
};

/// Message about one migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandOverFrame {
    /// Message.
    pub message: Message,
    /// Migration that it is about.
    pub id: MigrationId,
}

impl HandOverFrame {
    /// Encodes it.
    #[must_use]
    pub fn encode(&self) -> [u8; 17] {
        let mut bytes = [self.message as u8; 17];
        bytes[1..].copy_from_slice(&self.id.0);
        bytes
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Self, FormatError> {
        let wrong = FormatError::impossible("message of the hand-over", "it is none that is known");
        let (code, id) = body.split_first().ok_or(wrong.clone())?;
        let message = ALL.into_iter().find(|it| *it as u8 == *code).ok_or(wrong.clone())?;
        Ok(Self { message, id: MigrationId(id.try_into().map_err(|_| wrong)?) })
    }
}
