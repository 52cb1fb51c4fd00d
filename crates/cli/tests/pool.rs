//! `bindery pool`: the whole life of pools in files, what is refused and how, damage, two at once.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;
#[path = "common/place.rs"]
mod place;

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::process::{Child, Command, Output, Stdio};

use bindery_pool::Pool;
use common::{Ended, run};
use place::{Place, flip};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;

/// Where an object lies on its device.
fn offset_of(place: &Place, id: &str) -> u64 {
    let objects = place.json(&["objects", "guests"]);
    let object = objects.as_array().unwrap().iter().find(|object| object["id"] == id);
    object.unwrap()["offset_bytes"].as_u64().unwrap()
}

#[test]
fn a_pool_lives() {
    let place = Place::new();
    let (slow, fast) = (place.directory("slow"), place.directory("fast"));
    let created = ["create", "guests", "--capacity", "slow", "--staging", "fast", "--size", "8M"];
    let said = place.done(&created);
    assert!(said.contains("created pool guests"), "{said}");
    assert!(slow.join("guests.capacity.0.bindery").is_file());
    assert!(fast.join("guests.staging.1.bindery").is_file());

    let files = [place.file("one", 3_000_001), place.file("two", 1), place.file("three", 4096)];
    let mut ids = Vec::new();
    for (class, file) in ["capacity", "staging", "staging"].iter().zip(&files) {
        let said = place.done(&["put", "guests", "--class", class, file.to_str().unwrap()]);
        ids.push(said.split_whitespace().next().unwrap().to_owned());
    }
    for (id, file) in ids.iter().zip(&files) {
        place.done(&["get", "guests", id, "-o", "back"]);
        assert!(fs::read(place.at("back")).unwrap() == fs::read(file).unwrap(), "{id}");
    }
    let mut command = place.command(&["get", "guests", &ids[0]]);
    assert!(command.output().unwrap().stdout == fs::read(&files[0]).unwrap());

    let stat = place.json(&["stat", "guests"]);
    assert_eq!(stat["classes"]["staging"]["objects"], 2);
    assert_eq!(stat["classes"]["capacity"]["object_bytes"], 3_000_001);
    assert_eq!(stat["catalogue"]["objects"], 3);
    assert_eq!(stat["devices"].as_array().unwrap().len(), 2);
    let text = place.done(&["stat", "guests"]);
    assert!(text.contains("guests.staging.1.bindery") && text.contains("8.00 MiB"), "{text}");
    assert!(place.done(&["objects", "guests"]).contains(&ids[2]));
    let verified = place.json(&["verify", "guests"]);
    assert_eq!((&verified["objects"], &verified["object_bytes"]), (&3.into(), &3_004_098.into()));

    place.done(&["delete", "guests", &ids[1], &ids[2]]);
    assert_eq!(place.json(&["objects", "guests"]).as_array().unwrap().len(), 1);
    place.done(&["rename", "guests", "builds"]);
    let list = place.json(&["list"]);
    assert_eq!(list.as_array().unwrap().len(), 1);
    assert_eq!((&list[0]["name"], &list[0]["state"]), (&"builds".into(), &"ready".into()));

    place.done(&["destroy", "builds", "--yes"]);
    assert_eq!(fs::read_dir(&slow).unwrap().count() + fs::read_dir(&fast).unwrap().count(), 0);
    assert_eq!(place.json(&["list"]), Value::Array(Vec::new()));
    // The name is free again.
    place.done(&created);
}

