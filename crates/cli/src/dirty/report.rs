//! What was seen of a guest, for people and for programs.

use std::fmt;

use bindery_units::{PAGE_BYTES, PageCount};
use serde::Serialize;

use super::forecast::{Curve, Forecast, Link, forecast, least_bandwidth};
use super::history::{Census, EPOCHS_MAX, History};
use crate::output::{Table, human_bytes};

/// Lines of the table of rates: longer observations have several epochs on a line.
const LINES_MAX: usize = 20;

/// How much was written in one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Rate {
    /// How long the epoch was.
    pub(crate) epoch_us: u64,
    /// Different pages written in it.
    pub(crate) dirty_pages: u64,
}

/// All that there is to say.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    guest: String,
    /// Pages of the guest, absent ones among them.
    pages: u64,
    /// Pages told of together: with more than one, all counts are too high.
    pub(crate) block_pages: u32,
    rates: Vec<Rate>,
    #[serde(flatten)]
    census: Census,
    /// How many different pages are written within a time, in the mean.
    working_set: Vec<Point>,
    migration: Option<Migration>,
}

/// A point of the curve of pages written within a time.
#[derive(Clone, Copy, Debug, Serialize)]
struct Point {
    seconds: f64,
    pages: f64,
}

/// The answer to whether the guest can be moved.
#[derive(Clone, Copy, Debug, Serialize)]
struct Migration {
    #[serde(flatten)]
    link: Link,
    /// What the bulk stage sends: pages that are there and not zero.
    bulk_bytes: u64,
    #[serde(flatten)]
    forecast: Forecast,
    /// The slowest link over which it would converge.
    least_bytes_per_s: f64,
}

impl Rate {
    pub(crate) const fn new(dirty_pages: u64, epoch_us: u64) -> Self {
        Self { epoch_us, dirty_pages }
    }

    /// Pages a second.
    pub(crate) fn pages_per_s(self) -> f64 {
        self.dirty_pages as f64 * 1e6 / self.epoch_us.max(1) as f64
    }

    fn bytes_per_s(self) -> u64 {
        (self.pages_per_s() * PAGE_BYTES as f64) as u64
    }

    /// Of several epochs, one after the other.
    fn sum(rates: &[Self]) -> Self {
        let dirty_pages = rates.iter().map(|rate| rate.dirty_pages).sum();
        Self { dirty_pages, epoch_us: rates.iter().map(|rate| rate.epoch_us).sum() }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} pages in {} ms: {:.0} pages/s, {}/s",
            self.dirty_pages,
            self.epoch_us / 1000,
            self.pages_per_s(),
            human_bytes(self.bytes_per_s())
        )
    }
}

impl Report {
    pub(crate) fn new(guest: &str, pages: PageCount, history: &History, rates: &[Rate]) -> Self {
        Self {
            guest: guest.to_owned(),
            pages: pages.0,
            block_pages: 1,
            rates: rates.to_vec(),
            census: history.census(),
            working_set: working_set(history, rates),
            migration: None,
        }
    }

    /// Adds what would become of a migration that has `bulk_bytes` to send over `link`.
    pub(crate) fn ask_whether_it_can_move(&mut self, bulk_bytes: u64, link: Link) {
        let points = self.working_set.iter().map(|point| (point.seconds, point.pages)).collect();
        let curve = Curve::new(points, self.pages);
        let least_bytes_per_s = least_bandwidth(bulk_bytes, &curve, link.downtime_s);
        let forecast = forecast(bulk_bytes, &curve, link);
        self.migration = Some(Migration { link, bulk_bytes, forecast, least_bytes_per_s });
    }

    /// The rates of all epochs.
    pub(crate) fn rates(&self) -> &[Rate] {
        &self.rates
    }

    /// All but the rates, line by line.
    pub(crate) fn summary(&self) -> Vec<String> {
        let Census { hot_pages, warm_pages, cold_pages } = self.census;
        let bytes = |pages: u64| human_bytes(PageCount(pages).bytes().0);
        let mut lines = vec![format!(
            "of {}: hot {} ({hot_pages} pages), warm {} ({warm_pages}), cold {} ({cold_pages})",
            bytes(self.pages),
            bytes(hot_pages),
            bytes(warm_pages),
            bytes(cold_pages)
        )];
        let points = self
            .working_set
            .iter()
            .map(|point| format!("{} in {:.2} s", bytes(point.pages as u64), point.seconds));
        if !self.working_set.is_empty() {
            lines.push(format!("written: {}", points.collect::<Vec<_>>().join(", ")));
        }
        if self.block_pages > 1 {
            lines.push(format!(
                "told in blocks of {} pages, because too many runs were written: all counts are too \
                 high",
                self.block_pages
            ));
        }
        lines.extend(self.migration.iter().flat_map(Migration::lines));
        lines
    }
}

