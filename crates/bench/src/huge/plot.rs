//! Savings against access times, as an SVG: a panel for each share of duplicates and of hot blocks.

use std::fmt::Write;

use super::{
    contender::{KSM, Mode, NOBODY},
    duplicates::{Point, READ},
    layout::Hot,
};
use crate::choice;

/// One contender with one layout.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Dot {
    who: String,
    share_percent: u32,
    run_pages: u32,
    hot: Hot,
    /// Access time, in times nobody's.
    time: f64,
    /// Share of what can be saved, in percent.
    saved_percent: f64,
}

/// Outer size of a panel, and the part around it that numbers take, in pixels.
const PANEL: (f64, f64) = (300.0, 210.0);
const MARGIN: (f64, f64) = (46.0, 36.0);

/// Height and width of the legend.
const LEGEND: f64 = 40.0;
const LEGEND_WIDTH: f64 = 620.0;

/// Returns the dots of all layouts. Nobody is where the axes meet, and has none.
pub(super) fn dots(points: &[Point]) -> Vec<Dot> {
    let of = |point: &Point| -> Vec<Dot> {
        let others = point.samples.iter().filter(|set| set.name != NOBODY);
        let dot = |who: &String| {
            Some(Dot {
                who: who.clone(),
                share_percent: point.share_percent,
                run_pages: point.run_pages,
                hot: point.hot,
                time: point.ratio(READ[1], who, NOBODY)?,
                saved_percent: 100.0 * point.saving(who)? / point.duplicates_mib,
            })
        };
        others.filter_map(|set| dot(&set.name)).collect()
    };
    points.iter().flat_map(of).collect()
}

