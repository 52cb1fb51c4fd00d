//! A program whose memory grows and shrinks as it is told to, and all of which KSM may merge.

use anyhow::{Context, Result};
use bindery_sys::ksm::set_merge_any;
use bindery_testkit::coprocess::{self, Coprocess};
use bindery_units::PAGE_BYTES;

/// What memory comes and goes in. glibc maps blocks of more than 32 MiB one by one and unmaps them
/// when they are freed (mallopt(3), `M_MMAP_THRESHOLD`).
pub(super) const BLOCK_MIB: usize = 64;

/// Pages of a block.
pub(super) const BLOCK_PAGES: u64 = (BLOCK_MIB << 20) as u64 / PAGE_BYTES as u64;

/// Program with such memory. Dropping it ends the program.
#[derive(Debug)]
pub(super) struct Candidates(Coprocess);

impl Candidates {
    /// Starts one without memory.
    pub(super) fn start() -> Result<Self> {
        let program = std::env::current_exe()?;
        let started = Coprocess::start(&[], program, |command| _ = command.arg("candidates"));
        Ok(Self(started.context("starting a program whose memory KSM merges")?))
    }

    /// Has it have so many blocks, and waits until it has.
    pub(super) fn resize(&mut self, blocks: usize) -> Result<()> {
        self.0.ask(&blocks.to_string()).map(drop).context("the program with the memory")
    }
}

/// Is such a program: obeys numbers of blocks that it is to have.
pub(crate) fn serve() -> Result<()> {
    set_merge_any(true).context("prctl(PR_SET_MEMORY_MERGE); this needs Linux 6.4")?;
    let mut blocks: Vec<Vec<u8>> = Vec::new();
    coprocess::serve(|order| -> Result<String> {
        let wanted: usize = order.parse().context("a number of blocks")?;
        blocks.truncate(wanted);
        while blocks.len() < wanted {
            blocks.push(block(blocks.len()));
        }
        Ok(String::new())
    })
    .context("the standard streams")
}

/// Half of a block's pages are of 64 contents that come again in every block; the others are like
/// no other.
fn block(index: usize) -> Vec<u8> {
    let mut bytes = vec![0_u8; BLOCK_MIB << 20];
    for (page, content) in bytes.chunks_exact_mut(PAGE_BYTES).enumerate() {
        let unique = (u64::from(std::process::id()) << 32) | (index << 16 | page) as u64 | 1 << 63;
        let word = if page % 2 == 0 { 1 + page as u64 / 2 % 64 } else { unique };
        content.chunks_exact_mut(8).for_each(|at| at.copy_from_slice(&word.to_le_bytes()));
    }
    bytes
}
