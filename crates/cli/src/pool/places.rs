//! Paths at which devices of pools are looked for.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use bindery_pool::{FoundPool, scan_pools};

use super::registry::Registry;
use crate::exit::Failure;

/// The path from the root: what is remembered must mean the same elsewhere. Links are kept, because
/// those in `/dev/disk` are what stays the same.
pub(super) fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    let cannot = |error| Failure::of_io(format_args!("cannot find {}", path.display()), &error);
    std::path::absolute(path).map_err(cannot)
}

/// The devices of the pool with an id that are at some paths, or in directories among them.
pub(super) fn devices_of(id: u128, paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let pool = scan_pools(paths)?.pools.into_iter().find(|pool| pool.id == id);
    pool.iter().flat_map(FoundPool::paths).map(absolute).collect()
}

/// Returns the paths to look at unless some are given: where pools are known to be, and all block devices
/// that this user may read.
pub(super) fn usual(registry: &Registry) -> Result<Vec<PathBuf>, Failure> {
    let known = registry.list()?.into_iter().flat_map(|(_, entry)| entry.devices);
    let mut paths: Vec<PathBuf> = known.chain(block_devices()).collect();
    paths.retain(|path| File::open(path).is_ok());
    paths.sort();
    paths.dedup();
    Ok(paths)
}

fn block_devices() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let blocks = fs::read_to_string(entry.path().join("size")).ok()?;
        // The kernel writes the slashes of a name as exclamation marks there (`kobject_set_name`).
        let name = entry.file_name().into_string().ok()?.replace('!', "/");
        (blocks.trim() != "0").then(|| Path::new("/dev").join(name))
    })
}
