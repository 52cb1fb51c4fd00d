//! `bindery pool archive` and `restore`: objects that are moved to the archive and back.

use std::collections::HashMap;

use bindery_pool::archive::ArchiveOptions;
use bindery_pool::{ObjectId, Pool};
use serde_json::json;

use super::args::{ArchiveArgs, RestoreArgs};
use super::stat::length_bytes;
use super::{Pools, progress_bar};
use crate::exit::Failure;
use crate::output::print_json;

pub(super) fn archive(pools: &Pools, arguments: &ArchiveArgs) -> Result<(), Failure> {
    let ArchiveArgs { name, ids, no_read_back } = arguments;
    let pool = pools.open(name)?;
    pools
        .connect(&pool, ArchiveOptions { read_back: !no_read_back, ..ArchiveOptions::default() })?;
    move_each(pools, &pool, ids, "archived", &mut |id| pool.move_to_archive(id).map(drop))
}

pub(super) fn restore(pools: &Pools, arguments: &RestoreArgs) -> Result<(), Failure> {
    let RestoreArgs { name, class, ids } = arguments;
    let pool = pools.open(name)?;
    pools.connect(&pool, ArchiveOptions::default())?;
    move_each(pools, &pool, ids, "restored", &mut |id| pool.bring_back(id, *class).map(drop))
}

/// Moves objects one after the other; what was moved before one that cannot be stays moved.
fn move_each<E: Into<Failure>>(
    pools: &Pools,
    pool: &Pool,
    ids: &[ObjectId],
    what: &str,
    move_it: &mut dyn FnMut(ObjectId) -> Result<(), E>,
) -> Result<(), Failure> {
    let moving = pool.list().into_iter().filter(|object| ids.contains(&object.id()));
    let lengths: HashMap<ObjectId, u64> =
        moving.map(|object| (object.id(), length_bytes(&object))).collect();
    let progress = progress_bar(what, lengths.values().sum());
    for id in ids {
        move_it(*id).map_err(Into::into)?;
        progress.inc(lengths.get(id).copied().unwrap_or(0));
    }
    progress.finish_and_clear();
    // What left a device is free before this process ends, unless somebody still reads it.
    pool.reclaim();
    if pools.json {
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        return print_json(&json!({ what: ids }));
    }
    Ok(())
}
