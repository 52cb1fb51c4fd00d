//! Places for pools, with a registry of their own.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::common::{Ended, bindery, run};

/// A place with a registry of its own, and room for devices.
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// A path in it.
    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A directory in it.
    pub(crate) fn directory(&self, name: &str) -> PathBuf {
        let path = self.at(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    /// A file in it, of so many bytes that differ everywhere.
    pub(crate) fn file(&self, name: &str, bytes: usize) -> PathBuf {
        let content: Vec<u8> = (0..bytes).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect();
        let path = self.at(name);
        fs::write(&path, content).unwrap();
        path
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = bindery(["pool"]);
        command.args(words).env("BINDERY_POOLS", self.at("registry")).current_dir(self.0.path());
        command
    }

    /// Runs `bindery pool` with these words, in this place.
    pub(crate) fn pool(&self, words: &[&str]) -> Ended {
        run(self.command(words))
    }

    /// Runs a command that must succeed.
    pub(crate) fn done(&self, words: &[&str]) -> String {
        let ended = self.pool(words);
        assert_eq!(ended.code, Some(0), "{words:?}: {}{}", ended.out, ended.err);
        ended.out
    }

    pub(crate) fn json(&self, words: &[&str]) -> Value {
        let words: Vec<&str> = words.iter().copied().chain(["--json"]).collect();
        let ended = self.pool(&words);
        assert_eq!(ended.code, Some(0), "{words:?}: {}{}", ended.out, ended.err);
        ended.json()
    }

    /// Runs a command that must fail with an exit code and a message that has all given texts.
    pub(crate) fn refused(&self, words: &[&str], code: i32, named: &[&str]) {
        let ended = self.pool(words);
        assert_eq!(ended.code, Some(code), "{words:?}: {}{}", ended.out, ended.err);
        for name in named {
            assert!(ended.err.contains(name), "{words:?} does not say {name:?}: {}", ended.err);
        }
    }

    /// A pool called `guests` in the directory `d`.
    pub(crate) fn with_pool() -> (Self, PathBuf) {
        let place = Self::new();
        place.directory("d");
        place.done(&["create", "guests", "--capacity", "d", "--size", "8M"]);
        let device = place.at("d/guests.capacity.0.bindery");
        assert!(device.is_file());
        (place, device)
    }

    /// Stores a file, and says its id.
    pub(crate) fn put(&self, file: &Path) -> String {
        let stored = self.json(&["put", "guests", file.to_str().unwrap()]);
        stored[0]["id"].as_str().unwrap().to_owned()
    }
}

/// Turns over a bit.
pub(crate) fn flip(path: &Path, offset: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
    file.sync_all().unwrap();
}
