//! `bindery pool` with an archive: objects that are there, and what is left there.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;
#[path = "common/place.rs"]
mod place;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::run;
use place::{Place, flip};

/// A pool with an archive in a directory, and two objects, the first of them archived.
struct Archived {
    place: Place,
    archive: PathBuf,
    /// The files, with their ids.
    there: (String, PathBuf),
    here: (String, PathBuf),
}

impl Archived {
    fn new() -> Self {
        let place = Place::new();
        place.directory("d");
        let archive = place.directory("archive");
        let url = format!("file://{}", archive.display());
        place.done(&["create", "guests", "--capacity", "d", "--size", "64M", "--archive", &url]);
        // Two parts, and one.
        let files = [place.file("there", 20_000_000), place.file("here", 5000)];
        let [there, here] = files.map(|file| (place.put(&file), file));
        place.done(&["archive", "guests", &there.0]);
        Self { place, archive, there, here }
    }

    /// Every key of an object in the archive.
    fn keys(&self) -> Vec<PathBuf> {
        let pool = fs::read_dir(&self.archive).unwrap().map(|entry| entry.unwrap().path());
        let pool: Vec<PathBuf> = pool.filter(|path| path.is_dir()).collect();
        let keys = pool.iter().flat_map(|pool| fs::read_dir(pool).unwrap());
        let mut keys: Vec<PathBuf> = keys.map(|key| key.unwrap().path()).collect();
        keys.sort();
        keys
    }

    /// Has the archive be somewhere else until it is brought back.
    fn away(&self) -> PathBuf {
        let away = self.place.at("away");
        fs::rename(&self.archive, &away).unwrap();
        away
    }

    fn assert_reads(&self, (id, file): &(String, PathBuf)) {
        self.place.done(&["get", "guests", id, "-o", "back"]);
        assert!(fs::read(self.place.at("back")).unwrap() == fs::read(file).unwrap(), "{id}");
    }

    fn class_of(&self, id: &str) -> String {
        let objects = self.place.json(&["objects", "guests"]);
        let object = objects.as_array().unwrap().iter().find(|object| object["id"] == id);
        object.unwrap()["class"].as_str().unwrap().to_owned()
    }
}

#[test]
fn archived_objects_are_read_verified_and_restored() {
    let it = Archived::new();
    assert_eq!(it.keys().len(), 2);
    assert_eq!((&*it.class_of(&it.there.0), &*it.class_of(&it.here.0)), ("archive", "capacity"));
    it.assert_reads(&it.there);
    it.assert_reads(&it.here);
    let verified = it.place.json(&["verify", "guests"]);
    assert_eq!((&verified["objects"], &verified["findings"]), (&2.into(), &serde_json::json!([])));
    it.place.done(&["restore", "guests", &it.there.0]);
    assert_eq!(it.class_of(&it.there.0), "capacity");
    it.assert_reads(&it.there);
    it.place.done(&["archive", "guests", &it.there.0, "--no-read-back"]);
    it.assert_reads(&it.there);
    it.place.done(&["verify", "guests"]);
}

#[test]
fn an_archive_out_of_reach_is_no_damage() {
    let it = Archived::new();
    let away = it.away();
    let path = it.archive.to_str().unwrap();
    it.place.refused(&["get", "guests", &it.there.0, "-o", "back"], 4, &[path]);
    it.assert_reads(&it.here);
    it.place.done(&["objects", "guests"]);
    let ended = it.place.pool(&["verify", "guests"]);
    assert_eq!(ended.code, Some(1), "{}{}", ended.out, ended.err);
    assert!(!ended.out.contains("damaged:") && ended.out.contains("not read:"), "{}", ended.out);
    assert!(ended.err.contains("nothing of pool guests is damaged"), "{}", ended.err);
    assert!(ended.err.contains(path), "{}", ended.err);
    let ended = it.place.pool(&["verify", "guests", "--json"]);
    assert_eq!(ended.json()["findings"][0]["kind"], "archive-closed");

    // Both at once.
    fs::rename(away, &it.archive).unwrap();
    let keys = it.keys();
    flip(&keys[1], 5000);
    let ended = it.place.pool(&["verify", "guests", "--json"]);
    assert_eq!(ended.code, Some(9), "{}", ended.err);
    assert_eq!(ended.json()["findings"][0]["kind"], "object");
    it.place.refused(&["get", "guests", &it.there.0, "-o", "back"], 9, &[".000001", "checksum"]);
    fs::remove_file(&keys[1]).unwrap();
    let ended = it.place.pool(&["verify", "guests"]);
    assert_eq!(ended.code, Some(9), "{}", ended.err);
    assert!(ended.out.contains("it is missing"), "{}", ended.out);
}

