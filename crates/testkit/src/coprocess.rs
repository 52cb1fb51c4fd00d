//! A coprocess: a child that obeys orders on its standard input and answers each on its standard
//! output, line by line.
//!
//! The parent has a [`Coprocess`]; the child calls [`serve`]. Answers are marked, for a test harness
//! writes to the same stream. An order that fails is answered with the reason, and the child goes on.
//!
//! Concurrency: one thread at a time uses a [`Coprocess`]. Several work at once where all are sent
//! their orders before the first answer is awaited.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::str::FromStr;

/// Beginning of every answer.
const MARK: &str = "coprocess: ";

/// Words behind [`MARK`]: an answer follows, or the reason why an order failed.
const ANSWER: &str = "ok ";
const FAILURE: &str = "failed ";

/// A running coprocess. Dropping it kills the child.
#[derive(Debug)]
pub struct Coprocess {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Coprocess {
    /// Starts `program`. `launcher` is the command line in front of it, as of
    /// [`Daemon::launcher`](crate::bindery::Daemon::launcher); it must become the program, or end with
    /// it. `prepare` adds arguments, an environment or a user.
    ///
    /// # Errors
    /// When the child cannot be started.
    pub fn start(
        launcher: &[OsString],
        program: impl Into<OsString>,
        prepare: impl FnOnce(&mut Command),
    ) -> io::Result<Self> {
        let mut words = launcher.iter().cloned().chain([program.into()]);
        let mut command = Command::new(words.next().expect("the program is the last word"));
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        prepare(&mut command);
        let mut child = command.spawn()?;
        let (Some(orders), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both were asked for")
        };
        Ok(Self { child, orders, answers: BufReader::new(answers) })
    }

    /// Pid of the child.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends an order, one line, and returns at once.
    ///
    /// # Errors
    /// When the child has ended.
    pub fn send(&mut self, order: &str) -> io::Result<()> {
        writeln!(self.orders, "{order}").map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => self.end(),
            _ => error,
        })
    }

    /// Waits for the answer to the earliest order without one.
    ///
    /// # Errors
    /// When the order failed, or the child has ended.
    pub fn receive(&mut self) -> io::Result<String> {
        loop {
            let mut line = String::new();
            if self.answers.read_line(&mut line)? == 0 {
                return Err(self.end());
            }
            let Some((_, said)) = line.trim_end_matches('\n').split_once(MARK) else { continue };
            return match said.strip_prefix(ANSWER) {
                Some(answer) => Ok(answer.to_owned()),
                None => Err(io::Error::other(said.trim_start_matches(FAILURE).to_owned())),
            };
        }
    }

    /// Sends an order and waits for the answer.
    ///
    /// # Errors
    /// As [`Self::receive`].
    pub fn ask(&mut self, order: &str) -> io::Result<String> {
        self.send(order)?;
        self.receive()
    }

    /// Sends an order and parses the answer.
    ///
    /// # Errors
    /// As [`Self::receive`], or when the answer is something else.
    pub fn ask_for<T: FromStr>(&mut self, order: &str) -> io::Result<T> {
        let answer = self.ask(order)?;
        answer.parse().map_err(|_| io::Error::other(format!("{order:?} was answered {answer:?}")))
    }

    /// Waits for a child that has closed its end of a pipe, and returns its status as an error.
    fn end(&mut self) -> io::Error {
        match self.child.wait() {
            Ok(status) => io::Error::other(format!("the process has ended ({status})")),
            Err(error) => error,
        }
    }
}

impl Drop for Coprocess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Obeys orders from the standard input until it ends. Each is answered with what `obey` returns,
/// nothing included.
///
/// # Errors
/// When the standard streams fail, as they do when the parent has ended.
pub fn serve<E: Display>(mut obey: impl FnMut(&str) -> Result<String, E>) -> io::Result<()> {
    for order in io::stdin().lines() {
        let (kind, said) = match obey(&order?) {
            Ok(answer) => (ANSWER, answer),
            // The alternate form of some errors has their causes.
            Err(error) => (FAILURE, format!("{error:#}")),
        };
        writeln!(io::stdout(), "{MARK}{kind}{}", said.replace('\n', " "))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell that obeys in place of [`serve`].
    fn shell(script: &str) -> Coprocess {
        Coprocess::start(&["sh".into(), "-c".into(), script.into()], "sh", |_| ()).unwrap()
    }

    #[test]
    fn answers_are_found_among_other_output() {
        let mut echo = shell(
            "while read word; do printf 'noise\ntest x ... coprocess: ok %s\n' \"$word\"; done",
        );
        assert_eq!(echo.ask("one").unwrap(), "one");
        echo.send("2").unwrap();
        echo.send("").unwrap();
        assert_eq!((echo.receive().unwrap(), echo.receive().unwrap()), ("2".into(), String::new()));
        assert_eq!(echo.ask_for::<u64>("3").unwrap(), 3);
        let error = echo.ask_for::<u64>("four").unwrap_err();
        assert_eq!(error.to_string(), r#""four" was answered "four""#);
    }

    #[test]
    fn failures_and_ends_are_errors() {
        let mut failing = shell("read word; echo \"coprocess: failed $word is wrong\"; exit 3");
        assert_eq!(failing.ask("it").unwrap_err().to_string(), "it is wrong");
        let ended = "the process has ended (exit status: 3)";
        assert_eq!(failing.receive().unwrap_err().to_string(), ended);
        assert_eq!(failing.ask("more").unwrap_err().to_string(), ended);
    }
}
