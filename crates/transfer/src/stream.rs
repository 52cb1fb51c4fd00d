//! Reads pages and hands them on at the same time.

use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread;

use crate::chunk::{Chunk, cut};
use crate::memory::{BlockPages, Memory, MemoryError, Sink, SinkError, count};
use crate::pace::Pace;

/// Pages of a chunk: 8 MiB.
const CHUNK_PAGES: u32 = 2048;

/// Chunks at once: one that is read, one that waits, one that is handed on.
const CHUNKS: usize = 3;

/// Reason for which a stream ended.
#[derive(Debug)]
pub(crate) enum Broken {
    Memory(MemoryError),
    Sink(SinkError),
    Cancelled,
}

/// Reads `runs` and hands them on in order. Returns when all were. `goes_on` is told after each chunk how many
/// pages were read, and ends the stream by returning false.
pub(crate) fn stream(
    memory: &mut dyn Memory,
    sink: &mut dyn Sink,
    runs: &[BlockPages],
    pace: &mut Pace,
    goes_on: &dyn Fn(u64) -> bool,
) -> Result<(), Broken> {
    let pages = count(runs);
    if pages == 0 {
        return if goes_on(0) { Ok(()) } else { Err(Broken::Cancelled) };
    }
    let (full, to_hand_on) = sync_channel(1);
    let (empty, to_fill) = channel();
    let room = pages.min(CHUNK_PAGES.into()) as usize;
    for _ in 0..CHUNKS.min(pages.div_ceil(room as u64) as usize) {
        // It fails if nobody receives, and the receiver is here.
        let _ = empty.send(Chunk::with_room(room));
    }
    thread::scope(|scope| {
        let handing_on = scope.spawn(move || {
            to_hand_on.into_iter().try_for_each(|chunk: Chunk| {
                chunk.hand_on(sink)?;
                // Whoever reads may have ended.
                let _ = empty.send(chunk);
                Ok(())
            })
        });
        let read = feed(memory, runs, pace, goes_on, &to_fill, full);
        let handed_on = handing_on.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        handed_on.map_err(Broken::Sink).and(read)
    })
}

/// Fills chunks as long as they come back.
fn feed(
    memory: &mut dyn Memory,
    runs: &[BlockPages],
    pace: &mut Pace,
    goes_on: &dyn Fn(u64) -> bool,
    to_fill: &Receiver<Chunk>,
    full: SyncSender<Chunk>,
) -> Result<(), Broken> {
    let mut done = 0;
    for list in cut(runs, CHUNK_PAGES) {
        if !goes_on(done) {
            return Err(Broken::Cancelled);
        }
        // The sink has failed, and says why.
        let Ok(mut chunk) = to_fill.recv() else { break };
        done += count(&list);
        chunk.load(list, memory, pace).map_err(Broken::Memory)?;
        if full.send(chunk).is_err() {
            break;
        }
    }
    drop(full);
    Ok(())
}
