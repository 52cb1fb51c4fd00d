//! Pools that are opened, shared, and closed again.

use std::path::Path;

use bindery_checkpoint::{Description, NewCheckpoint, PageEncoding, Vmm};
use bindery_pool::{CreateOptions, DevicePath, MediaClass};

use super::catalogue::{find, select, visible};
use super::*;
use crate::protocol::checkpoint::{CheckpointName, Selection};

const SHORT: Duration = Duration::from_millis(200);
const MEMBER: Rights = Rights::Member { uid: 7 };

fn pool_in(directory: &Path) {
    let device =
        DevicePath { path: directory.into(), class: MediaClass::Capacity, bytes: Some(64 << 20) };
    let options = CreateOptions { force: false, catalogue_bytes: None };
    drop(Pool::create(&"guests".parse().unwrap(), &[device], &options).unwrap());
}

fn asked(directory: &Path) -> Vec<String> {
    vec![directory.to_str().unwrap().to_owned()]
}

/// Makes a checkpoint of a guest without memory.
fn make(store: &Store, domain: &str, guest: &str, name: &str, time_ns: u64) {
    let parse = |text: &str| text.parse::<bindery_checkpoint::Name>().unwrap();
    store.open_domain(&parse(domain), None).unwrap();
    let description = Description {
        guest: parse(guest),
        name: parse(name),
        domain: parse(domain),
        time_ns,
        vmm: Vmm::default(),
        blocks: Vec::new(),
        disks: Vec::new(),
        device_state: Vec::new(),
    };
    let new = NewCheckpoint { description, base: None, encoding: PageEncoding::Raw };
    store.create(new).unwrap().finish().unwrap();
}

fn called(guest: &str, name: &str) -> CheckpointName {
    CheckpointName { guest: guest.into(), name: name.into(), domain: None, uid: None }
}

#[test]
fn a_pool_is_open_while_it_is_used_and_closed_after() {
    let directory = tempfile::tempdir().unwrap();
    pool_in(directory.path());
    let keeper = Keeper::closing_after(Some(directory.path().into()), Keyring::default(), SHORT);
    let paths = vec![directory.path().to_path_buf()];
    let is_free = || Pool::open(&paths, None).is_ok();
    let first = keeper.lease(None, MEMBER).unwrap();
    let second = keeper.lease(Some(&asked(directory.path())), Rights::Owner).unwrap();
    assert!(Arc::ptr_eq(first.pool(), second.pool()), "it was opened twice");
    drop(first);
    std::thread::sleep(3 * SHORT);
    assert!(!is_free(), "it was closed while it was used");
    drop(second);
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_free() {
        assert!(Instant::now() < deadline, "it was never closed");
        std::thread::sleep(Duration::from_millis(20));
    }
    // And opened again.
    assert_eq!(keeper.lease(None, MEMBER).unwrap().list(), []);
}

#[test]
fn a_pool_that_another_has_open_is_named() {
    let directory = tempfile::tempdir().unwrap();
    pool_in(directory.path());
    let other = Pool::open(&[directory.path().to_path_buf()], None).unwrap();
    let keeper = Keeper::new(Some(directory.path().into()), Keyring::default());
    let failure = keeper.lease(None, Rights::Owner).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Taken, "{failure}");
    assert!(failure.message.contains(&std::process::id().to_string()), "{failure}");
    drop(other);
    keeper.lease(None, Rights::Owner).unwrap();
}

#[test]
fn a_pool_that_cannot_be_meant_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let kind = |keeper: &Keeper, asked: Option<&[String]>, rights| {
        keeper.lease(asked, rights).unwrap_err().kind
    };
    let none = Keeper::new(None, Keyring::default());
    assert!(none.lease(None, Rights::Owner).unwrap_err().message.contains("pool create"));
    assert_eq!(kind(&none, None, Rights::Owner), FailureKind::NoPool);
    let keeper = Keeper::new(Some(directory.path().into()), Keyring::default());
    assert_eq!(kind(&keeper, None, MEMBER), FailureKind::NoPool);
    let elsewhere = asked(Path::new("/nonexistent"));
    assert_eq!(kind(&keeper, Some(&elsewhere), Rights::Owner), FailureKind::NoPool);
    assert_eq!(kind(&keeper, Some(&elsewhere), MEMBER), FailureKind::Refused);
    let relative = ["guests".to_owned()];
    assert_eq!(kind(&keeper, Some(&relative), Rights::Owner), FailureKind::BadRequest);
    assert_eq!(kind(&keeper, Some(&[]), Rights::Owner), FailureKind::BadRequest);
}

#[test]
fn checkpoints_of_others_are_as_if_they_were_not() {
    let directory = tempfile::tempdir().unwrap();
    pool_in(directory.path());
    let keeper = Keeper::new(Some(directory.path().into()), Keyring::default());
    let lease = keeper.lease(None, Rights::Owner).unwrap();
    for (domain, guest, name) in
        [("7:web", "one", "a"), ("7:db", "one", "b"), ("8:web", "one", "a"), ("lab", "one", "c")]
    {
        make(&lease, domain, guest, name, 1);
    }
    let names = |rights| {
        let found = visible(&lease, rights);
        found.iter().map(|found| found.name()).map(|name| name.name).collect::<Vec<_>>().join("")
    };
    assert_eq!(names(Rights::Owner), "abac");
    assert_eq!((names(MEMBER), names(Rights::Member { uid: 9 })), ("ab".into(), String::new()));
    assert_eq!(find(&lease, MEMBER, &called("one", "a")).unwrap().uid, Some(7));
    let kind = |rights, name| find(&lease, rights, &name).unwrap_err().kind;
    assert_eq!(kind(MEMBER, called("one", "c")), FailureKind::NoSuchCheckpoint);
    let of_other = CheckpointName { uid: Some(8), ..called("one", "a") };
    assert_eq!(kind(MEMBER, of_other.clone()), FailureKind::NoSuchCheckpoint);
    assert_eq!(find(&lease, Rights::Owner, &of_other).unwrap().uid, Some(8));
    // Two users', and nothing says which.
    let several = find(&lease, Rights::Owner, &called("one", "a")).unwrap_err();
    assert!(several.message.contains("user 7") && several.message.contains("user 8"), "{several}");
}

#[test]
fn the_last_ones_are_kept_whatever_their_order() {
    let directory = tempfile::tempdir().unwrap();
    pool_in(directory.path());
    let keeper = Keeper::new(Some(directory.path().into()), Keyring::default());
    let lease = keeper.lease(None, Rights::Owner).unwrap();
    for (name, time_ns) in [("b", 20), ("d", 40), ("a", 10), ("c", 30)] {
        make(&lease, "7:web", "one", name, time_ns);
    }
    let older = |keep, guest: &str| {
        let guest = guest.to_owned();
        let selection = Selection::Older { guest, keep, domain: None, uid: None };
        let found = select(&lease, MEMBER, &selection)?;
        Ok::<_, Failure>(
            found.iter().map(|found| found.summary.name.to_string()).collect::<String>(),
        )
    };
    assert_eq!(older(1, "one").unwrap(), "abc");
    assert_eq!(older(4, "one").unwrap(), "");
    assert_eq!(older(u64::MAX, "one").unwrap(), "");
    assert_eq!(older(0, "two").unwrap_err().kind, FailureKind::NoSuchCheckpoint);
    make(&lease, "7:db", "one", "a", 5);
    older(1, "one").unwrap_err();
}
