//! A guest's process for the benchmarks: fills memory, gives it up for merging, verifies it.
//!
//! It obeys words on its standard input, and answers each with a line:
//!
//! | word | does | answers |
//! |---|---|---|
//! | `merge` | gives the memory up | `given up` |
//! | `verify` | compares every page with what was written | `verified` |
//! | `write` | writes to pages that others have too, once each | [`FirstWrites`] as JSON |
//! | `watch` | reads pages from now on, in a thread | `watching` |
//! | `watched` | ends that | [`Latencies`](super::latency::Latencies) as JSON |

use std::{
    io::{self, BufRead, Write},
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
};

use anyhow::{Context, Result, bail, ensure};
use bindery_sys::mapping::Mapping;
use bindery_units::PAGE_BYTES;
use serde::Serialize;

use super::{
    dataset::Dataset,
    latency::{FirstWrites, Watch},
};

/// Runs a guest's process until its standard input ends.
///
/// # Errors
/// If memory runs out, the advice is refused, or a page is not what it was.
pub fn run(dataset: &Dataset, process: u32) -> Result<()> {
    let memory = Arc::new(Memory::fill(dataset, process)?);
    let mut watch = None;
    answer("filled")?;
    for word in io::stdin().lock().lines() {
        match word?.trim() {
            "merge" => {
                memory.give_up()?;
                answer("given up")?;
            }
            "verify" => {
                memory.verify(dataset)?;
                answer("verified")?;
            }
            "write" => answer_json(&FirstWrites::time(&memory))?,
            "watch" => {
                watch = Some(Watch::start(&memory));
                answer("watching")?;
            }
            "watched" => {
                let watch = watch.take().context("`watched` without `watch`")?;
                answer_json(&watch.end())?;
            }
            other => bail!("{other:?} is no word that a guest's process knows"),
        }
    }
    Ok(())
}

fn answer(word: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{word}")?;
    output.flush()
}

fn answer_json(what: &impl Serialize) -> Result<()> {
    Ok(answer(&serde_json::to_string(what)?)?)
}

/// The pages of a process.
pub(super) struct Memory {
    pub(super) seeds: Vec<u64>,
    mapping: Mapping,
}

impl Memory {
    fn fill(dataset: &Dataset, process: u32) -> Result<Self> {
        let seeds = dataset.seeds(process);
        let mapping = Mapping::anonymous(seeds.len() * PAGE_BYTES).context("guest memory")?;
        let memory = Self { seeds, mapping };
        for (at, &seed) in memory.seeds.iter().enumerate() {
            // SAFETY: the page is in the mapping, and no other reference to it exists.
            dataset.fill(seed, unsafe { &mut *memory.page(at) });
        }
        Ok(memory)
    }

    /// The address of page `at`.
    ///
    /// # Panics
    /// If there is no such page.
    pub(super) fn page(&self, at: usize) -> *mut [u8; PAGE_BYTES] {
        assert!(at < self.seeds.len(), "page {at} of {}", self.seeds.len());
        self.mapping.as_ptr().wrapping_add(at * PAGE_BYTES).cast()
    }

    fn give_up(&self) -> Result<()> {
        // The library's function, which a preload library can take.
        // SAFETY: the advice changes no content.
        let result = unsafe {
            let start = self.mapping.as_ptr().cast();
            libc::madvise(start, self.mapping.bytes(), libc::MADV_MERGEABLE)
        };
        ensure!(result == 0, "MADV_MERGEABLE: {}", io::Error::last_os_error());
        Ok(())
    }

    fn verify(&self, dataset: &Dataset) -> Result<()> {
        let mut expected = [0; PAGE_BYTES];
        fence(Ordering::SeqCst);
        for (at, &seed) in self.seeds.iter().enumerate() {
            dataset.fill(seed, &mut expected);
            // SAFETY: the page is in the mapping and nobody writes it.
            ensure!(unsafe { *self.page(at) } == expected, "page {at} is not what it was");
        }
        Ok(())
    }
}