/// Draws the dots.
pub(super) fn svg(dots: &[Dot]) -> String {
    let (shares, hots) = (distinct(dots, |dot| dot.share_percent), distinct(dots, |dot| dot.hot));
    let whos = distinct(dots, |dot| dot.who.clone());
    let scale = Scale::of(dots);
    let width = LEGEND_WIDTH.max(PANEL.0 * hots.len() as f64);
    let height = LEGEND + PANEL.1 * shares.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    svg.push_str(&legend(&whos));
    for (row, &share) in shares.iter().enumerate() {
        for (column, &hot) in hots.iter().enumerate() {
            let corner = (PANEL.0 * column as f64, LEGEND + PANEL.1 * row as f64);
            let own = dots.iter().filter(|dot| dot.share_percent == share && dot.hot == hot);
            let title = format!("{share}% duplicates, hot {}", choice::name(&hot));
            svg.push_str(&panel(corner, &title, own, &scale));
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// Values at the edges of every panel.
struct Scale {
    times: (f64, f64),
    saved: (f64, f64),
}

impl Scale {
    fn of(dots: &[Dot]) -> Self {
        let most = |value: fn(&Dot) -> f64, least| dots.iter().map(value).fold(least, f64::max);
        let least = |value: fn(&Dot) -> f64, most| dots.iter().map(value).fold(most, f64::min);
        let (slowest, fastest) = (most(|dot| dot.time, 1.2), least(|dot| dot.time, 1.0));
        let (top, bottom) =
            (most(|dot| dot.saved_percent, 100.0), least(|dot| dot.saved_percent, 0.0));
        let tens = |value: f64| value / 10.0;
        Self {
            times: ((fastest * 10.0 - 0.5).floor() / 10.0, (slowest * 10.0 + 0.5).ceil() / 10.0),
            saved: (tens(bottom).floor() * 10.0, tens(top).ceil() * 10.0),
        }
    }

    /// Returns the position of a value in a panel, in pixels from its corner.
    fn position(&self, time: f64, saved_percent: f64) -> (f64, f64) {
        let part = |value: f64, (from, to): (f64, f64)| (value - from) / (to - from);
        let (width, height) = (PANEL.0 - MARGIN.0 - 24.0, PANEL.1 - 2.0 * MARGIN.1);
        let up = height * part(saved_percent, self.saved);
        (MARGIN.0 + width * part(time, self.times), MARGIN.1 + height - up)
    }
}

fn legend(whos: &[String]) -> String {
    let mut svg = String::from(
        "<text x=\"10\" y=\"14\">saved, of what can be saved (%), against the time of a random read \
         (× nobody's); numbers are lengths of runs</text>\n",
    );
    for (at, who) in whos.iter().enumerate() {
        let (x, color) = (16 + 90 * at, color(who));
        let _ = writeln!(
            svg,
            "<circle cx=\"{x}\" cy=\"28\" r=\"4\" fill=\"{color}\"/>\
             <text x=\"{}\" y=\"32\">{who}</text>",
            x + 8
        );
    }
    svg
}

fn panel<'a>(
    (x, y): (f64, f64),
    title: &str,
    dots: impl Iterator<Item = &'a Dot>,
    scale: &Scale,
) -> String {
    let (left, bottom) = scale.position(scale.times.0, scale.saved.0);
    let (right, top) = scale.position(scale.times.1, scale.saved.1);
    let (one, _) = scale.position(1.0, 0.0);
    let mut svg = format!(
        "<g transform=\"translate({x} {y})\">\n<text x=\"{left}\" y=\"{}\">{title}</text>\n\
         <path d=\"M{left} {top}V{bottom}H{right}\" fill=\"none\" stroke=\"black\"/>\n\
         <path d=\"M{one:.1} {top}V{bottom}\" stroke=\"#ccc\"/>\n",
        top - 8.0
    );
    for time in [scale.times.0, 1.0, scale.times.1] {
        let (at, _) = scale.position(time, 0.0);
        let below = bottom + 14.0;
        let _ =
            writeln!(svg, "<text x=\"{at:.1}\" y=\"{below}\" text-anchor=\"middle\">{time}</text>");
    }
    for saved in [scale.saved.0, scale.saved.1] {
        let (_, at) = scale.position(1.0, saved);
        let before = left - 4.0;
        let _ =
            writeln!(svg, "<text x=\"{before}\" y=\"{at:.1}\" text-anchor=\"end\">{saved}</text>");
    }
    dots.for_each(|dot| svg.push_str(&mark(dot, scale)));
    svg.push_str("</g>\n");
    svg
}

fn mark(dot: &Dot, scale: &Scale) -> String {
    let Dot { who, run_pages, time, saved_percent, .. } = dot;
    let ((x, y), color) = (scale.position(*time, *saved_percent), color(who));
    format!(
        "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{color}\" fill-opacity=\"0.8\">\
         <title>{who}, runs of {run_pages}: {saved_percent:.1}%, × {time:.3}</title></circle>\
         <text x=\"{:.1}\" y=\"{:.1}\" font-size=\"8\" fill=\"{color}\">{run_pages}</text>\n",
        x + 5.0,
        y - 3.0
    )
}

fn color(who: &str) -> &'static str {
    match who {
        KSM => "#d62728",
        who if who == Mode::Keep.to_string() => "#2ca02c",
        who if who == Mode::Auto.to_string() => "#1f77b4",
        _ => "#ff7f0e",
    }
}

/// Values of the dots, each once, in the order of their first.
fn distinct<T: PartialEq>(dots: &[Dot], value: impl Fn(&Dot) -> T) -> Vec<T> {
    let mut values = Vec::new();
    for value in dots.iter().map(value) {
        if !values.contains(&value) {
            values.push(value);
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dot(who: &str, share_percent: u32, hot: Hot, time: f64, saved_percent: f64) -> Dot {
        Dot { who: who.into(), share_percent, run_pages: 64, hot, time, saved_percent }
    }

    #[test]
    fn every_dot_is_in_the_panel_of_its_layout() {
        let dots = [
            dot(KSM, 5, Hot::None, 2.0, 99.0),
            dot("auto", 5, Hot::Half, 1.01, -3.0),
            dot("auto", 25, Hot::None, 0.97, 104.0),
        ];
        let svg = svg(&dots);
        assert_eq!(svg.matches("<g ").count(), 4, "two shares by two of hot blocks");
        assert_eq!(svg.matches("<title>").count(), 3);
        let panels: Vec<&str> = svg.split("<g ").collect();
        assert!(
            panels[1].contains("5% duplicates, hot none") && panels[1].contains("KSM, runs of 64")
        );
        assert!(panels[2].contains("auto, runs of 64: -3.0%, × 1.010"));
        assert_eq!(panels[4].matches("<title>").count(), 0);
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
    }

    #[test]
    fn the_scale_holds_all_values() {
        let dots = [dot(KSM, 5, Hot::None, 2.03, 107.0), dot("auto", 5, Hot::None, 0.93, -12.0)];
        let scale = Scale::of(&dots);
        assert_eq!((scale.times, scale.saved), ((0.8, 2.1), (-20.0, 110.0)));
        let (left, bottom) = scale.position(0.8, -20.0);
        assert_eq!((left, bottom), (MARGIN.0, PANEL.1 - MARGIN.1));
        assert!(svg(&[]).ends_with("</svg>\n"));
    }
}
