//! What the agent has to say to whoever runs the VMM.
//!
//! We live in somebody else's program, which may hold its stdio locks while it waits for a page that
//! we serve: lines go out by one `write` each, from a buffer on the stack, and a line that cannot be
//! written is dropped. `BINDERY_LOG_FILE` names a file to append to; without it lines go to what was
//! standard error when the first was said.
//!
//! Where the library has a descriptor table of its own ([`table`]) lines are written by a thread that has
//! it: what the file or the pipe answers (`SIGPIPE`, `SIGXFSZ`) is then no concern of the program's.

use std::env;
use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{self, Path, PathBuf};
use std::sync::OnceLock;

use bindery_sys::stderr::Stderr;
use bindery_sys::table;

/// The file to log to.
pub const LOG_FILE_VARIABLE: &str = "BINDERY_LOG_FILE";

/// The longest line, in bytes. Longer ones are cut.
const LINE_BYTES_MAX: usize = 1024;

enum Sink {
    File(PathBuf),
    Stderr(Stderr),
}

/// Says one line, `bindery: ` in front: what happened, and what to do about it.
pub fn say(message: fmt::Arguments<'_>) {
    static SINK: OnceLock<Sink> = OnceLock::new();
    let line = Line::new(message);
    let sink = SINK.get_or_init(Sink::chosen);
    // A line that cannot be written has nowhere to go.
    let write = || sink.write(line.bytes());
    let _ = table::try_run(|| table::with_spare(write)).unwrap_or_else(write);
}

impl Sink {
    fn chosen() -> Self {
        let file = env::var_os(LOG_FILE_VARIABLE).and_then(|path| path::absolute(path).ok());
        file.filter(|path| open(path).is_ok())
            .map_or_else(|| Self::Stderr(Stderr::remember()), Self::File)
    }

    /// Lines are few: the file is open for as long as one takes.
    fn write(&self, line: &[u8]) -> io::Result<usize> {
        match self {
            Self::File(path) => open(path)?.write(line),
            Self::Stderr(stderr) => stderr.write(line),
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

/// A line being put together; what does not fit is cut off.
struct Line {
    buffer: [u8; LINE_BYTES_MAX],
    used: usize,
}

impl Line {
    fn new(message: fmt::Arguments<'_>) -> Self {
        let mut line = Self { buffer: [0; LINE_BYTES_MAX], used: 0 };
        // Cutting is the only way in which writing to a line fails, and is as intended.
        let _ = write!(line, "bindery: {message}");
        line.buffer[line.used] = b'\n';
        line.used += 1;
        line
    }

    fn bytes(&self) -> &[u8] {
        &self.buffer[..self.used]
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // One byte is left for the end of the line.
        let room = LINE_BYTES_MAX - 1 - self.used;
        let fits = text.floor_char_boundary(room.min(text.len()));
        for (to, from) in self.buffer[self.used..].iter_mut().zip(&text.as_bytes()[..fits]) {
            // A message may quote a peer: it gets one line, and no control of the terminal.
            *to = if from.is_ascii_control() { b' ' } else { *from };
        }
        self.used += fits;
        if fits == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_line_and_is_cut() {
        let line = Line::new(format_args!("no\nsuch\x1b[2J {}", 7));
        assert_eq!(line.bytes(), b"bindery: no such [2J 7\n");
        let long = Line::new(format_args!("{}{}", "é".repeat(600), "x"));
        assert!(long.bytes().len() <= LINE_BYTES_MAX && long.bytes().ends_with(b"\n"));
        assert!(std::str::from_utf8(long.bytes()).is_ok());
    }
}
