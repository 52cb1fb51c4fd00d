//! Maps that show the memory of one object.

use std::sync::{Arc, Weak};

use crate::map::{BackEndKind, Mapped, Temperature};

/// Maps, and the object's number in each.
#[derive(Clone, Debug, Default)]
pub(super) struct Owners(Vec<(Weak<Mapped>, usize)>);

impl Owners {
    pub(super) fn add(&mut self, map: &Arc<Mapped>, object: usize) {
        self.0.push((Arc::downgrade(map), object));
    }

    /// Returns a map that shows the object, while there is one.
    pub(super) fn any(&self) -> Option<(Arc<Mapped>, usize)> {
        self.0.iter().find_map(|(map, object)| Some((map.upgrade()?, *object)))
    }

    /// Returns all maps that show it.
    pub(super) fn all(&self) -> impl Iterator<Item = (Arc<Mapped>, usize)> {
        self.0.iter().filter_map(|(map, object)| Some((map.upgrade()?, *object)))
    }

    /// Returns the temperature of the warmest of the maps that show it.
    pub(super) fn temperature(&self) -> Temperature {
        self.all().map(|(map, _)| map.temperature()).max().unwrap_or(Temperature::Cold)
    }

    /// Returns true if all maps that show it report each access.
    pub(super) fn are_reported(&self) -> bool {
        self.all().all(|(map, _)| map.is_reported)
    }

    pub(super) fn kind(&self) -> Option<BackEndKind> {
        Some(self.any()?.0.back_end.kind())
    }
}
