//! A lane over a socket and a window: the daemon's end.
//!
//! The window is read and written by system calls, not by a mapping: one copy into memory that is
//! ours alone, which has to be made anyway before anything in it may be looked at, and no
//! reference to bytes that another process can change. A call costs 0.2 µs, a request thousands of
//! pages. The guest maps it, to copy pages there.

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use bindery_sys::memfd;
use bindery_sys::socket::{receive, refuse_descriptors, send_now, seqpacket_pair, wait_readable};
use bindery_sys::thread::monotonic_time;
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};
use bindery_wire::array::{ArrayError, ArrayReader};
use bindery_wire::control::StoreId;
use bindery_wire::lane::{
    ANSWER_OFFSET, Answer, BLOCKS_MAX, BlockOutcome, BlockSample, DIGEST_PAGES_MAX,
    FETCH_PAGES_MAX, Lost, MERGE_PAGES_MAX, MERGE_RUNS_MAX, MergedSpan, Op, PageDigest,
    PageOutcome, PageSpan, Reach, Request, Run, SEGMENTS_MAX, SEGMENTS_OFFSET, Status,
    WINDOW_BYTES,
};
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

use crate::accept::stalled;
use crate::{ANSWER_PATIENCE, Fetched, Gauges, GuestError, Lane, Resume, Segment, Unmerged, check};

/// The most bytes that an answer's array can have.
const ANSWER_BYTES_MAX: usize = WINDOW_BYTES - ANSWER_OFFSET;

/// A window keeps its memory while a lane rests if no array in it was longer, as in quiet periods.
const QUIET_BYTES: usize = 4 * PAGE_BYTES;

/// Threads of a guest's process that serve its faults.
const HANDLERS: u64 = 2;

/// The daemon's end of a lane.
#[derive(Debug)]
pub struct SocketLane {
    socket: OwnedFd,
    window: File,
    /// The longest array in the window since the last rest.
    array_bytes: usize,
    arrays: ArrayReader,
    patience: Duration,
    owes: bool,
    gauges: Gauges,
    /// The lane's CPU clock at its last answer, in nanoseconds.
    cpu_seen_ns: u64,
    /// When it was asked last.
    asked: Instant,
}

/// The guest's end of a lane: what goes with `OpenLane`.
#[derive(Debug)]
pub struct LaneEnds {
    /// Its socket.
    pub socket: OwnedFd,
    /// Its window.
    pub window: File,
}

impl SocketLane {
    /// Makes a lane; whoever gets the other end serves it.
    ///
    /// # Errors
    /// The kernel's, when descriptors or memory are short.
    pub fn open() -> io::Result<(Self, LaneEnds)> {
        let (socket, theirs) = seqpacket_pair()?;
        // Workers close what comes over it.
        refuse_descriptors(&socket)?;
        let window = memfd::create("bindery-lane", WINDOW_BYTES as u64)?;
        let ends = LaneEnds { socket: theirs, window: window.try_clone()? };
        let (patience, gauges) = (ANSWER_PATIENCE, Gauges::default());
        let (owes, array_bytes, arrays) = (false, 0, ArrayReader::default());
        let (cpu_seen_ns, asked) = (0, Instant::now());
        let lane = Self {
            socket,
            window,
            array_bytes,
            arrays,
            patience,
            owes,
            gauges,
            cpu_seen_ns,
            asked,
        };
        Ok((lane, ends))
    }

    /// The lane with another patience than [`ANSWER_PATIENCE`].
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    fn ask(
        &mut self,
        name: &'static str,
        request: Request,
        array: &[u8],
    ) -> Result<Answer, GuestError> {
        self.ask_with(name, request, array, &[])
    }