/// How many different pages are written within one epoch, two, four and so on.
fn working_set(history: &History, rates: &[Rate]) -> Vec<Point> {
    let known = &rates[rates.len().saturating_sub(history.epochs() as usize)..];
    let epoch_s = Rate::sum(known).epoch_us as f64 / 1e6 / known.len().max(1) as f64;
    let lengths = (0..EPOCHS_MAX.ilog2() + 1).map(|power| 1 << power);
    // Longer windows do not fit as well into what is remembered, and may miss what shorter ones saw.
    let mut most: f64 = 0.0;
    lengths
        .filter_map(|epochs: u32| {
            most = most.max(history.distinct(epochs)?);
            Some(Point { seconds: f64::from(epochs) * epoch_s, pages: most })
        })
        .collect()
}

impl Migration {
    fn lines(&self) -> Vec<String> {
        let Self { link, bulk_bytes, forecast, least_bytes_per_s } = self;
        let gbit = |bytes_per_s: f64| format!("{:.2} Gbit/s", bytes_per_s * 8.0 / 1e9);
        let question = format!(
            "can it be moved with {:.0} ms of downtime over {}?",
            link.downtime_s * 1e3,
            gbit(link.bytes_per_s)
        );
        let answer = if forecast.converges {
            format!(
                "yes: {} at first, {} rounds, {} in all, {:.2} s, {:.0} ms of them downtime",
                human_bytes(*bulk_bytes),
                forecast.rounds,
                human_bytes(forecast.sent_bytes),
                forecast.total_s,
                forecast.downtime_s * 1e3
            )
        } else {
            format!(
                "no: after {} rounds it still writes as fast as the link sends, and would stand \
                 still for {:.0} ms",
                forecast.rounds,
                forecast.downtime_s * 1e3
            )
        };
        let least = format!("the slowest link that would do: {}", gbit(*least_bytes_per_s));
        vec![question, answer, least]
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new([" SECONDS", " PAGES", " PAGES/S", " BYTES/S"]);
        let mut seconds = 0.0;
        for rates in self.rates.chunks(self.rates.len().div_ceil(LINES_MAX).max(1)) {
            let rate = Rate::sum(rates);
            seconds += rate.epoch_us as f64 / 1e6;
            table.row([
                format!("{seconds:.2}"),
                rate.dirty_pages.to_string(),
                format!("{:.0}", rate.pages_per_s()),
                human_bytes(rate.bytes_per_s()),
            ]);
        }
        writeln!(f, "{}", self.guest)?;
        for line in table.lines() {
            writeln!(f, "{line}")?;
        }
        writeln!(f)?;
        self.summary().iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut history = History::default();
        let mut rates = Vec::new();
        for epoch in 0..8 {
            history.push(1000, [(0, 10), (10 + epoch * 5, 5)]);
            rates.push(Rate::new(15, 250_000));
        }
        Report::new("web1", PageCount(1000), &history, &rates)
    }

    #[test]
    fn a_rate_is_by_the_second() {
        let rate = Rate::new(15, 250_000);
        assert_eq!(rate.to_string(), "15 pages in 250 ms: 60 pages/s, 240 KiB/s");
        assert_eq!(Rate::new(0, 0).pages_per_s(), 0.0);
    }

    #[test]
    fn the_curve_has_the_lengths_that_were_seen() {
        let report = report();
        let points: Vec<(f64, f64)> =
            report.working_set.iter().map(|point| (point.seconds, point.pages)).collect();
        assert_eq!(points, [(0.25, 15.0), (0.5, 20.0), (1.0, 30.0), (2.0, 50.0)]);
    }

    #[test]
    fn it_answers_the_question_with_the_numbers() {
        let mut report = report();
        report.ask_whether_it_can_move(1 << 30, Link { bytes_per_s: 1.25e9, downtime_s: 0.3 });
        let text = report.to_string();
        assert!(text.contains("with 300 ms of downtime over 10.00 Gbit/s?"), "{text}");
        assert!(text.contains("yes: 1.00 GiB at first, 1 rounds"), "{text}");
        let json = serde_json::to_value(&report).expect("a report has a JSON form");
        assert_eq!((&json["hot_pages"], &json["cold_pages"]), (&10.into(), &950.into()));
        assert_eq!(json["migration"]["converges"], true);
    }
}
