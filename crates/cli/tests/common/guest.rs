//! Guests for tests: this test program once more, with managed memory and an agent linked in, as a
//! VMM in Rust would have them.

use std::num::ParseIntError;
use std::path::Path;

use bindery_space::Space;
use bindery_space::agent::{Agent, AgentConfig};
use bindery_testkit::coprocess::{self, Coprocess};
use bindery_units::{HostAddress, PAGE_BYTES};
use bindery_wire::environment::{DOMAIN_VARIABLE, NAME_VARIABLE, SOCKET_VARIABLE};

/// Pages that every guest has alike.
pub(crate) const EQUAL_PAGES: usize = 512;

/// Pages of zeros.
pub(crate) const ZERO_PAGES: usize = 128;

/// Pages that no other guest has.
pub(crate) const UNIQUE_PAGES: usize = 64;

/// All pages of a guest. Regions begin and end at multiples of 512 pages.
pub(crate) const PAGES: usize = 1024;

/// The test that is a guest's process; every test program with guests has one of this name.
const CHILD: &str = "guest_process";

/// A guest that runs. Killed when dropped.
pub(crate) struct TestGuest(Coprocess);

impl TestGuest {
    /// Starts a guest and waits until its memory is filled and managed.
    pub(crate) fn start(socket: &Path, name: &str, domain: &str) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut process = Coprocess::start(&[], program, |command| {
            command.args(["--exact", CHILD, "--ignored", "--nocapture"]);
            command.env(SOCKET_VARIABLE, socket).env(NAME_VARIABLE, name);
            command.env(DOMAIN_VARIABLE, domain);
        })
        .unwrap();
        process.ask("ready").unwrap();
        Self(process)
    }

    #[allow(dead_code, reason = "not every test program asks")]
    pub(crate) fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Has the guest write to its first `pages` pages.
    #[allow(dead_code, reason = "not every test program asks")]
    pub(crate) fn write(&mut self, pages: usize) {
        self.0.ask(&format!("write {pages}")).unwrap();
    }

    /// Has the guest compare all of its memory with what it wrote.
    #[allow(dead_code, reason = "not every test program asks")]
    pub(crate) fn check(&mut self) {
        assert_eq!(self.0.ask_for::<usize>("check").unwrap(), 0, "pages are wrong");
    }

    /// Whether the guest's agent has given up on daemons.
    #[allow(dead_code, reason = "not every test program asks")]
    pub(crate) fn has_ended(&mut self) -> bool {
        self.0.ask_for("ended").unwrap()
    }

    /// Where the guest's memory begins in its process.
    #[allow(dead_code, reason = "not every test program asks")]
    pub(crate) fn address(&mut self) -> u64 {
        self.0.ask_for("address").unwrap()
    }
}

/// What the page `at` of a guest is to hold at its end, after `generation` rounds of writing.
fn content(at: usize, generation: u64) -> u64 {
    match at {
        _ if generation > 0 => u64::from(std::process::id()) << 32 | generation << 20 | at as u64,
        _ if at < EQUAL_PAGES => 1 + at as u64,
        _ if at < EQUAL_PAGES + ZERO_PAGES => 0,
        _ if at < EQUAL_PAGES + ZERO_PAGES + UNIQUE_PAGES => {
            u64::from(std::process::id()) << 32 | at as u64
        }
        _ => 0,
    }
}

/// Whether the page is touched at all: the others stay absent.
fn is_touched(at: usize) -> bool {
    at < EQUAL_PAGES + ZERO_PAGES + UNIQUE_PAGES
}

/// The body of the test [`CHILD`]: lives until its orders end.
pub(crate) fn live() {
    let alignment = 512 * PAGE_BYTES;
    let mut memory = vec![0_u8; PAGES * PAGE_BYTES + alignment];
    let offset = memory.as_ptr().align_offset(alignment);
    let memory = &mut memory[offset..][..PAGES * PAGE_BYTES];
    let mut generations = vec![0; PAGES];
    for (at, page) in
        memory.chunks_exact_mut(PAGE_BYTES).enumerate().filter(|(at, _)| is_touched(*at))
    {
        put(page, content(at, 0));
    }
    let space = Space::start().unwrap();
    space.manage(HostAddress(memory.as_ptr().addr()), memory.len()).unwrap();
    let agent = Agent::start(space, AgentConfig::from_environment()).unwrap();
    coprocess::serve(|order| -> Result<String, ParseIntError> {
        let answer = match order.split_once(' ') {
            Some(("write", pages)) => {
                let pages: usize = pages.parse()?;
                let rounds = generations.iter_mut().zip(memory.chunks_exact_mut(PAGE_BYTES));
                for (at, (generation, page)) in rounds.enumerate().take(pages) {
                    *generation += 1;
                    put(page, content(at, *generation));
                }
                String::new()
            }
            None if order == "check" => {
                let pages = generations.iter().zip(memory.chunks_exact(PAGE_BYTES)).enumerate();
                let wrong = pages.filter(|(at, (generation, page))| {
                    let (zeros, end) = page.split_at(PAGE_BYTES - 8);
                    end != content(*at, **generation).to_ne_bytes() || zeros.iter().any(|&b| b != 0)
                });
                wrong.count().to_string()
            }
            None if order == "address" => memory.as_ptr().addr().to_string(),
            None if order == "ended" => agent.has_ended().to_string(),
            None if order == "ready" => String::new(),
            _ => panic!("{order:?} is no order"),
        };
        Ok(answer)
    })
    .unwrap();
}

fn put(page: &mut [u8], content: u64) {
    page[PAGE_BYTES - 8..].copy_from_slice(std::hint::black_box(&content.to_ne_bytes()));
}

/// Whether memory can be managed here; prints loudly if not.
pub(crate) fn can_manage(test: &str) -> bool {
    match Space::start() {
        Ok(_) => true,
        Err(error) => {
            bindery_testkit::skipped!("{test}: {error}");
            false
        }
    }
}
