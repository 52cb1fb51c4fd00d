//! Arguments of `push` and `pull`, and of commands about checkpoints in an object store.

use std::path::PathBuf;

use bindery_checkpoint::SecretKey;
use bindery_host::protocol::checkpoint::CheckpointName;
use clap::Args;

use super::args::{OwnerArgs, PoolArgs, parse_checkpoint};
use crate::exit::{Failure, Reason};

/// Key of checkpoints in an object store.
#[derive(Debug, Args)]
pub(crate) struct RemoteKeyArgs {
    /// Encrypt and decrypt with the key in this file: 32 random bytes, or 64 hexadecimal digits
    #[arg(long, value_name = "FILE", conflicts_with = "unencrypted")]
    pub(super) key_file: Option<PathBuf>,
    /// Neither encrypt nor decrypt: all who may read the objects can read the guests' memory
    #[arg(long)]
    pub(super) unencrypted: bool,
}

impl RemoteKeyArgs {
    /// Reads the key; none where encryption was refused explicitly.
    pub(super) fn read(&self) -> Result<Option<SecretKey>, Failure> {
        match (&self.key_file, self.unencrypted) {
            (Some(path), _) => {
                let key = SecretKey::read(path);
                key.map(Some).map_err(|error| Failure::new(Reason::BadInput, error.to_string()))
            }
            (None, true) => Ok(None),
            (None, false) => {
                let message = "guest memory is full of secrets: name a key with --key-file FILE (make one with \
                               `head -c 32 /dev/urandom > FILE && chmod 600 FILE`), or say --unencrypted";
                Err(Failure::new(Reason::Usage, message))
            }
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct PushArgs {
    /// The checkpoint
    #[arg(value_name = "GUEST@NAME", value_parser = parse_checkpoint)]
    pub(super) checkpoint: CheckpointName,
    /// Where to: s3://BUCKET/PREFIX or file:///DIRECTORY. How it is reached, and who asks, is in the AWS_
    /// variables that other S3 clients know
    pub(super) url: String,
    /// Do not read back what was sent: one small request an object shows that it is there, has its length, and
    /// ends as it should
    #[arg(long)]
    pub(super) no_read_back: bool,
    #[command(flatten)]
    pub(super) key: RemoteKeyArgs,
    #[command(flatten)]
    pub(super) owner: OwnerArgs,
    #[command(flatten)]
    pub(super) pool: PoolArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// Where from: s3://BUCKET/PREFIX or file:///DIRECTORY
    pub(super) url: String,
    /// The checkpoint, as `bindery checkpoint list --at` has it
    #[arg(value_name = "GUEST@NAME", value_parser = parse_checkpoint)]
    pub(super) checkpoint: CheckpointName,
    /// Name of the guest here [default: as it was called]
    #[arg(long)]
    pub(super) guest: Option<String>,
    /// Name of the checkpoint here [default: as it was called]
    #[arg(long)]
    pub(super) name: Option<String>,
    /// Share pages with checkpoints of this domain of yours [default: that of the same name as there]
    #[arg(long)]
    pub(super) domain: Option<String>,
    #[command(flatten)]
    pub(super) key: RemoteKeyArgs,
    #[command(flatten)]
    pub(super) pool: PoolArgs,
}

/// Object store in place of a pool.
#[derive(Debug, Args)]
pub(crate) struct AtArgs {
    /// Where `push` has put them, in place of a pool: s3://BUCKET/PREFIX or file:///DIRECTORY
    #[arg(long, value_name = "URL", conflicts_with = "pool")]
    pub(super) at: Option<String>,
    /// The key that they were pushed with
    #[arg(long, value_name = "FILE", requires = "at", conflicts_with = "unencrypted")]
    pub(super) key_file: Option<PathBuf>,
    /// Take what was pushed without a key
    #[arg(long, requires = "at")]
    pub(super) unencrypted: bool,
}

impl AtArgs {
    /// Returns the URL and the key, where an object store is meant.
    pub(super) fn store(&self) -> Result<Option<(&str, Option<SecretKey>)>, Failure> {
        let Some(url) = &self.at else { return Ok(None) };
        let Self { key_file, unencrypted, .. } = self;
        let key = RemoteKeyArgs { key_file: key_file.clone(), unencrypted: *unencrypted };
        Ok(Some((url, key.read()?)))
    }
}
