//! What the command prints: JSON for programs, aligned tables for people.

use std::io::{self, Write};

use serde::Serialize;

use crate::exit::Failure;

/// Writes to stdout with `write`. A reader that went away (`bindery ps | head`) ends the command
/// without a word, as it does other commands.
pub(crate) fn print(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    match write(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        result => result.map_err(|error| Failure::of_io("cannot write to stdout", &error)),
    }
}

/// Prints `value` as one JSON document.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    print(|out| {
        serde_json::to_writer_pretty(&mut *out, value)?;
        writeln!(out)
    })
}

/// Returns what tells the domain of one NUMA node from those of others: nothing where merging goes across nodes.
pub(crate) fn on_node(node: Option<u32>) -> String {
    node.map(|node| format!(", node {node}")).unwrap_or_default()
}

/// Lines of cells under headings; cells are put to the right where the heading starts with a space.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub(crate) fn new<'a>(headings: impl IntoIterator<Item = &'a str>) -> Self {
        Self { rows: vec![headings.into_iter().map(str::to_owned).collect()] }
    }

    /// Adds a line.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The lines, headings first, without trailing spaces.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        let headings = &self.rows[0];
        let to_the_right: Vec<bool> = headings.iter().map(|text| text.starts_with(' ')).collect();
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.trim().chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..headings.len()).map(width).collect();
        self.rows.iter().map(move |row| {
            let cells = row.iter().zip(widths.iter().zip(&to_the_right));
            let line: Vec<String> = cells
                .map(|(cell, (width, right))| match right {
                    true => format!("{:>width$}", cell.trim()),
                    false => format!("{:width$}", cell.trim()),
                })
                .collect();
            line.join("  ").trim_end().to_owned()
        })
    }

    /// Prints the table.
    pub(crate) fn print(&self) -> Result<(), Failure> {
        print(|out| self.lines().try_for_each(|line| writeln!(out, "{line}")))
    }
}

/// Bytes for people: three digits and a unit.
pub(crate) fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    // 999.5 would be shown with four digits.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = match value {
        _ if unit == 0 => 0,
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// [`human_bytes`] of what may be negative.
pub(crate) fn human_signed_bytes(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "" };
    format!("{sign}{}", human_bytes(bytes.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_three_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "0.98 KiB"),
            (1 << 20, "1.00 MiB"),
            (1_500_000_000, "1.40 GiB"),
            (123 << 20, "123 MiB"),
            (u64::MAX, "16384 PiB"),
        ] {
            assert_eq!(human_bytes(bytes), text);
        }
        assert_eq!(human_signed_bytes(-(1 << 20)), "-1.00 MiB");
    }

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(["NAME", " RAM"]);
        table.row(["a".into(), "10".into()]);
        table.row(["long".into(), "7".into()]);
        let lines: Vec<String> = table.lines().collect();
        assert_eq!(lines, ["NAME  RAM", "a      10", "long    7"]);
    }
}
