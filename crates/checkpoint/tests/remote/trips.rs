//! There and back.

use std::fs;

use bindery_checkpoint::{Remote, RemoteError};
use bindery_pool::archive::ArchiveOptions;
use bindery_testkit::skipped;

use super::common::content;
use super::server::Bench;
use super::{Host, key, memory, names, objects, open, options, pull, stored, url};

fn goes_and_comes_back(open: &dyn Fn(Option<u8>) -> Remote) {
    for byte in [None, Some(1)] {
        let (host, remote) = (Host::new(), open(byte));
        host.make("web", "one@a", &memory(1));
        host.make("web", "one@b", &{
            let mut changed = memory(1);
            (changed[0][3], changed[0][8], changed[0][11]) = (1 << 40, 0, 1 << 41);
            changed
        });
        let first = host.push(&remote, "one@a").unwrap();
        assert_eq!(first.checkpoint.stored_pages, stored(&memory(1)));
        assert_eq!(first.checkpoint.sent_pages, stored(&memory(1)));
        let second = host.push(&remote, "one@b").unwrap();
        assert_eq!(second.checkpoint.sent_pages, 2, "two pages are new");
        // Two pages in a pack, a piece of details, the manifest.
        assert_eq!(second.objects, 3);
        assert!(second.checkpoint.sent_bytes < 3 * 4096, "{second:?}");
        assert_eq!(names(&remote), ["one@a", "one@b"]);
        pull(&remote, "one@a", &memory(1)).unwrap();
        let again = host.push(&remote, "one@b").unwrap_err();
        assert!(matches!(again, RemoteError::Exists { .. }), "{again}");
        let deleted = remote.delete(&[("one".parse().unwrap(), "a".parse().unwrap())]).unwrap();
        assert!(!deleted.has_kept_packs, "{deleted:?}");
        let mut changed = memory(1);
        (changed[0][3], changed[0][8], changed[0][11]) = (1 << 40, 0, 1 << 41);
        pull(&remote, "one@b", &changed).unwrap();
        let missing = pull(&remote, "one@a", &memory(1)).unwrap_err();
        assert!(matches!(missing, RemoteError::Missing { .. }), "{missing}");
        let deleted = remote.delete(&[("one".parse().unwrap(), "b".parse().unwrap())]).unwrap();
        assert!(!deleted.has_kept_packs && deleted.objects > 4, "{deleted:?}");
        assert!(names(&remote).is_empty());
    }
}

#[test]
fn a_checkpoint_goes_and_comes_back() {
    let bench = Bench::s3s();
    goes_and_comes_back(&|byte| open(&bench, byte.map(key).as_ref()));
    // The marker, and the secret of what is not encrypted.
    assert_eq!(objects(&bench).len(), 2, "{:?}", objects(&bench));
}

#[test]
fn another_server_agrees() {
    let Some(bench) = Bench::moto() else {
        return skipped!("moto is not there: run `cargo xtask setup`");
    };
    goes_and_comes_back(&|byte| open(&bench, byte.map(key).as_ref()));
}

#[test]
fn a_directory_is_a_store() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("file://{}", directory.path().display());
    let options = ArchiveOptions { part_bytes: 16 << 10, ..ArchiveOptions::default() };
    goes_and_comes_back(&|byte| {
        Remote::open(&url, options.clone(), byte.map(key).as_ref()).unwrap()
    });
}

#[test]
fn what_is_encrypted_shows_neither_names_nor_pages() {
    let (bench, host) = (Bench::s3s(), Host::new());
    host.make("web", "secretguest@secretname", &memory(1));
    let page = content(1 << 32 | 3 << 1);
    let shows = |bench: &Bench| {
        let all: Vec<u8> = objects(bench)
            .iter()
            .flat_map(|file| {
                [file.display().to_string().into_bytes(), fs::read(file).unwrap()].concat()
            })
            .collect();
        let has = |bytes: &[u8]| all.windows(bytes.len()).any(|window| window == bytes);
        [has(&page[..64]), has(b"secretguest"), has(b"secretname"), has(b"web")]
    };
    host.push(&open(&bench, Some(&key(1))), "secretguest@secretname").unwrap();
    assert_eq!(shows(&bench), [false; 4]);
    let other = open(&bench, Some(&key(2)));
    assert!(names(&other).is_empty());
    for remote in [other, open(&bench, None)] {
        let wrong = pull(&remote, "secretguest@secretname", &memory(1)).unwrap_err();
        assert!(matches!(wrong, RemoteError::Missing { has_others: true, .. }), "{wrong}");
        assert!(wrong.to_string().contains("key file"), "{wrong}");
    }
    host.push(&open(&bench, None), "secretguest@secretname").unwrap();
    assert!(shows(&bench)[0], "what is not encrypted shows that the test looks");
}

#[test]
fn domains_share_no_page() {
    let (bench, host) = (Bench::s3s(), Host::new());
    let remote = open(&bench, Some(&key(1)));
    host.make("web", "one@a", &memory(1));
    host.make("db", "two@a", &memory(1));
    host.make("web", "three@a", &memory(1));
    host.push(&remote, "one@a").unwrap();
    let other = host.push(&remote, "two@a").unwrap();
    assert_eq!(other.checkpoint.sent_pages, stored(&memory(1)));
    assert_eq!(host.push(&remote, "three@a").unwrap().checkpoint.sent_pages, 0);
}

/// A bit of each object in turn: a pull of what needs it names it, and another read may help.
#[test]
fn a_damaged_object_is_named() {
    for byte in [None, Some(1)] {
        let (bench, host) = (Bench::s3s(), Host::new());
        let remote = open(&bench, byte.map(key).as_ref());
        host.make("web", "one@a", &memory(1));
        host.push(&remote, "one@a").unwrap();
        let mut named = 0;
        for file in objects(&bench).iter().filter(|file| file.components().count() > 2) {
            let whole = fs::read(file).unwrap();
            let folder = file.parent().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
            if !["p", "m"].contains(&folder.as_str()) {
                continue;
            }
            for at in [0, 20, 70, whole.len() / 2, whole.len() - 1] {
                let mut damaged = whole.clone();
                damaged[at] ^= 4;
                fs::write(file, damaged).unwrap();
                let error = pull(&remote, "one@a", &memory(1)).unwrap_err();
                let key = file.file_name().unwrap().to_str().unwrap();
                assert!(matches!(error, RemoteError::Damaged { .. }), "{error}");
                assert!(error.to_string().contains(key), "{error}");
                named += 1;
            }
            fs::write(file, &whole[..whole.len() - 1]).unwrap();
            pull(&remote, "one@a", &memory(1)).unwrap_err();
            fs::remove_file(file).unwrap();
            let gone = pull(&remote, "one@a", &memory(1)).unwrap_err();
            assert!(
                matches!(gone, RemoteError::Lost { .. } | RemoteError::Missing { .. }),
                "{gone}"
            );
            fs::write(file, whole).unwrap();
        }
        assert!(named > 20);
        pull(&remote, "one@a", &memory(1)).unwrap();
    }
}

#[test]
fn a_prefix_of_something_else_is_refused() {
    let bench = Bench::s3s();
    let file = bench.files.as_ref().unwrap().join("some/prefix/bindery-checkpoints");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, "bindery checkpoints, format 9\n").unwrap();
    let error = Remote::open(&url(), options(&bench), None).unwrap_err();
    assert!(error.to_string().contains("format 9"), "{error}");
}
