//! Checks pages of its own memory and says that it goes on.
//!
//! The content of a page is bound to its place, to the generation of its last write and to a nonce that is
//! nowhere but in this process, so that neither a boot nor an older copy of the memory can pass for what
//! was running. Each beat is one line: `HEARTBEAT nonce=… beat=… verified=… bad=…`.

use std::fs::File;
use std::io::{Read, Write};
use std::thread::sleep;
use std::time::Duration;

use crate::content::{PAGE, Page, PageState, Random};
use crate::options::Options;

struct Checker {
    nonce: u64,
    pages: Vec<Page>,
    generations: Vec<u64>,
    random: Random,
    verified: u64,
    bad: u64,
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let pages = options.get("mib", 16_usize)? * (1 << 20) / PAGE;
    let writes = options.get("writes", 64_usize)?;
    let reads = options.get("reads", 256_usize)?;
    let pause = Duration::from_millis(options.get("pause-ms", 50)?);
    let mut checker = Checker::new(nonce().map_err(|error| error.to_string())?, pages);
    for beat in 0_u64.. {
        (0..writes).for_each(|_| checker.rewrite());
        (0..reads).for_each(|_| checker.verify());
        let Checker { nonce, verified, bad, .. } = &checker;
        let line =
            format!("HEARTBEAT nonce={nonce:016x} beat={beat} verified={verified} bad={bad}\n");
        // One write, so that the lines of a console stay whole.
        std::io::stdout().write_all(line.as_bytes()).map_err(|error| error.to_string())?;
        sleep(pause);
    }
    Ok(())
}

fn nonce() -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

impl Checker {
    fn new(nonce: u64, count: usize) -> Self {
        let mut checker = Self {
            nonce,
            pages: vec![Page::zeroed(); count],
            generations: vec![0; count],
            random: Random::new(nonce),
            verified: 0,
            bad: 0,
        };
        (0..count).for_each(|page| checker.write(page));
        checker
    }

    fn rewrite(&mut self) {
        let page = self.random.below(self.pages.len());
        self.generations[page] += 1;
        self.write(page);
    }

    fn write(&mut self, page: usize) {
        let state = state(self.generations[page]);
        state.fill(self.nonce, page as u64, &mut self.pages[page].0);
    }

    fn verify(&mut self) {
        let page = self.random.below(self.pages.len());
        let mut expected = Page::zeroed();
        state(self.generations[page]).fill(self.nonce, page as u64, &mut expected.0);
        self.verified += 1;
        if let Some(at) = self.pages[page].0.iter().zip(&expected.0).position(|(a, b)| a != b) {
            self.bad += 1;
            eprintln!("page {page} byte {at} of generation {} is wrong", self.generations[page]);
        }
    }
}

/// Contents of a generation that no other guest has.
const fn state(generation: u64) -> PageState {
    PageState { version: generation * 4 + 3, stamp: 0 }
}