    /// Asks with descriptors.
    fn ask_with(
        &mut self,
        name: &'static str,
        request: Request,
        array: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Answer, GuestError> {
        // Never settled here: whoever was stalled has to hear of it before the answer is forgotten.
        if self.owes {
            return Err(stalled(name, Duration::ZERO));
        }
        self.put_array(array, 0)?;
        self.asked = Instant::now();
        send_now(&self.socket, request.as_bytes(), fds)
            .map_err(|error| GuestError::of_socket("writing to a lane", error))?;
        self.owes = true;
        let doing = "waiting for a lane";
        let comes = wait_readable(&self.socket, self.patience);
        if !comes.map_err(|error| GuestError::Daemon { doing, error })? {
            return Err(stalled(name, self.patience));
        }
        let answer = self.take_answer()?;
        match answer.status {
            Status::Done => Ok(answer),
            Status::Refused => Err(GuestError::Refused { request: name }),
            Status::Failed => {
                let error = io::Error::from_raw_os_error(answer.errno.cast_signed());
                Err(GuestError::Failed { request: name, error })
            }
        }
    }

    /// Writes an array of a request.
    fn put_array(&mut self, array: &[u8], offset: usize) -> Result<(), GuestError> {
        let end = offset + array.len();
        assert!(end <= ANSWER_OFFSET, "a request's arrays end before the answer's");
        if array.is_empty() {
            return Ok(());
        }
        self.array_bytes = self.array_bytes.max(end);
        self.window
            .write_all_at(array, offset as u64)
            .map_err(|error| GuestError::Daemon { doing: "writing to a window", error })
    }

    fn take_answer(&mut self) -> Result<Answer, GuestError> {
        let mut buffer = [0; size_of::<Answer>()];
        let mut fds = Vec::new();
        let bytes = receive(&self.socket, &mut buffer, &mut fds)
            .map_err(|error| GuestError::of_socket("reading from a lane", error))?;
        if bytes == 0 {
            return Err(GuestError::Gone);
        }
        if bytes != size_of::<Answer>() || !fds.is_empty() {
            return Err(GuestError::nonsense(format!("an answer of {bytes} bytes")));
        }
        let answer = Answer::try_read_from_bytes(&buffer)
            .map_err(|_| GuestError::nonsense("an answer of no known status"))?;
        self.owes = false;
        self.take_gauges(&answer);
        Ok(answer)
    }

    /// Takes in what an answer says of the guest's process. CPU clocks are its own, and what merging
    /// costs is paid for by all: more than can have passed is not believed.
    fn take_gauges(&mut self, answer: &Answer) {
        let gauges = &mut self.gauges;
        gauges.mappings = answer.mappings;
        gauges.mappings_max = answer.mappings_max;
        gauges.transit_max_ns = gauges.transit_max_ns.max(answer.transit_max_ns);
        let handlers_max = nanoseconds(monotonic_time()).saturating_mul(HANDLERS);
        gauges.handler_cpu_ns = answer.handler_cpu_ns.min(handlers_max);
        // One thread that works while it is asked. An answer that comes too late is paid for as far as
        // it was waited for: a guest can be stopped for years.
        let lane_max = nanoseconds(self.asked.elapsed().min(self.patience));
        // A clock that runs backwards is the guest's own affair.
        gauges.lane_cpu_ns += answer.lane_cpu_ns.saturating_sub(self.cpu_seen_ns).min(lane_max);
        self.cpu_seen_ns = answer.lane_cpu_ns;
    }

    /// Asks about a range what is answered with spans.
    fn ask_spans(
        &mut self,
        name: &'static str,
        request: Request,
        spans: &mut Vec<PageSpan>,
    ) -> Result<Resume, GuestError> {
        let range = PageRange::new(PageIndex(request.first), request.count);
        let answer = self.ask(name, request, &[])?;
        self.take_array(check::count(&answer, room_for::<PageSpan>())?, spans)?;
        let resume = check::resume(&answer, range)?;
        check::spans(spans, range, resume)?;
        Ok(resume)
    }

    /// Copies the answer's array, of `count` elements, and checks its codes.
    fn take_array<T>(&mut self, count: usize, into: &mut Vec<T>) -> Result<(), GuestError>
    where
        T: TryFromBytes + KnownLayout + Immutable + Copy,
    {
        self.array_bytes = self.array_bytes.max(count * size_of::<T>());
        let read = self.arrays.read(&self.window, ANSWER_OFFSET, count, into);
        read.map_err(|error| match error {
            ArrayError::Nonsense => GuestError::nonsense(error.to_string()),
            ArrayError::Io(error) => GuestError::Daemon { doing: "reading a window", error },
        })
    }

    /// Copies elements that may be any bytes, which begin `offset` bytes into the answer's array.
    fn take_bytes(&mut self, offset: usize, bytes: &mut [u8]) -> Result<(), GuestError> {
        self.array_bytes = self.array_bytes.max(offset + bytes.len());
        let read = self.window.read_exact_at(bytes, (ANSWER_OFFSET + offset) as u64);
        read.map_err(|error| GuestError::Daemon { doing: "reading a window", error })
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// How many elements of `T` an answer's array can have.
const fn room_for<T>() -> usize {
    ANSWER_BYTES_MAX / size_of::<T>()
}

fn about(op: Op, range: PageRange) -> Request {
    Request { first: range.first.0, count: range.count, ..Request::of(op) }
}

fn of_pages(op: Op, pages: &[u32]) -> Request {
    Request { count: pages.len() as u32, ..Request::of(op) }
}

impl Lane for SocketLane {
    fn scan(
        &mut self,
        reach: Reach,
        range: PageRange,
        written: &mut Vec<PageSpan>,
    ) -> Result<Resume, GuestError> {
        self.ask_spans("a scan", Request { reach, ..about(Op::Scan, range) }, written)
    }

    fn survey(
        &mut self,
        reach: Reach,
        range: PageRange,
        present: &mut Vec<PageSpan>,
    ) -> Result<Resume, GuestError> {
        self.ask_spans("a survey", Request { reach, ..about(Op::Survey, range) }, present)
    }

    fn lost(&mut self, lost: &mut Vec<Lost>) -> Result<bool, GuestError> {
        let request = Request::of(Op::Lost);
        let answer = self.ask("which pages it lost", request, &[])?;
        self.take_array(check::count(&answer, room_for::<Lost>())?, lost)?;
        Ok(answer.more != 0)
    }

    fn digest(&mut self, pages: &[u32], digests: &mut Vec<PageDigest>) -> Result<(), GuestError> {
        assert!(pages.len() <= DIGEST_PAGES_MAX, "a digest request of {} pages", pages.len());
        let answer = self.ask("digests", of_pages(Op::Digest, pages), pages.as_bytes())?;
        self.take_array(check::exact_count(&answer, pages.len())?, digests)
    }

    fn fetch(&mut self, pages: &[u32], fetched: &mut Fetched) -> Result<(), GuestError> {
        assert!(pages.len() <= FETCH_PAGES_MAX, "a fetch request of {} pages", pages.len());
        let answer = self.ask("pages", of_pages(Op::Fetch, pages), pages.as_bytes())?;
        let count = check::exact_count(&answer, pages.len())?;
        fetched.reset(count);
        self.take_bytes(0, &mut fetched.given)?;
        self.take_bytes(PAGE_BYTES, fetched.pages.as_mut_slice().as_mut_bytes())
    }

    fn merge(
        &mut self,
        store: StoreId,
        segments: &[Segment<'_>],
        runs: &[Run],
        outcomes: &mut Vec<PageOutcome>,
    ) -> Result<(), GuestError> {
        let pages = check::pages_of(runs);
        let fits = runs.len() <= MERGE_RUNS_MAX && pages <= MERGE_PAGES_MAX;
        assert!(fits, "a merge request of {} runs, {pages} pages", runs.len());
        assert!(segments.len() <= SEGMENTS_MAX, "{} segments in a request", segments.len());
        let (numbers, fds): (Vec<u32>, Vec<BorrowedFd<'_>>) = segments.iter().copied().unzip();
        let (store, count) = (u32::from(store.0), runs.len() as u32);
        let segments = fds.len() as u32;
        let request = Request { store, count, segments, ..Request::of(Op::Merge) };
        self.put_array(numbers.as_bytes(), SEGMENTS_OFFSET)?;
        let answer = self.ask_with("to merge", request, runs.as_bytes(), &fds)?;
        self.take_array(check::exact_count(&answer, pages)?, outcomes)
    }

    fn unmerge(&mut self, range: PageRange) -> Result<Unmerged, GuestError> {
        let answer = self.ask("to unmerge", about(Op::Unmerge, range), &[])?;
        let pages = check::count(&answer, range.count as usize)? as u32;
        Ok(Unmerged { pages, resume: check::resume(&answer, range)? })
    }

    fn report(
        &mut self,
        range: PageRange,
        merged: &mut Vec<MergedSpan>,
    ) -> Result<Resume, GuestError> {
        let answer = self.ask("what is merged", about(Op::Report, range), &[])?;
        self.take_array(check::count(&answer, room_for::<MergedSpan>())?, merged)?;
        let resume = check::resume(&answer, range)?;
        check::merged_spans(merged, range, resume)?;
        Ok(resume)
    }

    fn mend(&mut self, range: PageRange) -> Result<u32, GuestError> {
        Ok(self.ask("to mend", about(Op::Mend, range), &[])?.count)
    }

    fn sample(&mut self, blocks: &[u32], samples: &mut Vec<BlockSample>) -> Result<(), GuestError> {
        assert!(blocks.len() <= BLOCKS_MAX, "the caller divides what is more");
        let answer = self.ask("samples", of_pages(Op::Sample, blocks), blocks.as_bytes())?;
        self.take_array(check::exact_count(&answer, blocks.len())?, samples)
    }

    fn split(
        &mut self,
        blocks: &[u32],
        outcomes: &mut Vec<BlockOutcome>,
    ) -> Result<(), GuestError> {
        assert!(blocks.len() <= BLOCKS_MAX, "the caller divides what is more");
        let answer = self.ask("to split blocks", of_pages(Op::Split, blocks), blocks.as_bytes())?;
        self.take_array(check::exact_count(&answer, blocks.len())?, outcomes)
    }

    fn collapse(
        &mut self,
        blocks: &[u32],
        outcomes: &mut Vec<BlockOutcome>,
    ) -> Result<(), GuestError> {
        assert!(blocks.len() <= BLOCKS_MAX, "the caller divides what is more");
        let request = of_pages(Op::Collapse, blocks);
        let answer = self.ask("to collapse blocks", request, blocks.as_bytes())?;
        self.take_array(check::part_count(&answer, blocks.len())?, outcomes)
    }

    fn gauges(&mut self) -> Gauges {
        let taken = self.gauges;
        self.gauges.mappings_max = 0;
        self.gauges.lane_cpu_ns = 0;
        self.gauges.transit_max_ns = 0;
        taken
    }

    fn rest(&mut self) {
        if self.array_bytes > QUIET_BYTES {
            // If it fails, the memory is kept for the next answer.
            let _ = memfd::punch(&self.window, 0, WINDOW_BYTES as u64);
            self.array_bytes = 0;
        }
    }

    fn owes(&self) -> bool {
        self.owes
    }

    fn settle(&mut self) -> Result<bool, GuestError> {
        if self.owes {
            let doing = "looking at a lane";
            let came = wait_readable(&self.socket, Duration::ZERO);
            if came.map_err(|error| GuestError::Daemon { doing, error })? {
                self.take_answer()?;
                // How long its array is, nobody asks any more.
                self.array_bytes = ANSWER_BYTES_MAX;
            }
        }
        Ok(!self.owes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_that_rests_gives_back_what_a_large_answer_took() {
        let (mut lane, ends) = SocketLane::open().unwrap();
        let taken = || memfd::allocated_bytes(&ends.window).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut request = [0; size_of::<Request>()];
                receive(&ends.socket, &mut request, &mut Vec::new()).unwrap();
                let pages = vec![1; (1 + FETCH_PAGES_MAX) * PAGE_BYTES];
                ends.window.write_all_at(&pages, ANSWER_OFFSET as u64).unwrap();
                let answer = Answer { status: Status::Done, count: 200, ..Answer::default() };
                send_now(&ends.socket, answer.as_bytes(), &[]).unwrap();
            });
            let mut fetched = Fetched::default();
            lane.fetch(&[7; 200], &mut fetched).unwrap();
            assert_eq!(fetched.page(199), Some(&[1; PAGE_BYTES]));
        });
        assert!(taken() >= (200 * PAGE_BYTES) as u64);
        lane.rest();
        assert_eq!(taken(), 0);
    }
}
