//! The terminal's alternate screen, drawn anew in place.

use std::io::{self, IsTerminal, Write};

use crossterm::{cursor, execute, queue, style, terminal};

/// Returns true if `stream` is a terminal that takes escape sequences: `TERM` names one, and it is not
/// `dumb`.
pub(crate) fn takes_escapes(stream: &impl IsTerminal) -> bool {
    let names_one = |term: &std::ffi::OsString| !term.is_empty() && term != "dumb";
    stream.is_terminal() && std::env::var_os("TERM").is_some_and(|term| names_one(&term))
}

/// The alternate screen, in raw mode, for as long as it lives.
pub(crate) struct Screen(());

impl Screen {
    /// # Errors
    /// If the terminal fails.
    pub(crate) fn enter() -> io::Result<Self> {
        terminal::enable_raw_mode()?;
        let screen = Self(());
        execute!(io::stdout(), terminal::EnterAlternateScreen, cursor::Hide)?;
        Ok(screen)
    }

    /// Shows the lines that `lines` makes for so many columns and lines, in place of what was shown.
    ///
    /// # Errors
    /// If the terminal fails.
    pub(crate) fn draw<L: IntoIterator<Item = String>>(
        &mut self,
        lines: impl FnOnce(usize, usize) -> L,
    ) -> io::Result<()> {
        let (width, height) = match terminal::size()? {
            // A terminal that does not know its size.
            (0, _) | (_, 0) => (80, 24),
            (width, height) => (width.into(), height.into()),
        };
        let mut out = io::BufWriter::new(io::stdout().lock());
        queue!(out, cursor::MoveTo(0, 0))?;
        for (row, line) in lines(width, height).into_iter().take(height).enumerate() {
            let visible: String = line.chars().take(width).collect();
            queue!(out, cursor::MoveTo(0, row as u16), style::Print(visible))?;
            queue!(out, terminal::Clear(terminal::ClearType::UntilNewLine))?;
        }
        queue!(out, terminal::Clear(terminal::ClearType::FromCursorDown))?;
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        let _ = execute!(io::stdout(), cursor::Show, terminal::LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}
