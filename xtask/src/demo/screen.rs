//! What the demo shows while it runs: a bar that shrinks with the guests' memory.
//!
//! Where the output is no terminal, indicatif draws nothing, and a line is printed now and then.

use std::cell::Cell;
use std::time::Duration;

use bindery_units::ByteCount;
use indicatif::{ProgressBar, ProgressStyle};

use super::report::{EngineReport, Sample, mib};

const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// The display of one engine's run.
#[derive(Debug)]
pub(super) struct Screen {
    engine: &'static str,
    bar: ProgressBar,
    last_line: Cell<Option<Duration>>,
}

impl Screen {
    pub(super) fn new(engine: &'static str) -> Self {
        let bar = ProgressBar::new(0);
        bar.set_prefix(engine);
        bar.set_style(style("{spinner} {prefix:>10}  {msg}"));
        bar.enable_steady_tick(Duration::from_millis(120));
        if bar.is_hidden() {
            println!("{engine}: booting guests");
        }
        Self { engine, bar, last_line: Cell::new(None) }
    }

    /// Says what goes on before merging.
    pub(super) fn phase(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }

    /// Shows the memory now.
    pub(super) fn sample(&self, before: ByteCount, sample: &Sample) {
        let text = format!(
            "{} of {} after {:.0} s, {:.1} s of CPU time",
            mib(sample.pss),
            mib(before),
            sample.time.as_secs_f64(),
            sample.cpu.as_secs_f64()
        );
        self.bar.set_style(style("{spinner} {prefix:>10}  [{bar:40}] {msg}"));
        self.bar.set_length(before.0);
        self.bar.set_position(sample.pss.0);
        if self.bar.is_hidden() && self.line_is_due(sample.time) {
            println!("{}: {text}", self.engine);
        }
        self.bar.set_message(text);
    }

    /// Leaves one line behind.
    pub(super) fn done(&self, report: &EngineReport) {
        let (first, last) = (report.samples.first(), report.samples.last());
        let (Some(first), Some(last)) = (first, last) else { return };
        self.bar.finish_and_clear();
        println!("{:>10}: {} became {}", self.engine, mib(first.pss), mib(last.pss));
    }

    fn line_is_due(&self, time: Duration) -> bool {
        let due = self.last_line.get().is_none_or(|last| time >= last + LINE_INTERVAL);
        if due {
            self.last_line.set(Some(time));
        }
        due
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("██░")
}
