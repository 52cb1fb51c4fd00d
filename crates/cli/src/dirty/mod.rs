//! `bindery dirty`: how fast a guest's memory changes, where, and what that means for moving it.
//!
//! The daemon scans the guest once for each epoch and tells which pages were written since; all else
//! is worked out here.

mod forecast;
mod history;
mod layout;
mod picture;
mod plot;
mod report;

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use bindery_host::client::Client;
use bindery_host::protocol::{Answer, Epoch, Request};
use bindery_units::PageCount;
use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use indicatif::{ProgressBar, ProgressStyle};

use self::forecast::Link;
use self::history::History;
use self::layout::Layout;
use self::picture::Picture;
use self::report::{Rate, Report};
use crate::args::{DirtyArgs, Global};
use crate::connect::{ask_guests, connect, misplaced};
use crate::exit::{Failure, Reason};
use crate::output::{print, print_json};
use crate::screen::{Screen, takes_escapes};

/// How long a guest may take to be scanned: each lane's answer may take a second.
const PATIENCE: Duration = Duration::from_secs(60);

/// Epochs whose rates are kept: more than any terminal has columns, and than most people wait for.
const RATES_MAX: usize = 1 << 16;

/// What was seen of a guest so far.
struct Observation {
    client: Client,
    guest: String,
    layout: Layout,
    history: History,
    rates: Vec<Rate>,
    /// Pages that the daemon told of together, at most: more than one where there were too many runs.
    block_pages: u32,
}

/// Observes a guest, and says what was seen.
pub(crate) fn run(global: &Global, arguments: &DirtyArgs) -> Result<(), Failure> {
    let mut observation = Observation::start(connect(global)?, &arguments.guest)?;
    if arguments.watch {
        watch(&mut observation, arguments, global.json)?;
    } else {
        observe(&mut observation, arguments)?;
    }
    if let Some(path) = &arguments.png {
        let history = &observation.history;
        let picture = Picture::draw(observation.layout.pages(), history.temperatures());
        picture.write(path).map_err(|error| {
            Failure::of_io(format_args!("cannot write {}", path.display()), &error)
        })?;
        if !global.json {
            print(|out| writeln!(out, "{}", picture.describe(path)))?;
        }
    }
    // What is watched was shown as it came.
    match (arguments.watch, global.json) {
        (true, _) => Ok(()),
        (false, true) => print_json(&observation.report(arguments)?),
        (false, false) => {
            let report = observation.report(arguments)?;
            print(|out| write!(out, "{report}"))
        }
    }
}

/// As many epochs as were asked for, with a bar that shows how far it is.
fn observe(observation: &mut Observation, arguments: &DirtyArgs) -> Result<(), Failure> {
    let epochs = arguments.duration.div_duration_f64(arguments.interval).ceil().max(1.0) as u64;
    if epochs > RATES_MAX as u64 {
        let message =
            format!("that would be {epochs} epochs, more than {RATES_MAX}: take longer ones");
        return Err(Failure::new(Reason::Usage, message));
    }
    let bar = ProgressBar::new(epochs);
    let template = "{prefix} {bar:30} {pos}/{len} epochs, {msg}";
    bar.set_style(ProgressStyle::with_template(template).expect("the template is well formed"));
    bar.set_prefix(observation.guest.clone());
    let mut next = Instant::now();
    while bar.position() < epochs {
        next += arguments.interval;
        thread::sleep(next.saturating_duration_since(Instant::now()));
        if let Some(rate) = observation.next()? {
            bar.set_message(rate.to_string());
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// Epoch after epoch until `q`: a plot on a terminal, lines elsewhere and where that takes no escape sequences.
fn watch(observation: &mut Observation, arguments: &DirtyArgs, json: bool) -> Result<(), Failure> {
    let of_terminal = |error: io::Error| Failure::of_io("the terminal failed", &error);
    if json || !takes_escapes(&io::stdout()) {
        loop {
            thread::sleep(arguments.interval);
            let Some(rate) = observation.next()? else { continue };
            print(|out| match json {
                true => writeln!(out, "{}", serde_json::to_string(&rate)?),
                false => writeln!(out, "{rate}"),
            })?;
        }
    }
    let mut screen = Screen::enter().map_err(of_terminal)?;
    let mut next = Instant::now() + arguments.interval;
    loop {
        if event::poll(next.saturating_duration_since(Instant::now())).map_err(of_terminal)? {
            if is_goodbye(&event::read().map_err(of_terminal)?) {
                return Ok(());
            }
            continue;
        }
        next = Instant::now() + arguments.interval;
        observation.next()?;
        let report = observation.report(arguments)?;
        screen.draw(|width, height| plot::lines(&report, width, height)).map_err(of_terminal)?;
    }
}

fn is_goodbye(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    let control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    let quit = matches!(key.code, KeyCode::Char('q') | KeyCode::Esc);
    key.kind == KeyEventKind::Press && (quit || control_c)
}

impl Observation {
    /// Begins: the daemon tells from now on what is written.
    fn start(client: Client, guest: &str) -> Result<Self, Failure> {
        let mut observation = Self {
            client,
            guest: guest.to_owned(),
            layout: Layout::default(),
            history: History::default(),
            rates: Vec::new(),
            block_pages: 1,
        };
        let epoch = observation.ask()?;
        observation.guest = epoch.guest;
        observation.layout = Layout::new(epoch.regions);
        Ok(observation)
    }

    fn ask(&mut self) -> Result<Epoch, Failure> {
        let request = Request::Dirty { guest: self.guest.clone() };
        match self.client.ask(&request, PATIENCE)? {
            Answer::Dirty(epoch) => Ok(*epoch),
            answer => Err(misplaced(&answer)),
        }
    }

    /// Takes in the epoch that ends now; nothing if it is a new beginning, because memory came or went.
    fn next(&mut self) -> Result<Option<Rate>, Failure> {
        let epoch = self.ask()?;
        if epoch.epoch_us == 0 {
            // What was known of places is not true any more.
            self.history = History::default();
            self.layout = Layout::new(epoch.regions);
            return Ok(None);
        }
        self.block_pages = self.block_pages.max(epoch.block_pages);
        let places = || epoch.runs.iter().flat_map(|run| self.layout.places(*run));
        let pages = places().map(|(_, count)| count as u64).sum();
        self.history.push(self.layout.pages(), places());
        let rate = Rate::new(pages, epoch.epoch_us);
        if self.rates.len() == RATES_MAX {
            self.rates.drain(..RATES_MAX / 2);
        }
        self.rates.push(rate);
        Ok(Some(rate))
    }

    fn report(&mut self, arguments: &DirtyArgs) -> Result<Report, Failure> {
        let guests = ask_guests(&mut self.client)?;
        let guest = guests.into_iter().find(|guest| guest.name == self.guest);
        let pages = PageCount(self.layout.pages() as u64);
        // What is absent or zero is not sent; a guest that has just left has nothing to send.
        let bulk_bytes = guest
            .map_or(0, |guest| (guest.private_bytes + guest.merged_bytes).min(pages.bytes().0));
        let link = Link {
            bytes_per_s: arguments.bandwidth as f64 / 8.0,
            downtime_s: arguments.downtime.as_secs_f64(),
        };
        let mut report = Report::new(&self.guest, pages, &self.history, &self.rates);
        report.block_pages = self.block_pages;
        report.ask_whether_it_can_move(bulk_bytes, link);
        Ok(report)
    }
}
