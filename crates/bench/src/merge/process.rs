//! A guest's process for the benchmark: fills memory, gives it up for merging, verifies it.
//!
//! It obeys words on its standard input, and answers each with a line: `merge` gives the memory up,
//! `verify` compares every page with what was written.

use std::{
    io::{self, BufRead, Write},
    sync::atomic::{Ordering, fence},
};

use anyhow::{Context, Result, bail, ensure};
use bindery_sys::mapping::Mapping;
use bindery_units::PAGE_BYTES;

use super::dataset::Dataset;

/// Runs a guest's process until its standard input ends.
///
/// # Errors
/// If memory runs out, the advice is refused, or a page is not what it was.
pub fn run(dataset: &Dataset, process: u32) -> Result<()> {
    let seeds = dataset.seeds(process);
    let memory = Mapping::anonymous(seeds.len() * PAGE_BYTES).context("guest memory")?;
    let page = |at: usize| memory.as_ptr().wrapping_add(at * PAGE_BYTES).cast::<[u8; PAGE_BYTES]>();
    for (at, &seed) in seeds.iter().enumerate() {
        // SAFETY: the page is in the mapping, and no other reference to it exists.
        dataset.fill(seed, unsafe { &mut *page(at) });
    }
    answer("filled")?;
    for word in io::stdin().lock().lines() {
        match word?.trim() {
            "merge" => {
                // The library's function, which a preload library can take.
                // SAFETY: the advice changes no content.
                let result = unsafe {
                    libc::madvise(memory.as_ptr().cast(), memory.bytes(), libc::MADV_MERGEABLE)
                };
                ensure!(result == 0, "MADV_MERGEABLE: {}", io::Error::last_os_error());
                answer("given up")?;
            }
            "verify" => {
                let mut expected = [0; PAGE_BYTES];
                fence(Ordering::SeqCst);
                for (at, &seed) in seeds.iter().enumerate() {
                    dataset.fill(seed, &mut expected);
                    // SAFETY: the page is in the mapping and nobody writes it.
                    ensure!(unsafe { *page(at) } == expected, "page {at} is not what it was");
                }
                answer("verified")?;
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
