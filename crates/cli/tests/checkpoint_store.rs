//! `bindery checkpoint push`, `pull` and `--at`, with a directory as the object store; and domains that are encrypted
//! in their pools.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;
#[path = "common/kept.rs"]
mod kept;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bindery_sys::process::effective_user;
use common::{TestDaemon, bindery, run, signal_process};
use kept::{Kept, checkpoint, content};

/// Domain of this user in a store.
fn own_domain() -> String {
    format!("{}:web", effective_user())
}

fn write_key(path: &Path, byte: u8) {
    fs::write(path, [byte; 32]).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// A directory that is an object store, and key files in it.
struct Remote(tempfile::TempDir);

impl Remote {
    fn new() -> Self {
        let remote = Self(tempfile::tempdir().unwrap());
        fs::create_dir(remote.0.path().join("bucket")).unwrap();
        write_key(&remote.0.path().join("key"), 1);
        write_key(&remote.0.path().join("other"), 2);
        remote
    }

    fn url(&self) -> String {
        format!("file://{}", self.bucket().display())
    }

    fn bucket(&self) -> PathBuf {
        self.0.path().join("bucket")
    }

    fn file(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn a_checkpoint_is_pushed_and_pulled_elsewhere() {
    let (here, there, remote) = (Kept::new(), Kept::new(), Remote::new());
    here.write(|store| {
        checkpoint(store, (&own_domain(), "web.1", "monday"), &[1, 2, 0, 3]);
        checkpoint(store, (&own_domain(), "web.1", "tuesday"), &[1, 2, 0, 4]);
    });
    let daemons = [here.daemon(), there.daemon()];
    let (url, key, other) = (remote.url(), remote.file("key"), remote.file("other"));
    let push = |name: &str, key: &[&str]| {
        let words = ["push", name, &url].map(str::to_owned);
        words.into_iter().chain(key.iter().map(|&word| word.to_owned())).collect::<Vec<_>>()
    };
    let words = |words: &[String]| words.to_vec();
    let refused = |kept: &Kept, daemon: &TestDaemon, words: &[String], code, said: &[&str]| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        kept.refused(daemon, &words, code, said)
    };
    let done = |kept: &Kept, daemon: &TestDaemon, words: &[String]| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        kept.json(daemon, &words)
    };
    let own_key = ["--key-file", &*key];
    refused(
        &here,
        &daemons[0],
        &push("web.1@monday", &[]),
        2,
        &["secrets", "--key-file", "--unencrypted"],
    );
    refused(&here, &daemons[0], &push("web.1@friday", &own_key), 4, &["there is no checkpoint"]);
    let first = done(&here, &daemons[0], &push("web.1@monday", &own_key));
    assert_eq!((&first["own_bytes"], &first["guest"]), (&12_288.into(), &"web.1".into()));
    refused(&here, &daemons[0], &push("web.1@monday", &own_key), 6, &["already", "--at"]);
    let second = done(&here, &daemons[0], &push("web.1@tuesday", &own_key));
    assert_eq!((&second["own_bytes"], &second["stored_bytes"]), (&4096.into(), &12_288.into()));
    // No page and no name is to be seen.
    for file in files(&remote.bucket()) {
        let bytes = fs::read(&file).unwrap();
        assert!(!bytes.windows(64).any(|window| window == &content(1)[..64]), "{}", file.display());
    }

    let at = ["list", "--at", &url, "--key-file", &key].map(str::to_owned);
    let list = done(&there, &daemons[1], &words(&at));
    assert_eq!(list.as_array().unwrap().len(), 2);
    assert_eq!((&list[0]["guest"], &list[0]["domain"]), (&"web.1".into(), &"web".into()));
    let pull = |key: &str, more: &[&str]| {
        let words = ["pull", &url, "web.1@tuesday", "--key-file", key];
        words.iter().chain(more).map(|&word| word.to_owned()).collect::<Vec<String>>()
    };
    refused(&there, &daemons[1], &pull(&other, &[]), 4, &["has no checkpoint", "key file"]);
    let pulled = done(&there, &daemons[1], &pull(&key, &[]));
    assert_eq!((&pulled["name"], &pulled["domain"]), (&"tuesday".into(), &"web".into()));
    refused(&there, &daemons[1], &pull(&key, &[]), 6, &["has a checkpoint tuesday"]);
    let named = ["--name", "copy", "--guest", "db", "--domain", "lab"];
    let pulled = done(&there, &daemons[1], &pull(&key, &named));
    assert_eq!((&pulled["guest"], &pulled["own_bytes"]), (&"db".into(), &12_288.into()));
    assert!(there.done(&daemons[1], &["verify", "db@copy"]).contains("whole, 3 pages"));
    let shown = there.done(&daemons[1], &["show", "web.1@tuesday"]);
    assert!(shown.contains("-m 1G") && shown.contains("/srv/disk.qcow2"), "{shown}");

    let delete = ["delete", "web.1", "--keep", "1", "--at", &url, "--key-file", &key];
    let deleted = done(&here, &daemons[0], &delete.map(str::to_owned));
    assert_eq!(deleted["checkpoints"][0]["name"], "monday");
    assert_eq!(deleted["has_kept_packs"], false);
    let again = pull(&key, &["--name", "again"]);
    done(&there, &daemons[1], &again);
}

#[test]
fn a_damaged_object_is_named_by_a_pull() {
    let (here, there, remote) = (Kept::new(), Kept::new(), Remote::new());
    here.write(|store| checkpoint(store, (&own_domain(), "web", "monday"), &[1, 2, 0, 3]));
    let daemons = [here.daemon(), there.daemon()];
    let (url, key) = (remote.url(), remote.file("key"));
    here.done(&daemons[0], &["push", "web@monday", &url, "--key-file", &key]);
    for file in files(&remote.bucket()).iter().filter(|file| file.parent().unwrap().ends_with("p"))
    {
        let mut bytes = fs::read(file).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(file, bytes).unwrap();
    }
    let before = there.json(&daemons[1], &["list"]);
    let pull = ["pull", &url, "web@monday", "--key-file", &key];
    there.refused(&daemons[1], &pull, 9, &["cannot be used", "/p/"]);
    assert_eq!(there.json(&daemons[1], &["list"]), before);
}

/// A push that is killed is no checkpoint; what it sent is not sent again.
#[test]
fn a_push_that_is_killed_goes_on() {
    let (here, remote) = (Kept::new(), Remote::new());
    let memory: Vec<u64> = (1..6000).collect();
    here.write(|store| checkpoint(store, (&own_domain(), "web1", "large"), &memory));
    let daemon = here.daemon();
    let (url, key) = (remote.url(), remote.file("key"));
    let words = ["push", "web1@large", &url, "--key-file", &key];
    let list = ["list", "--at", &url, "--key-file", &key];
    let mut killed = 0;
    for delay_ms in [20, 60, 120, 200, 300] {
        let mut push = here.command(&daemon, &words).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(delay_ms));
        signal_process(push.id(), "KILL");
        killed += u32::from(!push.wait().unwrap().success());
        let is_there = here.json(&daemon, &list).as_array().unwrap().len();
        if is_there > 0 {
            break;
        }
    }
    assert!(killed > 0);
    if here.json(&daemon, &list).as_array().unwrap().is_empty() {
        let pushed = here.json(&daemon, &words);
        assert_eq!(pushed["stored_bytes"], 5999 * 4096);
        eprintln!(
            "{killed} were killed; the last one had {} bytes left to send",
            pushed["sent_bytes"]
        );
    }
    here.done(&daemon, &["pull", &url, "web1@large", "--key-file", &key, "--name", "back"]);
    assert!(here.done(&daemon, &["verify", "web1@back"]).contains("whole, 5999 pages"));
    let deleted = here.json(&daemon, &["delete", "web1@large", "--at", &url, "--key-file", &key]);
    assert_eq!(deleted["objects"].as_u64().map(|objects| objects > 2), Some(true));
    // The killed pushes' claims count no more once the checkpoint was there. A file with a `#` in its name is no object:
    // it was being written when its push was killed.
    let is_object = |file: &Path| !file.file_name().unwrap().to_string_lossy().contains('#');
    let is_pack = |file: &Path| file.parent().unwrap().ends_with("p") && is_object(file);
    let left = files(&remote.bucket()).into_iter().filter(|file| is_pack(file));
    assert_eq!(left.collect::<Vec<_>>(), Vec::<PathBuf>::new());
}

