//! A lane: one thread of the guest's process that does what the daemon asks.
//!
//! A request is checked ([`request`](super::request)), its arrays copied out of the window and checked
//! again, the work done with a [`Worker`], the answer's array written to the window and its header
//! sent. Arrays are read and written by system calls: a peer that scribbles on them gets its own
//! scribbles. Pages are written to a mapping, which costs a third of pwritev(2). That must never be a
//! fault in the VMM: a window that could shrink is refused, and memory for the pages is there before they
//! are written. A daemon, which the guest trusts with more than that, could still take it away meanwhile
//! on a machine that has none left.
//!
//! One thread owns a lane. It ends when the daemon closes its end, when [`Session`](super::session)
//! shuts the socket down, or when the peer breaks the protocol.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bindery_page::DigestKey;
use bindery_sys::mapping::{self, Mapping};
use bindery_sys::socket::Arrived;
use bindery_sys::{memfd, socket, thread};
use bindery_units::{HostAddress, PAGE_BYTES, PageIndex, PageRange, Slot};
use zerocopy::{Immutable, IntoBytes, TryFromBytes};

use super::request::{Task, are_runs};
use crate::{PinError, Reach, Segments, Sought, Space, Worker};
use bindery_wire::array::{ArrayError, ArrayReader};
use bindery_wire::control::StoreId;
use bindery_wire::lane::{
    ANSWER_OFFSET, Answer, BlockOutcome, BlockSample, FETCH_PAGES_MAX, Lost, MergedSpan,
    PageDigest, PageOutcome, PageSpan, Request, Run, RunTarget, SEGMENTS_MAX, SEGMENTS_OFFSET,
    Status, WINDOW_BYTES,
};

/// Pages made private in answer to one `UNMERGE`: tens of milliseconds at worst.
const UNMERGE_PAGES: u32 = 4096;

/// Runs merged between two looks whether the session ends.
const MERGE_RUNS: usize = 64;

/// How many elements of `T` an answer's array can have.
const fn room_for<T>() -> usize {
    (WINDOW_BYTES - ANSWER_OFFSET) / size_of::<T>()
}

/// What a lane is made of.
pub(super) struct Parts {
    pub(super) space: Arc<Space>,
    pub(super) key: DigestKey,
    pub(super) socket: Arc<OwnedFd>,
    pub(super) window: File,
    /// Set when the session ends: long requests stop early, unanswered.
    pub(super) stopping: Arc<AtomicBool>,
}

/// Arrays of requests and answers, kept from one to the next.
#[derive(Default)]
struct Arrays {
    pages: Vec<u32>,
    runs: Vec<Run>,
    segments: Vec<u32>,
    spans: Vec<PageSpan>,
    lost: Vec<Lost>,
    digests: Vec<PageDigest>,
    outcomes: Vec<PageOutcome>,
    /// For pages that are fetched: 1 if the page was there.
    flags: Vec<u8>,
    reader: ArrayReader,
    merged: Vec<MergedSpan>,
    samples: Vec<BlockSample>,
    block_outcomes: Vec<BlockOutcome>,
}

pub(super) struct Lane {
    parts: Parts,
    worker: Worker,
    arrays: Arrays,
    /// The window, for pages that are fetched.
    mapped_window: Mapping,
}

/// What became of a request.
enum Outcome {
    Done(Answer),
    /// It made no sense.
    Refused,
    /// The kernel refused, with this error.
    Failed(io::Error),
    /// The lane cannot go on.
    Broken(io::Error),
}

impl Lane {
    /// # Errors
    /// When memory or mappings run out, or for a window that can become shorter.
    pub(super) fn new(parts: Parts) -> io::Result<Self> {
        let worker = parts.space.worker()?;
        let mapped_window = map_window(&parts.window)?;
        Ok(Self { parts, worker, arrays: Arrays::default(), mapped_window })
    }

