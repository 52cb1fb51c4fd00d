//! A whole transfer: rounds while the guest runs, and the last pause.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bindery_units::PAGE_BYTES;
use bindery_vmm::{DeviceState, Overlay, PauseTimes, Paused, Purpose, Vmm, VmmError};

use crate::Memory;
use crate::chunk::{Chunk, cut};
use crate::memory::{BlockPages, Changed, MemoryError, PauseKind, Sink, SinkError, count};
use crate::outcome::{Ending, Epoch, Limits, Outcome, Progress, Round, TransferError};
use crate::pace::Pace;
use crate::stream::{Broken, stream};

/// Pages that the last pause has room for beyond what was estimated.
const SPARE_PAGES: u64 = 512;

/// Transfer that is wanted.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Overlays that the guest's disks get in the last pause.
    pub overlays: &'a [Overlay],
    /// Purpose. A guest that is handed over stays paused.
    pub purpose: Purpose,
    /// Bounds.
    pub limits: Limits,
    /// Set by somebody who wants no more of it. Looked at while the guest runs.
    pub is_cancelled: &'a AtomicBool,
    /// Told of progress, several times a second.
    pub progress: &'a dyn Fn(Progress),
}

impl std::fmt::Debug for Request<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = formatter.debug_struct("Request");
        shown.field("overlays", &self.overlays).field("purpose", &self.purpose);
        shown.field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// Captures a guest: hands all pages that changed since the last epoch to `sink`, and returns the state of its
/// devices as of the same instant. Blocks until all was handed on.
///
/// Afterwards the guest runs on, or stands if it is handed over or stood before. In the sink is what its memory
/// held in the last pause, given what the sink had of earlier epochs.
///
/// # Errors
/// [`TransferError`], which says how the guest is. What was put is worth nothing; pages are put back.
pub fn run<'m>(
    vmm: &mut dyn Vmm,
    memory: &'m mut dyn Memory,
    sink: &mut dyn Sink,
    request: &Request<'_>,
) -> Result<Outcome<'m>, TransferError> {
    let description = vmm.describe()?;
    if !description.obstacles.is_empty() {
        return Err(VmmError::Obstructed(description.obstacles).into());
    }
    let (pace, epoch) = (Pace::new(request.limits), Epoch::begin(memory));
    let mut transfer = Transfer { vmm, memory: &mut *epoch.memory, sink, request, pace };
    let (mut rounds, mut is_refined) = (Vec::new(), false);
    let (ending, left) = loop {
        transfer.check_cancelled()?;
        let left = transfer.memory.estimate()?;
        // Of a guest that stands nothing changes from round to round.
        let ending =
            if description.is_running { transfer.pace.ends(left) } else { Some(Ending::Fits) };
        match ending {
            Some(ending) if ending != Ending::Fits && !is_refined => {
                is_refined = true;
                if transfer.memory.refine(transfer.pace.fits())? == 0 {
                    break (ending, left);
                }
                transfer.pace.begin_anew();
            }
            Some(ending) => break (ending, left),
            None => rounds.push(transfer.round(rounds.len() as u32)?),
        }
    };
    let too_long = transfer.pace.too_long(left).filter(|_| ending != Ending::Fits);
    if let Some(expected) = too_long {
        return Err(TransferError::TooLong { expected, pages: left });
    }
    let last = transfer.last(rounds.len() as u32, left)?;
    let bytes_per_second = transfer.pace.measured();
    Ok(Outcome {
        description,
        device_state: last.device_state,
        rounds,
        last: last.round,
        ending,
        taking: last.taking,
        reading: last.reading,
        handed_on_in_pause: last.handed_on_in_pause,
        bytes_per_second,
        epoch,
    })
}

struct Transfer<'t> {
    vmm: &'t mut dyn Vmm,
    memory: &'t mut dyn Memory,
    sink: &'t mut dyn Sink,
    request: &'t Request<'t>,
    pace: Pace,
}

/// Failure of a pause in which more would have to be read than was expected.
fn unexpected(expected: Duration, pages: u64) -> VmmError {
    let (ms, mib) = (expected.as_millis(), pages >> 8);
    let doing = "reading memory in the pause".to_owned();
    VmmError::Callback { doing, reason: format!("{mib} MiB would take about {ms} ms; try again") }
}

