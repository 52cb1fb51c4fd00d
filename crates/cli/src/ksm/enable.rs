//! `bindery ksm enable`: a program with all of its memory offered to KSM.

use std::io;
use std::process::Command;

use bindery_sys::handover;
use bindery_sys::ksm::{is_there, set_merge_any};

use super::args::EnableArgs;
use crate::exit::{Failure, Reason};

/// Runs the program in place of this process. Returns only if that fails.
pub(crate) fn run(arguments: &EnableArgs) -> Result<(), Failure> {
    let [program, rest @ ..] = arguments.command.as_slice() else {
        return Err(Failure::new(Reason::Usage, "name the program to run"));
    };
    set_merge_any(true).map_err(|error| refusal(&error))?;
    let error = handover::replace(Command::new(program).args(rest));
    Err(Failure::of_io(format_args!("cannot run {}", program.display()), &error))
}

fn refusal(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::PermissionDenied => Failure::new(
            Reason::Refused,
            "a filter of system calls forbids to offer a program's memory to KSM \
             (PR_SET_MEMORY_MERGE): run it outside of the container or service that has this filter",
        ),
        io::ErrorKind::InvalidInput if is_there() => Failure::new(
            Reason::Unsupported,
            "this kernel has no PR_SET_MEMORY_MERGE, which Linux has since 6.4: use a newer one, or \
             a program that calls madvise(MADV_MERGEABLE) itself",
        ),
        io::ErrorKind::InvalidInput => Failure::new(
            Reason::Unsupported,
            "this kernel has no KSM: boot one built with CONFIG_KSM, or merge with `bindery run`, \
             which needs none",
        ),
        _ => Failure::of_io("cannot offer memory to KSM", error),
    }
}
