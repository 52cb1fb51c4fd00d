//! Nobody else sets the rate meanwhile: what the pilot has set is held against other writers.
//!
//! The kernel tells at once who opened or wrote a setting ([`WriteWatch`]); where it does not, settings
//! are read every now and then. Either way the value is what counts: it is compared, not guessed. How long
//! that goes on against somebody who does not give up is [`Quarrel`]'s.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use bindery_sys::ksm::{ADVISOR_MODE, KsmFile, PAGES_TO_SCAN, RUN, SLEEP_MILLISECS};
use bindery_sys::watch::{Access, WriteWatch};

use crate::claim::command_of;
use crate::knobs::{Knobs, write};
use crate::quarrel::Quarrel;
use crate::{Event, PilotError, Suspect};

/// Names of processes that opened a setting: many of them end right after they wrote it.
const NAMES_MAX: usize = 256;

/// Looks for the writer of a value that was found, and the time between two of them.
const WRITER_LOOKS: u32 = 5;
const WRITER_LOOK_EVERY: Duration = Duration::from_millis(2);

/// How often more is asked of the kernel at once: it tells of 64 writes at most each time, and there may
/// be thousands to tell of.
const TAKES_MAX: usize = 16;

/// The settings in the order in which they are put back: switching the kernel's advisor off sets
/// `pages_to_scan`.
const SETTINGS: [&str; 3] = [ADVISOR_MODE, PAGES_TO_SCAN, SLEEP_MILLISECS];

/// Holds the settings.
#[derive(Debug)]
pub(crate) struct Guard {
    knobs: Knobs,
    /// What each of [`SETTINGS`] is to be; `None` where this kernel has none.
    values: [Option<String>; 3],
    watch: Option<WriteWatch>,
    /// The name of each file that is watched, in the watch's order.
    watched: Vec<&'static str>,
    names: HashMap<u32, Option<String>>,
    writers: HashMap<&'static str, Suspect>,
    foreign_writes: u64,
    quarrel: Quarrel,
    /// What was put back of each of [`SETTINGS`] in a quarrel and is not told of yet.
    untold: [Option<Foreign>; 3],
    begun: Instant,
}

/// What somebody else set.
#[derive(Debug)]
struct Foreign {
    found: String,
    restored: String,
    suspect: Option<Suspect>,
    count: u64,
}

impl Foreign {
    /// One more, and what came before it.
    fn after(self, before: Option<Self>) -> Self {
        let Some(before) = before else { return self };
        let suspect = self.suspect.or(before.suspect);
        Self { suspect, count: before.count + self.count, ..self }
    }

    fn event(self, setting: &'static str) -> Event {
        let Self { found, restored, suspect, count } = self;
        Event::ForeignWrite { setting, found, restored, suspect, count }
    }
}

impl Guard {
    /// Holds the settings as they are, but for the kernel's advisor, which is to be off.
    pub(crate) fn new(knobs: Knobs) -> Result<Self, PilotError> {
        let found = knobs.found(false)?;
        let mode = found.advisor_mode.map(|_| "none".to_owned());
        let values =
            [mode, Some(found.pages_to_scan.to_string()), Some(found.sleep_millisecs.to_string())];
        let mut guard = Self {
            knobs,
            values,
            watch: None,
            watched: Vec::new(),
            names: HashMap::new(),
            writers: HashMap::new(),
            foreign_writes: 0,
            quarrel: Quarrel::default(),
            untold: [const { None }; 3],
            begun: Instant::now(),
        };
        guard.start_watch();
        Ok(guard)
    }

    fn start_watch(&mut self) {
        let names = SETTINGS.into_iter().chain([RUN]);
        let (watched, paths): (Vec<_>, Vec<_>) =
            names.filter_map(|name| Some((name, self.file(name)?.path()))).unzip();
        match WriteWatch::new(&paths) {
            Ok(watch) => self.watch = Some(watch),
            Err(error) => tracing::info!("writers of KSM's settings cannot be named: {error}"),
        }
        self.watched = watched;
    }

    /// Readable when somebody has opened or written a setting; `None` where the kernel does not tell,
    /// and in a quarrel, in which nothing is done at once.
    pub(crate) fn watch_fd(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().filter(|_| !self.quarrel.is_on()).map(AsFd::as_fd)
    }

    pub(crate) fn knobs(&self) -> &Knobs {
        &self.knobs
    }

    fn file(&self, name: &str) -> Option<&KsmFile> {
        match name {
            ADVISOR_MODE => self.knobs.advisor_mode.as_ref(),
            PAGES_TO_SCAN => Some(&self.knobs.pages_to_scan),
            SLEEP_MILLISECS => Some(&self.knobs.sleep_millisecs),
            _ => Some(&self.knobs.run),
        }
    }

    /// Sets one of [`SETTINGS`] to a value of ours, and holds that from now on. A value of somebody
    /// else's that this overwrites is told of first. Returns whether it is set already: see
    /// [`Knobs::set_pages_to_scan`].
    pub(crate) fn set(
        &mut self,
        name: &'static str,
        value: u64,
        report: &mut dyn FnMut(&Event),
    ) -> Result<bool, PilotError> {
        self.restore(report)?;
        let place = SETTINGS.iter().position(|setting| *setting == name);
        let place = place.expect("only settings that are held are set");
        let value = value.to_string();
        if self.values[place].as_ref() == Some(&value) {
            return Ok(true);
        }
        let is_set = self.write(name, &value)?;
        self.values[place] = Some(value);
        Ok(is_set)
    }

