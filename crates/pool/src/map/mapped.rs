//! The part of a map that its owner shares with the registry and the reaper.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use bindery_units::PAGE_BYTES;

use super::accesses::Accesses;
use super::back_end::BackEnd;
use super::map_options::Temperature;
use crate::object::{self, Object};

/// The objects and the memory of a map, shared by its owner and, as long as that lives, by the reaper.
#[derive(Debug)]
pub(crate) struct Mapped {
    pub(crate) objects: Vec<Arc<dyn Object>>,
    pub(crate) back_end: Box<dyn BackEnd>,
    pub(super) temperature: AtomicU8,
    /// True if each access is reported by a call of the map.
    pub(crate) is_reported: bool,
    /// Accesses to the pages of each object, since a reaper asked for them.
    accesses: Box<[OnceLock<Arc<Accesses>>]>,
}

impl Mapped {
    pub(super) fn new(
        objects: &[Arc<dyn Object>],
        back_end: Box<dyn BackEnd>,
        temperature: Temperature,
        is_reported: bool,
    ) -> Self {
        let temperature = AtomicU8::new(temperature.number());
        let accesses = objects.iter().map(|_| OnceLock::new()).collect();
        Self { objects: objects.to_vec(), back_end, temperature, is_reported, accesses }
    }

    pub(crate) fn temperature(&self) -> Temperature {
        Temperature::of_number(self.temperature.load(Ordering::Relaxed))
    }

    pub(crate) fn pages_of(&self, object: usize) -> u64 {
        object::units_of(&*self.objects[object])
    }

    /// Returns where accesses to an object are noted, if somebody asked for them.
    #[inline]
    pub(crate) fn accesses(&self, object: usize) -> Option<&Arc<Accesses>> {
        self.accesses[object].get()
    }

    /// Notes accesses to an object from now on, unless they are noted elsewhere already. Returns where.
    pub(crate) fn note_accesses(&self, object: usize, accesses: &Arc<Accesses>) -> &Arc<Accesses> {
        self.accesses[object].get_or_init(|| Arc::clone(accesses))
    }

    /// Notes an access to bytes of an object.
    #[inline]
    pub(super) fn touch(&self, object: usize, offset_bytes: u64, bytes: usize) {
        let Some(accesses) = self.accesses(object) else { return };
        if bytes > 0 {
            let first = (offset_bytes / PAGE_BYTES as u64) as usize;
            let end =
                offset_bytes.saturating_add(bytes as u64).div_ceil(PAGE_BYTES as u64) as usize;
            (first..end.min(accesses.len())).for_each(|page| accesses.touch(page));
        }
    }
}
