//! `bindery top`: the guests, live.
//!
//! On a terminal the table is drawn anew in place, on the alternate screen, which is left again
//! whatever ends the command. A terminal that takes no escape sequences (`TERM=dumb`) gets it again each
//! interval. Elsewhere it is printed once, or as a line of JSON each interval.

use std::cmp::Ordering;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use bindery_host::client::Client;
use bindery_host::status::{GuestStatus, HostStatus};
use bindery_units::PageCount;
use clap::ValueEnum;
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::args::{Column, Global, TopArgs};
use crate::connect::{ask_guests, ask_status, connect};
use crate::exit::Failure;
use crate::guests::{advice, table};
use crate::output::{human_bytes, human_signed_bytes, on_node, print};
use crate::screen::{Screen, takes_escapes};

/// What the keys have chosen.
struct View {
    sort: Column,
    reversed: bool,
}

/// What the daemon said last.
struct Snapshot {
    status: HostStatus,
    guests: Vec<GuestStatus>,
}

/// Shows the guests until `q`.
pub(crate) fn run(global: &Global, arguments: &TopArgs) -> Result<(), Failure> {
    let mut client = connect(global)?;
    let view = View { sort: arguments.sort, reversed: false };
    if global.json {
        loop {
            let Snapshot { status, guests } = Snapshot::take(&mut client, &view)?;
            let line = serde_json::json!({ "status": status, "guests": guests });
            print(|out| writeln!(out, "{line}"))?;
            std::thread::sleep(arguments.interval);
        }
    }
    if !io::stdout().is_terminal() {
        return Snapshot::take(&mut client, &view)?.print(&view);
    }
    if !takes_escapes(&io::stdout()) {
        loop {
            Snapshot::take(&mut client, &view)?.print(&view)?;
            print(|out| writeln!(out))?;
            std::thread::sleep(arguments.interval);
        }
    }
    show(&mut client, view, arguments.interval)
}

fn show(client: &mut Client, mut view: View, interval: Duration) -> Result<(), Failure> {
    let mut screen = Screen::enter().map_err(|error| of_terminal(&error))?;
    let mut snapshot = Snapshot::take(client, &view)?;
    let mut taken = Instant::now();
    loop {
        let drawn = screen.draw(|_, _| snapshot.lines(&view));
        drawn.map_err(|error| of_terminal(&error))?;
        let left = interval.saturating_sub(taken.elapsed());
        if event::poll(left).map_err(|error| of_terminal(&error))? {
            match event::read().map_err(|error| of_terminal(&error))? {
                Event::Key(key) if key.kind == KeyEventKind::Press => {
                    if !view.obeys(key) {
                        return Ok(());
                    }
                    view.sort(&mut snapshot.guests);
                }
                _ => {}
            }
        } else {
            snapshot = Snapshot::take(client, &view)?;
            taken = Instant::now();
        }
    }
}

fn of_terminal(error: &io::Error) -> Failure {
    Failure::of_io("the terminal failed", error)
}

impl Snapshot {
    fn take(client: &mut Client, view: &View) -> Result<Self, Failure> {
        let mut guests = ask_guests(client)?;
        view.sort(&mut guests);
        Ok(Self { status: ask_status(client)?, guests })
    }

    fn print(&self, view: &View) -> Result<(), Failure> {
        print(|out| self.lines(view).try_for_each(|line| writeln!(out, "{line}")))
    }

    /// What is shown, line by line.
    fn lines(&self, view: &View) -> impl Iterator<Item = String> {
        let domains = &self.status.domains;
        let sum = |of: fn(&GuestStatus) -> u64| human_bytes(self.guests.iter().map(of).sum());
        let profit = domains.iter().map(|domain| domain.general_profit).sum();
        let guest_cpu_us: u64 = domains.iter().map(|domain| domain.counts.guest_cpu_time_us).sum();
        let cpu_s = self.status.cpu_ms as f64 / 1e3 + guest_cpu_us as f64 / 1e6;
        let shared = domains.iter().map(|domain| domain.pages_shared).sum();
        let head = [
            format!(
                "bindery: {} guests, RAM {}, private {}, merged {} into {}, zero {}",
                self.guests.len(),
                sum(|guest| guest.ram_bytes),
                sum(|guest| guest.private_bytes),
                sum(|guest| guest.merged_bytes),
                human_bytes(PageCount(shared).bytes().0),
                sum(|guest| guest.zero_bytes),
            ),
            format!(
                "saved after all metadata {}, breaks {}, CPU {:.1} s, {} workers, period {} ms, {}",
                human_signed_bytes(profit),
                domains.iter().map(|domain| domain.counts.breaks).sum::<u64>(),
                cpu_s,
                self.status.settings.workers,
                self.status.settings.period_ms,
                self.status.state.name,
            ),
            format!(
                "sorted by {}{}; keys: s sort, r reverse, q quit",
                view.name(),
                if view.reversed { ", reversed" } else { "" }
            ),
            String::new(),
        ];
        let table: Vec<String> = table(&self.guests).lines().collect();
        let states = domains.iter().filter_map(|domain| {
            let (name, node) = (&domain.name, on_node(domain.node));
            Some(format!("domain {name}{node}: {}", domain.state.advice.as_ref()?))
        });
        head.into_iter().chain(table).chain(states).chain(advice(&self.guests))
    }
}

impl View {
    /// Does what a key says. False if it says to quit.
    fn obeys(&mut self, key: KeyEvent) -> bool {
        let columns = Column::value_variants();
        let at = columns.iter().position(|column| *column == self.sort).unwrap_or(0);
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('s') | KeyCode::Right => self.sort = columns[(at + 1) % columns.len()],
            KeyCode::Left => self.sort = columns[(at + columns.len() - 1) % columns.len()],
            KeyCode::Char('r') => self.reversed = !self.reversed,
            _ => {}
        }
        true
    }

    /// Names ascend, numbers descend, unless reversed; guests that are equal stay by name.
    fn sort(&self, guests: &mut [GuestStatus]) {
        guests.sort_by(|a, b| {
            let by_number = |of: fn(&GuestStatus) -> u64| of(b).cmp(&of(a));
            let order = match self.sort {
                Column::Name => Ordering::Equal,
                Column::Ram => by_number(|guest| guest.ram_bytes),
                Column::Private => by_number(|guest| guest.private_bytes),
                Column::Merged => by_number(|guest| guest.merged_bytes),
                Column::Zero => by_number(|guest| guest.zero_bytes),
                Column::Huge => by_number(|guest| guest.huge_bytes),
                Column::Breaks => by_number(|guest| guest.counts.breaks),
                Column::Mappings => by_number(|guest| u64::from(guest.mappings)),
            };
            let order = order.then_with(|| a.name.cmp(&b.name));
            if self.reversed { order.reverse() } else { order }
        });
    }

    fn name(&self) -> String {
        let value = self.sort.to_possible_value();
        value.map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}
