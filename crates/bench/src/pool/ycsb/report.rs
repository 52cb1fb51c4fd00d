//! What came of it, as a table.

use std::fmt;

use bindery_ycsb::{Latency, Report as Figures, Workload};
use serde::Serialize;

use super::{Engine, Options, Reaped};
use crate::harness::{median, significant};

/// One contender under one workload in one round.
#[derive(Clone, Debug, Serialize)]
pub struct Course {
    /// Who.
    pub engine: Engine,
    /// What it was asked.
    pub workload: Workload,
    /// In which round.
    pub round: usize,
    /// How it did.
    pub figures: Figures,
    /// Work of its reaper, if it has one.
    pub reaper: Option<Reaped>,
    /// Times at which memory was at its limit when more was wanted, so that whoever read had to make room.
    pub limit_hits: u64,
}

/// The medians of one contender under one workload.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// Who.
    pub engine: Engine,
    /// What it was asked.
    pub workload: Workload,
    /// Requests a second.
    pub requests_per_s: f64,
    /// How long reads took.
    pub reads: Latency,
    /// How long updates took.
    pub updates: Latency,
    /// What was read from the device for each request, in bytes.
    pub read_bytes_per_request: f64,
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Memory of each contender, in MiB.
    pub memory_mib: u64,
    /// Records of 1,008 bytes with their keys.
    pub records: u64,
    /// The rate that the device was held to: MiB and requests a second.
    pub device_rate: Option<(u64, u64)>,
    /// How many requests a second each was asked, if not as many as it answered.
    pub target_per_s: Option<f64>,
    /// Whether updates wrote all fields of a record, without reading it first.
    pub write_all_fields: bool,
    /// One more thread read all records in the order of their keys.
    pub scan: bool,
    /// Bytes of a table of the example store.
    pub table_bytes: u64,
    /// How long it took to answer, in microseconds, if it was played.
    pub device_latency_us: Option<u64>,
    /// Medians over the rounds.
    pub lines: Vec<Line>,
    /// Every measurement.
    pub courses: Vec<Course>,
}

/// The medians of a field over some courses.
fn middle(courses: &[&Course], field: impl Fn(&Course) -> f64) -> f64 {
    median(&courses.iter().map(|course| field(course)).collect::<Vec<_>>())
}

fn latency(courses: &[&Course], of: impl Fn(&Course) -> Latency) -> Latency {
    Latency {
        requests: middle(courses, |course| of(course).requests as f64) as u64,
        p50_us: middle(courses, |course| of(course).p50_us),
        p99_us: middle(courses, |course| of(course).p99_us),
        p999_us: middle(courses, |course| of(course).p999_us),
        p9999_us: middle(courses, |course| of(course).p9999_us),
        max_us: middle(courses, |course| of(course).max_us),
    }
}

impl Line {
    fn of(engine: Engine, workload: Workload, courses: &[Course]) -> Option<Self> {
        let own: Vec<&Course> = courses
            .iter()
            .filter(|course| course.engine == engine && course.workload == workload)
            .collect();
        if own.is_empty() {
            return None;
        }
        let requests = |figures: &Figures| figures.reads.requests + figures.updates.requests;
        Some(Self {
            engine,
            workload,
            requests_per_s: middle(&own, |course| course.figures.requests_per_s),
            reads: latency(&own, |course| course.figures.reads),
            updates: latency(&own, |course| course.figures.updates),
            read_bytes_per_request: middle(&own, |course| {
                course.figures.device_read_bytes.unwrap_or(0) as f64
                    / requests(&course.figures) as f64
            }),
        })
    }
}

impl Report {
    pub(super) fn of(options: &Options, courses: Vec<Course>) -> Self {
        let lines = [Workload::B, Workload::C].into_iter().flat_map(|workload| {
            options.engines.iter().filter_map({
                let courses = &courses;
                move |&engine| Line::of(engine, workload, courses)
            })
        });
        Self {
            memory_mib: options.memory_mib,
            records: options.records(),
            device_rate: options.device_rate,
            target_per_s: options.target_per_s,
            write_all_fields: options.write_all_fields,
            scan: options.scan,
            table_bytes: options.table_bytes,
            device_latency_us: options.device_latency.map(|latency| latency.as_micros() as u64),
            lines: lines.collect(),
            courses,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { memory_mib, records, .. } = self;
        write!(formatter, "{records} records of 1 kB, {memory_mib} MiB of memory each")?;
        if let Some((mib_per_s, requests_per_s)) = self.device_rate {
            write!(
                formatter,
                ", a device of {mib_per_s} MiB and {requests_per_s} requests a second"
            )?;
            match self.device_latency_us {
                Some(us) => write!(formatter, ", played, that answers after {us} µs")?,
                None => write!(formatter, ", by a control group")?,
            }
        }
        if let Some(target_per_s) = self.target_per_s {
            write!(formatter, "; asked {target_per_s} requests a second")?;
        }
        if self.write_all_fields {
            write!(formatter, "; updates write all fields")?;
        }
        if self.scan {
            write!(formatter, "; one more thread reads all records")?;
        }
        for workload in [Workload::B, Workload::C] {
            writeln!(formatter, "\n\nworkload {workload:?}, latencies in µs")?;
            write!(
                formatter,
                "{:<9}{:>10}  {:>8}{:>8}{:>9}{:>9}  {:>8}{:>8}{:>9}{:>9}  {:>9}",
                "store",
                "requests/s",
                "read 50%",
                "99%",
                "99.9%",
                "99.99%",
                "upd. 50%",
                "99%",
                "99.9%",
                "99.99%",
                "B/request"
            )?;
            for line in self.lines.iter().filter(|line| line.workload == workload) {
                write!(formatter, "\n{line}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Line {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:<9}{:>10}", self.engine, significant(self.requests_per_s))?;
        for latency in [self.reads, self.updates] {
            let Latency { p50_us, p99_us, p999_us, p9999_us, .. } = latency;
            let [p50, p99, p999, p9999] = [p50_us, p99_us, p999_us, p9999_us]
                .map(|us| if latency.requests == 0 { "-".to_owned() } else { significant(us) });
            write!(formatter, "  {p50:>8}{p99:>8}{p999:>9}{p9999:>9}")?;
        }
        write!(formatter, "  {:>9}", significant(self.read_bytes_per_request))
    }
}
