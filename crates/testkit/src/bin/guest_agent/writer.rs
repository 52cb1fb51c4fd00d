//! Writes, patches and verifies files, on tmpfs or on a disk, and counts every byte that is not
//! what was written.
//!
//! The expected contents are computed from a few numbers a page; no second copy exists that the
//! host could merge with the first.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use crate::content::{PAGE, Page, PageState, Random};
use crate::options::Options;

/// From Linux's `asm-generic/fcntl.h`; arm64 has another value, but the agent is only built for
/// x86-64 guests.
const O_DIRECT: i32 = 0o40_000;

struct Plan {
    directory: PathBuf,
    files: usize,
    pages: usize,
    rounds: usize,
    patches: usize,
    seed: u64,
    direct: bool,
}

struct Writer {
    plan: Plan,
    files: Vec<File>,
    states: Vec<Vec<PageState>>,
    random: Random,
    verified: u64,
    bad: u64,
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let plan = Plan {
        directory: options.text("dir")?.into(),
        files: options.get("files", 8)?,
        pages: options.get("file-kib", 1024_usize)? * 1024 / PAGE,
        rounds: options.get("rounds", 10)?,
        patches: options.get("patches", 64)?,
        seed: options.get("seed", 1)?,
        direct: options.get("direct", 0_u8)? != 0,
    };
    let rounds = plan.rounds;
    let mut writer = Writer::create(plan).map_err(|error| error.to_string())?;
    for _ in 0..rounds {
        writer.round().map_err(|error| error.to_string())?;
    }
    println!(
        "{{\"rounds\":{rounds},\"pages_verified\":{},\"pages_bad\":{}}}",
        writer.verified, writer.bad
    );
    if writer.bad == 0 { Ok(()) } else { Err(format!("{} bad pages", writer.bad)) }
}

impl Writer {
    fn create(plan: Plan) -> io::Result<Self> {
        std::fs::create_dir_all(&plan.directory)?;
        let mut writer = Self {
            files: Vec::new(),
            states: vec![vec![PageState::default(); plan.pages]; plan.files],
            random: Random::new(plan.seed),
            verified: 0,
            bad: 0,
            plan,
        };
        for number in 0..writer.plan.files {
            let path = writer.plan.directory.join(format!("writer-{}-{number}", writer.plan.seed));
            let mut open = OpenOptions::new();
            open.read(true).write(true).create(true).truncate(true);
            if writer.plan.direct {
                open.custom_flags(O_DIRECT);
            }
            writer.files.push(open.open(path)?);
            for page in 0..writer.plan.pages {
                writer.rewrite(number, page)?;
            }
        }
        Ok(writer)
    }

    /// Patches every file, has the data leave for the disk, and reads all of it back.
    fn round(&mut self) -> io::Result<()> {
        for file in 0..self.plan.files {
            for _ in 0..self.plan.patches {
                let page = self.random.below(self.plan.pages);
                if self.random.below(2) == 0 && !self.plan.direct {
                    self.stamp(file, page)?;
                } else {
                    self.rewrite(file, page)?;
                }
            }
            self.files[file].sync_all()?;
        }
        // Cached pages would be verified against themselves; tmpfs ignores this.
        if self.random.below(4) == 0 {
            std::fs::write("/proc/sys/vm/drop_caches", "1")?;
        }
        for file in 0..self.plan.files {
            self.verify(file)?;
        }
        Ok(())
    }

    fn rewrite(&mut self, file: usize, page: usize) -> io::Result<()> {
        // Few versions, so that contents come back and are found by the merger again and again.
        let state = PageState { version: self.random.next() % 64, stamp: 0 };
        self.states[file][page] = state;
        let mut content = Page::zeroed();
        state.fill(self.plan.seed, page as u64, &mut content.0);
        self.files[file].write_all_at(&content.0, (page * PAGE) as u64)
    }

    /// Writes one word: the first write to a page that may be merged.
    fn stamp(&mut self, file: usize, page: usize) -> io::Result<()> {
        let state = &mut self.states[file][page];
        if state.stamp != 0 {
            return self.rewrite(file, page);
        }
        state.stamp = self.random.next() | 1;
        let at = page * PAGE + state.stamp_offset();
        self.files[file].write_all_at(&state.stamp.to_le_bytes(), at as u64)
    }

    fn verify(&mut self, file: usize) -> io::Result<()> {
        let (mut found, mut expected) = (Page::zeroed(), Page::zeroed());
        for (page, state) in self.states[file].iter().enumerate() {
            self.files[file].read_exact_at(&mut found.0, (page * PAGE) as u64)?;
            state.fill(self.plan.seed, page as u64, &mut expected.0);
            self.verified += 1;
            if let Some(at) = found.0.iter().zip(&expected.0).position(|(a, b)| a != b) {
                self.bad += 1;
                eprintln!(
                    "file {file} page {page} byte {at}: found {:#04x}, wrote {:#04x} ({state:?})",
                    found.0[at], expected.0[at]
                );
            }
        }
        Ok(())
    }
}
