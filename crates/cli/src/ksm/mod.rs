//! `bindery ksm`: the kernel's own page merging, paced, watched and offered memory.

mod args;
mod enable;
mod pilot;
mod reporter;
mod status;

use bindery_ksm::{PilotError, State, restore};

pub(crate) use self::args::KsmCommand;
use self::args::RestoreArgs;
use crate::exit::{Failure, Reason};
use crate::output::{print, print_json};

pub(crate) fn run(command: &KsmCommand, json: bool) -> Result<(), Failure> {
    match command {
        KsmCommand::Run(arguments) => pilot::run(arguments, json),
        KsmCommand::Status(arguments) => status::run(arguments, json),
        KsmCommand::Enable(arguments) => enable::run(arguments),
        KsmCommand::Restore(arguments) => put_back(arguments, json),
    }
}

fn put_back(arguments: &RestoreArgs, json: bool) -> Result<(), Failure> {
    let found = restore(&State::at(&arguments.state))?;
    if json {
        return print_json(&serde_json::json!({ "restored": found }));
    }
    print(|out| match &found {
        None => writeln!(out, "nothing to put back: no pilot was killed"),
        Some(found) => {
            write!(out, "put back: pages_to_scan {}, ", found.pages_to_scan)?;
            write!(out, "sleep_millisecs {}", found.sleep_millisecs)?;
            if let Some(mode) = &found.advisor_mode {
                write!(out, ", advisor_mode {mode}")?;
            }
            match found.run {
                Some(run) => writeln!(out, ", run {run}"),
                None => writeln!(out),
            }
        }
    })
}

impl From<PilotError> for Failure {
    fn from(error: PilotError) -> Self {
        let denied = |kind| kind == std::io::ErrorKind::PermissionDenied;
        let reason = match &error {
            PilotError::NoKsm | PilotError::NoKsmd(_) => Reason::Unsupported,
            PilotError::NotPermitted { .. } => Reason::Refused,
            PilotError::State { source, .. } | PilotError::Lock { source, .. }
                if denied(source.kind()) =>
            {
                Reason::Refused
            }
            PilotError::State { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                Reason::NotFound
            }
            PilotError::Setting(_) => Reason::Usage,
            PilotError::AlreadyRunning(_) => Reason::Taken,
            PilotError::ForeignState { .. } => Reason::BadInput,
            _ => Reason::Failed,
        };
        Self::new(reason, error.to_string())
    }
}
