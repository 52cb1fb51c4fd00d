//! KVM guests in the memory of a process that is a guest: they fill pages, write to them and read
//! them, and what they find is compared with what they did.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use bindery_units::PAGE_BYTES;

use super::MachineFigures;
use super::memory::{Memory, Random};
use crate::kvm::{TinyGuest, TinyGuestError};

const WORDS: u32 = PAGE_BYTES as u32 / 4;

/// What a page is filled with: nothing, one of these contents that all machines have at the same
/// place, or the machine's own. Few, so that contents come back and are merged again.
const SHARED_CONTENTS: u64 = 3;

/// Steps between two pauses.
const BATCH: usize = 16;

/// At most so many pages are written in one step, over and over: the guest runs by itself meanwhile.
const STEP_PAGES: usize = 3;
const STEP_ROUNDS_MAX: usize = 64;

/// The machines of this process. Dropping it leaves them running.
pub(super) struct Machines {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Result<(), TinyGuestError>>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    read: AtomicU64,
    written: AtomicU64,
    bad: AtomicU64,
}

impl Machines {
    /// Starts `count` machines, each in its part of `memory`, which is theirs from now on.
    pub(super) fn start(
        memory: &Arc<Mutex<Memory>>,
        count: usize,
        seed: u64,
        pause: Duration,
    ) -> Result<Self, TinyGuestError> {
        let (address, pages) = {
            let memory = memory.lock().expect("no thread panicked while it wrote");
            (memory.pages().page(0).expose_provenance(), memory.pages().pages() / count)
        };
        let shared = Arc::new(Shared::default());
        let start = |number: usize| {
            let first: *mut u8 =
                std::ptr::with_exposed_provenance_mut(address + number * pages * PAGE_BYTES);
            // SAFETY: the part is this machine's alone: whoever owns the memory does not touch it
            // any more, and its thread keeps it alive.
            let guest = unsafe { TinyGuest::new(first, pages * PAGE_BYTES) }?;
            let seed = seed << 8 | number as u64;
            let mut machine = Machine {
                guest,
                memory: first.expose_provenance(),
                held: vec![Held::default(); pages],
                seed,
                random: Random::new(seed),
                shared: Arc::clone(&shared),
            };
            let kept = Arc::clone(memory);
            Ok(std::thread::spawn(move || {
                let ended = machine.run(pause);
                if let Err(error) = &ended {
                    eprintln!("a machine has ended: {error}");
                    machine.shared.bad.fetch_add(1, Ordering::Relaxed);
                }
                drop((machine, kept));
                ended
            }))
        };
        let threads = (0..count).map(start).collect::<Result<_, _>>()?;
        Ok(Self { shared, threads })
    }

    /// What they have done so far.
    pub(super) fn figures(&self) -> MachineFigures {
        let Shared { read, written, bad, .. } = &*self.shared;
        // Relaxed: figures.
        let [read, written, bad] = [read, written, bad].map(|count| count.load(Ordering::Relaxed));
        MachineFigures { read, written, bad }
    }

    /// Has them read all of their memory once more, and end.
    pub(super) fn halt(mut self) -> Result<MachineFigures, TinyGuestError> {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("a machine's thread does not panic")?;
        }
        Ok(self.figures())
    }
}

/// What a page holds: a word everywhere, and what was added to some.
#[derive(Debug, Clone, Default)]
struct Held {
    word: u32,
    added: Vec<(u16, u32)>,
}

impl Held {
    fn sum(&self) -> u32 {
        let added = self.added.iter().map(|(_, added)| *added);
        added.fold(self.word.wrapping_mul(WORDS), u32::wrapping_add)
    }

    fn bytes(&self) -> [u8; PAGE_BYTES] {
        let mut bytes = [0; PAGE_BYTES];
        bytes.as_chunks_mut().0.fill(self.word.to_le_bytes());
        for &(offset, added) in &self.added {
            let word: &mut [u8; 4] =
                bytes[usize::from(offset)..].first_chunk_mut().expect("inside");
            *word = u32::from_le_bytes(*word).wrapping_add(added).to_le_bytes();
        }
        bytes
    }
}

struct Machine {
    guest: TinyGuest,
    /// Where its memory is in this process.
    memory: usize,
    held: Vec<Held>,
    seed: u64,
    random: Random,
    shared: Arc<Shared>,
}

impl Machine {
    fn run(&mut self, pause: Duration) -> Result<(), TinyGuestError> {
        (0..self.held.len()).try_for_each(|page| self.fill(page))?;
        // Relaxed: the flag carries no data.
        while !self.shared.stop.load(Ordering::Relaxed) {
            for _ in 0..BATCH {
                self.step()?;
            }
            std::thread::sleep(pause);
        }
        for page in 0..self.held.len() {
            self.read_inside(page)?;
            self.read_outside(page);
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), TinyGuestError> {
        let page = self.random.below(self.held.len());
        match self.random.below(8) {
            0..=2 => self.fill(page),
            3 => self.add(page),
            4 => {
                self.read_outside(page);
                Ok(())
            }
            _ => self.read_inside(page),
        }
    }

    /// The guest makes a page one of those that others have as well, or its own.
    fn fill(&mut self, page: usize) -> Result<(), TinyGuestError> {
        let content = self.random.next() % (SHARED_CONTENTS + 2);
        let word = match content {
            0 => 0,
            1..=SHARED_CONTENTS => Random::new(page as u64 * SHARED_CONTENTS + content).next(),
            _ => Random::new(self.seed << 32 | page as u64).next(),
        };
        self.held[page] = Held { word: word as u32, added: Vec::new() };
        self.count_written(1);
        self.guest.fill(page..page + 1, word as u32)
    }

    /// The guest adds to one word of some pages, which may be merged.
    fn add(&mut self, page: usize) -> Result<(), TinyGuestError> {
        let pages = page..self.held.len().min(page + 1 + self.random.below(STEP_PAGES));
        let offset = self.random.below(WORDS as usize) as u16 * 4;
        let rounds = 1 + self.random.below(STEP_ROUNDS_MAX) as u16;
        for held in &mut self.held[pages.clone()] {
            held.added.push((offset, rounds.into()));
        }
        self.count_written(pages.len());
        self.guest.increment(pages, offset, rounds)
    }

    /// The guest reads a page.
    fn read_inside(&mut self, page: usize) -> Result<(), TinyGuestError> {
        let (found, expected) = (self.guest.sum(page)?, self.held[page].sum());
        self.count_read(page, found == expected, "the guest");
        Ok(())
    }

    /// This process reads a page, every byte.
    fn read_outside(&self, page: usize) {
        let from =
            std::ptr::with_exposed_provenance::<[u8; PAGE_BYTES]>(self.memory + page * PAGE_BYTES);
        // SAFETY: the page is inside this machine's memory, and its guest does not run now.
        let found = unsafe { from.read_volatile() };
        self.count_read(page, found == self.held[page].bytes(), "the host");
    }

    fn count_read(&self, page: usize, is_good: bool, who: &str) {
        self.shared.read.fetch_add(1, Ordering::Relaxed);
        if !is_good {
            self.shared.bad.fetch_add(1, Ordering::Relaxed);
            eprintln!("page {page} of a machine is not what it wrote, as {who} sees it");
        }
    }

    fn count_written(&self, pages: usize) {
        self.shared.written.fetch_add(pages as u64, Ordering::Relaxed);
    }
}
