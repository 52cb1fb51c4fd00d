//! Serving a source: faults first, all other pages meanwhile.
//!
//! The caller's thread reads what the guest says and answers its faults; a second pushes pages ahead. Each page is
//! taken from the [wanted](super::wanted) ones by one of them, and sent once.

use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bindery_sys::socket::{send_now, shutdown, wait_writable};
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};
use bindery_wire::control::PAGES_MAX;
use bindery_wire::source::{FromSource, GuestWord, SLOT_BYTES, SLOT_PAGES, SLOTS, SourceWord};
use zerocopy::IntoBytes;

use super::link::read_frame;
use super::push::push;
use super::wanted::Wanted;
use super::{Image, ImageError, Served, SourceLink};
use crate::GuestError;

/// Slots that are kept for answers to faults.
pub(super) const FAULT_SLOTS: usize = 4;

/// Faults that wait for an answer at most: a guest asks once for each page that a thread of it waits for.
const FAULTS_MAX: usize = 1 << 16;

/// Interval at which a thread that waits for a guest looks if it is to stop.
const GLANCE: Duration = Duration::from_millis(100);

/// Options for serving a source.
#[derive(Clone, Copy, Debug)]
pub struct ServeOptions {
    /// Pages sent for one fault: those of the aligned run of so many that the page is in, as far as they are in the
    /// same bound range. 1 to [`SLOT_PAGES`].
    pub fault_pages: u32,
    /// Bytes pushed ahead in a second, zero pages not counted. `None` for as many as the guest takes.
    pub ahead_bytes_per_s: Option<u64>,
    /// True if only what `ahead` names is pushed, and the rest sent when it is touched.
    pub is_lazy: bool,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self { fault_pages: 16, ahead_bytes_per_s: None, is_lazy: false }
    }
}

/// Why a source was not served to its end. The guest waits for another.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The guest has gone, or speaks nonsense.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// The image cannot be read.
    #[error("{pages} of a guest's memory: {error}")]
    Image {
        /// Pages that were to be read.
        pages: PageRange,
        /// Why they could not be.
        #[source]
        error: ImageError,
    },
}

/// State that the two threads share.
pub(super) struct Serving<'a> {
    link: &'a SourceLink,
    pub(super) image: &'a dyn Image,
    pub(super) options: ServeOptions,
    /// Number of pages that are to be sent.
    pages: u64,
    state: Mutex<State>,
    /// Notified when a slot is free, and at the end.
    changed: Condvar,
}

pub(super) struct State {
    pub(super) wanted: Wanted,
    free_slots: Vec<u32>,
    pub(super) served: Served,
    pub(super) is_over: bool,
}

/// Ends the connection when it is dropped.
struct HangUp<'a>(&'a SourceLink);

impl Drop for HangUp<'_> {
    fn drop(&mut self) {
        let _ = shutdown(&*self.0.socket);
    }
}

impl SourceLink {
    /// Answers the guest's faults, and sends what `ahead` names and then all the rest, ascending, until nothing is
    /// missing. Blocks as long as that takes. A guest that is stopped is waited for.
    ///
    /// # Errors
    /// [`SourceError`]: pages are missing still.
    ///
    /// # Panics
    /// If the options are not within their bounds.
    pub fn serve(
        self,
        image: &dyn Image,
        ahead: impl Iterator<Item = PageRange> + Send,
        options: ServeOptions,
    ) -> Result<Served, SourceError> {
        self.serve_in_turn(image, ahead, &|| true, options)
    }

    /// Serves as [`serve`](Self::serve) does, but sends the rest only while `may_push` returns true. It is called for
    /// every few pages, and some times a second while it returns false.
    ///
    /// # Errors
    /// As [`serve`](Self::serve).
    ///
    /// # Panics
    /// As [`serve`](Self::serve).
    pub fn serve_in_turn(
        mut self,
        image: &dyn Image,
        ahead: impl Iterator<Item = PageRange> + Send,
        may_push: &(dyn Fn() -> bool + Sync),
        options: ServeOptions,
    ) -> Result<Served, SourceError> {
        assert!((1..=SLOT_PAGES).contains(&options.fault_pages), "one slot answers a fault");
        let wanted = std::mem::take(&mut self.wanted);
        let (free_slots, served) = ((0..SLOTS).collect(), Served::default());
        let state = Mutex::new(State { wanted, free_slots, served, is_over: false });
        let (pages, changed) = (self.unsent.load(Ordering::Relaxed), Condvar::new());
        let serving = Serving { link: &self, image, options, pages, state, changed };
        let (answered, pushed) = thread::scope(|scope| {
            let pusher = scope.spawn(|| {
                // The other thread waits for the guest, also if an image panics.
                let hang_up = HangUp(&self);
                push(&serving, ahead, may_push)?;
                std::mem::forget(hang_up);
                Ok(())
            });
            let ends = Ends(&serving);
            let answered = Answerer::new(&serving).answer();
            drop(ends);
            let pushed = pusher.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (answered, pushed)
        });
        // An image that cannot be read is why the connection ended.
        match (answered, pushed) {
            (Err(_), Err(error @ SourceError::Image { .. })) => return Err(error),
            (answered, _) => answered?,
        }
        let state = serving.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(state.served)
    }
}

