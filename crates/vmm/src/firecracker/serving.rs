//! The loop that serves one microVM: its events, its end, and what comes from the source.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use bindery_sys::pidfd::PeerProcess;
use bindery_sys::socket::{receive, wait_any_readable};
use bindery_units::{PAGE_BYTES, PageIndex};
use bindery_wire::source::SourceWord;

use super::filling::{Fill, Filling, Served, ServingError};
use super::micro_vm::MicroVm;
use super::missing::Missing;
use super::page_link::PageLink;
use super::regions::GuestRegion;

/// Time until a source that was lost is asked for again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Interval at which frames are sent that the source had no room for.
const RETRY: Duration = Duration::from_millis(2);

/// Frames that are taken in before events are looked for again.
const FRAMES: usize = 8;

/// Something that happened while a microVM is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// All of its memory is there, after this time.
    Filled(Duration),
    /// There is no source: why. Whoever touches missing pages waits; the source is asked for each second.
    SourceLost(String),
    /// There is a source again.
    SourceFound,
    /// The content of so many pages is lost, from this byte of the memory file on.
    Damaged {
        /// First byte.
        offset: u64,
        /// Number of pages.
        pages: u32,
    },
    /// The process forked or moved its memory, which no Firecracker does: pages may be missing there for ever.
    Unfollowed,
}

struct Serving<'a> {
    filling: Filling,
    vm: (Option<PeerProcess>, OwnedFd),
    link: Option<PageLink>,
    open: &'a mut dyn FnMut() -> Result<OwnedFd, String>,
    report: &'a mut dyn FnMut(Step),
    begun: Instant,
    is_filled: bool,
    /// Time at which a source was last asked for, and why there was none.
    lost: Option<(Instant, String)>,
    content: Vec<u8>,
}

/// Serves a microVM until its process has ended.
pub(super) fn serve(
    vm: MicroVm,
    open: &mut dyn FnMut() -> Result<OwnedFd, String>,
    report: &mut dyn FnMut(Step),
) -> Result<Served, ServingError> {
    let MicroVm { process, socket, faults, regions, .. } = vm;
    let is_huge = regions.iter().any(GuestRegion::is_huge);
    let filling = Filling::new(faults, Missing::all_of(regions), is_huge);
    let (begun, content) = (Instant::now(), Vec::new());
    let mut serving = Serving {
        filling,
        vm: (process, socket),
        link: None,
        open,
        report,
        begun,
        is_filled: false,
        lost: None,
        content,
    };
    let ended = serving.run();
    if let Some(link) = serving.link.take() {
        link.complete();
    }
    match ended {
        Err(ServingError::Ended) | Ok(()) => Ok(serving.filling.served),
        Err(error) => Err(error),
    }
}

impl Serving<'_> {
    fn run(&mut self) -> Result<(), ServingError> {
        loop {
            self.seek_source();
            if self.wait()? {
                return Ok(());
            }
            self.filling.read_events()?;
            self.answer_faults()?;
            self.take_frames()?;
            self.answer_faults()?;
            self.end_when_filled();
            if std::mem::take(&mut self.filling.is_unfollowed) {
                (self.report)(Step::Unfollowed);
            }
        }
    }

    /// Opens a source, if there is none and pages are missing.
    fn seek_source(&mut self) {
        let is_early = self.lost.as_ref().is_some_and(|(at, _)| at.elapsed() < AGAIN_AFTER);
        if self.link.is_some() || self.filling.missing.count() == 0 || is_early {
            return;
        }
        let opened = (self.open)().and_then(|socket| {
            let link = PageLink::begin(socket, &self.filling.missing);
            link.map_err(|error| format!("the daemon sends no pages: {error}"))
        });
        match opened {
            Ok(mut link) => {
                if self.lost.take().is_some() {
                    (self.report)(Step::SourceFound);
                }
                self.filling.awaited.iter().for_each(|page| link.ask(PageIndex(*page)));
                self.link = Some(link);
            }
            Err(why) => self.lose(why),
        }
    }

    fn lose(&mut self, why: String) {
        self.link = None;
        let is_news = self.lost.as_ref().is_none_or(|(_, last)| *last != why);
        if is_news {
            (self.report)(Step::SourceLost(why.clone()));
        }
        self.lost = Some((Instant::now(), why));
    }

    /// Waits until there is something to do. Returns true if the process has ended.
    fn wait(&mut self) -> Result<bool, ServingError> {
        let patience = match &mut self.link {
            Some(link) => match link.flush() {
                Ok(true) => None,
                Ok(false) => Some(RETRY),
                // What it says is read below.
                Err(_) => None,
            },
            None if self.filling.missing.count() > 0 => Some(AGAIN_AFTER),
            None => None,
        };
        let (process, socket) = &self.vm;
        let ends = match process {
            Some(process) => match process.descriptor() {
                Some(descriptor) => descriptor,
                // It had ended when it was asked for.
                None => return Ok(true),
            },
            None => socket.as_fd(),
        };
        let mut watched = vec![ends, self.filling.faults.as_fd()];
        watched.extend(self.link.as_ref().map(AsFd::as_fd));
        let mut ready = [false; 3];
        let ready = &mut ready[..watched.len()];
        let doing = "waiting for faults";
        let of = |error| ServingError::Kernel { doing, error };
        wait_any_readable(&watched, ready, patience).map_err(of)?;
        if process.is_some() || !ready[0] {
            return Ok(ready[0]);
        }
        // The connection stands for the process. What else comes over it means nothing.
        let mut rest = [0; 64];
        Ok(receive(socket, &mut rest, &mut Vec::new()).map_or(true, |count| count == 0))
    }

    /// Asks for what somebody waits for.
    fn answer_faults(&mut self) -> Result<(), ServingError> {
        let asked = self.filling.look()?;
        if let Some(link) = &mut self.link {
            asked.into_iter().for_each(|page| link.ask(page));
        }
        Ok(())
    }

    /// Takes in what the source has sent.
    fn take_frames(&mut self) -> Result<(), ServingError> {
        for _ in 0..FRAMES {
            let Some(link) = &mut self.link else { return Ok(()) };
            let mut content = std::mem::take(&mut self.content);
            let read = link.flush().and_then(|_| link.read(&mut content));
            let taken = match read {
                Ok(None) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    self.lose("the daemon has hung up".into());
                    return Ok(());
                }
                Err(error) => {
                    self.lose(format!("the daemon sends no pages: {error}"));
                    return Ok(());
                }
                Ok(Some((SourceWord::Pages, pages))) => {
                    self.filling.take(pages, Fill::Content(&content))
                }
                Ok(Some((SourceWord::Zeros, pages))) => self.filling.take(pages, Fill::Zero),
                Ok(Some((SourceWord::Damaged, pages))) => {
                    let offset = u64::from(pages.first) * PAGE_BYTES as u64;
                    (self.report)(Step::Damaged { offset, pages: pages.count });
                    self.filling.take(pages, Fill::Lost)
                }
            };
            self.content = content;
            taken?;
        }
        Ok(())
    }

    fn end_when_filled(&mut self) {
        if self.is_filled || self.filling.missing.count() > 0 {
            return;
        }
        self.is_filled = true;
        self.lost = None;
        if let Some(link) = self.link.take() {
            link.complete();
        }
        (self.report)(Step::Filled(self.begun.elapsed()));
    }
}
