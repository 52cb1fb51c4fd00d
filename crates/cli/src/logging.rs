//! The log of the commands that run for long: the daemon and the KSM pilot.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::exit::Failure;
use crate::screen::takes_escapes;

/// Chooses what is logged: `error`, `warn`, `info` or `debug`.
const LEVEL_VARIABLE: &str = "BINDERY_LOG";

/// Starts the log: to the file at `path`, else to standard error. `level` is what is logged where
/// [`LEVEL_VARIABLE`] does not say. A line that cannot be written (a full disk, a limit of files, nobody
/// who reads) is lost.
///
/// # Errors
/// If the file cannot be opened.
pub(crate) fn start(path: Option<&Path>, level: LevelFilter) -> Result<(), Failure> {
    let named = std::env::var(LEVEL_VARIABLE).ok().and_then(|text| text.parse::<Targets>().ok());
    let filter = named.unwrap_or_else(|| Targets::new().with_default(level));
    let (writer, ansi) = match path {
        Some(path) => (BoxMakeWriter::new(open(path)?), false),
        None => (BoxMakeWriter::new(io::stderr), takes_escapes(&io::stderr())),
    };
    // Without the last, a failed write is reported on standard error, and if that fails by a panic.
    let lines = tracing_subscriber::fmt::layer().with_target(false).log_internal_errors(false);
    let lines = lines.with_ansi(ansi).with_writer(writer);
    tracing_subscriber::registry().with(filter).with(lines).init();
    Ok(())
}

/// Opens a file to append lines to, for its owner's eyes alone if it is new. If it is a terminal, it does
/// not become this process's own.
///
/// # Errors
/// If the file cannot be opened.
pub(crate) fn open(path: &Path) -> Result<File, Failure> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600);
    options.custom_flags(OFlags::NOCTTY.bits().cast_signed());
    options
        .open(path)
        .map_err(|error| Failure::of_io(format_args!("cannot write {}", path.display()), &error))
}
