//! Real guests of one image, whose RAM is in huge pages as QEMU asks for them.
//!
//! Merging goes on from the first boot, so that boots show what it costs. KSM runs at both paces.

use std::time::Duration;

use anyhow::Result;
use bindery_testkit::{
    guest::ImageKind,
    machine::{MemorySnapshot, drop_caches},
};
use serde::Serialize;

use super::{
    Options,
    contender::{Contender, NOBODY, names},
    duplicates::{MEMORY, savings},
    smaps,
};
use crate::{
    engine::Merger,
    guests::fleet::Fleet,
    harness::{Bar, Measured, SampleSet, Samples, median, take_turns},
    settle::{self, Course, Patience},
};

/// An engine that has saved nothing of guests by then will not.
const IDLE: Duration = Duration::from_secs(30);

const BOOT: &str = "boot";

/// Time that a boot may take, in times nobody's.
const BOOT_RATIO: f64 = 1.05;

/// Figures of guests.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Figures of the contenders, nobody first.
    pub samples: Vec<SampleSet>,
    /// Memory that the contenders save, in the same order.
    pub savings: Vec<Samples>,
}

/// Measures all contenders.
pub(super) fn run(options: &Options) -> Result<Report> {
    let pages = (u64::from(options.guests) * u64::from(options.guest_mib)) << 8;
    let contenders = Contender::all(pages, options);
    let samples = take_turns("guests", options.rounds, &names(&contenders), |who| {
        measure(&contenders[who], options)
    })?;
    let savings = savings(&samples)?;
    Ok(Report { samples, savings })
}

fn measure(contender: &Contender, options: &Options) -> Result<Measured> {
    drop_caches()?;
    let idle = MemorySnapshot::take_settled()?.used();
    let merger = Merger::start(&contender.engine)?;
    let cpu_before = merger.own_cpu_time()?;
    let kinds = vec![ImageKind::Server; options.guests as usize];
    let mut fleet = Fleet::boot(&merger, &kinds, options.guest_mib)?;
    let boots: Vec<f64> = fleet.members.iter().map(|member| member.boot.as_secs_f64()).collect();
    let digests = fleet.digest_images()?;
    fleet.work()?;
    let course = match contender.is_nobody() {
        true => None,
        false => {
            let patience = Patience { idle: IDLE, limit: options.settle_limit };
            Some(settle::watch(&merger, patience, || merger.threads_cpu_time(fleet.pids()))?)
        }
    };
    let cpu = merger.threads_cpu_time(fleet.pids())?.saturating_sub(cpu_before);
    let memory = merger.footprint(fleet.pids())?;
    let used = MemorySnapshot::take_settled()?.used();
    let mut huge = 0.0;
    for pid in fleet.pids() {
        // An emulator asks for huge pages for what it translates, too.
        huge += smaps::huge_pages(pid, |mapping| !mapping.is_executable())?.mib();
    }
    fleet.verify(&digests)?;
    fleet.end();
    merger.stop()?;
    let busy = course.as_ref().map_or(0.0, Course::busy_afterwards);
    Ok(Measured::new(BOOT, "s", median(&boots))
        .and("huge pages of RAM", "MiB", huge)
        .and(MEMORY, "MiB", memory.mib())
        .and("memory of the machine", "MiB", used.mib() - idle.mib())
        .and("CPU in all", "s", cpu.as_secs_f64())
        .and("CPU afterwards", "%", 100.0 * busy)
        .and("settled", "of 1", course.map_or(1.0, |course| f64::from(course.is_settled))))
}

/// Bars of each of Bindery's modes.
pub(super) fn bars(report: &Report, options: &Options) -> Vec<Bar> {
    let boot = |who: &str| {
        report.samples.iter().find(|set| set.name == who).and_then(|set| set.figure(BOOT))
    };
    let bars = options.modes.iter().filter_map(|mode| {
        let ratio = boot(&mode.to_string())?.ratio_to(boot(NOBODY)?);
        Some(Bar::at_most(format!("guests, {mode}: boot ÷ nobody's"), ratio, BOOT_RATIO))
    });
    bars.collect()
}
