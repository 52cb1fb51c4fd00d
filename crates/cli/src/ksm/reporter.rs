//! Printing of a pilot's events, by a thread of its own: a reader that stalls stops that thread,
//! not the pacing, nor the order to end.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use bindery_ksm::Event;

/// Events that wait for the reader; what comes on top of them is dropped and counted.
const WAITING_MAX: usize = 256;

/// How long the reader is waited for at the end.
const PATIENCE: Duration = Duration::from_secs(1);

/// What there is to write.
#[derive(Debug)]
pub(super) enum Line {
    /// Something happened.
    Event(Box<Event>),
    /// So many events before this were dropped.
    Lost(u64),
}

/// Writes lines, in the order in which they come.
#[derive(Debug)]
pub(super) struct Reporter {
    lines: SyncSender<Line>,
    /// Hung up by the thread when it has written everything.
    done: Receiver<()>,
    lost: u64,
}

impl Reporter {
    /// Begins to write to `out` as `text` has it. A reader that goes away ends the writing alone.
    ///
    /// # Errors
    /// The system's, if there can be no other thread.
    pub(super) fn start(
        mut out: impl Write + Send + 'static,
        text: impl Fn(&Line) -> String + Send + 'static,
    ) -> io::Result<Self> {
        let (lines, waiting) = sync_channel(WAITING_MAX);
        let (hangs_up, done) = sync_channel(0);
        std::thread::Builder::new().name("reporter".into()).spawn(move || {
            let _hangs_up: SyncSender<()> = hangs_up;
            for line in waiting {
                if writeln!(out, "{}", text(&line)).and_then(|()| out.flush()).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { lines, done, lost: 0 })
    }

    /// Has an event written. Never blocks.
    pub(super) fn report(&mut self, event: &Event) {
        if !self.report_lost() || !self.offer(Line::Event(Box::new(event.clone()))) {
            self.lost += 1;
        }
    }

    /// Reports how many were dropped. Returns true if none is left to be reported.
    fn report_lost(&mut self) -> bool {
        if self.lost > 0 && self.offer(Line::Lost(self.lost)) {
            self.lost = 0;
        }
        self.lost == 0
    }

    /// Whether there was room. Of those that nobody reads any more nothing is lost.
    fn offer(&self, line: Line) -> bool {
        !matches!(self.lines.try_send(line), Err(TrySendError::Full(_)))
    }

    /// Waits until everything is written, for a second at most. Returns whether it is.
    pub(super) fn finish(self) -> bool {
        self.finish_within(PATIENCE)
    }

    fn finish_within(mut self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while !self.report_lost() {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(self.lines);
        let left = deadline.saturating_duration_since(Instant::now());
        self.done.recv_timeout(left) == Err(RecvTimeoutError::Disconnected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    /// Nothing that is read takes so long.
    const SOON: Duration = Duration::from_secs(20);

    fn text(line: &Line) -> String {
        match line {
            Line::Event(event) => serde_json::to_string(event).unwrap(),
            Line::Lost(count) => format!("lost {count}"),
        }
    }

    #[test]
    fn everything_is_written_in_order() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut reporter = Reporter::start(writer, text).unwrap();
        reporter.report(&Event::KsmRunning);
        reporter.report(&Event::KsmStopped { run: 0, suspect: None });
        assert!(reporter.finish_within(SOON));
        let mut printed = String::new();
        reader.read_to_string(&mut printed).unwrap();
        let lines: Vec<&str> = printed.lines().collect();
        assert!(lines[0].contains("ksm_running") && lines[1].contains("ksm_stopped"), "{printed}");
    }

    #[test]
    fn what_a_stalled_reader_misses_is_counted() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut reporter = Reporter::start(writer, text).unwrap();
        let mut events = 0_u64;
        // As many as fit into the pipe and the queue, and some more.
        while reporter.lost < 10 {
            reporter.report(&Event::KsmRunning);
            events += 1;
        }
        let reader = std::thread::spawn(move || {
            let mut printed = String::new();
            reader.read_to_string(&mut printed).unwrap();
            printed
        });
        assert!(reporter.finish_within(SOON));
        let printed = reader.join().unwrap();
        let lost = |line: &str| line.strip_prefix("lost ").map(|count| count.parse().unwrap());
        let count = |line: &str| lost(line).unwrap_or(1_u64);
        assert_eq!(printed.lines().map(count).sum::<u64>(), events);
        assert!(printed.lines().filter_map(lost).sum::<u64>() >= 10);
    }

    /// Takes nothing as long as the other end is there.
    struct Stalled(Receiver<()>);

    impl Write for Stalled {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn who_never_reads_is_not_waited_for() {
        let (_stalls, stalled) = sync_channel(0);
        let mut reporter = Reporter::start(Stalled(stalled), text).unwrap();
        reporter.report(&Event::KsmRunning);
        assert!(!reporter.finish());
    }

    #[test]
    fn a_reader_that_went_away_loses_nothing() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut reporter = Reporter::start(writer, text).unwrap();
        (0..1000).for_each(|_| reporter.report(&Event::KsmRunning));
        assert!(reporter.finish_within(SOON));
    }
}
