//! Two real guests write, patch and verify files in memory and on disks while everything that can
//! happen to their memory happens at once: pages merge and break, the balloon moves, freed pages are
//! reported, and all of a guest is unmerged and merged again.
//!
//! Direct I/O into pages that merge is what loses data when a break is left to the kernel's copy on
//! write: the page that the disk writes to is then not the page that the guest reads.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fire;

use std::time::{Duration, Instant};

use bindery_testkit::bindery::Daemon;
use bindery_testkit::guest::{AioMode, GuestImage, Kit, Qemu, QemuGuest};
use fire::{
    Writer, amount, assert_no_complaints, bindery_and_kit, boot, eager_daemon, figure,
    guest_status, managed_guest, raw_disk, server_image, uncached,
};

/// Rounds of every writer.
const ROUNDS_VARIABLE: &str = "BINDERY_GUEST_ROUNDS";
const ROUNDS: u32 = 4;

/// One round takes about a second; this is for a machine that does much else.
const ROUND_PATIENCE: Duration = Duration::from_secs(30);

/// How often the balloon moves, and a guest is unmerged or merged.
const MOVE_EVERY: Duration = Duration::from_secs(2);

const MIB: u64 = 1 << 20;

/// A guest with its writers.
struct Scene {
    name: &'static str,
    guest: QemuGuest,
    writers: Vec<Writer>,
    /// The most that was seen at once: what breaks is gone from the figures afterwards.
    merged: u64,
    zeros: u64,
}

impl Scene {
    fn start(
        daemon: &Daemon,
        kit: &Kit,
        image: &GuestImage,
        directory: &std::path::Path,
        (name, qemu): (&'static str, Qemu),
    ) -> Self {
        let disk = |aio: &str| raw_disk(directory, &format!("{name}-{aio}.raw"), 48);
        let guest = boot(
            managed_guest(daemon, kit, image, qemu, name)
                .drive(uncached(disk("uring"), "raw", AioMode::IoUring))
                .drive(uncached(disk("threads"), "raw", AioMode::Threads))
                .balloon(true),
        );
        Self { name, guest, writers: Vec::new(), merged: 0, zeros: 0 }
    }

    fn start_writers(&mut self, rounds: u32) {
        self.guest
            .check(
                "for d in a b; do mkdir -p /mnt/$d; done; \
                    mke2fs -q /dev/vda && mount /dev/vda /mnt/a && \
                    mke2fs -q /dev/vdb && mount /dev/vdb /mnt/b",
            )
            .unwrap_or_else(|error| panic!("{error}"));
        let places = [
            ("memory", "--dir /tmp/w"),
            ("uring", "--dir /mnt/a/w --direct 1"),
            ("threads", "--dir /mnt/b/w --direct 1"),
            ("cached", "--dir /mnt/b/c"),
        ];
        for (seed, (name, place)) in (1..).zip(places) {
            let options = format!("{place} --files 6 --rounds {rounds} --seed {seed}");
            self.writers.push(Writer::start(&mut self.guest, name, &options));
        }
    }

    fn look(&mut self, daemon: &Daemon) {
        if let Some(status) = guest_status(daemon, self.name) {
            self.merged = self.merged.max(figure(&status, "pages_merged"));
            self.zeros = self.zeros.max(figure(&status, "zero_pages"));
        }
    }

    fn is_writing(&mut self) -> bool {
        let Self { guest, writers, .. } = self;
        writers.iter().any(|writer| !writer.has_ended(guest))
    }

    fn finish(mut self, daemon: &Daemon, rounds: u32) {
        for writer in self.writers.clone() {
            writer.finish(&mut self.guest, ROUND_PATIENCE * rounds);
        }
        assert_no_complaints(&mut self.guest);
        let status = guest_status(daemon, self.name).expect("the guest is still managed");
        assert!(self.merged > 0, "nothing merged: {status}");
        assert!(self.zeros > 0, "no zero page merged: {status}");
        assert!(figure(&status, "breaks") > 0, "nothing broke: {status}");
        println!("{}: at most {} pages merged, {status}", self.name, self.merged);
        self.guest.shut_down();
    }
}

/// Moves the balloons, and unmerges and merges guests, until all writers have ended.
fn stir(daemon: &Daemon, scenes: &mut [Scene], rounds: u32) {
    let deadline = Instant::now() + ROUND_PATIENCE * rounds;
    let mut moves = 0_u64;
    while scenes.iter_mut().any(Scene::is_writing) {
        assert!(Instant::now() < deadline, "the writers have not ended; {}", daemon.log());
        let count = scenes.len() as u64;
        for (number, scene) in (0..).zip(&mut *scenes) {
            let target = if (moves + number).is_multiple_of(2) { 200 } else { 256 };
            scene.guest.qmp().unwrap().balloon(target * MIB).unwrap();
            scene.look(daemon);
        }
        // One guest at a time, so that the other has somebody to share with.
        if moves % 4 == 2 {
            let name = scenes[(moves / 4 % count) as usize].name;
            let unmerged = daemon.command(&["unmerge", name]);
            unmerged.unwrap_or_else(|error| panic!("{error}\n{}", daemon.log()));
            daemon.command(&["merge", name]).unwrap_or_else(|error| panic!("{error}"));
        }
        moves += 1;
        std::thread::sleep(MOVE_EVERY);
    }
}

#[test]
fn guests_lose_nothing_while_everything_happens_to_their_memory() {
    let Some((bindery, kit)) = bindery_and_kit() else { return };
    let rounds = amount(ROUNDS_VARIABLE, ROUNDS);
    let image = server_image(&kit);
    let directory = tempfile::tempdir().unwrap();
    let daemon = eager_daemon(&bindery);
    let mut scenes: Vec<Scene> = [("older", Qemu::V7), ("newer", Qemu::V10)]
        .into_iter()
        .map(|which| Scene::start(&daemon, &kit, &image, directory.path(), which))
        .collect();
    scenes.iter_mut().for_each(|scene| scene.start_writers(rounds));
    stir(&daemon, &mut scenes, rounds);
    for scene in scenes {
        scene.finish(&daemon, rounds);
    }
}
