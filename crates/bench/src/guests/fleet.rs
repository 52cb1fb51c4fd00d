//! Real guests: unmodified QEMU, a kernel and a userland, at work.
//!
//! Concurrency: one thread uses a fleet. Guests end with it, whatever happened.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use bindery_testkit::{
    guest::{GuestImage, ImageKind, Kit, Qemu, QemuGuest},
    machine::{ProcessMemory, sum_pss},
};
use bindery_units::ByteCount;

use crate::{engine::Merger, interrupt};

/// Booting takes three seconds of CPU time; many guests share few cores.
const BOOT_PATIENCE: Duration = Duration::from_secs(180);

/// Guests whose memory has not come to rest by then are measured as they are.
const SETTLE_PATIENCE: Duration = Duration::from_secs(60);

/// Guests are at rest when together they grew by less than [`GROWTH`] for so long.
const QUIET: Duration = Duration::from_secs(4);
const GROWTH: f64 = 0.005;

/// What guests do, in turn. Those that would never come to rest end after a while, as builds and
/// calculations do; they leave what they freed behind.
const WORK: [&str; 5] = [
    "load files",
    "load compile --seconds 12",
    "load files",
    "load zeros",
    "load cpu --seconds 12",
];

/// Memory of each guest's work, as a share of its RAM.
const WORK_SHARE: u32 = 6;

/// Digests every file of the image, which lies in the guest's memory.
const DIGEST_IMAGE: &str = "cd / && find usr -type f | sort | xargs cat | md5sum";

/// The emulator of each image's guests. 7.2 is older than the other image's kernel, and under load
/// has crashed it while it patched its own code at boot, with nobody merging.
const fn emulator(kind: ImageKind) -> Qemu {
    match kind {
        ImageKind::Server => Qemu::V7,
        ImageKind::Database => Qemu::V10,
    }
}

/// A guest.
pub(crate) struct Member {
    pub(crate) guest: QemuGuest,
    pub(crate) kind: ImageKind,
    /// From the start of its QEMU until it ran commands.
    pub(crate) boot: Duration,
    pid: u32,
}

/// Running guests.
pub(crate) struct Fleet {
    pub(crate) members: Vec<Member>,
    memory_mib: u32,
}

impl Fleet {
    /// Boots a guest of each of `kinds`, as many at a time as there are CPUs, and waits until they
    /// are there.
    pub(crate) fn boot(merger: &Merger, kinds: &[ImageKind], memory_mib: u32) -> Result<Self> {
        let kit = Kit::locate()?;
        let together = thread::available_parallelism()?.get();
        let mut members = Vec::new();
        for kinds in kinds.chunks(together) {
            let mut starting = Vec::new();
            for &kind in kinds {
                let image = GuestImage::of_kit(&kit, kind)?;
                let number = members.len() + starting.len() + 1;
                let name = format!("{kind:?}-{number}").to_lowercase();
                let guest = QemuGuest::builder(&kit, &image)
                    .qemu(emulator(kind))
                    .memory_mib(memory_mib)
                    .launcher(merger.launcher(&name))
                    .spawn()
                    .with_context(|| format!("starting guest {name}"))?;
                starting.push((kind, guest));
            }
            for (kind, mut guest) in starting {
                interrupt::check()?;
                let boot = guest.wait_ready(BOOT_PATIENCE)?;
                let pid = guest.pid().context("a guest that is up has a process")?;
                members.push(Member { guest, kind, boot, pid });
            }
        }
        Ok(Self { members, memory_mib })
    }

    /// Has each guest do its work, and waits until their memory has come to rest.
    pub(crate) fn work(&mut self) -> Result<()> {
        let mib = self.memory_mib / WORK_SHARE;
        for (number, member) in self.members.iter_mut().enumerate() {
            let work = WORK[number % WORK.len()];
            let script = format!("guest_agent {work} --mib {mib} --seed {}", number + 1);
            member.guest.run_in_background("work", &script)?;
        }
        self.settle()
    }

    fn settle(&self) -> Result<()> {
        let start = Instant::now();
        let (mut since, mut level) = (start, 0.0);
        while start.elapsed() < SETTLE_PATIENCE && since.elapsed() < QUIET {
            interrupt::rest(Duration::from_millis(500))?;
            let resident = self.resident()?.0 as f64;
            if resident > level * (1.0 + GROWTH) {
                (since, level) = (Instant::now(), resident);
            }
        }
        Ok(())
    }

    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> {
        self.members.iter().map(|member| member.pid)
    }

    fn resident(&self) -> Result<ByteCount> {
        let mut sum = 0;
        for pid in self.pids() {
            sum += ProcessMemory::of(pid)?.rss.0;
        }
        Ok(ByteCount(sum))
    }

    /// The Pss of all guests together, with the store that they share.
    pub(crate) fn pss(&self) -> Result<ByteCount> {
        Ok(sum_pss(self.pids())?)
    }

    /// Mappings of all guests' processes together.
    pub(crate) fn mappings(&self) -> Result<u64> {
        let mut sum = 0;
        for pid in self.pids() {
            let maps = std::fs::read(format!("/proc/{pid}/maps"))?;
            sum += maps.iter().filter(|&&byte| byte == b'\n').count() as u64;
        }
        Ok(sum)
    }

    /// A digest of the image's files, as one guest of each kind sees them.
    pub(crate) fn digest_images(&mut self) -> Result<Vec<(ImageKind, String)>> {
        let mut digests: Vec<(ImageKind, String)> = Vec::new();
        for member in &mut self.members {
            if digests.iter().all(|(kind, _)| *kind != member.kind) {
                digests.push((member.kind, member.guest.check(DIGEST_IMAGE)?));
            }
        }
        Ok(digests)
    }

    /// Looks whether guests are well: no word of their kernels, their work goes on or ended well,
    /// their files are those of the image, and what they write they read again.
    pub(crate) fn verify(&mut self, digests: &[(ImageKind, String)]) -> Result<()> {
        for (number, member) in (1..).zip(&mut self.members) {
            let expected = digests.iter().find(|(kind, _)| *kind == member.kind);
            member
                .verify(expected.map(|(_, digest)| digest.as_str()))
                .with_context(|| format!("guest {number} is not well"))?;
        }
        Ok(())
    }

    /// Ends all guests, at once.
    pub(crate) fn end(self) {
        thread::scope(|scope| {
            for member in self.members {
                scope.spawn(|| member.guest.shut_down());
            }
        });
    }
}

impl Member {
    fn verify(&mut self, digest: Option<&str>) -> Result<()> {
        let complaints = self.guest.kernel_complaints()?;
        ensure!(
            complaints.is_empty(),
            "its kernel says {complaints:?}, after:\n{}",
            self.guest.check("dmesg | grep -B 12 -m 1 'Call Trace' || dmesg | tail -n 12")?
        );
        let ended = self.guest.run("cat /tmp/work.status")?.stdout;
        ensure!(
            matches!(ended.trim(), "" | "0"),
            "its work ended with {}: {}",
            ended.trim(),
            self.guest.check("cat /tmp/work.log")?
        );
        if let Some(digest) = digest {
            let found = self.guest.check(DIGEST_IMAGE)?;
            ensure!(found == digest, "its files have changed: {found} is not {digest}");
        }
        let writer = "guest_agent writer --dir /tmp/check --files 2 --file-kib 512 --rounds 3";
        let verified = self.guest.check(writer)?;
        ensure!(verified.contains("\"pages_bad\":0"), "what it wrote is not there: {verified}");
        Ok(())
    }
}