#[test]
fn a_pool_grows() {
    let (place, device) = Place::with_pool();
    let total = |place: &Place| {
        place.json(&["stat", "guests"])["classes"]["capacity"]["total_bytes"].as_u64().unwrap()
    };
    let large = place.file("large", 10 << 20);
    place.refused(&["put", "guests", large.to_str().unwrap()], 1, &["no room", "add a device"]);
    let path = device.to_str().unwrap();
    place.done(&["grow", "guests", "--device", path, "--size", "24M"]);
    assert_eq!(total(&place), 24 << 20);
    let id = place.put(&large);
    place.refused(&["grow", "guests", "--device", path, "--size", "8M"], 1, &[path, "shorter"]);
    // One that has become longer by itself.
    File::options().write(true).open(&device).unwrap().set_len(28 << 20).unwrap();
    place.done(&["grow", "guests", "--device", path]);
    assert_eq!(total(&place), 28 << 20);

    // Files in directories, and files as they are.
    place.directory("more");
    File::create(place.at("whole")).unwrap().set_len(4 << 20).unwrap();
    place.done(&["grow", "guests", "--add-capacity", "more", "whole", "--size", "8M"]);
    assert_eq!(total(&place), 40 << 20);
    place.done(&["grow", "guests", "--add-staging", "more", "--size", "8M"]);
    assert!(place.at("more/guests.staging.3.bindery").is_file());
    assert_eq!(place.json(&["list"])[0]["devices"].as_array().unwrap().len(), 4);
    place.done(&["get", "guests", &id, "-o", "back"]);
    assert!(fs::read(place.at("back")).unwrap() == fs::read(&large).unwrap());

    place.refused(&["grow", "guests", "--device", "large"], 4, &["large", "--add-capacity"]);
    place.refused(&["grow", "guests", "--add-capacity", "large"], 6, &["large", "force"]);
    place.refused(&["grow", "guests"], 2, &["--device"]);
    // What is not the pool's own to remove is left, wiped.
    place.done(&["destroy", "guests", "--yes"]);
    assert!(place.at("whole").is_file() && !device.exists());
    place.refused(&["scan", "whole", "gone"], 4, &["gone"]);
    assert!(place.done(&["scan", "whole"]).contains("belongs to no pool"));
}

#[test]
fn a_pool_goes_elsewhere() {
    let (place, device) = Place::with_pool();
    let file = place.file("one", 100_000);
    let id = place.put(&file);
    place.done(&["export", "guests"]);
    place.refused(&["stat", "guests"], 4, &["guests", "bindery pool import"]);
    let scanned = place.json(&["scan", "d"]);
    assert_eq!(scanned["pools"][0]["state"], "exported");

    let elsewhere = place.directory("elsewhere");
    fs::rename(&device, elsewhere.join("any name.bindery")).unwrap();
    place.refused(&["import", "--directory", "d", "guests"], 4, &["guests", "--directory"]);
    place.refused(&["import", "--directory", "elsewhere", "others"], 4, &["others", "guests"]);
    place.done(&["import", "--directory", "elsewhere"]);
    place.done(&["get", "guests", &id, "-o", "back"]);
    assert!(fs::read(place.at("back")).unwrap() == fs::read(&file).unwrap());

    // Moved without a word: the pool is told of, and found again.
    fs::rename(elsewhere.join("any name.bindery"), &device).unwrap();
    place.refused(&["stat", "guests"], 4, &["any name.bindery", "import guests"]);
    assert_eq!(place.json(&["list"])[0]["state"], "incomplete");
    place.done(&["import", "--directory", "d", "guests"]);
    assert_eq!(place.json(&["list"])[0]["state"], "ready");

    // A pool that nobody exported, on a machine that never heard of it.
    fs::remove_dir_all(place.at("registry")).unwrap();
    place.done(&["import", "--directory", device.to_str().unwrap()]);
    place.done(&["verify", "guests"]);
}

#[test]
fn what_is_missing_is_named() {
    let place = Place::new();
    let [one, two] = ["one", "two"].map(|name| place.directory(name));
    place.done(&["create", "guests", "--capacity", "one", "two", "--size", "8M"]);
    let lost = two.join("guests.capacity.1.bindery");
    let kept = one.join("guests.capacity.0.bindery");
    let away = place.at("away");
    fs::rename(&lost, &away).unwrap();
    place.refused(&["stat", "guests"], 4, &[lost.to_str().unwrap(), "attach"]);
    let scanned = place.json(&["scan", "one"]);
    assert_eq!(scanned["pools"][0]["state"], "incomplete");
    assert!(scanned["pools"][0]["why"].as_str().unwrap().contains("device 1"), "{scanned}");
    assert!(place.done(&["scan", "one", "two"]).contains("missing"));
    assert_eq!(place.json(&["scan", "one", "away"])["pools"][0]["state"], "ready");
    place.refused(&["import", "--directory", "one", "guests"], 4, &["not complete", "device 1"]);

    let said = place.done(&["destroy", "guests", "--yes"]);
    assert!(said.contains(lost.to_str().unwrap()), "{said}");
    assert!(!kept.exists() && away.exists());
    place.refused(&["import", "--directory", "away"], 4, &["not complete"]);
}

