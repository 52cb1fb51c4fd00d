//! A thread that keeps blocks hot: it writes a word into some pages of each once a second.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use bindery_units::PAGE_BYTES;

use super::{layout::written_pages_of, memory::Memory};

/// Time in which each hot block is written to once.
const PASS: Duration = Duration::from_secs(1);

/// Number of words of a page.
const PAGE_WORDS: usize = PAGE_BYTES / 8;

/// A running thread. Ends when it is told to.
pub(super) struct Writer {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Writer {
    /// Starts to write to the hot blocks of the memory, evenly over each second.
    pub(super) fn start(memory: &Arc<Memory>) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let (memory, heard) = (Arc::clone(memory), Arc::clone(&ended));
        let thread = thread::spawn(move || keep_hot(&memory, &heard));
        Self { ended, thread }
    }

    /// Ends the writing.
    pub(super) fn end(self) {
        // Relaxed: the flag stands for itself.
        self.ended.store(true, Ordering::Relaxed);
        self.thread.join().expect("writing to memory does not panic");
    }
}

fn keep_hot(memory: &Memory, ended: &AtomicBool) {
    let blocks = memory.layout().hot_blocks(memory.process());
    if blocks.is_empty() {
        return;
    }
    let (rest, mut next, mut count) = (PASS / blocks.len() as u32, Instant::now(), 0_u64);
    for &block in blocks.iter().cycle() {
        // Relaxed: the flag stands for itself.
        if ended.load(Ordering::Relaxed) {
            return;
        }
        for page in written_pages_of(block) {
            count += 1;
            let word = memory.words().wrapping_add(page as usize * PAGE_WORDS);
            // SAFETY: the word is in the mapping, which lives as long as `memory`.
            unsafe { word.write_volatile(count) };
        }
        // A thread that comes late goes on at its pace, and does not make up for it.
        next = (next + rest).max(Instant::now());
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}
