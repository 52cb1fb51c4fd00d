//! A guest's process for the benchmarks: fills memory, gives it up for merging, verifies it.
//!
//! It is a [coprocess](bindery_testkit::coprocess), which obeys these orders once its memory is filled:
//!
//! | order | does | answers |
//! |---|---|---|
//! | `filled` | nothing: the answer says that memory is filled | nothing |
//! | `merge` | gives the memory up | nothing |
//! | `verify` | compares every page with what was written | nothing |
//! | `write` | writes to pages that others have too, once each | [`FirstWrites`] as JSON |
//! | `watch` | reads pages from now on, in a thread | nothing |
//! | `watched` | ends that | [`Latencies`](super::latency::Latencies) as JSON |

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use bindery_sys::mapping::Mapping;
use bindery_testkit::coprocess;
use bindery_testkit::guest_memory::GuestMemory;
use bindery_units::PAGE_BYTES;

use super::{
    dataset::Dataset,
    latency::{FirstWrites, Watch},
};

/// Runs a guest's process until its standard input ends.
///
/// # Errors
/// If memory runs out, or the standard streams fail. Orders that fail are answered with the reason.
pub fn run(dataset: &Dataset, process: u32) -> Result<()> {
    let memory = Arc::new(Memory::fill(dataset, process)?);
    let mut watch = None;
    coprocess::serve(|order| -> Result<String> {
        match order {
            "filled" => {}
            "merge" => memory.pages.offer().context("MADV_MERGEABLE")?,
            "verify" => memory.verify(dataset)?,
            "write" => return Ok(serde_json::to_string(&FirstWrites::time(&memory))?),
            "watch" => watch = Some(Watch::start(&memory)),
            "watched" => {
                let watch = watch.take().context("`watched` without `watch`")?;
                return Ok(serde_json::to_string(&watch.end())?);
            }
            other => bail!("{other:?} is no order that a guest's process knows"),
        }
        Ok(String::new())
    })?;
    Ok(())
}

/// Memory of a process, and the seed of what each page holds.
pub(super) struct Memory {
    pub(super) seeds: Vec<u64>,
    pub(super) pages: GuestMemory,
}

impl Memory {
    fn fill(dataset: &Dataset, process: u32) -> Result<Self> {
        let seeds = dataset.seeds(process);
        let mapping = Mapping::anonymous(seeds.len() * PAGE_BYTES).context("guest memory")?;
        let mut pages = GuestMemory::over(mapping);
        seeds.iter().enumerate().for_each(|(at, &seed)| dataset.fill(seed, pages.page_mut(at)));
        Ok(Self { seeds, pages })
    }

    fn verify(&self, dataset: &Dataset) -> Result<()> {
        let mut expected = [0; PAGE_BYTES];
        for (at, &seed) in self.seeds.iter().enumerate() {
            dataset.fill(seed, &mut expected);
            if let Some(byte) = self.pages.first_difference(at, &expected) {
                bail!("byte {byte} of page {at} is not what it was");
            }
        }
        Ok(())
    }
}
