//! A pool on one file, for a benchmark.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use bindery_pool::device::{DeviceOptions, FileDevice};
use bindery_pool::{AttachedDevice, CreateOptions, MediaClass, NewDevice, Pool};

/// What the catalogue, and the places where large objects may begin, take beside objects, in bytes.
const BESIDE_BYTES: u64 = 64 << 20;

/// Makes a pool that has room for so many bytes of objects twice, so that they can be written anew
/// beside those that are going. The file is sparse.
pub(super) fn create(path: &Path, object_bytes: u64, options: &DeviceOptions) -> Result<Pool> {
    let bytes = (2 * object_bytes + BESIDE_BYTES).next_multiple_of(2 << 20);
    let device = FileDevice::create(path, bytes, options)?;
    let attached = AttachedDevice { label: path.display().to_string(), device: Arc::new(device) };
    let device = NewDevice { attached, class: MediaClass::Capacity };
    Pool::create_on("bench".parse()?, vec![device], &CreateOptions::default())
        .context("cannot make the pool")
}
