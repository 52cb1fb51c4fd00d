//! Outcome of a measurement, for people and for programs.

use std::fmt::Display;
use std::io::{self, Write};

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::Value;

/// A report in both of its forms.
pub(crate) struct Outcome {
    /// Tables for people.
    pub(super) text: String,
    /// Figures for programs, sample by sample.
    pub(super) json: Value,
}

impl Outcome {
    /// Renders a report.
    ///
    /// # Errors
    /// If it cannot be written as JSON.
    pub(crate) fn of(report: &(impl Serialize + Display)) -> Result<Self> {
        let json = serde_json::to_value(report).context("writing a report as JSON")?;
        Ok(Self { text: report.to_string(), json })
    }

    /// Prints the form that was asked for on stdout. A reader that went away ends it without a word.
    ///
    /// # Errors
    /// If stdout cannot be written.
    pub(crate) fn print(&self, as_json: bool) -> Result<()> {
        let mut out = io::stdout().lock();
        let written = match as_json {
            true => writeln!(out, "{:#}", self.json),
            false => writeln!(out, "{}", self.text),
        };
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written.context("writing to stdout"),
        }
    }
}