/// Results of a last pause.
struct Last {
    round: Round,
    device_state: DeviceState,
    taking: Duration,
    reading: Duration,
    handed_on_in_pause: u64,
}

impl Transfer<'_> {
    fn check_cancelled(&self) -> Result<(), TransferError> {
        if is_set(self.request.is_cancelled) { Err(TransferError::Cancelled) } else { Ok(()) }
    }

    /// Takes what changed in a short pause, then reads it.
    fn round(&mut self, number: u32) -> Result<Round, TransferError> {
        self.memory.before_pause()?;
        let paused = Paused::begin(self.vmm, &[])?;
        let changed = match self.memory.take(PauseKind::Round) {
            Ok(changed) => changed,
            Err(error) => return Err(paused.abandon(in_pause(&error)).into()),
        };
        let pause = paused.resume()?;
        self.memory.after_pause();
        let start = Instant::now();
        self.put_zeros(&changed).map_err(|error| TransferError::Sink(error, Vec::new()))?;
        self.stream(number, &changed.pages).map_err(|broken| while_running(broken, &[]))?;
        self.sink.end_round().map_err(|error| TransferError::Sink(error, Vec::new()))?;
        Ok(round_of(&changed, pause, start.elapsed()))
    }

    /// Takes the last pause, of which about `left` pages are expected.
    fn last(&mut self, number: u32, left: u64) -> Result<Last, TransferError> {
        let Request { overlays, purpose, .. } = *self.request;
        let mut buffer = Chunk::with_room(self.buffer_pages(left));
        self.memory.before_pause()?;
        let mut paused = Paused::begin(self.vmm, overlays)?;
        let device_state = paused.save(purpose)?;
        let start = Instant::now();
        let changed = match self.memory.take(PauseKind::Last) {
            Ok(changed) => changed,
            Err(error) => return Err(paused.abandon(in_pause(&error)).into()),
        };
        let taking = start.elapsed();
        // More than was estimated: a burst of writes, or a guest that somebody has let run just before.
        let pages = count(&changed.pages);
        let too_long = self.pace.too_long(pages).filter(|_| paused.has_stopped());
        if let (Some(expected), Purpose::Checkpoint) = (too_long, purpose) {
            return Err(paused.abandon(unexpected(expected, pages)).into());
        }
        let mut rest = Rest {
            memory: self.memory,
            sink: self.sink,
            request: self.request,
            pace: &mut self.pace,
            number,
        };
        let handed_on_in_pause = match rest.read(&changed, &mut buffer) {
            Ok(pages) => pages,
            Err(error) => return Err(paused.abandon(error).into()),
        };
        let reading = start.elapsed() - taking;
        let pause = match purpose {
            Purpose::Checkpoint => paused.resume()?,
            Purpose::HandOver => paused.leave_paused()?,
        };
        self.memory.after_pause();
        let copying = Instant::now();
        if purpose == Purpose::Checkpoint {
            let handed_on = self.put_zeros(&changed).and_then(|()| buffer.hand_on(self.sink));
            handed_on.map_err(|error| TransferError::Sink(error, paths(overlays)))?;
        }
        let round = round_of(&changed, pause, copying.elapsed());
        self.report(number, round.pages, 0, copying);
        Ok(Last { round, device_state, taking, reading, handed_on_in_pause })
    }

    /// Returns the pages that the last pause is to have a buffer for. A guest that is handed over waits for the
    /// sink anyway.
    fn buffer_pages(&self, left: u64) -> usize {
        let most = (self.request.limits.buffer_bytes_max / PAGE_BYTES) as u64;
        match self.request.purpose {
            Purpose::Checkpoint => (left + left / 4 + SPARE_PAGES).min(most) as usize,
            Purpose::HandOver => 0,
        }
    }

    fn put_zeros(&mut self, changed: &Changed) -> Result<(), SinkError> {
        changed.zeros.iter().try_for_each(|run| self.sink.zeros(run.block, run.pages))
    }

    fn stream(&mut self, number: u32, runs: &[BlockPages]) -> Result<(), Broken> {
        let (all, start, request) = (count(runs), Instant::now(), self.request);
        stream(self.memory, self.sink, runs, &mut self.pace, &|done| {
            report(request, number, done, all - done, start);
            !is_set(request.is_cancelled)
        })
    }

    fn report(&self, round: u32, done: u64, left: u64, start: Instant) {
        report(self.request, round, done, left, start);
    }
}

