//! Pages put into a microVM's memory, in step with what is discarded of it.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::thread;
use std::time::Duration;

use bindery_sys::userfault::{PeerEvent, PeerUserfault, Stopped};
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};
use rustix::io::Errno;

use super::huge_pages::HugePages;
use super::missing::Missing;

/// Most zero pages that are mapped by one call, so that others get their turn.
const ZEROS_MAX: u32 = 1 << 14;

/// Most reads of events in a row.
const READS: usize = 64;

/// Times that a page is tried again at once while mappings change.
const QUICK_TRIES: u32 = 32;

/// Pauses between later tries, and while the microVM's control group is short of memory.
const PAUSE: Duration = Duration::from_micros(200);
const LONG_PAUSE: Duration = Duration::from_millis(20);

/// Account of a microVM that was served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Faults that were read.
    pub faults: u64,
    /// Pages that were filled with content.
    pub content_pages: u64,
    /// Pages that were filled with zeros, of the snapshot or after they were discarded.
    pub zero_pages: u64,
    /// Pages of which the content is lost.
    pub damaged_pages: u64,
    /// Pages that were discarded before they were filled.
    pub discarded_pages: u64,
}

/// Error of serving.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServingError {
    /// The process has ended.
    #[error("the process has ended")]
    Ended,
    /// A call to the kernel failed.
    #[error("{doing}: {error}")]
    Kernel {
        /// Doing that failed.
        doing: &'static str,
        /// Error of the call.
        #[source]
        error: io::Error,
    },
}

/// Filling of a run of pages.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fill<'a> {
    Content(&'a [u8]),
    Zero,
    Lost,
}

/// A microVM's memory while it is filled.
#[derive(Debug)]
pub(super) struct Filling {
    pub(super) faults: PeerUserfault,
    pub(super) missing: Missing,
    /// Missing pages that somebody waits for.
    pub(super) awaited: BTreeSet<u32>,
    /// Addresses of faults that were not looked at yet.
    fresh: VecDeque<u64>,
    events: Vec<PeerEvent>,
    /// Huge pages that have come in part; none where pages are small.
    huge: Option<HugePages>,
    /// Pages to ask for, of huge ones that somebody waits for and that came in part.
    more: Vec<PageIndex>,
    pub(super) served: Served,
    /// True once the process did what nobody follows here.
    pub(super) is_unfollowed: bool,
}

impl Filling {
    pub(super) fn new(faults: PeerUserfault, missing: Missing, is_huge: bool) -> Self {
        Self {
            faults,
            missing,
            awaited: BTreeSet::new(),
            fresh: VecDeque::new(),
            events: Vec::new(),
            huge: is_huge.then(HugePages::default),
            more: Vec::new(),
            served: Served::default(),
            is_unfollowed: false,
        }
    }

    /// Reads the events that there are. Returns false if there was none. What is discarded is not missing from then on.
    pub(super) fn read_events(&mut self) -> Result<bool, ServingError> {
        let doing = "reading the userfaultfd";
        let of = |error| ServingError::Kernel { doing, error };
        let mut has_read = false;
        // What is left keeps pages from being filled, and is read then.
        for _ in 0..READS {
            if !self.faults.read(&mut self.events).map_err(of)? {
                break;
            }
            has_read = true;
        }
        for event in std::mem::take(&mut self.events) {
            match event {
                PeerEvent::Fault(address) => {
                    self.served.faults += 1;
                    self.fresh.push_back(address);
                }
                PeerEvent::Removed(start, end) => self.discard(start, end),
                PeerEvent::Moved | PeerEvent::Forked => self.is_unfollowed = true,
            }
        }
        Ok(has_read)
    }

    fn discard(&mut self, start: u64, end: u64) {
        for pages in self.missing.pages_between(start, end) {
            let before = self.missing.count();
            self.missing.remove(pages);
            self.served.discarded_pages += before - self.missing.count();
            if let Some(huge) = &mut self.huge {
                huge.forget(pages);
            }
            // Whoever waits for one of them would wait for what does not come.
            let waits: Vec<u32> =
                self.awaited.range(pages.first.0..pages.end().0).copied().collect();
            for page in waits {
                self.awaited.remove(&page);
                self.fresh.extend(self.missing.address_of(PageIndex(page)));
            }
        }
    }

    /// Looks at the faults that were read. Returns pages that are to be asked for.
    pub(super) fn look(&mut self) -> Result<Vec<PageIndex>, ServingError> {
        let mut asked = std::mem::take(&mut self.more);
        while let Some(address) = self.fresh.pop_front() {
            match self.missing.page_at(address) {
                Some(page) if self.missing.contains(page) => {
                    let wanted = match &self.huge {
                        None => vec![page],
                        Some(huge) => huge.wanted_around(page),
                    };
                    asked.extend(wanted.into_iter().filter(|page| self.awaited.insert(page.0)));
                }
                Some(_) => self.fill_again(address)?,
                None => self.wake(address),
            }
        }
        Ok(asked)
    }