    /// Serves requests until the daemon closes the lane or the session ends.
    ///
    /// # Errors
    /// If the peer breaks the protocol, or the kernel fails its window.
    pub(super) fn serve(&mut self) -> io::Result<()> {
        loop {
            let mut buffer = [0; size_of::<Request>()];
            let mut fds = Vec::new();
            let arrived = socket::receive_many(&self.parts.socket, &mut buffer, &mut fds)?;
            if arrived.bytes == 0 || self.is_stopping() {
                return Ok(());
            }
            let answer = match self.take(&buffer, arrived, fds)? {
                Outcome::Done(answer) => answer,
                Outcome::Refused => Answer { status: Status::Refused, ..Answer::default() },
                Outcome::Failed(error) => {
                    let errno = error.raw_os_error().unwrap_or(0).unsigned_abs();
                    Answer { status: Status::Failed, errno, ..Answer::default() }
                }
                Outcome::Broken(error) => return Err(error),
            };
            if self.is_stopping() {
                return Ok(());
            }
            let answer = self.with_gauges(answer);
            socket::send(&self.parts.socket, answer.as_bytes(), &[])?;
        }
    }

    /// Ends the connection: the daemon is to see the end although the session keeps a descriptor.
    pub(super) fn close(&self) {
        // Without another end there is nobody to see it.
        let _ = socket::shutdown(&self.parts.socket);
    }

    fn is_stopping(&self) -> bool {
        // A flag alone: nothing is published with it.
        self.parts.stopping.load(Ordering::Relaxed)
    }

    fn with_gauges(&mut self, answer: Answer) -> Answer {
        let (mappings, mappings_max) = self.parts.space.mappings();
        Answer {
            mappings,
            mappings_max,
            breaks: self.parts.space.breaks(),
            lane_cpu_ns: thread::cpu_time().as_nanos() as u64,
            handler_cpu_ns: self.parts.space.handler_cpu_ns(),
            transit_max_ns: self.worker.transit_max_ns(),
            ..answer
        }
    }

    /// Does what a request asks for, if as many descriptors came with it as it says.
    fn take(
        &mut self,
        bytes: &[u8; size_of::<Request>()],
        arrived: Arrived,
        fds: Vec<OwnedFd>,
    ) -> io::Result<Outcome> {
        let came = fds.len();
        let nonsense = || {
            let what = format!("a request of {} bytes and {came} descriptors", arrived.bytes);
            io::Error::new(io::ErrorKind::InvalidData, what)
        };
        if arrived.bytes != size_of::<Request>() {
            return Err(nonsense());
        }
        let Ok(request) = Request::try_read_from_bytes(bytes) else {
            return Ok(Outcome::Refused);
        };
        let named = request.segments as usize;
        if arrived.lost_descriptors && came < named && named <= SEGMENTS_MAX {
            // Not the daemon's fault: this process has no room for them.
            return Ok(Outcome::Failed(io::Error::from_raw_os_error(libc::EMFILE)));
        }
        if came == named && !arrived.lost_descriptors {
            return Ok(self.perform(&request, fds));
        }
        Err(nonsense())
    }

    fn perform(&mut self, request: &Request, fds: Vec<OwnedFd>) -> Outcome {
        let Some(task) = Task::of(request) else { return Outcome::Refused };
        let done = match task {
            Task::Scan(range, reach) => return self.scan(Sought::Written, reach, range),
            Task::Survey(range, reach) => return self.scan(Sought::Present, reach, range),
            Task::Lost => self.lost(),
            Task::Digest { pages } => self.digest(pages),
            Task::Fetch { pages } => return self.fetch(pages),
            Task::Merge { store, runs, segments } => {
                debug_assert_eq!(segments, fds.len(), "as many came as the request names");
                match self.read_runs(runs) {
                    Ok(true) => return self.merge(store, fds),
                    Ok(false) => return Outcome::Refused,
                    Err(error) => Err(error),
                }
            }
            Task::Unmerge(range) => return self.unmerge(range),
            Task::Report(range) => return self.report(range),
            Task::Mend(range) => Ok(array_of(self.worker.mend(range) as usize, None)),
            Task::Sample { blocks } => self.sample(blocks),
            Task::Split { blocks } => self.change_blocks(blocks, Worker::split),
            Task::Collapse { blocks } => self.change_blocks(blocks, Worker::collapse),
        };
        done.map_or_else(Outcome::Broken, Outcome::Done)
    }

