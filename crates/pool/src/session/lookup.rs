//! Finding objects in the catalogue by id.

use super::error::FindError;
use crate::ObjectId;
use crate::catalogue::Contents;
use crate::format::record::ObjectEntry;
use crate::mblock::Whereabouts;

/// Returns the location of an mblock, as the catalogue has it.
pub(crate) fn mblock_in(contents: &Contents, id: ObjectId) -> Result<Whereabouts, FindError> {
    let entry = contents.object(id).ok_or(FindError::NotFound(id))?;
    Whereabouts::of(entry).ok_or_else(|| wrong_kind(entry, "an mblock"))
}

pub(crate) fn wrong_kind(found: &ObjectEntry, wanted: &'static str) -> FindError {
    let kind = match found {
        ObjectEntry::Mblock(_) | ObjectEntry::Archived(_) => "an mblock",
        ObjectEntry::Log(_) => "an mlog",
        ObjectEntry::Mdc(_) => "an MDC",
    };
    FindError::Kind { id: found.id(), found: kind, wanted }
}
