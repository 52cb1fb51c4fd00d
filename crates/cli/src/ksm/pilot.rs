//! `bindery ksm run`: paces ksmd and tells of it, line by line.

use std::fmt::Write;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use bindery_host::printable;
use bindery_ksm::{Event, Options, Pilot, Timing, Totals};
use bindery_sys::process::ignores_signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::low_level::pipe;
use tracing_subscriber::filter::LevelFilter;

use super::args::RunArgs;
use super::reporter::{Line, Reporter};
use crate::exit::{Failure, Reason};
use crate::logging;

pub(crate) fn run(arguments: &RunArgs, json: bool) -> Result<(), Failure> {
    // What a run says goes to stdout; warnings and traces to stderr for those who ask.
    logging::start(None, LevelFilter::ERROR)?;
    let settings = arguments.settings();
    settings.check().map_err(|error| {
        let hint = "see --target-scan-time, --max-cpu, --min-pages and --max-pages";
        Failure::new(Reason::Usage, format!("{error}; {hint}"))
    })?;
    let target_s = settings.target_scan_time_s;
    // Before anything is changed: a signal that comes then must not be lost.
    let stop = signals().map_err(|error| Failure::of_io("cannot take signals", &error))?;
    let options = Options { settings, state: arguments.state.clone(), start: arguments.start };
    // A reader that went away does not end the pilot, nor does one that stalls stop it.
    let text = move |line: &Line| if json { as_json(line) } else { describe_line(line, target_s) };
    let mut reporter = Reporter::start(io::stdout(), text)
        .map_err(|error| Failure::of_io("cannot start a thread", &error))?;
    let pilot = Pilot::start(&options)?;
    let ended = pilot.run(stop.as_fd(), arguments.duration, &mut |event| reporter.report(event));
    if !reporter.finish() {
        tracing::debug!("nobody reads: some of what happened is not told");
    }
    ended?;
    Ok(())
}

/// Readable once a signal to end has come.
fn signals() -> io::Result<UnixStream> {
    let (receiver, sender) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM, SIGQUIT, SIGHUP] {
        // nohup(1) and its like: whoever has it ignored wants the pilot to outlive the terminal.
        if signal == SIGHUP && ignores_signal(signal)? {
            continue;
        }
        pipe::register(signal, sender.try_clone()?)?;
    }
    Ok(receiver)
}

fn as_json(line: &Line) -> String {
    match line {
        Line::Event(event) => serde_json::json!(event).to_string(),
        Line::Lost(count) => serde_json::json!({ "event": "lost", "count": count }).to_string(),
    }
}

fn describe_line(line: &Line, target_s: u64) -> String {
    match line {
        Line::Event(event) => describe(event, target_s),
        Line::Lost(count) => format!("{count} lines are missing here: nobody read them in time"),
    }
}

fn describe(event: &Event, target_s: u64) -> String {
    match event {
        Event::Started { advisor_mode, found, is_taken_over, names_writers } => {
            let mut line = format!(
                "pacing KSM (advisor_mode {advisor_mode}); found pages_to_scan {}, sleep_millisecs {}",
                found.pages_to_scan, found.sleep_millisecs
            );
            if let Some(mode) = &found.advisor_mode {
                let _ = write!(line, ", advisor_mode {mode}");
            }
            if *is_taken_over {
                line.push_str(", as saved by a pilot that was killed");
            }
            if !names_writers {
                line.push_str("; other writers are noticed, but this kernel does not name them");
            }
            line
        }
        Event::KsmAdvisor { scan_time_us, cpu_percent, pages, full_scans, timing, .. } => {
            let Event::KsmAdvisor { pages_to_scan, sleep_millisecs, .. } = event else {
                unreachable!("it was matched")
            };
            let next = match timing {
                Timing::Unchanged => "as before",
                Timing::BetweenScans => "set between scans",
                Timing::Late => "set late",
            };
            format!(
                "scan {full_scans}: {:.1} s of {target_s} s, {pages} pages, {cpu_percent}% of a CPU; \
                 next {pages_to_scan} pages every {sleep_millisecs} ms, {next}",
                *scan_time_us as f64 / 1e6
            )
        }
        Event::Held { cpu_percent, pages_to_scan, sleep_millisecs } => format!(
            "at {cpu_percent}% of a CPU lately: {pages_to_scan} pages every {sleep_millisecs} ms for now"
        ),
        Event::Raised { pages, new_pages, pages_to_scan, sleep_millisecs } => format!(
            "to be on time with this scan ({pages} pages so far, {new_pages} of them new): \
             {pages_to_scan} pages every {sleep_millisecs} ms for now"
        ),
        Event::ForeignWrite { setting, found, restored, suspect, count } => {
            let who = suspect.as_ref().map_or("somebody".into(), |who| format!("process {who}"));
            let often = if *count > 1 { format!(" {count} times") } else { String::new() };
            printable(&format!("{who} set {setting} to {found}{often}: it is {restored} again"))
        }
        Event::KsmStopped { run, suspect } => {
            let by =
                suspect.as_ref().map_or(String::new(), |who| format!(", set by process {who}"));
            printable(&format!("KSM does not run (run is {run}{by}): waiting until it does"))
        }
        Event::KsmRunning => "KSM runs".into(),
        Event::Ended(totals) => describe_end(totals),
    }
}

fn describe_end(totals: &Totals) -> String {
    let Totals { scans, changes, late_changes, foreign_writes, .. } = totals;
    let seconds = |us: u64| us as f64 / 1e6;
    format!(
        "everything is as it was. {scans} scans in {:.1} s, {changes} changes of pace ({late_changes} \
         late), {foreign_writes} foreign writes; ksmd took {:.2} s of a CPU, this pilot {:.3} s",
        seconds(totals.time_us),
        seconds(totals.ksmd_cpu_us),
        seconds(totals.pilot_cpu_us)
    )
}