    fn scan(&mut self, sought: Sought, reach: Reach, range: PageRange) -> Outcome {
        let spans = &mut self.arrays.spans;
        spans.clear();
        match self.worker.scan_for(sought, reach, range, spans, room_for::<PageSpan>()) {
            Ok(resume) => match write_array(&self.parts.window, 0, spans) {
                Ok(()) => Outcome::Done(array_of(spans.len(), resume)),
                Err(error) => Outcome::Broken(error),
            },
            Err(error) => Outcome::Failed(error),
        }
    }

    fn lost(&mut self) -> io::Result<Answer> {
        let lost = &mut self.arrays.lost;
        lost.clear();
        lost.reserve(room_for::<Lost>());
        let more = self.worker.lost(lost, room_for::<Lost>());
        write_array(&self.parts.window, 0, lost)?;
        Ok(Answer { more: more.into(), ..array_of(lost.len(), None) })
    }

    fn digest(&mut self, pages: usize) -> io::Result<Answer> {
        let Arrays { reader, pages: wanted, .. } = &mut self.arrays;
        reader.read(&self.parts.window, 0, pages, wanted).map_err(broken)?;
        let digests = &mut self.arrays.digests;
        digests.clear();
        self.worker.digest(&self.arrays.pages, &self.parts.key, digests);
        write_array(&self.parts.window, 0, digests)?;
        Ok(array_of(digests.len(), None))
    }

    fn sample(&mut self, blocks: usize) -> io::Result<Answer> {
        let Arrays { reader, pages: wanted, samples, .. } = &mut self.arrays;
        reader.read(&self.parts.window, 0, blocks, wanted).map_err(broken)?;
        samples.clear();
        self.worker.sample(wanted, samples);
        write_array(&self.parts.window, 0, samples)?;
        Ok(array_of(samples.len(), None))
    }

    /// Splits blocks, or makes them whole, as `change` does.
    fn change_blocks(
        &mut self,
        blocks: usize,
        change: impl FnOnce(&mut Worker, &[u32], &mut Vec<BlockOutcome>),
    ) -> io::Result<Answer> {
        let Arrays { reader, pages: wanted, block_outcomes: outcomes, .. } = &mut self.arrays;
        reader.read(&self.parts.window, 0, blocks, wanted).map_err(broken)?;
        outcomes.clear();
        change(&mut self.worker, wanted, outcomes);
        write_array(&self.parts.window, 0, outcomes)?;
        Ok(array_of(outcomes.len(), None))
    }

    fn fetch(&mut self, pages: usize) -> Outcome {
        assert!(pages <= FETCH_PAGES_MAX, "a request of {pages} pages was checked");
        let answer = HostAddress(self.mapped_window.as_ptr() as usize + ANSWER_OFFSET);
        let room = self.make_room(answer, 1 + pages as u32);
        match room.map(|()| self.copy(pages, answer.plus_pages(1))) {
            Ok(copied) => copied.map_or_else(Outcome::Broken, Outcome::Done),
            Err(error) => Outcome::Failed(error),
        }
    }

    /// Gives so many pages of the window memory, so that a lack of it is an error: a write that finds
    /// none is a fault in the VMM.
    fn make_room(&self, start: HostAddress, pages: u32) -> io::Result<()> {
        // Most have it already, from the last request, and asking for that is a hundredth of having
        // the kernel walk to every page.
        if self.worker.are_here(start, pages) {
            return Ok(());
        }
        // SAFETY: this part of the window is ours to write, and its bytes stay what they are.
        unsafe { mapping::advise(start, pages as usize * PAGE_BYTES, libc::MADV_POPULATE_WRITE) }
    }

    /// Copies pages into the window, from `to` on.
    fn copy(&mut self, pages: usize, to: HostAddress) -> io::Result<Answer> {
        let (window, Arrays { pages: wanted, flags, reader, .. }) =
            (&self.parts.window, &mut self.arrays);
        reader.read(window, 0, pages, wanted).map_err(broken)?;
        flags.clear();
        // SAFETY: the window is mapped for as many pages, and whoever else writes there spoils only
        // what is read from there.
        unsafe { self.worker.copy(wanted, to.0 as *mut u8, |found| flags.push(found.into())) };
        write_array(window, 0, flags)?;
        Ok(array_of(flags.len(), None))
    }