    /// Answers a fault at a page that is not missing: it was filled meanwhile, or discarded since.
    fn fill_again(&mut self, address: u64) -> Result<(), ServingError> {
        let bytes = if self.huge.is_some() { HugePages::BYTES } else { PAGE_BYTES };
        let address = address & !(bytes as u64 - 1);
        loop {
            let zeroed = match &self.huge {
                None => self.faults.zero(address, bytes),
                Some(huge) => self.faults.copy(address, huge.zeros()),
            };
            match zeroed.map_err(|stopped| Errno::from_raw_os_error(stopped.errno)) {
                Ok(()) => {
                    self.served.zero_pages += (bytes / PAGE_BYTES) as u64;
                    return Ok(());
                }
                Err(Errno::AGAIN) => drop(self.settle(0)?),
                Err(Errno::NOMEM) => thread::sleep(LONG_PAUSE),
                Err(Errno::SRCH) => return Err(ServingError::Ended),
                Err(_) => {
                    self.wake(address);
                    return Ok(());
                }
            }
        }
    }

    fn wake(&self, address: u64) {
        // Of memory that is not there any more nobody waits.
        let _ = self.faults.wake(address & !(PAGE_BYTES as u64 - 1), PAGE_BYTES);
    }

    /// Takes in pages that came from the source.
    pub(super) fn take(&mut self, pages: PageRange, fill: Fill<'_>) -> Result<(), ServingError> {
        if self.huge.is_none() {
            return self.fill(pages, fill);
        }
        let huge = self.huge.as_mut().expect("it was looked for");
        for (chunk, content) in huge.take(pages, fill) {
            let fill = content.as_deref().map_or(Fill::Lost, Fill::Content);
            self.fill(chunk, fill)?;
        }
        self.ask_on(pages);
        Ok(())
    }

    /// Asks for what huge pages lack of which small pages came, if somebody waits for them: an answer has only what was
    /// not sent before.
    fn ask_on(&mut self, pages: PageRange) {
        let Some(huge) = &self.huge else { return };
        let first = pages.first.0 - pages.first.0 % HugePages::PAGES;
        for chunk in (first..pages.end().0).step_by(HugePages::PAGES as usize) {
            if self.awaited.range(chunk..chunk + HugePages::PAGES).next().is_some() {
                let wanted = huge.wanted_around(PageIndex(chunk)).into_iter();
                self.more.extend(wanted.filter(|page| self.awaited.insert(page.0)));
            }
        }
    }

    /// Fills those of some pages that are missing.
    fn fill(&mut self, pages: PageRange, fill: Fill<'_>) -> Result<(), ServingError> {
        let (mut at, mut tries) = (pages.first, 0);
        while let Some((run, address)) =
            self.missing.first_in(PageRange::new(at, pages.end().0 - at.0))
        {
            let run = PageRange::new(run.first, run.count.min(ZEROS_MAX));
            let bytes = run.count as usize * PAGE_BYTES;
            let done = match fill {
                Fill::Content(content) => {
                    let from = (run.first.0 - pages.first.0) as usize * PAGE_BYTES;
                    self.faults.copy(address, &content[from..from + bytes])
                }
                Fill::Zero => self.faults.zero(address, bytes),
                Fill::Lost => self.faults.poison(address, bytes),
            };
            at = match done {
                Ok(()) => self.note(run, fill),
                Err(stopped) => self.go_on(run, (address, fill), stopped, &mut tries)?,
            };
        }
        Ok(())
    }

    /// Decides how to go on with a run that was stopped. Returns the page to go on from.
    fn go_on(
        &mut self,
        run: PageRange,
        (address, fill): (u64, Fill<'_>),
        stopped: Stopped,
        tries: &mut u32,
    ) -> Result<PageIndex, ServingError> {
        let done = (stopped.done / PAGE_BYTES) as u32;
        let page = self.note(PageRange::new(run.first, done.min(run.count)), fill);
        match Errno::from_raw_os_error(stopped.errno) {
            Errno::AGAIN if done > 0 => *tries = 0,
            Errno::AGAIN => *tries = self.settle(*tries)?,
            Errno::NOMEM => thread::sleep(LONG_PAUSE),
            Errno::SRCH => return Err(ServingError::Ended),
            // The process has put a page there itself, or mapped something else.
            Errno::EXIST | Errno::NOENT => {
                let step = if self.huge.is_some() { HugePages::PAGES } else { 1 };
                let there = PageRange::new(page, step);
                self.missing.remove(there);
                self.leave(there);
                self.wake(address + stopped.done as u64);
            }
            errno => {
                let doing = match fill {
                    Fill::Lost => "marking damaged pages (it takes Linux 6.6)",
                    _ => "filling pages",
                };
                return Err(ServingError::Kernel { doing, error: errno.into() });
            }
        }
        Ok(page)
    }

    /// Lets events pass that keep pages from being filled. Returns the number of tries so far.
    fn settle(&mut self, tries: u32) -> Result<u32, ServingError> {
        let has_read = self.read_events()?;
        if !has_read && tries > QUICK_TRIES {
            thread::sleep(PAUSE);
        }
        Ok(if has_read { 0 } else { tries.saturating_add(1) })
    }

    /// Notes that pages are filled. Returns the page behind them.
    fn note(&mut self, run: PageRange, fill: Fill<'_>) -> PageIndex {
        self.missing.remove(run);
        self.leave(run);
        let count = u64::from(run.count);
        match fill {
            Fill::Content(_) => self.served.content_pages += count,
            Fill::Zero => self.served.zero_pages += count,
            Fill::Lost => self.served.damaged_pages += count,
        }
        run.end()
    }

    /// Forgets who waited for pages, and was woken.
    fn leave(&mut self, pages: PageRange) {
        while let Some(page) = self.awaited.range(pages.first.0..pages.end().0).next().copied() {
            self.awaited.remove(&page);
        }
    }
}
