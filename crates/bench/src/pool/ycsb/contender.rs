//! One contender: its process, its memory, its files.

use std::fmt;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use bindery_testkit::machine::{BlockDevice, ControlGroup, SettingGuard, drop_caches};
use bindery_ycsb::{Task, Workload};
use clap::ValueEnum;
use serde::Serialize;

use super::{Answered, Course, Options};
use crate::choice;
use crate::pool::medium::Medium;

/// A store under a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// The example store, each object mapped by itself.
    Mmap,
    /// The example store, each object mapped by itself and advised MADV_RANDOM.
    Random,
    /// The example store, one map a collection, and the kernel reclaims.
    Maps,
    /// The example store, one map a collection, and the reaper evicts pages.
    Reaper,
    /// The example store, one map a collection, and the reaper evicts objects, as mpool's does.
    Objects,
    /// A B+ tree, copied on writes, in Rust.
    Redb,
    /// A log-structured merge tree in Rust.
    Fjall,
    /// A log-structured merge tree in C++.
    Rocksdb,
}

impl Engine {
    /// Whether another program runs it.
    const fn is_rival(self) -> bool {
        matches!(self, Self::Redb | Self::Fjall | Self::Rocksdb)
    }

    /// What starts its process, but for the task.
    fn command(self, options: &Options) -> Result<Command> {
        if !self.is_rival() {
            let mut command = Command::new(std::env::current_exe()?);
            let table_kib = (options.table_bytes >> 10).to_string();
            command.args(["pool", "store-process", "--table-kib", &table_kib]);
            return Ok(command);
        }
        ensure!(
            options.rivals.exists(),
            "{} is not there: build it with `cargo xtask rivals`, or leave {} out with --engines",
            options.rivals.display(),
            self,
        );
        Ok(Command::new(&options.rivals))
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&choice::name(self))
    }
}

/// A loaded store on its own directory. Removed when dropped.
pub(super) struct Stage<'a> {
    engine: Engine,
    options: &'a Options,
    // Dropped before what it lies on.
    directory: tempfile::TempDir,
    medium: Option<Medium>,
    device: BlockDevice,
}

impl<'a> Stage<'a> {
    /// Loads a store; without limits, for that is not measured.
    pub(super) fn load(engine: Engine, options: &'a Options) -> Result<Self> {
        let medium = options.medium()?;
        let place = medium.as_ref().map_or(&*options.directory, Medium::directory);
        let directory = tempfile::tempdir_in(place)
            .with_context(|| format!("making a directory in {}", place.display()))?;
        let device = BlockDevice::below(directory.path())?;
        let stage = Self { engine, options, directory, medium, device };
        stage.perform(None, None).with_context(|| format!("loading {engine}"))?;
        Ok(stage)
    }

    /// Runs a workload on it.
    pub(super) fn measure(&self, workload: Workload, round: usize) -> Result<Course> {
        let Self { engine, options, ref medium, device, .. } = *self;
        // Files that are opened from now on are read ahead as much.
        let _read_ahead = SettingGuard::set(device.read_ahead_path(), options.read_ahead_kib)?;
        drop_caches()?;
        let group = ControlGroup::create(&format!("ycsb-{engine}"))
            .context("making a control group, which takes root")?;
        group.set_memory_limit(options.memory_bytes())?;
        if let Some(rate) = options.device_rate(device) {
            group.set_device_rate(rate).context("holding the device to a rate")?;
        }
        medium.iter().for_each(|medium| medium.hold(true));
        let hits_before = group.limit_hits()?;
        let Answered { figures, reaper } = self
            .perform(Some(workload), Some(&group))
            .with_context(|| format!("workload {workload:?} on {engine}"))?
            .context("a workload gives figures")?;
        medium.iter().for_each(|medium| medium.hold(false));
        let limit_hits = group.limit_hits()? - hits_before;
        Ok(Course { engine, workload, round, figures, reaper, limit_hits })
    }

    fn task(&self, workload: Option<Workload>, round_seed: u64) -> Task {
        let options = self.options;
        Task {
            engine: self.engine.to_string(),
            directory: self.directory.path().into(),
            cache_bytes: options.memory_bytes() / 3,
            records: options.records(),
            workload,
            threads: options.threads,
            warm_up_s: options.warm_up.as_secs_f64(),
            duration_s: options.duration.as_secs_f64(),
            target_per_s: options.target_per_s,
            write_all_fields: options.write_all_fields,
            scan: options.scan,
            seed: round_seed,
        }
    }

    fn perform(
        &self,
        workload: Option<Workload>,
        group: Option<&ControlGroup>,
    ) -> Result<Option<Answered>> {
        let task = serde_json::to_string(&self.task(workload, 1))?;
        let mut command = self.engine.command(self.options)?;
        command.arg(task).stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn().with_context(|| format!("starting {command:?}"))?;
        if let Some(group) = group {
            // It begins when its input ends: nothing is charged to another group.
            group.put(child.id())?;
        }
        let output = child.wait_with_output()?;
        ensure!(output.status.success(), "{} ended with {}", self.engine, output.status);
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}