    /// Copies the runs out of the window. False if they make no sense.
    fn read_runs(&mut self, runs: usize) -> io::Result<bool> {
        let Arrays { reader, runs: asked, .. } = &mut self.arrays;
        match reader.read(&self.parts.window, 0, runs, asked) {
            Ok(()) => Ok(are_runs(asked)),
            Err(ArrayError::Nonsense) => Ok(false),
            Err(ArrayError::Io(error)) => Err(error),
        }
    }

    /// Merges the runs that were read, with segments that came along.
    fn merge(&mut self, store: StoreId, fds: Vec<OwnedFd>) -> Outcome {
        let Arrays { reader, segments: numbers, .. } = &mut self.arrays;
        if let Err(error) = reader.read(&self.parts.window, SEGMENTS_OFFSET, fds.len(), numbers) {
            return Outcome::Broken(broken(error));
        }
        let segments = match self.parts.space.pin(store, numbers.iter().copied().zip(fds)) {
            Ok(segments) => segments,
            Err(PinError::Nonsense) => return Outcome::Refused,
            Err(PinError::Map(error)) => return Outcome::Failed(error),
        };
        let are_here =
            |run: &Run| run.target == RunTarget::Zeros || segments.have(Slot(run.slot), run.count);
        if !self.arrays.runs.iter().all(are_here) {
            return Outcome::Refused;
        }
        self.merge_with(&segments).map_or_else(Outcome::Broken, Outcome::Done)
    }

    fn merge_with(&mut self, segments: &Segments) -> io::Result<Answer> {
        let outcomes = &mut self.arrays.outcomes;
        outcomes.clear();
        for runs in self.arrays.runs.chunks(MERGE_RUNS) {
            if self.parts.stopping.load(Ordering::Relaxed) {
                // Nobody reads the answer any more, but it has its length.
                let pages: u32 = runs.iter().map(|run| run.count).sum();
                outcomes.resize(outcomes.len() + pages as usize, PageOutcome::Busy);
            } else {
                self.worker.merge(segments, runs, outcomes);
            }
        }
        write_array(&self.parts.window, 0, outcomes)?;
        Ok(array_of(outcomes.len(), None))
    }

    fn unmerge(&mut self, range: PageRange) -> Outcome {
        let unmerged = self.worker.unmerge(range, UNMERGE_PAGES);
        if unmerged.stuck > 0 && unmerged.pages == 0 {
            return Outcome::Failed(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        Outcome::Done(array_of(unmerged.pages as usize, unmerged.resume_at))
    }

    fn report(&mut self, range: PageRange) -> Outcome {
        let merged = &mut self.arrays.merged;
        merged.clear();
        let resume = self.worker.report(range, merged, room_for::<MergedSpan>());
        match write_array(&self.parts.window, 0, merged) {
            Ok(()) => Outcome::Done(array_of(merged.len(), resume)),
            Err(error) => Outcome::Broken(error),
        }
    }
}

/// The window as memory to write pages to: nobody can make it shorter.
fn map_window(window: &File) -> io::Result<Mapping> {
    if !memfd::is_fixed(window, WINDOW_BYTES as u64) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a window that can become shorter"));
    }
    let mapping = Mapping::shared(window.as_fd(), WINDOW_BYTES, true)?;
    mapping.keep_from_children()?;
    Ok(mapping)
}

fn array_of(elements: usize, resume: Option<PageIndex>) -> Answer {
    Answer {
        status: Status::Done,
        count: elements as u32,
        more: resume.is_some().into(),
        resume_at: resume.map_or(0, |page| page.0),
        ..Answer::default()
    }
}

/// The error of an array of plain numbers, in which no code can be unknown.
fn broken(error: ArrayError) -> io::Error {
    match error {
        ArrayError::Nonsense => io::ErrorKind::InvalidData.into(),
        ArrayError::Io(error) => error,
    }
}

/// Copies (part of) an answer's array into the window.
fn write_array<T>(window: &File, offset: usize, elements: &[T]) -> io::Result<()>
where
    T: IntoBytes + Immutable,
{
    window.write_all_at(elements.as_bytes(), (ANSWER_OFFSET + offset) as u64)
}
