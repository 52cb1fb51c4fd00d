//! A guest's process for the benchmarks: fills memory, gives it up for merging, verifies it.
//!
//! A [coprocess], which obeys these orders once its memory is filled:
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
use bindery_testkit::coprocess;

use super::{
    dataset::Dataset,
    latency::{FirstWrites, Watch},
    memory::Memory,
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