/// Ends the serving, also where it panics: the other thread is waited for.
struct Ends<'a>(&'a Serving<'a>);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.state().is_over = true;
        self.0.changed.notify_all();
    }
}

impl Serving<'_> {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the first run of pages in a range that were not sent. They are to be sent by the caller.
    pub(super) fn take(&self, range: PageRange) -> Option<PageRange> {
        let taken = self.state().wanted.take_first(range)?;
        self.link.unsent.fetch_sub(u64::from(taken.count), Ordering::Relaxed);
        Some(taken)
    }

    /// Takes a page that somebody waits for and those around it, unless it was taken.
    fn take_around(&self, page: PageIndex) -> Option<PageRange> {
        let around = self.options.fault_pages;
        let in_image = page.0 < PAGES_MAX;
        let block =
            in_image.then(|| PageRange::new(PageIndex(page.0 - page.0 % around), around))?;
        // No further than what is wanted in one piece.
        let run = self.state().wanted.run_at(page)?.intersection(block);
        self.take(run)
    }

    /// Returns true if every page was sent, and every slot given back.
    fn is_all_taken(&self) -> bool {
        let state = self.state();
        let Served { content_pages, zero_pages, damaged, .. } = &state.served;
        let damaged: u64 = damaged.iter().map(|run| u64::from(run.count)).sum();
        content_pages + zero_pages + damaged == self.pages
            && state.free_slots.len() == SLOTS as usize
    }

    /// Takes a slot while more than some are free.
    fn try_slot(&self, kept: usize) -> Option<u32> {
        let mut state = self.state();
        (state.free_slots.len() > kept).then(|| state.free_slots.pop()).flatten()
    }

    /// Waits for a slot, beside those for faults. `None` at the end.
    pub(super) fn wait_slot(&self) -> Option<u32> {
        let is_short = |state: &mut State| !state.is_over && state.free_slots.len() <= FAULT_SLOTS;
        let state = self.changed.wait_while(self.state(), is_short);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        (!state.is_over).then(|| state.free_slots.pop()).flatten()
    }

    /// Waits for a time, or the end. Returns true at the end.
    pub(super) fn pause(&self, pause: Duration) -> bool {
        let is_going_on = |state: &mut State| !state.is_over;
        let waited = self.changed.wait_timeout_while(self.state(), pause, is_going_on);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_over
    }

    /// Sends pages that were taken. `slot` returns a slot for some of them, or `None` at the end.
    pub(super) fn send_pages(
        &self,
        pages: PageRange,
        buffer: &mut [u8],
        mut slot: impl FnMut() -> Result<Option<u32>, GuestError>,
    ) -> Result<(), SourceError> {
        let mut rest = pages;
        while !rest.is_empty() {
            let zeros = self.image.zero_run(rest.first).map(|zeros| zeros.intersection(rest));
            let sent = match zeros.filter(|zeros| zeros.first == rest.first && !zeros.is_empty()) {
                Some(zeros) => {
                    self.send(SourceWord::Zeros, zeros, 0)?;
                    self.state().served.zero_pages += u64::from(zeros.count);
                    zeros.count
                }
                None => {
                    let is_content = |page: &PageIndex| self.image.zero_run(*page).is_none();
                    let most = rest.pages().take(SLOT_PAGES as usize);
                    // The first is to be read, whatever the image says of runs.
                    let count = 1 + most.skip(1).take_while(is_content).count() as u32;
                    let run = PageRange::new(rest.first, count);
                    match self.send_content(run, buffer, &mut slot)? {
                        Some(sent) => sent,
                        None => return Ok(()),
                    }
                }
            };
            rest = PageRange::new(rest.first.plus(sent), rest.count - sent);
        }
        Ok(())
    }

    /// Reads and sends pages up to the first damaged one. Returns how many, or `None` at the end.
    fn send_content(
        &self,
        run: PageRange,
        buffer: &mut [u8],
        slot: &mut impl FnMut() -> Result<Option<u32>, GuestError>,
    ) -> Result<Option<u32>, SourceError> {
        let buffer = &mut buffer[..run.count as usize * PAGE_BYTES];
        let (good, lost) = match self.image.read(run.first, buffer) {
            Ok(()) => (run.count, None),
            Err(ImageError::Damaged(page)) if run.contains(page) => {
                (page.0 - run.first.0, Some(PageRange::new(page, 1)))
            }
            Err(error) => return Err(SourceError::Image { pages: run, error }),
        };
        if good > 0 {
            let Some(slot) = slot()? else { return Ok(None) };
            let bytes = &buffer[..good as usize * PAGE_BYTES];
            let doing = "writing to a source's window";
            let written = self.link.window.write_all_at(bytes, slot as u64 * SLOT_BYTES as u64);
            written.map_err(|error| GuestError::Daemon { doing, error })?;
            self.send(SourceWord::Pages, PageRange::new(run.first, good), slot)?;
            self.state().served.content_pages += u64::from(good);
        }
        if let Some(lost) = lost {
            self.send(SourceWord::Damaged, lost, 0)?;
            self.state().served.damaged.push(lost);
        }
        Ok(Some(good + lost.map_or(0, |lost| lost.count)))
    }

    fn send(&self, word: SourceWord, pages: PageRange, slot: u32) -> Result<(), GuestError> {
        let frame = FromSource::about(word, pages, slot);
        loop {
            match send_now(&*self.link.socket, frame.as_bytes(), &[]) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let doing = "waiting for a guest";
                    wait_writable(&*self.link.socket, GLANCE)
                        .map_err(|error| GuestError::Daemon { doing, error })?;
                    if self.state().is_over {
                        return Err(GuestError::Gone);
                    }
                }
                Err(error) => {
                    return Err(GuestError::of_socket("writing to a source's guest", error));
                }
            }
        }
    }
}