#[test]
fn damage_is_named_and_repaired_where_there_is_a_copy() {
    let (place, device) = Place::with_pool();
    let good = place.put(&place.file("good", 200_000));
    let bad = place.put(&place.file("bad", 200_000));
    let verify = |words: &[&str]| {
        let words: Vec<&str> =
            ["verify", "guests", "--json"].iter().chain(words).copied().collect();
        place.pool(&words)
    };
    assert_eq!(verify(&[]).code, Some(0));

    // A superblock, and a block of one copy of the catalogue, which lies behind the head.
    flip(&device, 100);
    flip(&device, (128 << 10) + 50);
    let ended = verify(&[]);
    assert_eq!(ended.code, Some(9), "{}", ended.err);
    let findings = ended.json()["findings"].clone();
    assert_eq!(
        (&findings[0]["kind"], &findings[1]["kind"]),
        (&"superblock".into(), &"catalogue".into())
    );
    assert_eq!(findings.as_array().unwrap().len(), 2, "{findings}");
    // To look changes nothing.
    assert_eq!(verify(&[]).json()["findings"], findings);
    let ended = verify(&["--repair"]);
    assert_eq!(ended.code, Some(9), "{}", ended.err);
    assert!(ended.err.contains("is repaired"), "{}", ended.err);
    let repaired = ended.json()["findings"].clone();
    assert!(repaired.as_array().unwrap().iter().all(|finding| finding["is_repaired"] == true));
    let ended = verify(&[]);
    assert_eq!(ended.code, Some(0), "{}", ended.out);

    // An object has one copy: it is named, and the others stay readable.
    flip(&device, offset_of(&place, &bad) + 8192);
    let ended = verify(&["--repair"]);
    assert_eq!(ended.code, Some(9));
    let findings = ended.json()["findings"].clone();
    assert_eq!(
        (&findings[0]["kind"], &findings[0]["is_repaired"]),
        (&"object".into(), &false.into())
    );
    let message = findings[0]["message"].as_str().unwrap();
    assert!(message.contains(&bad) && message.contains("8192"), "{message}");
    place.refused(&["get", "guests", &bad, "-o", "back"], 9, &[&bad, "8192"]);
    place.refused(&["get", "guests", &bad], 9, &[&bad, "8192"]);
    place.done(&["get", "guests", &good, "-o", "back"]);
    place.done(&["delete", "guests", &bad]);
    assert_eq!(verify(&[]).code, Some(0));

    // Both superblocks: nothing says what is there.
    flip(&device, 100);
    flip(&device, (64 << 10) + 100);
    place.refused(&["verify", "guests"], 9, &[device.to_str().unwrap(), "superblocks"]);
    assert!(place.done(&["scan", "d"]).contains("superblocks"));
}

