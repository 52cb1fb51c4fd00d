//! Checkpoints in an object store: pushed, listed, pulled, deleted.
//!
//! A prefix of a bucket holds checkpoints of any number of hosts. Each is complete, and pages that an earlier
//! push has sent are not sent again. Objects are created once and never changed; a checkpoint is there once its
//! manifest is, which goes last. `docs/formats/checkpoint.md` has the layout.
//!
//! # Removal beside pushes
//!
//! A pack goes when no manifest names it. Nobody holds a lock:
//!
//! - A push first *claims* what it may rely on, then lists what there is, and relies on nothing that is gone or
//!   has a *tombstone*. Behind its manifest it looks again.
//! - A deletion puts a tombstone on what no manifest and no claim names, then lists again, and removes only what
//!   still none names.
//!
//! Of a push and a deletion at once, at least one sees the other. What a push has sent that was killed is known
//! to the next one. Its claim counts until its checkpoint is there, or for a week.

mod delete;
mod error;
mod inspect;
mod manifest;
mod object;
mod pack;
mod pull;
mod push;
mod snapshot;
mod space;

use bindery_pool::archive::{ArchiveOptions, Bucket, BucketMarker, Fault, Upload};

pub use delete::RemoteDeleted;
pub use error::RemoteError;
pub use inspect::PushedObject;
pub use manifest::RemoteCheckpoint;
pub use push::Pushed;

use crate::fields::Fields;
use crate::format_error::FormatError;
use crate::name::Name;
use crate::seal::{SecretKey, random};
use manifest::RemoteManifest;
use object::{RemoteKind, RemoteObject, decode_object, encode_object};
use snapshot::Snapshot;
use space::{Folder, PLAIN, Space};

const MARKER: BucketMarker =
    BucketMarker { key: "bindery-checkpoints", text: "bindery checkpoints, format 1\n" };

/// Most bytes of an object that is read.
const OBJECT_BYTES_MAX: u64 = 256 << 20;

/// Number of times that an object is read which does not verify.
const READS: u32 = 3;

/// Checkpoints of one key at a prefix of a bucket, or in a directory.
pub struct Remote {
    bucket: Bucket,
    space: Space,
}

/// Checkpoints of one key at a prefix.
#[derive(Debug, Default)]
pub struct RemoteListing {
    /// Checkpoints, in the order of their times.
    pub checkpoints: Vec<RemoteCheckpoint>,
    /// Errors of manifests that cannot be read, each with the key of the object.
    pub unreadable: Vec<RemoteError>,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Remote({})", self.bucket.url())
    }
}

impl Remote {
    /// Opens the checkpoints of a key at `s3://BUCKET/PREFIX` or `file:///DIRECTORY`; without one those that are
    /// not encrypted. Blocks for some requests.
    ///
    /// # Errors
    /// [`RemoteError::Open`] and others.
    pub fn open(
        url: &str,
        options: ArchiveOptions,
        key: Option<&SecretKey>,
    ) -> Result<Self, RemoteError> {
        let bucket = Bucket::open(url, options, MARKER)?;
        let space = match key {
            Some(key) => Space::sealed(key),
            None => Space::plain(plain_secret(&bucket)?),
        };
        Ok(Self { bucket, space })
    }

    /// Returns the URL.
    #[must_use]
    pub fn url(&self) -> &str {
        self.bucket.url()
    }

    /// Lists the checkpoints. Blocks for a request for each, and one for each thousand objects.
    ///
    /// # Errors
    /// [`RemoteError::Fault`].
    pub fn list(&self) -> Result<RemoteListing, RemoteError> {
        let snapshot = self.snapshot()?;
        let mut listing = RemoteListing::default();
        for id in snapshot.manifests {
            match self.manifest(id) {
                Ok(manifest) => listing.checkpoints.push(manifest.checkpoint),
                // Deleted meanwhile.
                Err(RemoteError::Lost { .. }) => {}
                Err(error @ RemoteError::Damaged { .. }) => listing.unreadable.push(error),
                Err(error) => return Err(error),
            }
        }
        listing.checkpoints.sort_by_key(|checkpoint| {
            (checkpoint.time_ns, checkpoint.guest.clone(), checkpoint.name.clone())
        });
        Ok(listing)
    }

    /// Returns true if the prefix has something of other keys, or of none.
    ///
    /// # Errors
    /// [`RemoteError::Fault`].
    pub fn has_others(&self) -> Result<bool, RemoteError> {
        let is_other = |key: &str| {
            key.split_once('/')
                .is_some_and(|(space, rest)| space != self.space.name() && rest.starts_with("m/"))
        };
        Ok(self.bucket.list("")?.iter().any(|listed| is_other(&listed.key)))
    }

    fn key(&self) -> Option<&SecretKey> {
        self.space.key()
    }

    fn snapshot(&self) -> Result<Snapshot, RemoteError> {
        Ok(Snapshot::new(&self.space, self.bucket.list(self.space.name())?))
    }

