//! Errors of a store, and what to do about each.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use object_store::client::{HttpError, HttpErrorKind};
use thiserror::Error;

use super::http::{NoCredentials, Refusal};
use crate::OtherProcess;

/// Why a store did not do what it was asked.
///
/// Every message names the store and the key and says what to do. Credentials are in none of them.
#[derive(Debug, Error)]
pub enum Fault {
    /// This is a child of the process that opened the archive.
    #[error(transparent)]
    OtherProcess(#[from] OtherProcess),
    /// There is nothing under the key. What that means, the operation says.
    #[error("{store} has nothing under {key}")]
    Absent {
        /// The archive's URL.
        store: String,
        /// The key.
        key: String,
    },
    /// There is something under the key already.
    #[error("{store} has something under {key} already")]
    Exists {
        /// The archive's URL.
        store: String,
        /// The key.
        key: String,
    },
    /// The bucket does not exist.
    #[error("the bucket of {store} does not exist: make it, or correct the URL or the endpoint")]
    NoBucket {
        /// The archive's URL.
        store: String,
    },
    /// The bucket is elsewhere.
    #[error(
        "the bucket of {store} is in region {}: say so in the options or in AWS_REGION",
        region.as_deref().unwrap_or("other than the one that was named")
    )]
    Elsewhere {
        /// The archive's URL.
        store: String,
        /// Region of the bucket, if the store names it.
        region: Option<String>,
    },
    /// The credentials are known, and may not do this.
    #[error(
        "the credentials may not do this to {key} in {store} ({detail}): they need s3:GetObject, \
         s3:PutObject and s3:DeleteObject on its keys and s3:ListBucket on the bucket; in a \
         directory, the permission to read and write it"
    )]
    Denied {
        /// The archive's URL.
        store: String,
        /// The key.
        key: String,
        /// Answer of the store.
        detail: String,
    },
    /// The credentials are wrong, gone or too old.
    #[error(
        "{store} does not take the credentials ({detail}): check those of the options, or \
         AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN"
    )]
    Credentials {
        /// The archive's URL.
        store: String,
        /// Answer of the store.
        detail: String,
    },
    /// This machine's clock is wrong: signatures hold for 15 minutes.
    #[error(
        "the clock of this machine and that of {store} are too far apart for signatures ({detail}): \
         set this one (timedatectl), then repeat"
    )]
    Clock {
        /// The archive's URL.
        store: String,
        /// Answer of the store.
        detail: String,
    },
    /// There is no room left.
    #[error("{store} is full ({detail}): make room, or raise its quota")]
    Full {
        /// The archive's URL.
        store: String,
        /// Answer of the store.
        detail: String,
    },
    /// The store was asked to wait, is overloaded or failed inside.
    #[error("{store} is busy ({detail})")]
    Busy {
        /// The archive's URL.
        store: String,
        /// Answer of the store.
        detail: String,
    },
    /// Nobody answers there.
    #[error("{store} cannot be reached ({detail}): is the endpoint right, and the network up?")]
    Unreachable {
        /// The archive's URL.
        store: String,
        /// Description of what was met.
        detail: String,
    },
    /// A connection ended, or nothing came in time, before the answer was whole. What was asked may
    /// have been done or not.
    #[error("the answer of {store} about {key} did not come whole ({detail})")]
    Interrupted {
        /// The archive's URL.
        store: String,
        /// The key.
        key: String,
        /// Description of what was met.
        detail: String,
    },
    /// The time for the operation is over.
    #[error(
        "gave up on {key} after {attempts} attempts in {:.1} s; the last one: {last}",
        waited.as_secs_f64()
    )]
    Deadline {
        /// The key.
        key: String,
        /// Number of attempts.
        attempts: u32,
        /// Time from the first attempt to the last.
        waited: Duration,
        /// Error of the last attempt that was not cut off by the end of the time, if there was one.
        last: Box<Fault>,
    },
    /// Something else, which repeating does not help.
    #[error("{store} refuses {key} ({detail}): is there an S3-compatible store at the endpoint?")]
    Refused {
        /// The archive's URL.
        store: String,
        /// The key.
        key: String,
        /// Answer of the store.
        detail: String,
    },
}