/// Pages of the last pause, which are to be read while it lasts.
struct Rest<'r> {
    memory: &'r mut dyn Memory,
    sink: &'r mut dyn Sink,
    request: &'r Request<'r>,
    pace: &'r mut Pace,
    number: u32,
}

impl Rest<'_> {
    /// Reads all pages: as many as there is room for into `buffer`, which is handed on later, the others through
    /// to the sink. Returns the number of the latter.
    fn read(&mut self, changed: &Changed, buffer: &mut Chunk) -> Result<u64, VmmError> {
        let (kept, through) = split(&changed.pages, buffer.room() as u64);
        let stays_paused = self.request.purpose == Purpose::HandOver;
        if stays_paused {
            let put = |run: &BlockPages| self.sink.zeros(run.block, run.pages);
            changed.zeros.iter().try_for_each(put).map_err(|error| sink_in_pause(&error))?;
        }
        let (all, start, request, number) =
            (count(&through), Instant::now(), self.request, self.number);
        let goes_on = |done| {
            report(request, number, done, all - done, start);
            !(stays_paused && is_set(request.is_cancelled))
        };
        if all > 0 {
            stream(self.memory, self.sink, &through, self.pace, &goes_on).map_err(|broken| {
                match broken {
                    Broken::Memory(error) => in_pause(&error),
                    Broken::Sink(error) => sink_in_pause(&error),
                    Broken::Cancelled => callback("capturing the guest", "cancelled".to_owned()),
                }
            })?;
        }
        buffer.load(kept, self.memory, self.pace).map_err(|error| in_pause(&error))?;
        Ok(all)
    }
}

/// Splits runs before the page that does not fit.
fn split(runs: &[BlockPages], room: u64) -> (Vec<BlockPages>, Vec<BlockPages>) {
    if count(runs) <= room {
        return (runs.to_vec(), Vec::new());
    }
    if room == 0 {
        return (Vec::new(), runs.to_vec());
    }
    let mut lists = cut(runs, room.min(u32::MAX.into()) as u32);
    (lists.next().unwrap_or_default(), lists.flatten().collect())
}

fn report(request: &Request<'_>, round: u32, done: u64, left: u64, start: Instant) {
    let seconds = start.elapsed().as_secs_f64();
    let speed = if done > 0 && seconds > 0.0 { (done << 12) as f64 / seconds } else { 0.0 };
    let bytes_per_second = speed as u64;
    (request.progress)(Progress { round, pages_done: done, pages_left: left, bytes_per_second });
}

fn is_set(flag: &AtomicBool) -> bool {
    // Relaxed: a flag that carries nothing.
    flag.load(Ordering::Relaxed)
}

fn round_of(changed: &Changed, pause: PauseTimes, copying: Duration) -> Round {
    Round { pages: count(&changed.pages), zeros: count(&changed.zeros), pause, copying }
}

fn while_running(broken: Broken, overlays: &[Overlay]) -> TransferError {
    match broken {
        Broken::Memory(error) => TransferError::Memory(error),
        Broken::Sink(error) => TransferError::Sink(error, paths(overlays)),
        Broken::Cancelled => TransferError::Cancelled,
    }
}

fn paths(overlays: &[Overlay]) -> Vec<PathBuf> {
    overlays.iter().map(|overlay| overlay.path.clone()).collect()
}

fn in_pause(error: &MemoryError) -> VmmError {
    callback("reading guest memory", error.to_string())
}

fn sink_in_pause(error: &SinkError) -> VmmError {
    callback("handing guest memory on", error.to_string())
}

fn callback(doing: &str, reason: String) -> VmmError {
    VmmError::Callback { doing: doing.to_owned(), reason }
}
