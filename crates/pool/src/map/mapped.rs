//! The part of a map that its owner shares with the registry and the reaper.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::back_end::BackEnd;
use super::map_options::Temperature;
use crate::object::{self, Object};

/// The objects and the memory of a map, shared by its owner and, as long as that lives, by the reaper.
#[derive(Debug)]
pub(crate) struct Mapped {
    pub(crate) objects: Vec<Arc<dyn Object>>,
    pub(crate) back_end: Box<dyn BackEnd>,
    pub(super) temperature: AtomicU8,
}

impl Mapped {
    pub(crate) fn temperature(&self) -> Temperature {
        Temperature::of_number(self.temperature.load(Ordering::Relaxed))
    }

    pub(crate) fn pages_of(&self, object: usize) -> u64 {
        object::units_of(&*self.objects[object])
    }
}