/// Checkpoints of domains that have keys are encrypted in the pool.
#[test]
fn a_domain_with_a_key_is_encrypted_in_its_pool() {
    let (plain, sealed, remote) = (Kept::new(), Kept::new(), Remote::new());
    plain.write(|store| checkpoint(store, (&own_domain(), "web1", "monday"), &[1, 2, 0, 3]));
    let file = sealed.at("f");
    plain.done(&plain.daemon(), &["export", "web1@monday", file.to_str().unwrap()]);
    let config = sealed.at("bindery.toml");
    let text = format!(
        "checkpoint_key = \"{}\"\n[checkpoint.keys]\ndb = \"{}\"\n",
        remote.file("key"),
        remote.file("other")
    );
    fs::write(&config, text).unwrap();
    let config = config.to_str().unwrap().to_owned();
    let daemon = sealed.daemon_with(&["--config", &config]);
    for domain in ["web", "db"] {
        let info = sealed.json(&daemon, &["import", "f", "--domain", domain, "--name", domain]);
        assert_eq!(info["own_bytes"], 12_288, "domains share no page");
    }
    assert!(sealed.done(&daemon, &["verify", "--all"]).contains("whole, 3 pages"));
    sealed.done(&daemon, &["export", "web1@db", "g"]);
    drop(daemon);
    let shows = |kept: &Kept| {
        let device = fs::read(kept.pool().join("guests.capacity.0.bindery")).unwrap();
        [1, 2, 3].map(|number| {
            let page = content(number);
            device.chunks_exact(64).any(|piece| piece == &page[..64])
        })
    };
    assert_eq!(shows(&sealed), [false; 3]);
    assert_eq!(shows(&plain), [true; 3], "what is not encrypted shows that the test looks");

    // Without the key, and with another.
    let other = remote.file("other");
    for arguments in [&[][..], &["--checkpoint-key", &other]] {
        let daemon = sealed.daemon_with(arguments);
        for words in
            [&["verify", "web1@web"][..], &["show", "web1@web"], &["export", "web1@web", "h"]]
        {
            sealed.refused(&daemon, words, 5, &["encrypted", "checkpoint_key"]);
        }
        let words = ["import", "f", "--domain", "web", "--name", "new"];
        sealed.refused(&daemon, &words, 5, &["checkpoint_key"]);
        // Another domain of this key is readable all the same.
        let db = run(sealed.command(&daemon, &["verify", "web1@db"])).code;
        assert_eq!(db, Some(if arguments.is_empty() { 5 } else { 0 }));
        assert_eq!(sealed.json(&daemon, &["list"]).as_array().unwrap().len(), 2);
    }
    // A domain from before is read, and gets no new checkpoint that is not encrypted.
    let daemon = plain.daemon_with(&["--checkpoint-key", &remote.file("key")]);
    plain.done(&daemon, &["verify", "web1@monday"]);
    let words = ["import", file.to_str().unwrap(), "--domain", "web", "--name", "new"];
    plain.refused(&daemon, &words, 5, &["not encrypted", "another domain"]);
    drop(daemon);
    // A key file that others may read is none.
    fs::set_permissions(remote.file("key"), fs::Permissions::from_mode(0o644)).unwrap();
    let mut start = bindery(["daemon"]);
    start.arg("--socket").arg(sealed.at("socket")).arg("--checkpoint-key").arg(remote.file("key"));
    let ended = run(start);
    assert_eq!(ended.code, Some(8), "{}", ended.err);
    assert!(ended.err.contains("chmod 600"), "{}", ended.err);
}
