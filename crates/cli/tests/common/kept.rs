//! A pool with checkpoints, and a daemon that keeps them.

#![allow(dead_code, reason = "each test program uses its own part of this module")]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use bindery_checkpoint::{
    Capture, Description, Disk, MemoryBlock, Name, NewCheckpoint, PageEncoding, Store,
    StoreOptions, Vmm,
};
use bindery_pool::Pool;
use bindery_units::{PAGE_BYTES, PageIndex};
use serde_json::Value;

use super::common::{Ended, TestDaemon, bindery, run};

/// A directory with a pool called `guests` in its directory `d`, and a registry that knows it.
pub(crate) struct Kept(tempfile::TempDir);

impl Kept {
    /// Makes a pool that has room for some thousand pages.
    pub(crate) fn new() -> Self {
        let kept = Self(tempfile::tempdir().unwrap());
        fs::create_dir(kept.pool()).unwrap();
        let ended = kept.pool_command(&["create", "guests", "--capacity", "d", "--size", "64M"]);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        kept
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn pool(&self) -> PathBuf {
        self.at("d")
    }

    pub(crate) fn pool_command(&self, words: &[&str]) -> Ended {
        let mut command = bindery(["pool"]);
        command.args(words).env("BINDERY_POOLS", self.at("registry")).current_dir(self.0.path());
        run(command)
    }

    /// Writes checkpoints while nobody else has the pool open.
    pub(crate) fn write(&self, write: impl FnOnce(&Store)) {
        let pool = Pool::open(&[self.pool()], None).unwrap();
        write(&Store::open(Arc::new(pool), StoreOptions::default()).unwrap());
    }

    /// Starts a daemon whose pool this is.
    pub(crate) fn daemon(&self) -> TestDaemon {
        self.daemon_with(&[])
    }

    pub(crate) fn daemon_with(&self, arguments: &[&str]) -> TestDaemon {
        let pool = self.pool();
        TestDaemon::start(&[&["--checkpoint-pool", pool.to_str().unwrap()], arguments].concat())
    }

    /// `bindery checkpoint` with these words.
    pub(crate) fn command(&self, daemon: &TestDaemon, words: &[&str]) -> Command {
        let mut command = bindery(["checkpoint"]);
        command.args(words).env("BINDERY_SOCKET", daemon.socket());
        command.env("BINDERY_POOLS", self.at("registry")).current_dir(self.0.path());
        command
    }

    /// Runs a command that must succeed.
    pub(crate) fn done(&self, daemon: &TestDaemon, words: &[&str]) -> String {
        let ended = run(self.command(daemon, words));
        assert_eq!(ended.code, Some(0), "{words:?}: {}{}", ended.out, ended.err);
        ended.out
    }

    pub(crate) fn json(&self, daemon: &TestDaemon, words: &[&str]) -> Value {
        let ended = run(self.command(daemon, &[words, &["--json"]].concat()));
        assert_eq!(ended.code, Some(0), "{words:?}: {}{}", ended.out, ended.err);
        ended.json()
    }

    /// Runs a command that must fail with this exit code, and say all these texts.
    pub(crate) fn refused(
        &self,
        daemon: &TestDaemon,
        words: &[&str],
        code: i32,
        said: &[&str],
    ) -> Ended {
        let ended = run(self.command(daemon, words));
        assert_eq!(ended.code, Some(code), "{words:?}: {}{}", ended.out, ended.err);
        for text in said {
            let all = format!("{}{}", ended.out, ended.err);
            assert!(all.contains(text), "{words:?} does not say {text:?}: {all}");
        }
        ended
    }

    /// Turns a bit over in the page that holds the content `number`.
    pub(crate) fn damage(&self, number: u64) {
        let path = self.pool().join("guests.capacity.0.bindery");
        let file = File::options().read(true).write(true).open(path).unwrap();
        let mut page = vec![0; PAGE_BYTES];
        let wanted = content(number);
        let bytes = file.metadata().unwrap().len();
        let at = (0..bytes).step_by(PAGE_BYTES).find(|at| {
            file.read_exact_at(&mut page, *at).unwrap();
            page == wanted
        });
        let at = at.expect("the page is stored as it is");
        file.write_all_at(&[wanted[100] ^ 1], at + 100).unwrap();
        file.sync_all().unwrap();
    }
}

/// Content of a page that is told by a number: 0 is zero, others do not compress.
pub(crate) fn content(number: u64) -> [u8; PAGE_BYTES] {
    let mut page = [0; PAGE_BYTES];
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for word in page.chunks_exact_mut(8).take(if number == 0 { 0 } else { 512 }) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    page
}

/// Makes a checkpoint of a guest with one memory block.
pub(crate) fn checkpoint(store: &Store, names: (&str, &str, &str), memory: &[u64]) {
    let time_ns = 1_700_000_000_000_000_000 + store.list().len() as u64;
    captured(store, names, memory, (time_ns, None));
}

/// Makes a checkpoint of a guest with one memory block, as if it had been captured so at that time.
pub(crate) fn captured(
    store: &Store,
    (domain, guest, name): (&str, &str, &str),
    memory: &[u64],
    (time_ns, capture): (u64, Option<Capture>),
) {
    let parse = |text: &str| text.parse::<Name>().unwrap();
    store.open_domain(&parse(domain), None).unwrap();
    let disk =
        Disk { device: "disk0".into(), path: b"/srv/disk.qcow2".to_vec(), format: "qcow2".into() };
    let arguments = ["qemu-system-x86_64", "-m", "1G"].map(|word| word.as_bytes().to_vec()).into();
    let description = Description {
        guest: parse(guest),
        name: parse(name),
        domain: parse(domain),
        time_ns,
        vmm: Vmm {
            kind: "test".into(),
            version: "1".into(),
            machine: "none".into(),
            device_state: String::new(),
            arguments,
        },
        blocks: vec![MemoryBlock {
            name: "block0".into(),
            bytes: (memory.len() * PAGE_BYTES) as u64,
        }],
        disks: vec![disk],
        device_state: vec![7; 100],
    };
    let new = NewCheckpoint { description, base: None, encoding: PageEncoding::Raw };
    let mut writer = store.create(new).unwrap();
    let bytes: Vec<u8> = memory.iter().flat_map(|number| content(*number)).collect();
    writer.put(0, PageIndex(0), &bytes).unwrap();
    capture.into_iter().for_each(|capture| writer.set_capture(capture));
    writer.finish().unwrap();
}
