//! What the laws did: a column for each load, three beside each other, and in it, below each other,
//! candidates, batches, scan times and CPU.

use bindery_advisor::simulate::{Load, Run};
use bindery_advisor::{AdvisorSettings, Mode};
use embedded_graphics::pixelcolor::Rgb888;
use embedded_graphics::prelude::Point;
use embedded_graphics::text::Alignment;

use super::axis::{Frame, short, ticks};
use super::canvas::{Canvas, Size, colour};

const BACKGROUND: Rgb888 = colour(0xFF_FF_FF);
const PANEL: Rgb888 = colour(0xF7_F8_FA);
const GRID: Rgb888 = colour(0xE1_E4_EA);
const INK: Rgb888 = colour(0x22_26_2E);
const FAINT: Rgb888 = colour(0x6B_72_80);
const LIMIT: Rgb888 = colour(0xC0_2B_3A);

/// Of a panel's inside, in pixels.
const WIDTH: i32 = 400;
const HEIGHT: i32 = 180;

/// Around it: numbers to the left, a heading above, times below the lowest.
const LEFT: i32 = 62;
const RIGHT: i32 = 18;
const ABOVE: i32 = 30;
const HEADER: i32 = 66;
const FOOTER: i32 = 44;

const ROWS: [Row; 4] = [Row::Candidates, Row::Batch, Row::ScanTime, Row::Cpu];

/// One load, and what each law made of it.
pub(super) struct Column<'a> {
    pub(super) title: &'static str,
    pub(super) load: &'a Load,
    pub(super) runs: Vec<(Mode, &'a Run)>,
}

#[derive(Clone, Copy)]
enum Row {
    Candidates,
    Batch,
    ScanTime,
    Cpu,
}

impl Row {
    const fn heading(self) -> &'static str {
        match self {
            Self::Candidates => "candidates, pages",
            Self::Batch => "pages_to_scan",
            Self::ScanTime => "scan time, seconds",
            Self::Cpu => "CPU, percent, each second",
        }
    }
}

const fn colour_of(mode: Mode) -> Rgb888 {
    match mode {
        Mode::Steady => colour(0x1D_5F_C4),
        Mode::ScanTime | Mode::None => colour(0xE8_8A_1A),
    }
}

/// Columns beside each other.
const ACROSS: usize = 3;

/// Draws all columns.
pub(super) fn draw(columns: &[Column<'_>], settings: &AdvisorSettings) -> Canvas {
    let across = columns.len().min(ACROSS) as i32;
    let below = columns.len().div_ceil(ACROSS) as i32;
    let (width, height) =
        (LEFT + WIDTH + RIGHT, HEADER + (ABOVE + HEIGHT) * ROWS.len() as i32 + FOOTER);
    let mut canvas = Canvas::new(width * across, height * below, BACKGROUND);
    for (at, column) in columns.iter().enumerate() {
        let place = Point::new((at % ACROSS) as i32 * width, (at / ACROSS) as i32 * height);
        draw_column(&mut canvas, column, settings, place + Point::new(LEFT, 0));
    }
    canvas
}

fn draw_column(
    canvas: &mut Canvas,
    column: &Column<'_>,
    settings: &AdvisorSettings,
    corner: Point,
) {
    draw_header(canvas, column, corner);
    let mut corner = corner + Point::new(0, HEADER);
    for row in ROWS {
        let frame = frame(column, settings, row, corner + Point::new(0, ABOVE));
        let panel = Panel { column, settings, row, frame };
        panel.draw(canvas);
        if matches!(row, Row::Cpu) {
            panel.draw_times(canvas);
        }
        corner += Point::new(0, ABOVE + HEIGHT);
    }
}

/// The load's name, and which colour is which law.
fn draw_header(canvas: &mut Canvas, column: &Column<'_>, corner: Point) {
    canvas.text(column.title, corner + Point::new(0, 28), Alignment::Left, Size::Heading, INK);
    let mut at = corner + Point::new(0, 50);
    for (mode, _) in &column.runs {
        canvas.fill(at - Point::new(0, 2), 18, 4, colour_of(*mode));
        let label = match mode {
            Mode::Steady => "steady",
            Mode::ScanTime | Mode::None => "scan-time (the kernel's)",
        };
        canvas.text(label, at + Point::new(24, 4), Alignment::Left, Size::Small, INK);
        at += Point::new(24 + 7 * label.len() as i32 + 20, 0);
    }
}

/// The panel's place, and values that hold all that it shows.
fn frame(column: &Column<'_>, settings: &AdvisorSettings, row: Row, corner: Point) -> Frame {
    let target_s = settings.target_scan_time_s as f64;
    let end_s = target_s * 20.0;
    let scans = || column.runs.iter().flat_map(|(_, run)| &run.scans);
    let highest = match row {
        Row::Candidates => {
            times(end_s).map(|time_s| column.load.candidates(time_s)).fold(1.0, f64::max)
        }
        Row::Batch => scans().map(|scan| scan.pace.pages_to_scan as f64).fold(1.0, f64::max),
        // Scans that take much longer are cut off: what matters is near the target.
        Row::ScanTime => {
            let longest_s = scans().map(|scan| scan.time_s()).fold(target_s, f64::max);
            longest_s.clamp(target_s * 1.5, target_s * 4.0)
        }
        Row::Cpu => {
            let seconds = column.runs.iter().flat_map(|(_, run)| run.seconds());
            (seconds.fold(0.0, f64::max) * 100.0).max(settings.max_cpu_percent.min(100) as f64)
        }
    };
    Frame { corner, width: WIDTH, height: HEIGHT, end_s, top: highest * 1.08 }
}

/// A moment for each pixel.
fn times(end_s: f64) -> impl Iterator<Item = f64> {
    (0..=WIDTH).map(move |x| f64::from(x) / f64::from(WIDTH) * end_s)
}

struct Panel<'a> {
    column: &'a Column<'a>,
    settings: &'a AdvisorSettings,
    row: Row,
    frame: Frame,
}

