//! A program whose memory grows and shrinks as it is told to, and all of which KSM may merge.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result};
use bindery_sys::ksm::set_merge_any;
use bindery_units::PAGE_BYTES;

/// What memory comes and goes in. glibc maps blocks of more than 32 MiB one by one and unmaps them
/// when they are freed (mallopt(3), `M_MMAP_THRESHOLD`).
pub(super) const BLOCK_MIB: usize = 64;

/// Pages of a block.
pub(super) const BLOCK_PAGES: u64 = (BLOCK_MIB << 20) as u64 / PAGE_BYTES as u64;

/// Such a program. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Candidates {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Candidates {
    /// Starts one without memory.
    pub(super) fn start() -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("candidates").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("starting a program whose memory KSM merges")?;
        let (Some(orders), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both were asked for")
        };
        Ok(Self { child, orders, answers: BufReader::new(answers) })
    }

    /// Has it have so many blocks, and waits until it has.
    pub(super) fn resize(&mut self, blocks: usize) -> Result<()> {
        writeln!(self.orders, "{blocks}")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        anyhow::ensure!(answer.trim() == "done", "the program with the memory said {answer:?}");
        Ok(())
    }
}

impl Drop for Candidates {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Is such a program: reads how many blocks it is to have, line by line, until nobody writes.
pub(crate) fn serve() -> Result<()> {
    set_merge_any(true).context("prctl(PR_SET_MEMORY_MERGE); this needs Linux 6.4")?;
    let mut blocks: Vec<Vec<u8>> = Vec::new();
    for line in io::stdin().lock().lines() {
        let wanted: usize = line?.parse().context("a number of blocks")?;
        blocks.truncate(wanted);
        while blocks.len() < wanted {
            blocks.push(block(blocks.len()));
        }
        println!("done");
    }
    Ok(())
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
