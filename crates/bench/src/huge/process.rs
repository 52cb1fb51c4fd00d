//! A program with huge pages for the benchmarks: offers its memory, or keeps it to itself, fills it, times accesses
//! to it.
//!
//! A [coprocess], which obeys these orders:
//!
//! | order | does | answers |
//! |---|---|---|
//! | `where` | nothing | the addresses of the memory, `START END` |
//! | `touch` | writes a word into each page, three times, each as if for the first time | nanoseconds a page, the least |
//! | `fill` | fills the memory | nothing |
//! | `heat` | keeps the hot blocks hot from now on, in a thread | nothing |
//! | `cool` | ends that | nothing |
//! | `read MS`, `read-hot MS` | reads all blocks, or the hot ones, at random for so long | nanoseconds a read |
//! | `write MS` | writes all blocks at random for so long | nanoseconds a write |
//! | `verify` | compares every word with what was written | nothing |

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use bindery_testkit::coprocess;

use super::{access, layout::Layout, memory::Memory, writer::Writer};

/// Runs the program until its standard input ends.
///
/// # Errors
/// If memory runs out, or the standard streams fail. Orders that fail are answered with the reason.
pub fn run(layout: &Layout, process: u32, is_offered: bool) -> Result<()> {
    let memory = if is_offered { Memory::offered } else { Memory::mapped };
    let mut memory = Arc::new(memory(layout, process)?);
    let mut writer = None;
    coprocess::serve(|order| -> Result<String> {
        match order {
            "where" => {
                let range = memory.range();
                return Ok(format!("{} {}", range.start, range.end));
            }
            "touch" => {
                let own = Arc::get_mut(&mut memory).context("`touch` after `heat`")?;
                return Ok(own.touch()?.as_nanos().to_string());
            }
            "fill" => memory.fill(),
            "heat" => writer = Some(Writer::start(&memory)),
            "cool" => writer.take().context("`cool` without `heat`")?.end(),
            "verify" => memory.verify()?,
            timed => return Ok(time(&memory, timed)?.to_string()),
        }
        Ok(String::new())
    })?;
    Ok(())
}

/// Obeys an order with a time.
fn time(memory: &Memory, order: &str) -> Result<f64> {
    let parsed = order.split_once(' ').and_then(|(word, ms)| Some((word, ms.parse().ok()?)));
    let Some((word, ms)) = parsed else { bail!("{order:?} is no order that this program knows") };
    let time = Duration::from_millis(ms);
    let all: Vec<u32> = (0..memory.layout().blocks).collect();
    Ok(match word {
        "read" => access::read(memory, &all, time),
        "write" => access::write(memory, &all, time),
        "read-hot" => {
            let hot = memory.layout().hot_blocks(memory.process());
            if hot.is_empty() {
                bail!("no block is hot");
            }
            access::read(memory, &hot, time)
        }
        other => bail!("{other:?} is nothing that can be timed"),
    })
}
