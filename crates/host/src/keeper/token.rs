//! Names of the checkpoints that guests are restored from, as the guests keep them.

use std::path::PathBuf;

use bindery_checkpoint::Store;
use serde::{Deserialize, Serialize};

use super::catalogue::{Visible, visible};
use crate::access::Rights;
use crate::protocol::{Failure, FailureKind};

/// Longest token, in bytes, as [`Guest::bind`](bindery_guest::Guest::bind) takes it.
const BYTES_MAX: usize = bindery_wire::control::TOKEN_BYTES_MAX;

/// Source of a guest's memory, by name: kept by the guest, for a daemon that comes after this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Token {
    /// Paths of the pool.
    pub(super) pool: Vec<String>,
    /// Number of the checkpoint in its store.
    checkpoint: u64,
    /// Time of the checkpoint's pause: tells it from one of that number in a pool that was made anew.
    time_ns: u64,
}

impl Token {
    pub(super) fn new(pool: &[PathBuf], checkpoint: &Visible) -> Self {
        let pool = pool.iter().map(|path| path.display().to_string()).collect();
        let summary = &checkpoint.summary;
        Self { pool, checkpoint: summary.id.0, time_ns: summary.time_ns }
    }

    /// # Errors
    /// `Refused` if it is too long, as with a pool of many devices.
    pub(super) fn encode(&self) -> Result<Vec<u8>, Failure> {
        let bytes = serde_json::to_vec(self).expect("text and numbers are JSON");
        if bytes.len() > BYTES_MAX {
            let message = "the paths of the pool's devices are too long for a guest to remember: name the \
                           directory that they are in";
            return Err(Failure::new(FailureKind::Refused, message));
        }
        Ok(bytes)
    }

    /// # Errors
    /// `Failed` if the guest says what no daemon of this version said.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        serde_json::from_slice(bytes).map_err(|error| {
            let message =
                format!("it names its checkpoint as no daemon of this version does: {error}");
            Failure::new(FailureKind::Failed, message)
        })
    }

    /// Finds the checkpoint, if it is of the user `uid`.
    ///
    /// # Errors
    /// `NoSuchCheckpoint`, also where it is another user's.
    pub(super) fn find(&self, store: &Store, uid: u32) -> Result<Visible, Failure> {
        let found = visible(store, Rights::Owner).into_iter().find(|found| {
            let summary = &found.summary;
            (summary.id.0, summary.time_ns) == (self.checkpoint, self.time_ns)
                && found.uid == Some(uid)
        });
        found.ok_or_else(|| {
            let message = "its checkpoint was deleted: end the guest and restore it from another";
            Failure::new(FailureKind::NoSuchCheckpoint, message)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back() {
        let token = Token { pool: vec!["/srv/pool".into()], checkpoint: 7, time_ns: u64::MAX };
        assert_eq!(Token::decode(&token.encode().unwrap()).unwrap(), token);
        Token::decode(b"nonsense").unwrap_err();
        let long = Token { pool: vec!["x".repeat(BYTES_MAX)], ..token };
        long.encode().unwrap_err();
    }
}
