//! How long a plain process waits for memory that is merged, or being merged.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;

use crate::{
    crowd::Crowd,
    engine::{Engine, Merger},
    harness::Measured,
    interrupt,
    merge::{
        dataset::{Content, Dataset},
        latency::{FirstWrites, Latencies},
        wait_until_merged,
    },
};

/// Two processes of 256 MiB: some thousand first writes, far apart.
const DATASET: Dataset =
    Dataset { content: Content::Easy, pages: 1 << 16, extent_pages: 64, processes: 2 };

/// Reads are watched for so long, and longer if merging takes longer.
const WATCHED: Duration = Duration::from_secs(5);

/// Has `engine` merge two processes, one of which reads meanwhile; then the other writes.
pub(super) fn run(engine: &Engine) -> Result<Measured> {
    let merger = Merger::start(engine)?;
    let mut crowd = Crowd::start(&merger, &DATASET)?;
    crowd.ask_one(0, "watch")?;
    crowd.merge()?;
    if !matches!(engine, Engine::Neither) {
        wait_until_merged(&merger, &DATASET)?;
    }
    interrupt::rest(WATCHED)?;
    let reads: Latencies = parse(&crowd.ask_one(0, "watched")?)?;
    // In KSM's favour: at full speed it would take a CPU from the writer and break what it writes.
    merger.pause()?;
    let FirstWrites { alone, burst, up_us, down_us } = parse(&crowd.ask_one(1, "write")?)?;
    crowd.verify()?;
    drop(crowd);
    merger.stop()?;
    Ok(Measured::new("first write alone, p50", "µs", alone.p50_us)
        .and("first write alone, p99", "µs", alone.p99_us)
        .and("first write alone, p99.9", "µs", alone.p999_us)
        .and("first write alone, longest", "µs", alone.max_us)
        .and("first write in a burst, p50", "µs", burst.p50_us)
        .and("first write in a burst, p99", "µs", burst.p99_us)
        .and("first write in a burst, longest", "µs", burst.max_us)
        .and("first writes of each", "count", alone.count as f64)
        .and("first writes upwards", "µs/page", up_us)
        .and("first writes downwards", "µs/page", down_us)
        .and("read, p50", "µs", reads.p50_us)
        .and("read, p99", "µs", reads.p99_us)
        .and("read, p99.9", "µs", reads.p999_us)
        .and("read, longest", "µs", reads.max_us)
        .and("reads", "count", reads.count as f64))
}

fn parse<T: DeserializeOwned>(line: &str) -> Result<T> {
    serde_json::from_str(line).with_context(|| format!("a guest's process said {line:?}"))
}
