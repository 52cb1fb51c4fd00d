//! `bindery checkpoint` against a real daemon, with checkpoints that the library wrote beforehand.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;
#[path = "common/kept.rs"]
mod kept;

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bindery_host::client::Client;
use bindery_host::protocol::{Answer, Request};
use bindery_pool::Pool;
use bindery_sys::group::group_id;
use bindery_sys::process::effective_user;
use common::{NOBODY, PATIENCE, can_change_user, program_for_all, run, signal_process};
use kept::{Kept, checkpoint};
use serde_json::Value;

/// Domain of this user in a store.
fn own_domain() -> String {
    format!("{}:web", effective_user())
}

/// Names of checkpoints in what a list printed.
fn names(list: &Value) -> Vec<String> {
    let text = |info: &Value, field: &str| info[field].as_str().unwrap().to_owned();
    let name = |info: &Value| format!("{}@{}", text(info, "guest"), text(info, "name"));
    list.as_array().unwrap().iter().map(name).collect()
}

#[test]
fn checkpoints_are_listed_shown_and_verified() {
    let kept = Kept::new();
    kept.write(|store| {
        checkpoint(store, (&own_domain(), "web1", "monday"), &[1, 2, 0, 3]);
        checkpoint(store, (&own_domain(), "web1", "tuesday"), &[1, 2, 0, 4]);
        checkpoint(store, (&own_domain(), "db=lab", "monday"), &[5]);
    });
    let daemon = kept.daemon();
    let all = ["web1@monday", "web1@tuesday", "db@lab@monday"];
    assert_eq!(names(&kept.json(&daemon, &["list"])), all);
    // By the name that this user's registry has, and by the path.
    assert_eq!(names(&kept.json(&daemon, &["list", "--pool", "guests"])), all);
    assert_eq!(names(&kept.json(&daemon, &["list", "--pool", "./d"])), all);
    assert_eq!(names(&kept.json(&daemon, &["list", "db@lab"])), ["db@lab@monday"]);
    let second = &kept.json(&daemon, &["list", "web1"])[1];
    assert_eq!((&second["stored_bytes"], &second["own_bytes"]), (&12_288.into(), &4096.into()));
    assert_eq!((&second["shared_bytes"], &second["pause_us"]), (&8192.into(), &Value::Null));
    let table = kept.done(&daemon, &["list"]);
    assert!(table.starts_with("GUEST") && table.contains("12.0 KiB"), "{table}");

    let shown = kept.done(&daemon, &["show", "db@lab@monday"]);
    for word in ["db@lab@monday", "block0", "/srv/disk.qcow2", "test 1", "-m 1G"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    let shown = kept.json(&daemon, &["show", "web1@monday"]);
    assert_eq!((&shown["device_state_bytes"], &shown["machine"]), (&100.into(), &"none".into()));
    assert_eq!(shown["blocks"][0]["stored_bytes"], 12_288);
    assert_eq!(kept.json(&daemon, &["verify", "--all"]).as_array().unwrap().len(), 3);
    assert!(kept.done(&daemon, &["verify", "web1@monday"]).contains("whole, 3 pages"));
    for words in [["show", "web1@friday"], ["verify", "web2@monday"], ["delete", "web1@friday"]] {
        kept.refused(&daemon, &words, 4, &["there is no checkpoint", "checkpoint list"]);
    }
    kept.refused(&daemon, &["show", "web1"], 2, &["GUEST@NAME"]);
    kept.refused(&daemon, &["delete", "web1", "web2", "--keep", "1"], 2, &["one guest"]);
}

#[test]
fn checkpoints_are_deleted_by_name_and_by_age() {
    let kept = Kept::new();
    kept.write(|store| {
        for (number, name) in (1..).zip(["a", "b", "c", "d"]) {
            checkpoint(store, (&own_domain(), "web1", name), &[7, number]);
        }
    });
    let daemon = kept.daemon();
    let said = kept.done(&daemon, &["delete", "web1@b"]);
    assert!(said.contains("web1@b is deleted") && said.contains("are free again"), "{said}");
    let deleted = kept.json(&daemon, &["delete", "web1", "--keep", "1"]);
    assert_eq!(names(&deleted["checkpoints"]), ["web1@a", "web1@c"]);
    assert_eq!(names(&kept.json(&daemon, &["list"])), ["web1@d"]);
    // It shared a page with the first.
    assert!(kept.done(&daemon, &["verify", "web1@d"]).contains("whole, 2 pages"));
    // One that is not there: none of the others is deleted either.
    kept.refused(&daemon, &["delete", "web1@d", "web1@b"], 4, &["web1@b"]);
    assert_eq!(names(&kept.json(&daemon, &["list"])), ["web1@d"]);
}

#[test]
fn checkpoints_go_to_a_file_and_come_back() {
    let kept = Kept::new();
    kept.write(|store| checkpoint(store, (&own_domain(), "web1", "monday"), &[1, 2, 0, 3]));
    let daemon = kept.daemon();
    let said = kept.done(&daemon, &["export", "web1@monday", "f"]);
    assert!(said.contains("web1@monday is in f"), "{said}");
    let piped = kept.command(&daemon, &["export", "web1@monday", "-"]).output().unwrap();
    assert_eq!(piped.stdout.len() as u64, fs::metadata(kept.at("f")).unwrap().len());

    kept.refused(&daemon, &["import", "f", "--domain", "web"], 6, &["has a checkpoint monday"]);
    kept.done(&daemon, &["import", "f", "--domain", "web", "--guest", "web@2", "--name", "copy"]);
    assert!(kept.done(&daemon, &["verify", "web@2@copy"]).contains("whole, 3 pages"));
    // Of the same domain, so that no page is stored twice.
    assert_eq!(kept.json(&daemon, &["list", "web@2"])[0]["own_bytes"], 0);
    let mut import = kept.command(&daemon, &["import", "-"]);
    import.stdin(Stdio::piped());
    let mut import = import.spawn().unwrap();
    import.stdin.take().unwrap().write_all(&piped.stdout).unwrap();
    assert!(import.wait().unwrap().success());
    // Two guests have that name now.
    kept.refused(&daemon, &["show", "web1@monday"], 4, &["--domain", "domain web; user"]);
    kept.done(&daemon, &["show", "web1@monday", "--domain", "default"]);

    let whole = fs::read(kept.at("f")).unwrap();
    fs::write(kept.at("cut"), &whole[..whole.len() / 2]).unwrap();
    let before = kept.json(&daemon, &["list"]);
    kept.refused(&daemon, &["import", "cut", "--name", "x"], 8, &["nothing of it was imported"]);
    kept.refused(&daemon, &["import", "/dev/null", "--name", "x"], 8, &[]);
    kept.refused(&daemon, &["import", "nonesuch"], 4, &["nonesuch"]);
    kept.refused(&daemon, &["import", "f", "--name", "a b"], 1, &["no name"]);
    assert_eq!(kept.json(&daemon, &["list"]), before);
    // What cannot be written is told, and leaves no job.
    kept.refused(&daemon, &["export", "web@2@copy", "/nonexistent/f"], 4, &["/nonexistent/f"]);
    kept.refused(&daemon, &["export", "web@2@copy", "/dev/full"], 1, &["No space left"]);
}

#[test]
fn an_encrypted_export_needs_its_key() {
    let kept = Kept::new();
    kept.write(|store| checkpoint(store, (&own_domain(), "web1", "monday"), &[1, 2]));
    let daemon = kept.daemon();
    for (name, byte) in [("key", 1), ("other", 2)] {
        fs::write(kept.at(name), [byte; 32]).unwrap();
        fs::set_permissions(kept.at(name), fs::Permissions::from_mode(0o600)).unwrap();
    }
    kept.done(&daemon, &["export", "web1@monday", "f", "--key-file", "key"]);
    let import = |flags: &[&'static str]| [&["import", "f", "--name", "copy"], flags].concat();
    kept.refused(&daemon, &import(&[]), 8, &["refused"]);
    kept.refused(&daemon, &import(&["--key-file", "other"]), 8, &["refused"]);
    kept.done(&daemon, &import(&["--key-file", "key"]));
    fs::set_permissions(kept.at("key"), fs::Permissions::from_mode(0o644)).unwrap();
    kept.refused(&daemon, &import(&["--key-file", "key"]), 8, &["chmod 600"]);
}

#[test]
fn a_damaged_page_is_named_and_others_are_whole() {
    let kept = Kept::new();
    kept.write(|store| {
        checkpoint(store, (&own_domain(), "web1", "monday"), &[1, 2, 0, 3]);
        checkpoint(store, (&own_domain(), "web1", "tuesday"), &[1, 4]);
    });
    kept.damage(3);
    let daemon = kept.daemon();
    let words = ["verify", "--all"];
    let said = ["web1@monday: damaged, 1 pages", "block0, 1 pages from 3 on", "1 of 2 checkpoints"];
    let ended = kept.refused(&daemon, &words, 9, &said);
    assert!(ended.out.contains("web1@tuesday: whole, 2 pages"), "{}", ended.out);
    let json = run(kept.command(&daemon, &["verify", "--all", "--json"])).json();
    assert_eq!((&json[0]["damaged_pages"], &json[0]["pages"]), (&1.into(), &2.into()));
    assert_eq!(json[0]["damaged"][0]["first_page"], 3);
    // A file that is there stays what it was.
    fs::write(kept.at("f"), "precious").unwrap();
    kept.refused(&daemon, &["export", "web1@monday", "f"], 9, &["page 3 of memory block block0"]);
    assert_eq!(fs::read_to_string(kept.at("f")).unwrap(), "precious");
    kept.done(&daemon, &["export", "web1@tuesday", "f"]);
}

#[test]
fn a_pool_is_shared_in_turn() {
    let kept = Kept::new();
    let daemon = kept.daemon();
    let other = Pool::open(&[kept.pool()], None).unwrap();
    let pid = std::process::id().to_string();
    kept.refused(&daemon, &["list"], 6, &[&pid, "cannot be opened"]);
    drop(other);
    assert_eq!(kept.done(&daemon, &["list"]).lines().count(), 1);
    // Closed some seconds after nobody uses it.
    let deadline = Instant::now() + PATIENCE;
    while kept.pool_command(&["put", "guests", "/proc/self/status"]).code == Some(6) {
        assert!(Instant::now() < deadline, "the daemon keeps the pool open");
        std::thread::sleep(Duration::from_millis(200));
    }
    kept.done(&daemon, &["list"]);
    kept.refused(&daemon, &["list", "--pool", "none"], 4, &["no pool called none"]);
    kept.refused(&daemon, &["list", "--pool", "/nonexistent"], 4, &["/nonexistent"]);
    drop(daemon);
    let daemon = common::TestDaemon::start(&[]);
    kept.refused(&daemon, &["list"], 4, &["pool create", "checkpoint_pool"]);
    kept.done(&daemon, &["list", "--pool", "guests"]);
}

#[test]
fn a_daemon_that_was_killed_loses_nothing() {
    let kept = Kept::new();
    kept.write(|store| checkpoint(store, (&own_domain(), "web1", "monday"), &[1, 2, 0, 3]));
    let mut daemon = kept.daemon();
    kept.done(&daemon, &["export", "web1@monday", "f"]);
    kept.done(&daemon, &["import", "f", "--name", "copy"]);
    let before = kept.json(&daemon, &["list"]);
    daemon.end_with("KILL");
    let file = kept.at("bindery.toml");
    fs::write(&file, format!("checkpoint_pool = \"{}\"\n", kept.pool().display())).unwrap();
    let daemon = common::TestDaemon::start(&["--config", file.to_str().unwrap()]);
    assert_eq!(kept.json(&daemon, &["list"]), before);
    kept.done(&daemon, &["verify", "--all"]);
}

#[test]
fn a_full_pool_takes_no_half_checkpoint() {
    let kept = Kept::new();
    let memory: Vec<u64> = (1..4000).collect();
    kept.write(|store| checkpoint(store, (&own_domain(), "web1", "large"), &memory));
    let daemon = kept.daemon();
    kept.done(&daemon, &["export", "web1@large", "f"]);
    let before = kept.json(&daemon, &["list"]);
    // Another domain shares no page.
    let mut rooms = 0;
    while rooms < 16 {
        let name = format!("copy{rooms}");
        let domain = format!("domain{rooms}");
        let ended =
            run(kept.command(&daemon, &["import", "f", "--name", &name, "--domain", &domain]));
        if ended.code != Some(0) {
            assert!(ended.err.contains("no room"), "{}", ended.err);
            assert_eq!(ended.code, Some(1));
            break;
        }
        rooms += 1;
    }
    assert!(rooms < 16, "the pool was never full");
    let after = kept.json(&daemon, &["list"]);
    assert_eq!(after.as_array().unwrap().len(), before.as_array().unwrap().len() + rooms);
    kept.done(&daemon, &["verify", "--all"]);
    // Room again.
    kept.done(&daemon, &["delete", "web1@large", "--domain", "web"]);
    kept.done(&daemon, &["import", "f", "--name", "again", "--domain", "later"]);
}

#[test]
fn an_interrupt_cancels_the_job() {
    let kept = Kept::new();
    kept.write(|store| checkpoint(store, (&own_domain(), "web1", "monday"), &[1, 2]));
    let daemon = kept.daemon();
    kept.done(&daemon, &["export", "web1@monday", "f"]);
    let mut import = kept.command(&daemon, &["import", "-", "--name", "half"]);
    import.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut import = import.spawn().unwrap();
    let mut stdin = import.stdin.take().unwrap();
    stdin.write_all(&fs::read(kept.at("f")).unwrap()[..4000]).unwrap();
    let mut client = Client::connect(&daemon.socket()).unwrap();
    let mut jobs = || match client.ask(&Request::Jobs {}, PATIENCE).unwrap() {
        Answer::Jobs { jobs } => jobs,
        answer => panic!("{answer:?}"),
    };
    let deadline = Instant::now() + PATIENCE;
    while !jobs().last().is_some_and(|job| job.outcome.is_none() && job.done == 4000) {
        assert!(Instant::now() < deadline, "it never read: {:?}", jobs());
        std::thread::sleep(Duration::from_millis(20));
    }
    signal_process(import.id(), "INT");
    let ended = import.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("cancelled"), "{ended:?}");
    let last = jobs().pop().unwrap();
    assert!(last.is_cancelled && last.outcome.is_some(), "{last:?}");
    assert_eq!(names(&kept.json(&daemon, &["list"])), ["web1@monday"]);
    drop(stdin);
}

#[test]
fn a_job_outlives_whoever_began_it() {
    let kept = Kept::new();
    kept.write(|store| checkpoint(store, (&own_domain(), "web1", "monday"), &[1, 2]));
    let daemon = kept.daemon();
    let begin = Request::CheckpointVerify {
        pool: None,
        select: bindery_host::protocol::checkpoint::Selection::All {},
    };
    let ask = |request: &Request| Client::connect(&daemon.socket()).unwrap().ask(request, PATIENCE);
    let Answer::JobStarted { job } = ask(&begin).unwrap() else { panic!("a job was begun") };
    let deadline = Instant::now() + PATIENCE;
    loop {
        let Answer::Job(status) = ask(&Request::Job { job, wait_ms: Some(1000) }).unwrap() else {
            panic!("that was about a job")
        };
        if status.outcome.is_some() {
            assert_eq!(status.done, 2);
            break;
        }
        assert!(Instant::now() < deadline, "{status:?}");
    }
    // A descriptor is asked for where one is needed.
    let checkpoint = bindery_host::protocol::checkpoint::CheckpointName {
        guest: "web1".into(),
        name: "monday".into(),
        domain: None,
        uid: None,
    };
    let export = Request::CheckpointExport { pool: None, checkpoint, key: None };
    assert!(ask(&export).unwrap_err().to_string().contains("SCM_RIGHTS"));
    assert!(
        ask(&Request::Job { job: 99, wait_ms: None }).unwrap_err().to_string().contains("job 99")
    );
}

#[test]
fn another_users_checkpoints_are_as_if_they_were_not() {
    let test = "another_users_checkpoints_are_as_if_they_were_not";
    let Some(gid) = group_id("users").unwrap() else {
        return bindery_testkit::skipped!("{test}: this machine has no group users");
    };
    if !can_change_user(test) {
        return;
    }
    let kept = Kept::new();
    let theirs = format!("{NOBODY}:web");
    kept.write(|store| {
        checkpoint(store, (&own_domain(), "web1", "monday"), &[1, 2]);
        checkpoint(store, (&theirs, "web2", "monday"), &[1, 2]);
        checkpoint(store, ("lab", "web3", "monday"), &[1]);
    });
    let daemon = kept.daemon_with(&["--group", "users"]);
    let program = program_for_all(daemon.directory());
    let ask = |words: &[&str]| {
        let mut command = Command::new(&program);
        command.arg("checkpoint").args(words).arg("--socket").arg(daemon.socket());
        command.current_dir("/").uid(NOBODY).gid(gid);
        run(command)
    };
    assert_eq!(names(&ask(&["list", "--json"]).json()), ["web2@monday"]);
    assert_eq!(kept.json(&daemon, &["list"]).as_array().unwrap().len(), 3);
    assert_eq!(ask(&["verify", "web2@monday"]).code, Some(0));
    for words in [
        &["show", "web1@monday"][..],
        &["verify", "web3@monday"],
        &["delete", "web1@monday"],
        &["delete", "web1", "--keep", "0"],
        &["export", "web1@monday", "-"],
        &["show", "web1@monday", "--user", "0"],
    ] {
        let ended = ask(words);
        assert_eq!(ended.code, Some(4), "{words:?}: {}", ended.err);
        assert!(ended.err.contains("there is no checkpoint"), "{}", ended.err);
    }
    assert_eq!(ask(&["verify", "--all", "--json"]).json().as_array().unwrap().len(), 1);
    // The daemon opens no other pool on a member's word.
    let other = ask(&["list", "--pool", "/tmp"]);
    assert_eq!(other.code, Some(5), "{}", other.err);
    // What a member brings is the member's.
    let file = kept.at("f");
    kept.done(&daemon, &["export", "web1@monday", file.to_str().unwrap()]);
    let mut import = Command::new(&program);
    import.args(["checkpoint", "import", "-", "--socket"]).arg(daemon.socket());
    import.stdin(fs::File::open(&file).unwrap()).uid(NOBODY).gid(gid).current_dir("/");
    assert_eq!(run(import).code, Some(0));
    let list = ask(&["list", "web1", "--json"]).json();
    assert_eq!((&list[0]["uid"], &list[0]["domain"]), (&NOBODY.into(), &"default".into()));
    assert_eq!(ask(&["delete", "web1@monday"]).code, Some(0));
    assert_eq!(kept.json(&daemon, &["list"]).as_array().unwrap().len(), 3);
}
