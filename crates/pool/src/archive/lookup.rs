//! Finding objects in the archive, and removing them.

use uuid::Uuid;

use super::stored::{ReadError, Stored};
use super::{Archive, Digest};
use crate::ObjectId;

impl Archive {
    /// Reads the header of an object, with its table of checksums. Blocks for one request, or two where
    /// the object has more than 64 MiB.
    ///
    /// # Errors
    /// [`ReadError::Missing`] if there is no first part, and the others.
    pub fn head(&self, pool: Uuid, object: ObjectId) -> Result<Stored, ReadError> {
        Stored::open(self, pool, object)
    }

    /// As [`head`](Self::head), of an object whose length and digest are known.
    ///
    /// # Errors
    /// See [`ReadError`]; another object is one that is [`Damaged`](ReadError::Damaged).
    pub fn head_of(
        &self,
        pool: Uuid,
        object: ObjectId,
        length_bytes: u64,
        digest: Digest,
    ) -> Result<Stored, ReadError> {
        self.head(pool, object)?.expect(length_bytes, digest)
    }

    /// Removes an object. Returns true if there was one. The first part goes last, so that a removal that
    /// was interrupted can be repeated. The caller has made sure by its catalogue that nobody needs
    /// the object, and never gives its number again. Blocks for a request for each part, and one.
    ///
    /// # Errors
    /// As [`head`](Self::head), but for a missing object.
    pub fn delete(&self, pool: Uuid, object: ObjectId) -> Result<bool, ReadError> {
        let stored = match self.head(pool, object) {
            Err(ReadError::Missing { .. }) => return Ok(false),
            stored => stored?,
        };
        let keys = &self.0.location.keys;
        let others = (1..stored.header().layout.parts()).rev();
        for part in others.chain([0]) {
            self.0.delete(keys.part(pool, object, part)).map_err(ReadError::Fault)?;
        }
        Ok(true)
    }
}
