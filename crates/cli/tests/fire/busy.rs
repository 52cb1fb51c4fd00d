//! Guests that write and verify all the time, and have to go on whatever becomes of their daemon.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;
use std::time::{Duration, Instant};

use bindery_testkit::bindery::Daemon;
use bindery_testkit::guest::{AioMode, Kit, Qemu, QemuGuest};
use bindery_testkit::process::ProcessGuest;

use super::{
    PATIENCE, Writer, assert_no_complaints, await_guest, await_some, boot, figure, managed_guest,
    raw_disk, server_image, uncached,
};

const PAGES: usize = 6144;
pub(crate) const PROCESSES: [&str; 2] = ["one", "two"];

/// Every batch of 16 pages is followed by a pause of this.
const PAUSE_US: u64 = 500;

const ROUND_PATIENCE: Duration = Duration::from_secs(60);

/// A random number below `bound`. Instants cannot be repeated, so neither need numbers.
pub(crate) fn random(bound: u64) -> u64 {
    RandomState::new().build_hasher().finish() % bound
}

pub(crate) fn start_processes(daemon: &Daemon) -> Vec<ProcessGuest> {
    let start = |(seed, name)| {
        let mut guest = ProcessGuest::start(&daemon.launcher(name), PAGES, seed).unwrap();
        guest.offer().unwrap();
        guest.churn(PAUSE_US).unwrap();
        guest
    };
    (1..).zip(PROCESSES).map(start).collect()
}

/// Waits until the daemon has asked every guest what it wrote; returns how long that took.
pub(crate) fn await_taken_over(daemon: &Daemon, guests: &[&str]) -> Duration {
    let start = Instant::now();
    for name in guests {
        await_guest(daemon, name, "it is taken over", |status| figure(status, "pages_scanned") > 0);
    }
    start.elapsed()
}

/// Waits until this daemon shares pages of its own store among guests.
pub(crate) fn await_sharing(daemon: &Daemon) -> Duration {
    let start = Instant::now();
    await_some(
        "the new daemon merges",
        PATIENCE,
        || {
            let status = daemon.status().ok()?;
            let domain = status["domains"].as_array()?.first()?.clone();
            (figure(&domain, "pages_sharing") > 0).then_some(())
        },
        || format!("{:?}\n{}", daemon.status(), daemon.log()),
    );
    start.elapsed()
}

pub(crate) fn verify(processes: &mut [ProcessGuest]) {
    for guest in processes {
        let verified = guest.verify().unwrap();
        assert!(verified.pages > 0);
        assert_eq!(verified.bad, 0, "of {} pages", verified.pages);
    }
}

/// A guest of the two who always has a writer that verifies.
pub(crate) struct BusyGuest {
    pub(crate) guest: QemuGuest,
    writers: Vec<Writer>,
}

impl BusyGuest {
    pub(crate) const NAME: &str = "machine";
    const PLACES: [(&str, &str); 2] =
        [("memory", "--dir /tmp/w"), ("disk", "--dir /mnt/w --direct 1")];

    pub(crate) fn boot(daemon: &Daemon, kit: &Kit, directory: &Path) -> Self {
        let disk = uncached(raw_disk(directory, "disk.raw", 48), "raw", AioMode::IoUring);
        let image = server_image(kit);
        let builder = managed_guest(daemon, kit, &image, Qemu::V10, Self::NAME);
        let mut guest = boot(builder.drive(disk).balloon(true));
        guest.check("mke2fs -q /dev/vda && mount /dev/vda /mnt").unwrap();
        let writers = Self::PLACES.map(|place| Self::writer(&mut guest, place)).into();
        Self { guest, writers }
    }

    fn writer(guest: &mut QemuGuest, (name, place): (&str, &str)) -> Writer {
        Writer::start(guest, name, &format!("{place} --rounds 3 --files 4"))
    }

    /// Checks the writers that are done, and starts them again.
    pub(crate) fn go_on(&mut self) {
        for (writer, place) in self.writers.iter_mut().zip(Self::PLACES) {
            if writer.has_ended(&mut self.guest) {
                writer.finish(&mut self.guest, ROUND_PATIENCE);
                *writer = Self::writer(&mut self.guest, place);
            }
        }
    }

    pub(crate) fn finish(mut self) {
        for writer in &self.writers {
            writer.finish(&mut self.guest, ROUND_PATIENCE);
        }
        assert_no_complaints(&mut self.guest);
        self.guest.shut_down();
    }
}
