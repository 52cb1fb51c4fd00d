//! A job of the daemon's, followed to its end.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bindery_host::client::{Client, ClientError};
use bindery_host::protocol::job::{JobOutcome, JobResult, JobStatus, JobUnit};
use bindery_host::protocol::{Answer, Request};
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::PATIENCE;
use crate::connect::misplaced;
use crate::exit::Failure;

/// Interval at which the progress is shown anew, and signals are looked for.
const INTERVAL: Duration = Duration::from_millis(200);

/// Set by the signals that cancel a job. Clones are one.
#[derive(Clone)]
pub(super) struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Lets `SIGINT` and `SIGTERM` cancel the job. To be called before it is begun, so that none is missed.
    pub(super) fn on_signals() -> Result<Self, Failure> {
        let flag = Arc::new(AtomicBool::new(false));
        let register = |signal| {
            // A second one ends the command at once, as it always does.
            signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&flag))?;
            signal_hook::flag::register(signal, Arc::clone(&flag)).map(drop)
        };
        let registered: io::Result<()> = [SIGINT, SIGTERM].into_iter().try_for_each(register);
        registered.map_err(|error| Failure::of_io("cannot take signals", &error))?;
        Ok(Self(flag))
    }

    /// Returns true once one of the signals has come.
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Returns the number of the job that was begun.
pub(super) fn begun(answer: &Answer) -> Result<u64, Failure> {
    match answer {
        Answer::JobStarted { job } => Ok(*job),
        answer => Err(misplaced(answer)),
    }
}

/// Waits for the end of a job, and shows its progress on a terminal.
///
/// # Errors
/// The job's own; if the daemon is gone.
pub(super) fn follow(client: &mut Client, job: u64, cancel: &Cancel) -> Result<JobResult, Failure> {
    let bar = ProgressBar::no_length();
    let mut was_asked = false;
    loop {
        let cancels = cancel.is_set() && !was_asked;
        let request = match cancels {
            true => Request::JobCancel { job },
            false => Request::Job { job, wait_ms: Some(INTERVAL.as_millis() as u64) },
        };
        was_asked |= cancels;
        let status = match client.ask(&request, PATIENCE)? {
            Answer::Job(status) => status,
            answer => return Err(misplaced(&answer)),
        };
        match status.outcome {
            None => show(&bar, &status),
            Some(outcome) => {
                bar.finish_and_clear();
                return match outcome {
                    JobOutcome::Done(result) => Ok(*result),
                    JobOutcome::Failed(failure) => Err(ClientError::Failed(failure).into()),
                };
            }
        }
    }
}

fn show(bar: &ProgressBar, status: &JobStatus) {
    let JobStatus { unit, done, total, phase, is_cancelled, .. } = status;
    let counts = match unit {
        JobUnit::Bytes => ("{binary_bytes}", "{binary_total_bytes}"),
        JobUnit::Pages | JobUnit::Checkpoints => ("{pos}", "{len}"),
    };
    let unit = match unit {
        JobUnit::Bytes => "",
        JobUnit::Pages => " pages",
        JobUnit::Checkpoints => " checkpoints",
    };
    let template = match total {
        Some(_) => format!("{{msg}} {{bar:40}} {} of {}{unit}, {{eta}} left", counts.0, counts.1),
        None => format!("{{msg}} {{spinner}} {}{unit}", counts.0),
    };
    bar.set_style(ProgressStyle::with_template(&template).expect("the template is a valid one"));
    if let Some(total) = total {
        bar.set_length(*total);
    }
    bar.set_message(if *is_cancelled { "ending".to_owned() } else { phase.clone() });
    bar.set_position(*done);
}
