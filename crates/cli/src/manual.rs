//! `bindery completions`, `man` and `exit-codes`: all generated from the command line's definition.

use std::fs;
use std::io;
use std::path::Path;

use clap::CommandFactory;

use crate::args::{Arguments, CompletionsArgs, ManArgs, exit_code_table};
use crate::completion;
use crate::exit::{Failure, Reason, exit_codes};
use crate::output::{print, print_json};

/// Prints a shell's completion script.
pub(crate) fn completions(arguments: &CompletionsArgs) -> Result<(), Failure> {
    let shell = arguments.shell.to_string();
    let script = completion::script(&shell).ok_or_else(|| {
        Failure::new(Reason::Unsupported, format!("there is no completion for {shell}"))
    })?;
    print(|out| out.write_all(&script))
}

/// Prints the manual page, or writes those of all commands into a directory.
pub(crate) fn man(arguments: &ManArgs) -> Result<(), Failure> {
    let Some(directory) = &arguments.directory else {
        let mut page = Vec::new();
        render(&command(), &mut page).map_err(|error| cannot_write(Path::new("stdout"), &error))?;
        return print(|out| out.write_all(&page));
    };
    fs::create_dir_all(directory).map_err(|error| cannot_write(directory, &error))?;
    let mut root = command();
    root.build();
    write_pages(&root, directory)
}

pub(crate) fn command() -> clap::Command {
    Arguments::command().after_long_help(exit_code_table())
}

/// One page for `command` and one for each command below it: `bindery-run.1`.
fn write_pages(command: &clap::Command, directory: &Path) -> Result<(), Failure> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    let path = directory.join(format!("{name}.1"));
    let mut page = Vec::new();
    render(command, &mut page)
        .and_then(|()| fs::write(&path, page))
        .map_err(|error| cannot_write(&path, &error))?;
    let below = command.get_subcommands().filter(|below| below.get_name() != "help");
    below.filter(|below| !below.is_hide_set()).try_for_each(|below| write_pages(below, directory))
}

fn render(command: &clap::Command, page: &mut Vec<u8>) -> io::Result<()> {
    clap_mangen::Man::new(command.clone()).render(page)
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::of_io(format_args!("cannot write {}", path.display()), error)
}

/// Explains the exit codes.
pub(crate) fn explain_exit_codes(json: bool) -> Result<(), Failure> {
    if json {
        let list: Vec<_> = exit_codes()
            .map(|(code, meaning)| serde_json::json!({ "exit_code": code, "meaning": meaning }))
            .collect();
        return print_json(&list);
    }
    print(|out| writeln!(out, "{}", exit_code_table()))
}