impl Panel<'_> {
    fn draw(&self, canvas: &mut Canvas) {
        let Frame { corner, width, height, top, end_s } = self.frame;
        canvas.fill(corner, width, height, PANEL);
        let heading = corner - Point::new(0, 8);
        canvas.text(self.row.heading(), heading, Alignment::Left, Size::Small, FAINT);
        for tick in ticks(top) {
            let at = self.frame.point(0.0, tick);
            canvas.line(at, self.frame.point(end_s, tick), 1, GRID);
            let label = at + Point::new(-8, 4);
            canvas.text(&short(tick), label, Alignment::Right, Size::Small, FAINT);
        }
        match self.row {
            Row::Candidates => self.draw_candidates(canvas),
            Row::Batch => self.draw_scans(canvas, |_, pages_to_scan| pages_to_scan),
            Row::ScanTime => {
                self.draw_scans(canvas, |time_s, _| time_s);
                self.draw_limit(canvas, self.settings.target_scan_time_s as f64, "target");
            }
            Row::Cpu => {
                self.draw_cpu(canvas);
                self.draw_limit(canvas, self.settings.max_cpu_percent as f64, "ceiling");
            }
        }
    }

    /// What the time is, below the panel.
    fn draw_times(&self, canvas: &mut Canvas) {
        let Frame { end_s, .. } = self.frame;
        for tick in ticks(end_s) {
            let at = self.frame.point(tick, 0.0);
            canvas.line(at, at + Point::new(0, 4), 1, FAINT);
            let label = at + Point::new(0, 17);
            canvas.text(&short(tick), label, Alignment::Center, Size::Small, FAINT);
        }
        let middle = self.frame.point(end_s / 2.0, 0.0) + Point::new(0, 34);
        canvas.text("seconds", middle, Alignment::Center, Size::Small, FAINT);
    }

    fn draw_candidates(&self, canvas: &mut Canvas) {
        let values =
            times(self.frame.end_s).map(|time_s| (time_s, self.column.load.candidates(time_s)));
        let points: Vec<Point> =
            values.map(|(time_s, pages)| self.frame.point(time_s, pages)).collect();
        canvas.path(&points, INK);
    }

    /// A value for each scan, for as long as it took.
    fn draw_scans(&self, canvas: &mut Canvas, value: impl Fn(f64, f64) -> f64) {
        for (mode, run) in &self.column.runs {
            let points = run.scans.iter().flat_map(|scan| {
                let value = value(scan.time_s(), scan.pace.pages_to_scan as f64);
                [scan.start_s, scan.end_s].map(|time_s| self.frame.point(time_s, value))
            });
            canvas.path(&points.collect::<Vec<_>>(), colour_of(*mode));
        }
    }

    /// The highest second of each pixel.
    fn draw_cpu(&self, canvas: &mut Canvas) {
        for (mode, run) in &self.column.runs {
            let seconds = run.seconds();
            let each_s = (self.frame.end_s / f64::from(WIDTH)).ceil().max(1.0) as usize;
            let points = seconds.chunks(each_s).enumerate().map(|(at, seconds)| {
                let highest = seconds.iter().copied().fold(0.0, f64::max);
                self.frame.point((at * each_s) as f64, highest * 100.0)
            });
            canvas.path(&points.collect::<Vec<_>>(), colour_of(*mode));
        }
    }

    fn draw_limit(&self, canvas: &mut Canvas, value: f64, name: &str) {
        if value > self.frame.top {
            return;
        }
        let (left, right) =
            (self.frame.point(0.0, value), self.frame.point(self.frame.end_s, value));
        canvas.dashes(left, right.x, LIMIT);
        let label = right - Point::new(4, 4);
        canvas.text(name, label, Alignment::Right, Size::Small, LIMIT);
    }
}
