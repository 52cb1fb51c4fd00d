//! Guests that are forked: captured into a pool in memory, from which children are started like clones.

use std::sync::{Arc, Mutex};

use bindery_guest::{Connection, Guest};
use bindery_units::PAGE_BYTES;

use super::Lease;
use super::create::{self, Create};
use super::memory_pools::NewPool;
use super::pauses::Pauses;
use super::sources::Sources;
use super::trackers::Followed;
use crate::jobs::Progress;
use crate::protocol::Failure;
use crate::protocol::job::JobResult;
use crate::report::status_bytes;

/// Name of the checkpoint in a fork's pool.
pub(crate) const NAME: &str = "fork";

/// Returns how many bytes of a guest's memory are not zero, at most. `merged_pages` of it are merged.
pub(crate) fn content_bytes(guest: &Guest, merged_pages: u64) -> u64 {
    let offered = guest.offered().iter().map(|range| range.bytes).sum();
    let of = |field| status_bytes(&guest.identity().pid.to_string(), field);
    // Merged pages that nobody has touched since are in no count of the kernel's.
    let (anonymous, swapped, shared) = (of("RssAnon:"), of("VmSwap:"), of("RssShmem:"));
    let shared = shared.unwrap_or(0).max(merged_pages * PAGE_BYTES as u64);
    anonymous.map_or(offered, |bytes| offered.min(bytes + swapped.unwrap_or(0) + shared))
}

/// Captures a guest into a new pool, which is kept if that succeeds.
///
/// # Errors
/// As [`create::create`]; the pool is gone.
pub(crate) fn fork(
    (lease, pool): (&Lease, &NewPool),
    followed: &Mutex<Followed>,
    (sources, pauses): (&Arc<Sources>, &Pauses),
    create: Create,
    progress: &Progress,
) -> Result<JobResult, Failure> {
    let forked = create::create(lease, followed, (sources, pauses), create, progress);
    // No checkpoint ever builds upon one in memory, and to follow the guest would split its huge pages.
    if forked.is_ok()
        && let Ok(mut followed) = followed.try_lock()
    {
        *followed = Followed::default();
    }
    let JobResult::Created(created) = forked? else { unreachable!("it makes a checkpoint") };
    pool.offer();
    let [pool] = pool.paths();
    Ok(JobResult::Forked { created, pool })
}
