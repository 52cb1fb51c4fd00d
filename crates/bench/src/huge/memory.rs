//! Memory of a program that asks for huge pages and offers it for merging.
//!
//! Concurrency: a [`Writer`](super::writer::Writer) writes while others read, and races with them by
//! intent; so all accesses after the memory was filled are volatile accesses of one word.

use std::{io, ops::Range, time::Duration};

use anyhow::{Context, Result, bail};
use bindery_sys::mapping::Mapping;
use bindery_testkit::guest_memory::{GuestMemory, PageBytes};
use bindery_units::PAGE_BYTES;

use super::{layout::Layout, stopwatch::Stopwatch};
use crate::merge::dataset::Mix;

/// Times that all pages are touched for the first time.
const TOUCHES: u32 = 3;

/// Number of words of a page.
const PAGE_WORDS: usize = PAGE_BYTES / 8;

/// Memory of one process of a layout.
pub(super) struct Memory {
    layout: Layout,
    process: u32,
    seeds: Vec<u64>,
    pages: GuestMemory,
}

impl Memory {
    /// Maps the memory, asks for huge pages and offers it, untouched.
    ///
    /// # Errors
    /// As mmap(2) and madvise(2).
    pub(super) fn offered(layout: &Layout, process: u32) -> Result<Self> {
        let memory = Self::mapped(layout, process)?;
        memory.pages.offer().context("MADV_MERGEABLE")?;
        Ok(memory)
    }

    /// Maps the memory and asks for huge pages, untouched. Nobody merges it.
    ///
    /// # Errors
    /// As mmap(2) and madvise(2).
    pub(super) fn mapped(layout: &Layout, process: u32) -> Result<Self> {
        let seeds = layout.seeds(process);
        let mapping = Mapping::anonymous_aligned(seeds.len() * PAGE_BYTES).context("memory")?;
        ask_for_huge_pages(&mapping).context("MADV_HUGEPAGE")?;
        let pages = GuestMemory::over(mapping);
        Ok(Self { layout: *layout, process, seeds, pages })
    }

    /// Returns the addresses of the memory.
    pub(super) fn range(&self) -> Range<usize> {
        let start = self.pages.page(0).addr();
        start..start + self.seeds.len() * PAGE_BYTES
    }

    pub(super) const fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(super) const fn process(&self) -> u32 {
        self.process
    }

    /// Returns the address of the first word.
    pub(super) fn words(&self) -> *mut u64 {
        self.pages.page(0).cast()
    }

    /// Writes the first word of each page, upwards, several times, each time as if for the first. Returns the
    /// least time that a page took: memory that the machine's host has taken back is there the next time.
    ///
    /// # Errors
    /// As madvise(2).
    pub(super) fn touch(&mut self) -> Result<Duration> {
        let mut fastest = self.touch_once();
        for _ in 1..TOUCHES {
            self.pages.discard().context("MADV_DONTNEED")?;
            fastest = fastest.min(self.touch_once());
        }
        Ok(fastest)
    }

    fn touch_once(&self) -> Duration {
        let words = self.words();
        let watch = Stopwatch::start();
        for (page, &seed) in self.seeds.iter().enumerate() {
            // SAFETY: the word is in the mapping, which nobody reads yet.
            unsafe { words.add(page * PAGE_WORDS).write_volatile(content(seed).next()) };
        }
        watch.stop() / self.seeds.len() as u32
    }

    /// Fills every page with what its seed says.
    pub(super) fn fill(&self) {
        let mut bytes = [0; PAGE_BYTES];
        for (page, &seed) in self.seeds.iter().enumerate() {
            write_content(seed, &mut bytes);
            // SAFETY: the page is in the mapping, which nobody reads yet.
            unsafe { self.pages.page(page).write(bytes) };
        }
    }

    /// Compares every word with what was written to it.
    ///
    /// # Errors
    /// If one differs; names the page.
    pub(super) fn verify(&self) -> Result<()> {
        let words = self.words();
        let mut written = self.layout.written_pages(self.process).peekable();
        for (page, &seed) in self.seeds.iter().enumerate() {
            let mut content = content(seed);
            // The writer's word.
            let skipped = usize::from(written.next_if_eq(&(page as u32)).is_some());
            for at in 0..PAGE_WORDS {
                let (expected, word) = (content.next(), page * PAGE_WORDS + at);
                // SAFETY: the word is in the mapping.
                let found = unsafe { words.add(word).read_volatile() };
                if at >= skipped && found != expected && found != scattered(word) {
                    bail!("word {at} of page {page} is not what it was");
                }
            }
        }
        Ok(())
    }
}

/// Value that random writes leave in word `at`.
pub(super) const fn scattered(at: usize) -> u64 {
    Mix(at as u64).next()
}

/// Words of the page of a seed.
const fn content(seed: u64) -> Mix {
    Mix(Mix(seed).next())
}

fn write_content(seed: u64, page: &mut PageBytes) {
    let mut content = content(seed);
    for word in page.chunks_exact_mut(8) {
        word.copy_from_slice(&content.next().to_le_bytes());
    }
}

/// Gives the advice as a program does: by the C library's function, which a preload library can take.
fn ask_for_huge_pages(mapping: &Mapping) -> io::Result<()> {
    // SAFETY: the advice changes no content of this mapping.
    let result =
        unsafe { libc::madvise(mapping.as_ptr().cast(), mapping.bytes(), libc::MADV_HUGEPAGE) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::huge::{access, layout::Hot};

    fn memory(hot: Hot) -> Memory {
        let layout = Layout { processes: 2, blocks: 2, share_percent: 50, run_pages: 64, hot };
        Memory::offered(&layout, 1).unwrap()
    }

    #[test]
    fn pages_hold_what_was_written() {
        let mut memory = memory(Hot::None);
        memory.touch().unwrap();
        memory.fill();
        memory.verify().unwrap();
        access::write(&memory, &[0, 1], Duration::from_millis(1));
        memory.verify().unwrap();
        // SAFETY: the word is in the mapping.
        unsafe { *memory.words().add(700) ^= 1 };
        let refusal = memory.verify().unwrap_err().to_string();
        assert_eq!(refusal, "word 188 of page 1 is not what it was");
    }

    #[test]
    fn only_words_of_the_writer_may_differ() {
        let memory = memory(Hot::All);
        memory.fill();
        // SAFETY: the words are in the mapping.
        unsafe { *memory.words().add(8 * PAGE_WORDS) ^= 1 };
        memory.verify().unwrap();
        // SAFETY: as above.
        unsafe { *memory.words().add(9 * PAGE_WORDS) ^= 1 };
        assert!(memory.verify().is_err());
    }
}
