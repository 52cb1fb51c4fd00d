//! Command lines that are wrong, or ask for help: what clap has to say, for people or for programs.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;

use crate::exit::{Failure, Reason};

/// Ends a command whose line clap did not take as a command: with the help asked for, or with what is
/// wrong, in JSON if `arguments` ask for that.
pub(crate) fn end(error: &clap::Error, arguments: impl Iterator<Item = OsString>) -> ExitCode {
    if error.use_stderr() && wants_json(arguments) {
        return failure(error).report(true);
    }
    // Where it cannot be printed there is nobody to read.
    let _ = error.print();
    u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Returns true if `--json` is among the arguments of ours: those behind `--` are a VMM's.
fn wants_json(mut arguments: impl Iterator<Item = OsString>) -> bool {
    arguments.by_ref().take_while(|argument| argument != "--").any(|argument| argument == "--json")
}

/// The failure that clap's error is, without the usage and in one line.
fn failure(error: &clap::Error) -> Failure {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Failure::new(Reason::Usage, "no command is given; --help lists them");
    }
    let text = error.render().to_string();
    let is_told_elsewhere = |paragraph: &&str| {
        ["Usage:", "For more information"].iter().any(|start| paragraph.starts_with(start))
    };
    let paragraphs = text.split("\n\n").map(str::trim).filter(|text| !text.is_empty());
    let paragraphs = paragraphs.filter(|paragraph| !is_told_elsewhere(paragraph));
    let lines = paragraphs.map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "));
    let message = lines.collect::<Vec<_>>().join("; ");
    let message = message.strip_prefix("error: ").unwrap_or(&message);
    Failure::new(Reason::Usage, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Arguments;
    use clap::Parser;

    #[test]
    fn json_is_asked_for_before_the_vmms_own_arguments() {
        let wants = |line: &str| wants_json(line.split(' ').map(OsString::from));
        assert!(wants("--json set foo") && wants("scan --json"));
        assert!(!wants("run -- qemu --json") && !wants("set foo"));
    }

    #[test]
    fn a_wrong_line_becomes_one_line_without_the_usage() {
        let error = Arguments::try_parse_from(["bindery", "ps", "--jsno"]).unwrap_err();
        let message = failure(&error).to_string();
        assert!(message.starts_with("unexpected argument '--jsno' found"), "{message}");
        assert!(message.contains("--json") && !message.contains("Usage"), "{message}");
        assert!(!message.contains('\n'), "{message}");
    }
}
