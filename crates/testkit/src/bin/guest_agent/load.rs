//! What guests do all day: a file server, a build, a program that frees much memory, a calculation.
//!
//! Part of what each kind holds is the same in every guest and part is the guest's own, as in
//! guests of one image that serve different users.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::content::{PAGE, Random, text};
use crate::options::Options;

const DOCUMENT_BYTES: usize = 64 * 1024;

struct Load {
    bytes: usize,
    seed: u64,
    /// `None` runs until it is ended.
    until: Option<Instant>,
}

impl Load {
    fn goes_on(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() < until)
    }
}

pub(crate) fn run(kind: &str, options: &Options) -> Result<(), String> {
    let seconds: u64 = options.get("seconds", 0)?;
    let load = Load {
        bytes: options.get("mib", 32_usize)? << 20,
        seed: options.get("seed", 1)?,
        until: (seconds > 0).then(|| Instant::now() + Duration::from_secs(seconds)),
    };
    match kind {
        "files" => files(&load).map_err(|error| error.to_string()),
        "compile" => compile(&load).map_err(|error| error.to_string()),
        "zeros" => {
            zeros(&load);
            Ok(())
        }
        "cpu" => {
            cpu(&load);
            Ok(())
        }
        other => Err(format!("no load is called {other:?}")),
    }
}

/// A file server: documents in memory, every second one the same in all guests; read often,
/// rewritten seldom.
fn files(load: &Load) -> io::Result<()> {
    let directory = PathBuf::from("/tmp/srv");
    std::fs::create_dir_all(&directory)?;
    let documents = load.bytes / DOCUMENT_BYTES;
    let document = |number: usize, edition: u64| {
        let owner = if number.is_multiple_of(2) { 0 } else { load.seed };
        text(owner << 32 ^ edition << 24 ^ number as u64, DOCUMENT_BYTES)
    };
    let path = |number: usize| directory.join(format!("document-{number}"));
    for number in 0..documents {
        std::fs::write(path(number), document(number, 0))?;
    }
    let mut editions = vec![0_u64; documents];
    let mut random = Random::new(load.seed);
    while load.goes_on() {
        let number = random.below(documents);
        if random.below(50) == 0 {
            editions[number] += 1;
            std::fs::write(path(number), document(number, editions[number]))?;
        }
        let served = std::fs::read_to_string(path(number))?;
        if served != document(number, editions[number]) {
            return Err(io::Error::other(format!("document {number} changed by itself")));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// A build: sources that are the same everywhere, objects that are not, and all of it deleted and
/// made again.
fn compile(load: &Load) -> io::Result<()> {
    let directory = PathBuf::from("/tmp/build");
    let units = (load.bytes / 2 / DOCUMENT_BYTES).max(1);
    let mut build = 0_u64;
    while load.goes_on() {
        // Time may be up before the first unit.
        std::fs::create_dir_all(&directory)?;
        for unit in (0..units).take_while(|_| load.goes_on()) {
            compile_unit(
                &directory.join(format!("module-{}", unit % 16)),
                unit,
                build ^ load.seed,
            )?;
        }
        std::fs::remove_dir_all(&directory)?;
        build += 1;
    }
    Ok(())
}

fn compile_unit(directory: &Path, unit: usize, salt: u64) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let source = text(unit as u64, DOCUMENT_BYTES);
    std::fs::write(directory.join(format!("unit-{unit}.c")), &source)?;
    let mut object = Vec::with_capacity(DOCUMENT_BYTES);
    let mut state = salt;
    for word in source.as_bytes().chunks(8) {
        for &byte in word {
            state = (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
        }
        object.extend_from_slice(&state.to_le_bytes());
    }
    std::fs::write(directory.join(format!("unit-{unit}.o")), object)
}

/// A program that used much memory once and cleared it, and still dirties a page here and there.
fn zeros(load: &Load) {
    let mut memory = vec![0xA5_u8; load.bytes];
    memory.fill(0);
    let pages = memory.len() / PAGE;
    let mut random = Random::new(load.seed);
    while load.goes_on() {
        let at = random.below(pages) * PAGE;
        memory[at] = 1;
        std::hint::black_box(&memory);
        memory[at] = 0;
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A calculation in a small working set: primes by trial division, with a rest between batches so
/// that four such guests leave the host some time.
fn cpu(load: &Load) {
    let mut candidate = 3_u64;
    let mut primes = Vec::new();
    while load.goes_on() {
        for _ in 0..2_000 {
            let prime = primes
                .iter()
                .take_while(|&&prime: &&u64| prime * prime <= candidate)
                .all(|&prime| !candidate.is_multiple_of(prime));
            if prime {
                primes.push(candidate);
            }
            candidate += 2;
        }
        if primes.len() > 1 << 20 {
            primes.clear();
            candidate = 3;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
