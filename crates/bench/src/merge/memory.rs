//! Memory of a benchmark's process: filled by a data set, and compared with it.

use anyhow::{Context, Result, bail};
use bindery_sys::mapping::Mapping;
use bindery_testkit::guest_memory::GuestMemory;
use bindery_units::PAGE_BYTES;

use super::dataset::Dataset;

/// Memory of a process, and the seed of what each page holds.
pub(super) struct Memory {
    pub(super) seeds: Vec<u64>,
    pub(super) pages: GuestMemory,
}

impl Memory {
    /// Fills memory as the dataset has it for one process.
    ///
    /// # Errors
    /// If memory runs out.
    pub(super) fn fill(dataset: &Dataset, process: u32) -> Result<Self> {
        let seeds = dataset.seeds(process);
        let mapping = Mapping::anonymous(seeds.len() * PAGE_BYTES).context("guest memory")?;
        let mut pages = GuestMemory::over(mapping);
        seeds.iter().enumerate().for_each(|(at, &seed)| dataset.fill(seed, pages.page_mut(at)));
        Ok(Self { seeds, pages })
    }

    /// Compares every page with what it was filled with.
    ///
    /// # Errors
    /// If one differs; names the first byte that does.
    pub(super) fn verify(&self, dataset: &Dataset) -> Result<()> {
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