    /// Reads the manifest of an id.
    fn manifest(&self, id: u128) -> Result<RemoteManifest, RemoteError> {
        let (guest_of, key) = (&self.space, self.space.object(Folder::Manifests, id));
        self.read(&key, |bytes| {
            let manifest = RemoteManifest::decode(bytes, self.key())?;
            let RemoteCheckpoint { guest, name, .. } = &manifest.checkpoint;
            if guest_of.manifest_id(guest, name) == id {
                return Ok(manifest);
            }
            Err(FormatError::impossible("pushed manifest", "it is another checkpoint's"))
        })
    }

    /// Returns a checkpoint by its names. Blocks for a request.
    ///
    /// # Errors
    /// [`RemoteError::Missing`], [`RemoteError::Damaged`], [`RemoteError::Fault`].
    pub fn show(&self, guest: &Name, name: &Name) -> Result<RemoteCheckpoint, RemoteError> {
        self.find(guest, name).map(|manifest| manifest.checkpoint)
    }

    /// Finds a checkpoint by its names.
    fn find(&self, guest: &Name, name: &Name) -> Result<RemoteManifest, RemoteError> {
        match self.manifest(self.space.manifest_id(guest, name)) {
            Err(RemoteError::Lost { url, .. }) => {
                let (checkpoint, has_others) = (format!("{guest}@{name}"), self.has_others()?);
                Err(RemoteError::Missing { url, checkpoint, has_others })
            }
            found => found,
        }
    }

    /// Reads an object whole, again where it does not verify.
    fn read<T>(
        &self,
        key: &str,
        decode: impl Fn(&[u8]) -> Result<T, FormatError>,
    ) -> Result<T, RemoteError> {
        let mut reads = 0;
        loop {
            let bytes = match self.bucket.get(key, 0..OBJECT_BYTES_MAX).wait() {
                Err(Fault::Absent { .. }) => return Err(self.lost(key)),
                bytes => bytes?,
            };
            reads += 1;
            match decode(&bytes) {
                Err(source) if reads >= READS => return Err(self.damaged(key, source)),
                Err(_) => {}
                Ok(decoded) => return Ok(decoded),
            }
        }
    }

    fn damaged(&self, key: &str, source: FormatError) -> RemoteError {
        RemoteError::Damaged { url: self.url().into(), key: key.into(), source }
    }

    fn lost(&self, key: &str) -> RemoteError {
        RemoteError::Lost { url: self.url().into(), key: key.into() }
    }

    /// Reads a claim or tombstone; none if it is gone.
    fn list_of(&self, kind: RemoteKind, id: u128) -> Result<Option<RemoteObject>, RemoteError> {
        let folder = if kind == RemoteKind::Claim { Folder::Claims } else { Folder::Tombstones };
        let key = self.space.object(folder, id);
        match self.read(&key, |bytes| decode_object(bytes, kind, self.key())) {
            Ok(object) => Ok(Some(object)),
            Err(RemoteError::Lost { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates a claim or tombstone with an id that nobody has.
    fn put_list(
        &self,
        (kind, id): (RemoteKind, u128),
        list: &[u128],
        body: Vec<u8>,
    ) -> Result<(), RemoteError> {
        let folder = if kind == RemoteKind::Claim { Folder::Claims } else { Folder::Tombstones };
        let (bytes, _) = encode_object((kind, id), self.key(), list, body);
        let key = self.space.object(folder, id);
        let upload = self.bucket.create(&key, bytes.into()).wait()?;
        self.require_kept(upload, &key)
    }

    fn require_kept(&self, upload: Upload, key: &str) -> Result<(), RemoteError> {
        if upload == Upload::Kept {
            return Ok(());
        }
        Err(RemoteError::NotKept { url: self.url().into(), key: key.into() })
    }
}

/// Reads the secret of what is not encrypted, or makes it.
fn plain_secret(bucket: &Bucket) -> Result<SecretKey, RemoteError> {
    let key = format!("{PLAIN}/secret");
    let damaged =
        |source| RemoteError::Damaged { url: bucket.url().into(), key: key.clone(), source };
    let mut made: Option<Upload> = None;
    loop {
        match bucket.get(&key, 0..4096).wait() {
            Ok(bytes) => {
                let object = decode_object(&bytes, RemoteKind::Secret, None).map_err(damaged)?;
                let mut fields = Fields::new("secret", &object.body);
                let secret = fields.array().map_err(damaged)?;
                fields.end().map_err(damaged)?;
                return Ok(SecretKey::from_bytes(secret));
            }
            Err(Fault::Absent { .. }) if made.is_none() => {
                let id = u128::from_le_bytes(random()?);
                let secret = random::<32>()?.to_vec();
                let (bytes, _) = encode_object((RemoteKind::Secret, id), None, &[], secret);
                made = Some(bucket.create(&key, bytes.into()).wait()?);
            }
            Err(fault) => return Err(fault.into()),
        }
    }
}
