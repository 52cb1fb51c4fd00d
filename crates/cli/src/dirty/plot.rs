//! The live plot of `bindery dirty --watch`.

use super::report::Report;

/// Eighths of a character's height.
const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Lines of the plot at most.
const HEIGHT_MAX: usize = 12;

/// What is shown on a terminal of `width` columns and `height` lines: the newest epochs as bars, and
/// what they mean.
pub(super) fn lines(report: &Report, width: usize, height: usize) -> Vec<String> {
    let summary = report.summary();
    let rates: Vec<f64> = report.rates().iter().map(|rate| rate.pages_per_s()).collect();
    let newest = &rates[rates.len().saturating_sub(width)..];
    let rows = height.saturating_sub(summary.len() + 3).clamp(1, HEIGHT_MAX);
    let most = newest.iter().copied().fold(1.0, f64::max);
    let mut lines = vec![match report.rates().last() {
        Some(rate) => format!("{rate}; the plot's top is {most:.0} pages/s; q quits"),
        None => "q quits".to_owned(),
    }];
    lines.extend(bars(newest, most, rows));
    lines.push(String::new());
    lines.extend(summary);
    lines
}

/// `values` as bars of at most `rows` lines, the top line first; `most` fills all of them.
fn bars(values: &[f64], most: f64, rows: usize) -> impl Iterator<Item = String> + '_ {
    (0..rows).rev().map(move |row| {
        let of_value = |value: &f64| {
            let eighths = value / most * (rows * 8) as f64 - (row * 8) as f64;
            BARS[eighths.ceil().clamp(0.0, 8.0) as usize]
        };
        values.iter().map(of_value).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_high_as_their_values() {
        let lines: Vec<String> = bars(&[0.0, 1.0, 4.0, 8.0], 8.0, 2).collect();
        assert_eq!(lines, ["   █", " ▂██"]);
    }
}