impl Fault {
    /// Returns true if the same request may succeed when it is repeated.
    pub(super) const fn is_transient(&self) -> bool {
        matches!(self, Self::Busy { .. } | Self::Unreachable { .. } | Self::Interrupted { .. })
    }
}

/// Of whom a request asks what.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    pub(super) store: String,
    pub(super) key: String,
}

impl Subject {
    /// Returns the meaning of an error of the store.
    pub(super) fn fault(&self, error: &object_store::Error) -> Fault {
        if let Some(refusal) = source_of::<Refusal>(error) {
            return self.refused(refusal);
        }
        if let Some(none) = source_of::<NoCredentials>(error) {
            return Fault::Credentials { store: self.store.clone(), detail: none.to_string() };
        }
        if let Some(http) = source_of::<HttpError>(error) {
            return self.interrupted(http);
        }
        let Self { store, key } = self.clone();
        match error {
            object_store::Error::NotFound { .. } => Fault::Absent { store, key },
            object_store::Error::AlreadyExists { .. }
            | object_store::Error::Precondition { .. } => Fault::Exists { store, key },
            other => match source_of::<io::Error>(other) {
                Some(local) => self.local(local),
                None => Fault::Refused { store, key, detail: chain(other) },
            },
        }
    }

    /// Returns the error for a request that was not answered in time.
    pub(super) fn late(&self, after: Duration) -> Fault {
        let Self { store, key } = self.clone();
        Fault::Interrupted { store, key, detail: format!("none within {after:?}") }
    }

    fn refused(&self, refusal: &Refusal) -> Fault {
        let Self { store, key } = self.clone();
        let detail = refusal.to_string();
        let region = refusal.region.clone();
        match (refusal.status, refusal.code.as_str()) {
            (_, "NoSuchBucket") => Fault::NoBucket { store },
            (404, _) => Fault::Absent { store, key },
            (_, "RequestTimeTooSkewed" | "RequestExpired") => Fault::Clock { store, detail },
            (
                _,
                "InvalidAccessKeyId"
                | "SignatureDoesNotMatch"
                | "ExpiredToken"
                | "InvalidToken"
                | "TokenRefreshRequired",
            )
            | (401, _) => Fault::Credentials { store, detail },
            (_, "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException")
            | (301 | 302 | 307 | 308, _) => Fault::Elsewhere { store, region },
            (403, _) => Fault::Denied { store, key, detail },
            (507, _) | (_, "QuotaExceeded" | "XMinioStorageFull") => Fault::Full { store, detail },
            (_, "RequestTimeout" | "BadDigest" | "IncompleteBody") => {
                Fault::Interrupted { store, key, detail }
            }
            // It will not learn to.
            (501, _) => Fault::Refused { store, key, detail },
            (408 | 409 | 429 | 500..=599, _) | (_, "SlowDown") => Fault::Busy { store, detail },
            _ => Fault::Refused { store, key, detail },
        }
    }

    fn interrupted(&self, error: &HttpError) -> Fault {
        let Self { store, key } = self.clone();
        let detail = chain(error);
        match error.kind() {
            HttpErrorKind::Connect => Fault::Unreachable { store, detail },
            _ => Fault::Interrupted { store, key, detail },
        }
    }

    /// Returns the meaning of an error of a directory's file system.
    pub(super) fn local(&self, error: &io::Error) -> Fault {
        let Self { store, key } = self.clone();
        let detail = error.to_string();
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Fault::Full { store, detail }
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Fault::Denied { store, key, detail }
            }
            _ => Fault::Refused { store, key, detail },
        }
    }
}

/// The first error of a type in a chain of sources.
fn source_of<E: StdError + 'static>(error: &object_store::Error) -> Option<&E> {
    sources(error).find_map(|error| error.downcast_ref())
}

/// An error with what caused it, each once: some repeat their source in their own words.
fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = String::new();
    for words in sources(error).map(ToString::to_string) {
        if text.is_empty() {
            text = words;
        } else if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
    }
    text
}

fn sources<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}

#[cfg(test)]
#[path = "fault_tests.rs"]
mod tests;