/// The thread that reads what the guest says.
struct Answerer<'a> {
    serving: &'a Serving<'a>,
    /// Faults that came while a slot was waited for, and when.
    faults: VecDeque<(PageIndex, Instant)>,
    is_complete: bool,
    buffer: Vec<u8>,
}

impl<'a> Answerer<'a> {
    fn new(serving: &'a Serving<'a>) -> Self {
        let (faults, buffer) = (VecDeque::new(), vec![0; SLOT_BYTES]);
        Self { serving, faults, is_complete: false, buffer }
    }

    fn answer(&mut self) -> Result<(), SourceError> {
        while !self.is_complete {
            match self.faults.pop_front() {
                Some((page, came)) => self.answer_fault(page, came)?,
                None => match self.read() {
                    // Its last word was lost, or it has ended: neither needs anything.
                    Err(GuestError::Gone) if self.serving.is_all_taken() => return Ok(()),
                    read => read?,
                },
            }
        }
        Ok(())
    }

    /// Takes in one frame, waiting for it.
    fn read(&mut self) -> Result<(), GuestError> {
        let frame = read_frame(&self.serving.link.socket)?;
        match frame.word {
            GuestWord::Fault if frame.first < PAGES_MAX && self.faults.len() < FAULTS_MAX => {
                self.faults.push_back((PageIndex(frame.first), Instant::now()));
            }
            GuestWord::Taken => {
                let mut state = self.serving.state();
                if frame.value >= SLOTS || state.free_slots.contains(&frame.value) {
                    return Err(GuestError::nonsense("a slot that was not filled"));
                }
                state.free_slots.push(frame.value);
                drop(state);
                self.serving.changed.notify_all();
            }
            GuestWord::Complete => self.is_complete = true,
            _ => {
                return Err(GuestError::nonsense(
                    "faults without end or at no page, or a word out of place",
                ));
            }
        }
        Ok(())
    }

    fn answer_fault(&mut self, page: PageIndex, came: Instant) -> Result<(), SourceError> {
        let serving = self.serving;
        let run = serving.take_around(page);
        serving.state().served.faults += 1;
        let Some(run) = run else {
            // It was sent, or the other thread is about to.
            serving.state().served.note_touched(PageRange::new(page, 1));
            return Ok(());
        };
        let mut buffer = std::mem::take(&mut self.buffer);
        let sent = serving.send_pages(run, &mut buffer, || {
            loop {
                if self.is_complete {
                    return Ok(None);
                }
                if let Some(slot) = serving.try_slot(0) {
                    return Ok(Some(slot));
                }
                self.read()?;
            }
        });
        self.buffer = buffer;
        let mut state = serving.state();
        state.served.note_touched(run);
        state.served.longest_fault = state.served.longest_fault.max(came.elapsed());
        sent
    }
}
