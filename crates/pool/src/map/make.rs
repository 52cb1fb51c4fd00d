//! Making maps: the back end that fits the objects.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::Map;
use super::back_end::BackEnd;
use super::error::MapError;
use super::file::FileMap;
use super::map_options::{BackEndChoice, BackEndKind, MapOptions, Temperature};
use super::mapped::Mapped;
use super::memory::MemoryMap;
use super::registry::Maps;
use crate::object::Object;

impl Maps {
    /// Maps objects, in this order. See [the module](super) for what it costs, and [`MapOptions`].
    ///
    /// # Errors
    /// See [`MapError`].
    pub fn map(
        &self,
        objects: &[Arc<dyn Object>],
        temperature: Temperature,
        options: &MapOptions,
    ) -> Result<Map, MapError> {
        if objects.is_empty() {
            return Err(MapError::Empty);
        }
        self.check_here()?;
        objects.iter().try_for_each(|object| object.device().check_here())?;
        let back_end: Box<dyn BackEnd> = match choose(objects, options)? {
            BackEndKind::Memfd => Box::new(MemoryMap::new(objects, options)?),
            BackEndKind::File => {
                let file = file_of(&*objects[0])?;
                Box::new(FileMap::new(self.next_id(), objects, file, self.files(), options)?)
            }
        };
        let mapped = Mapped::new(objects, back_end, temperature, options.accesses_are_reported);
        let mapped = Arc::new(mapped);
        self.insert(&mapped);
        Ok(Map::new(mapped, self.clone()))
    }
}

fn file_of(object: &dyn Object) -> Result<BorrowedFd<'_>, MapError> {
    object.device().file().ok_or_else(|| MapError::no_file(object))
}

/// Returns the back end for these objects.
fn choose(objects: &[Arc<dyn Object>], options: &MapOptions) -> Result<BackEndKind, MapError> {
    let device = |object: &Arc<dyn Object>| Arc::as_ptr(object.device()).addr();
    let elsewhere = objects.iter().find(|object| device(object) != device(&objects[0]));
    match (options.choice, &options.memory, elsewhere) {
        (_, Some(_), _)
        | (BackEndChoice::Fixed(BackEndKind::Memfd), ..)
        | (BackEndChoice::Automatic, _, Some(_)) => Ok(BackEndKind::Memfd),
        (BackEndChoice::Fixed(BackEndKind::File), _, Some(object)) => {
            Err(MapError::SeveralDevices { first: objects[0].id(), object: object.id() })
        }
        (BackEndChoice::Automatic | BackEndChoice::Fixed(BackEndKind::File), _, None) => {
            Ok(BackEndKind::File)
        }
    }
}