    /// Switches the kernel's advisor off, where there is one.
    pub(crate) fn take_over(&mut self, pages_to_scan: u64) -> Result<(), PilotError> {
        if let Some(file) = &self.knobs.advisor_mode {
            write(file, "none")?;
        }
        self.write(PAGES_TO_SCAN, &pages_to_scan.to_string())?;
        self.values[1] = Some(pages_to_scan.to_string());
        Ok(())
    }

    /// Writes one setting, if this kernel has it. Returns whether it is what it is to be.
    fn write(&self, name: &str, value: &str) -> Result<bool, PilotError> {
        match self.file(name) {
            Some(_) if name == PAGES_TO_SCAN => self.knobs.set_pages_to_scan(value),
            Some(file) => write(file, value).map(|()| true),
            None => Ok(false),
        }
    }

    /// Takes in who did something to the settings. Returns whether somebody else wrote one.
    pub(crate) fn listen(&mut self) -> io::Result<bool> {
        let mut is_written = false;
        for _ in 0..TAKES_MAX {
            let accesses = self.watch.as_ref().map_or(Ok(Vec::new()), WriteWatch::take)?;
            if accesses.is_empty() {
                break;
            }
            is_written |= self.learn(&accesses);
        }
        Ok(is_written)
    }

    /// Notes who wrote what. Returns whether somebody else wrote.
    fn learn(&mut self, accesses: &[Access]) -> bool {
        let own = std::process::id();
        let mut is_written = false;
        for access in accesses {
            if access.pid == Some(own) {
                continue;
            }
            is_written |= access.is_written;
            let Some(pid) = access.pid else { continue };
            if self.names.len() >= NAMES_MAX {
                self.names.clear();
            }
            // The name at the time of writing is not always what it was at the time of opening, if it
            // can still be read at all.
            let name = command_of(pid);
            let known = self.names.entry(pid).or_default();
            *known = name.or_else(|| known.take());
            let file = access.file.and_then(|file| self.watched.get(file));
            if let (true, Some(file)) = (access.is_written, file) {
                let suspect = Suspect { pid, command: known.clone() };
                self.writers.insert(file, suspect);
            }
        }
        is_written
    }

    /// How many values of somebody else's were put back so far.
    pub(crate) fn foreign_writes(&self) -> u64 {
        self.foreign_writes
    }

    /// Compares all settings with what they are to be, and puts back and counts what is not. In a
    /// quarrel that waits for [`Self::restore_at_tick`].
    pub(crate) fn restore(&mut self, report: &mut dyn FnMut(&Event)) -> Result<(), PilotError> {
        if self.quarrel.is_on() { Ok(()) } else { self.compare(report) }
    }

    /// The same, also in a quarrel; every now and then.
    pub(crate) fn restore_at_tick(
        &mut self,
        report: &mut dyn FnMut(&Event),
    ) -> Result<(), PilotError> {
        self.listen_or_log();
        let named: Vec<&str> = self.writers.keys().copied().filter(|name| *name != RUN).collect();
        self.compare(report)?;
        // Who wrote what was there already is not to be blamed for what another writes later.
        for name in named {
            self.writers.remove(name);
        }
        if self.quarrel.tick(self.begun.elapsed().as_micros() as u64) {
            self.report_rest(report);
        }
        Ok(())
    }

    fn compare(&mut self, report: &mut dyn FnMut(&Event)) -> Result<(), PilotError> {
        let mut is_advisor_off = false;
        for (place, setting) in SETTINGS.into_iter().enumerate() {
            let Some(value) = self.values[place].clone() else { continue };
            let Some(file) = self.file(setting) else { continue };
            let read = format_args!("read {}", file.path().display()).to_string();
            let found = file.read().map_err(PilotError::io(read))?;
            // What cannot be put back yet is found again.
            if found == value || !self.write(setting, &value)? {
                continue;
            }
            // Not somebody's value, but what the kernel sets with its advisor.
            if is_advisor_off && setting == PAGES_TO_SCAN {
                continue;
            }
            is_advisor_off = setting == ADVISOR_MODE;
            self.note(place, found, value, report);
        }
        Ok(())
    }

    /// Counts a value that was put back, and tells of it, now or later.
    fn note(
        &mut self,
        place: usize,
        found: String,
        restored: String,
        report: &mut dyn FnMut(&Event),
    ) {
        self.foreign_writes += 1;
        let suspect = self.await_writer(SETTINGS[place]);
        let foreign = Foreign { found, restored, suspect, count: 1 };
        if self.quarrel.is_on() {
            self.untold[place] = Some(foreign.after(self.untold[place].take()));
        } else {
            report(&foreign.event(SETTINGS[place]));
        }
        self.quarrel.note();
    }

    /// Returns who wrote a setting that was found changed, if that is told soon: the kernel reports a write only
    /// when it is done, and the value is there before. Blocks for some milliseconds at most.
    fn await_writer(&mut self, setting: &str) -> Option<Suspect> {
        for look in 0..WRITER_LOOKS {
            if look > 0 {
                std::thread::sleep(WRITER_LOOK_EVERY);
            }
            self.listen_or_log();
            if self.watch.is_none() || self.writers.contains_key(setting) {
                break;
            }
        }
        self.writers.remove(setting)
    }

    /// Tells what a quarrel has kept back.
    pub(crate) fn report_rest(&mut self, report: &mut dyn FnMut(&Event)) {
        for (setting, untold) in SETTINGS.into_iter().zip(&mut self.untold) {
            if let Some(foreign) = untold.take() {
                report(&foreign.event(setting));
            }
        }
    }

    fn listen_or_log(&mut self) {
        if let Err(error) = self.listen() {
            tracing::debug!("who writes KSM's settings is not told: {error}");
        }
    }

    /// Who wrote `run` last, once.
    pub(crate) fn take_writer_of_run(&mut self) -> Option<Suspect> {
        self.writers.remove(RUN)
    }
}