#[test]
fn wrong_words_are_named_with_what_helps() {
    let (place, _) = Place::with_pool();
    let file = place.file("one", 5000);
    let create = |words: &[&'static str]| [&["create", "other"], words].concat();
    let refused = |words: &[&'static str], code, named: &[&str]| {
        place.refused(&create(words), code, named);
        assert_eq!(place.json(&["list"]).as_array().unwrap().len(), 1);
    };
    refused(&["--capacity", "d", "--size", "1000001"], 2, &["999424", "1003520", "4096"]);
    refused(&["--capacity", "d", "--size", "0"], 2, &["nothing"]);
    refused(&["--capacity", "d", "--size", "4K"], 2, &["other.capacity.0", "4096", "needed"]);
    refused(&["--capacity", "d"], 2, &["d is a directory", "--size"]);
    refused(&["--staging", "d", "--size", "8M"], 2, &["--capacity"]);
    refused(&["--capacity", "one", "--size", "8M"], 2, &["--size", "leave it out"]);
    refused(&["--capacity", "nowhere"], 4, &["nowhere"]);
    refused(&["--capacity", "/dev/null"], 8, &["/dev/null", "block device"]);
    refused(&["--capacity", "one", "one"], 2, &["one is given twice"]);
    refused(&["--capacity", "d/guests.capacity.0.bindery"], 6, &["pool guests", "destroy"]);
    fs::write(place.at("full"), vec![1; 8 << 20]).unwrap();
    refused(&["--capacity", "full"], 6, &["full", "not empty", "force"]);
    refused(&["--capacity", "d", "--size", "8M", "--archive", "ftp://x"], 2, &["s3://", "file://"]);
    refused(&["--capacity", "d", "--size", "8M", "--archive", "file:///nowhere"], 4, &["nowhere"]);
    assert!(!place.at("d/other.capacity.0.bindery").exists(), "what was made stays");

    place.refused(
        &["create", "guests", "--capacity", "d", "--size", "8M"],
        6,
        &["guests", "another name"],
    );
    place.refused(&["create", "a/b", "--capacity", "d", "--size", "8M"], 2, &["a/b", "name"]);
    place.refused(&["rename", "guests", "guests two"], 2, &["guests two"]);
    place.refused(&["destroy", "guests"], 2, &["guests", "--yes"]);
    for verb in ["stat", "verify", "objects", "export", "rename", "destroy"] {
        let words: &[&str] = if verb == "rename" { &[verb, "none", "x"] } else { &[verb, "none"] };
        place.refused(words, 4, &["none", "bindery pool list", "bindery pool import"]);
    }
    place.refused(&["get", "guests", "0x7777"], 4, &["0x7777"]);
    place.refused(&["get", "guests", "seven"], 2, &["0x1f"]);
    let id = place.put(&file);
    place.refused(
        &["delete", "guests", &id, "0x7777"],
        4,
        &["0x7777", "none was deleted", "objects guests"],
    );
    assert_eq!(place.json(&["objects", "guests"]).as_array().unwrap().len(), 1);
    place.refused(&["delete", "guests"], 2, &["ID"]);
    place.refused(&["put", "guests"], 2, &["FILE"]);
    place.refused(
        &["put", "guests", "--class", "staging", "one"],
        2,
        &["staging", "another class"],
    );
    place.refused(&["put", "guests", "--class", "archive", "one"], 2, &["capacity or staging"]);
    place.refused(&["put", "guests", "nowhere"], 4, &["nowhere"]);
    place.refused(&["put", "guests", "d"], 8, &["d is no regular file"]);
    fs::write(place.at("empty"), "").unwrap();
    // Those before it are stored, and told.
    let ended = place.pool(&["put", "guests", "one", "empty"]);
    assert_eq!(ended.code, Some(8), "{}", ended.err);
    assert!(ended.out.contains("one") && ended.err.contains("empty is empty"), "{}", ended.err);
    assert_eq!(place.json(&["objects", "guests"]).as_array().unwrap().len(), 2);
}

#[test]
fn a_name_is_taken_in_the_directory_too() {
    let (place, device) = Place::with_pool();
    fs::remove_dir_all(place.at("registry")).unwrap();
    let create = ["create", "guests", "--capacity", "d", "--size", "8M"];
    place.refused(&create, 6, &["guests", device.to_str().unwrap(), "another name"]);
    let forced: Vec<&str> = create.iter().copied().chain(["--force"]).collect();
    place.done(&forced);
    place.done(&["verify", "guests"]);
}

#[test]
fn a_pool_of_a_later_version_is_left_alone() {
    let (place, device) = Place::with_pool();
    // Version and checksum stand behind the magic; docs/formats/pool.md has the table.
    for offset in [0, 64 << 10] {
        let file = File::options().read(true).write(true).open(&device).unwrap();
        let mut block = vec![0; 4096];
        file.read_exact_at(&mut block, offset).unwrap();
        block[8..12].copy_from_slice(&99u32.to_le_bytes());
        block[12..16].fill(0);
        let checksum = crc_fast::crc32_iscsi(&block);
        block[12..16].copy_from_slice(&checksum.to_le_bytes());
        file.write_all_at(&block, offset).unwrap();
    }
    let before = fs::read(&device).unwrap();
    for words in [&["stat", "guests"][..], &["verify", "guests", "--repair"], &["export", "guests"]]
    {
        place.refused(words, 8, &[device.to_str().unwrap(), "version 99", "newer"]);
    }
    place.refused(&["create", "other", "--capacity", device.to_str().unwrap()], 6, &["force"]);
    assert!(fs::read(&device).unwrap() == before);
}

#[test]
fn an_archive_is_remembered() {
    let place = Place::new();
    place.directory("d");
    let url = format!("file://{}", place.directory("archive").display());
    place.done(&["create", "guests", "--capacity", "d", "--size", "8M", "--archive", &url]);
    assert_eq!(place.json(&["stat", "guests"])["archive"], url);
    assert_eq!(place.json(&["list"])[0]["archive"], url);
    place.done(&["export", "guests"]);
    place.done(&["import", "--directory", "d", "--archive", &url]);
    assert_eq!(place.json(&["stat", "guests"])["archive"], url);
}

/// Runs a command on a terminal on which somebody types.
fn on_terminal(mut command: Command, typed: &str) -> Ended {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let stdin = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    rustix::io::write(&terminal, typed.as_bytes()).unwrap();
    command.stdin(stdin);
    run(command)
}

#[test]
fn who_destroys_a_pool_is_asked() {
    let (place, device) = Place::with_pool();
    let ended = on_terminal(place.command(&["destroy", "guests"]), "yes\n");
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    assert!(ended.err.contains(device.to_str().unwrap()), "{}", ended.err);
    assert!(ended.err.contains("left as it is") && device.exists(), "{}", ended.err);
    let ended = on_terminal(place.command(&["destroy", "guests"]), "guests\n");
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(!device.exists());
}

#[test]
fn one_writes_and_all_read() {
    let (place, device) = Place::with_pool();
    let id = place.put(&place.file("one", 100_000));
    let pool = Pool::open(std::slice::from_ref(&device), None).unwrap();
    let pid = std::process::id().to_string();
    for words in [
        &["put", "guests", "one"][..],
        &["delete", "guests", &id],
        &["rename", "guests", "other"],
        &["grow", "guests", "--add-staging", "d", "--size", "8M"],
        &["export", "guests"],
        &["destroy", "guests", "--yes"],
    ] {
        place.refused(words, 6, &[device.to_str().unwrap(), &pid]);
    }
    place.refused(&["create", "x", "--capacity", device.to_str().unwrap(), "--force"], 6, &[&pid]);
    for words in [
        &["stat", "guests"][..],
        &["objects", "guests"],
        &["verify", "guests"],
        &["get", "guests", &id, "-o", "back"],
        &["scan", "d"],
    ] {
        place.done(words);
    }
    assert_eq!(place.json(&["list"])[0]["state"], "ready");
    drop(pool);
    place.done(&["delete", "guests", &id]);
}

#[test]
fn what_several_store_at_once_is_stored_or_refused() {
    let (place, _) = Place::with_pool();
    place.file("one", 300_000);
    let start = |_| {
        let mut command = place.command(&["put", "guests", "one"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let started: Vec<Child> = (0..6).map(start).collect();
    let mut ids = Vec::new();
    for child in started {
        let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&stderr);
        match status.code() {
            Some(0) => {
                let out = String::from_utf8(stdout).unwrap();
                ids.push(out.split_whitespace().next().unwrap().to_owned());
            }
            code => assert!(code == Some(6) && said.contains("in use"), "{code:?} {said}"),
        }
    }
    assert!(!ids.is_empty(), "all were refused");
    let objects = place.json(&["objects", "guests"]);
    let mut stored: Vec<&str> =
        objects.as_array().unwrap().iter().map(|object| object["id"].as_str().unwrap()).collect();
    ids.sort();
    stored.sort_unstable();
    assert_eq!(ids, stored);
    place.done(&["verify", "guests"]);
}

#[test]
fn what_is_not_there_is_not_taken_for_something_else() {
    let place = Place::new();
    let words = ["create", "guests", "--capacity", "/nonexistent/pool", "--size", "200G"];
    place.refused(&words, 4, &["/nonexistent/pool", "no such directory"]);
    place.refused(&words[..4], 4, &["/nonexistent/pool", "no such directory"]);
}

#[test]
fn a_catalogue_is_as_large_as_asked_for() {
    let place = Place::new();
    place.directory("d");
    let create = ["create", "guests", "--capacity", "d", "--size", "64M", "--catalogue", "4M"];
    place.done(&create);
    let capacity = place.json(&["stat", "guests"])["catalogue"]["capacity_bytes"].as_u64().unwrap();
    assert!(capacity > 3 << 20, "{capacity}");
    place.refused(
        &["create", "other", "--capacity", "d", "--size", "8M", "--catalogue", "4M"],
        2,
        &["other.capacity.0", "needed"],
    );
}

#[test]
fn all_files_that_were_not_stored_are_named() {
    let (place, _) = Place::with_pool();
    for name in ["one", "two", "three"] {
        place.file(name, 5000);
    }
    fs::write(place.at("empty"), "").unwrap();
    let ended = place.pool(&["put", "guests", "one", "empty", "two", "three"]);
    assert_eq!(ended.code, Some(8), "{}", ended.err);
    assert!(ended.err.contains("empty is empty"), "{}", ended.err);
    assert!(ended.err.contains("Nor were stored: two, three"), "{}", ended.err);
    assert!(ended.out.contains("one") && !ended.out.contains("two"), "{}", ended.out);
    let ended = place.pool(&["put", "guests", "--json", "one", "nowhere", "two"]);
    assert_eq!((ended.code, ended.json().as_array().unwrap().len()), (Some(4), 1));
    assert!(ended.err.contains("Nor were stored: two"), "{}", ended.err);
}

#[test]
fn a_file_is_what_it_was_or_all_of_the_object() {
    let (place, device) = Place::with_pool();
    let file = place.file("one", 3_000_000);
    let id = place.put(&file);
    let out = place.directory("out");
    let names = || fs::read_dir(&out).unwrap().count();
    fs::write(out.join("back"), "as it was").unwrap();
    fs::set_permissions(out.join("back"), Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink("back", out.join("link")).unwrap();

    place.done(&["get", "guests", &id, "-o", "out/link"]);
    assert!(fs::read(out.join("back")).unwrap() == fs::read(&file).unwrap());
    assert!(out.join("link").is_symlink());
    assert_eq!(out.join("back").metadata().unwrap().mode() & 0o777, 0o640);
    place.done(&["get", "guests", &id, "-o", "out/new"]);
    assert!(fs::read(out.join("new")).unwrap() == fs::read(&file).unwrap());
    assert_ne!(out.join("new").metadata().unwrap().mode() & 0o400, 0);
    assert_eq!(names(), 3);

    // To its last byte but one it can be read.
    flip(&device, offset_of(&place, &id) + 2_999_000);
    fs::write(out.join("back"), "as it was").unwrap();
    place.refused(&["get", "guests", &id, "-o", "out/back"], 9, &[&id]);
    place.refused(&["get", "guests", &id, "-o", "out/newer"], 9, &[&id]);
    assert_eq!(fs::read(out.join("back")).unwrap(), b"as it was");
    assert_eq!(names(), 3);
    place.refused(&["get", "guests", &id, "-o", "nowhere/back"], 4, &["nowhere/back"]);
}

#[test]
fn what_is_no_file_is_written_as_it_is() {
    let (place, _) = Place::with_pool();
    let file = place.file("one", 300_000);
    let id = place.put(&file);
    let output = place.command(&["get", "guests", &id, "-o", "/dev/stdout"]).output().unwrap();
    assert!(output.status.success() && output.stdout == fs::read(&file).unwrap());
    fs::write(place.at("all"), "before").unwrap();
    let mut command = place.command(&["get", "guests", &id, "-o", "/dev/stdout"]);
    command.stdout(File::options().append(true).open(place.at("all")).unwrap());
    assert!(command.status().unwrap().success());
    assert_eq!(fs::read(place.at("all")).unwrap().len(), 6 + 300_000);
    place.done(&["get", "guests", &id, "-o", "/dev/null"]);
    let pipe = place.at("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .unwrap();
    let reader = std::thread::spawn(move || fs::read(pipe).unwrap());
    place.done(&["get", "guests", &id, "-o", "pipe"]);
    assert!(reader.join().unwrap() == fs::read(&file).unwrap());
    assert!(std::os::unix::fs::FileTypeExt::is_fifo(
        &place.at("pipe").metadata().unwrap().file_type()
    ));
}
