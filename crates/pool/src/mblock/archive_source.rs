//! Committed objects as a source of what is copied to the archive.

use std::error::Error as StdError;

use bindery_sys::direct::Buffer;

use super::committed::Committed;
use crate::ObjectId;
use crate::archive;
use crate::object::Object;

impl archive::Source for Committed {
    fn id(&self) -> ObjectId {
        Object::id(self)
    }

    fn length_bytes(&self) -> u64 {
        Object::length_bytes(self)
    }

    fn read(
        &self,
        offset_bytes: u64,
        into: &mut Buffer,
    ) -> Result<(), Box<dyn StdError + Send + Sync>> {
        Ok(Object::read(self, offset_bytes, into)?)
    }
}
