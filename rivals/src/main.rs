//! Other key-value stores under the same workload: `bindery-rivals '<task as JSON>'`.
//!
//! Prints a report as JSON. Every cache is given its size; everything else is the engine's default,
//! but for compression, which is off everywhere: the values do not compress.

mod fjall;
mod redb;
mod rocksdb;

use anyhow::{Context, Result, bail};
use bindery_ycsb::{Store, Task};

fn open(task: &Task) -> Result<Box<dyn Store>> {
    Ok(match task.engine.as_str() {
        "redb" => Box::new(redb::Redb::open(task)?),
        "fjall" => Box::new(fjall::Fjall::open(task)?),
        "rocksdb" => Box::new(rocksdb::Rocks::open(task)?),
        engine => bail!("{engine} is none of redb, fjall and rocksdb"),
    })
}

fn main() -> Result<()> {
    let text = std::env::args().nth(1).context("usage: bindery-rivals '<task as JSON>'")?;
    let task: Task = serde_json::from_str(&text).context("the task is not understood")?;
    // Who measures may put this process into a control group before its input ends.
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    let store = open(&task)?;
    let report = task.perform(&*store)?;
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