#[test]
fn what_is_deleted_leaves_no_key_or_says_so() {
    let it = Archived::new();
    it.place.done(&["delete", "guests", &it.there.0]);
    assert_eq!(it.keys(), Vec::<PathBuf>::new());

    it.place.done(&["archive", "guests", &it.here.0]);
    let away = it.away();
    let ended = it.place.pool(&["delete", "guests", &it.here.0]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    for word in [&*it.here.0, "left in the archive", "bindery pool sweep guests", "archive"] {
        assert!(ended.err.contains(word), "{word}: {}", ended.err);
    }
    assert_eq!(it.place.json(&["objects", "guests"]), serde_json::json!([]));
    it.place.refused(&["sweep", "guests"], 4, &[it.archive.to_str().unwrap()]);

    fs::rename(away, &it.archive).unwrap();
    let bytes = it.keys().iter().map(|key| key.metadata().unwrap().len()).sum::<u64>();
    let dry = it.place.json(&["sweep", "guests", "--dry-run"]);
    assert_eq!((&dry["removed_keys"], &dry["removed_bytes"]), (&1.into(), &bytes.into()));
    let young = it.place.json(&["sweep", "guests", "--older-than", "7d"]);
    assert_eq!((&young["removed_keys"], &young["young_keys"]), (&0.into(), &1.into()));
    assert_eq!(it.keys().len(), 1);
    let said = it.place.done(&["sweep", "guests"]);
    assert!(said.contains("removed 1 keys of 8."), "{said}");
    assert_eq!(it.keys().len(), 0);
    assert_eq!(it.place.json(&["sweep", "guests"])["removed_keys"], 0);
}

#[test]
fn a_sweep_leaves_what_is_needed_and_what_is_anothers() {
    let it = Archived::new();
    let (id, _) = &it.there;
    assert_eq!(it.place.json(&["sweep", "guests"])["known_keys"], 2);
    // Brought back, it still has its copy.
    it.place.done(&["restore", "guests", id]);
    assert_eq!(it.place.json(&["sweep", "guests"])["known_keys"], 2);
    it.place.done(&["delete", "guests", id]);
    assert_eq!(it.keys().len(), 2);
    let stranger = it.keys()[0].with_file_name("notes.txt");
    fs::write(&stranger, "mine").unwrap();
    // What another machine has written: its name stands in the header, which has a checksum.
    let key = File::options().read(true).write(true).open(&it.keys()[1]).unwrap();
    let mut header = vec![0; 256];
    key.read_exact_at(&mut header, 0).unwrap();
    header[96..160].fill(0);
    header[96..101].copy_from_slice(b"other");
    let checksum = crc_fast::crc32_iscsi(&header[..252]);
    header[252..].copy_from_slice(&checksum.to_le_bytes());
    key.write_all_at(&header, 0).unwrap();
    let swept = it.place.json(&["sweep", "guests"]);
    assert_eq!(swept["removed_keys"], 1, "{swept}");
    assert!(swept["kept"][0]["why"].as_str().unwrap().contains("other wrote it"), "{swept}");
    assert!(swept["strangers"][0].as_str().unwrap().ends_with("notes.txt"), "{swept}");
    assert!(stranger.exists());
}

#[test]
fn a_pool_without_an_archive_says_so() {
    let (place, _) = Place::with_pool();
    let id = place.put(&place.file("one", 5000));
    for words in
        [&["sweep", "guests"][..], &["archive", "guests", &id], &["restore", "guests", &id]]
    {
        place.refused(words, 1, &["guests has no archive"]);
    }
}

#[test]
fn a_store_where_nobody_listens_is_given_up_soon() {
    let place = Place::new();
    place.directory("d");
    let words =
        ["create", "guests", "--capacity", "d", "--size", "8M", "--archive", "s3://bucket/x"];
    let mut command = place.command(&words);
    for (name, value) in [
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:1"),
        ("AWS_REGION", "x"),
        ("AWS_ACCESS_KEY_ID", "a"),
        ("AWS_SECRET_ACCESS_KEY", "b"),
    ] {
        command.env(name, value);
    }
    let start = Instant::now();
    let ended = run(command);
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    for word in ["s3://bucket/x does not answer", "cannot be reached", "is the endpoint right"] {
        assert!(ended.err.contains(word), "{word}: {}", ended.err);
    }
    assert_eq!(fs::read_dir(place.at("d")).unwrap().count(), 0);
}
