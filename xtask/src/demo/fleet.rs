//! The demo's guests and the work that they do.

use std::time::Duration;

use anyhow::{Context, Result};
use bindery_testkit::guest::{GuestImage, ImageKind, Kit, QemuGuest};
use bindery_testkit::machine::{ProcessMemory, sum_pss};
use bindery_units::ByteCount;

use super::engine::Engine;
use super::report::GuestReport;

/// Booting takes three seconds of CPU time; many guests share two cores.
const BOOT_TIMEOUT: Duration = Duration::from_secs(120);

/// What guests do, in turn.
const WORK: [(&str, &str); 4] = [
    ("files", "serves files from memory"),
    ("compile", "builds, cleans, builds again"),
    ("zeros", "has freed much memory"),
    ("cpu", "calculates"),
];

/// Memory that each guest's work takes, as a share of its RAM.
const WORK_SHARE: u32 = 5;

struct Member {
    name: String,
    kind: &'static str,
    work: &'static str,
    guest: QemuGuest,
    pid: u32,
}

/// Running guests; they end with it.
pub(super) struct Fleet {
    members: Vec<Member>,
    memory_mib: u32,
}

impl Fleet {
    /// Boots `count` guests at once and waits for all; `progress` is told how many are ready and
    /// may stop it.
    pub(super) fn boot(
        kit: &Kit,
        count: u32,
        memory_mib: u32,
        engine: &impl Engine,
        mut progress: impl FnMut(usize) -> Result<()>,
    ) -> Result<Self> {
        let image = GuestImage::of_kit(kit, ImageKind::Server)?;
        let mut starting = Vec::new();
        for number in 0..count {
            let (kind, work) = WORK[number as usize % WORK.len()];
            let name = format!("{kind}-{}", number + 1);
            let guest = QemuGuest::builder(kit, &image)
                .memory_mib(memory_mib)
                .launcher(engine.launcher(&name))
                .spawn()
                .with_context(|| format!("starting guest {name}"))?;
            starting.push((name, kind, work, guest));
        }
        let mut members = Vec::new();
        for (name, kind, work, mut guest) in starting {
            progress(members.len())?;
            guest.wait_ready(BOOT_TIMEOUT).with_context(|| format!("booting guest {name}"))?;
            let pid = guest.pid().with_context(|| format!("guest {name} has no pid"))?;
            members.push(Member { name, kind, work, guest, pid });
        }
        Ok(Self { members, memory_mib })
    }

    /// Has each guest do its work from now on.
    pub(super) fn start_work(&mut self) -> Result<()> {
        let mib = self.memory_mib / WORK_SHARE;
        for (seed, member) in (1..).zip(&mut self.members) {
            let kind = member.kind;
            member.guest.run_in_background(
                "work",
                &format!("guest_agent load {kind} --mib {mib} --seed {seed}"),
            )?;
        }
        Ok(())
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|member| member.name.as_str())
    }

    pub(super) fn pids(&self) -> impl Iterator<Item = u32> {
        self.members.iter().map(|member| member.pid)
    }

    /// The Pss of each guest.
    pub(super) fn memory(&self) -> Result<Vec<ByteCount>> {
        self.pids().map(|pid| sum_pss([pid]).context("reading a guest's memory")).collect()
    }

    /// What became of each guest whose Pss was `before`.
    pub(super) fn report(
        &self,
        before: &[ByteCount],
        engine: &impl Engine,
    ) -> Result<Vec<GuestReport>> {
        let rows = self.members.iter().zip(before).map(|(member, &pss_before)| {
            let memory = ProcessMemory::of(member.pid).context("reading a guest's memory")?;
            let merged = engine.merged(&member.name, member.pid)?;
            Ok(GuestReport {
                name: member.name.clone(),
                work: member.work,
                ram: ByteCount::from_mib(self.memory_mib.into()),
                pss_before,
                pss_after: memory.pss,
                private: memory.private,
                merged,
            })
        });
        rows.collect()
    }

    /// Ends the guests, all at once.
    pub(super) fn end(self) {
        std::thread::scope(|scope| {
            for member in self.members {
                scope.spawn(|| member.guest.shut_down());
            }
        });
    }
}
