//! Domains share nothing: seen in the physical pages behind guests' memory, and in what a guest's
//! process can reach of a store.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fire;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use bindery_sys::group::group_id;
use bindery_testkit::bindery::{Bindery, Daemon};
use bindery_testkit::machine::{FrameError, SettingGuard, physical_frames};
use bindery_testkit::process::{ProcessGuest, serve_if_started};
use bindery_testkit::skipped;
use fire::{
    await_guest, await_some, bindery, daemon_with, eager_daemon, figure, mapped_stores,
    store_descriptors,
};

/// Every fourth page is the same in all guests, every fourth is zero.
const PAGES: usize = 4096;

const SHIM: &str = "libbindery_shim.so";

/// A user that owns nothing here.
const NOBODY: u32 = 65534;

/// A group of theirs that every machine has (`games` is the other one of the Linux Standard Base).
const GROUP: (&str, u32) = ("users", 100);

const UNPRIVILEGED_USERFAULTFD: &str = "/proc/sys/vm/unprivileged_userfaultfd";

#[test]
fn guest_process() {
    serve_if_started();
}

fn start(daemon: &Daemon, name: &str, domain: &str, seed: u64) -> ProcessGuest {
    let mut guest = ProcessGuest::start_as(&daemon.launcher(name), PAGES, seed, |command| {
        command.env("BINDERY_DOMAIN", domain);
    })
    .unwrap();
    guest.offer().unwrap();
    guest
}

fn await_merged(daemon: &Daemon, name: &str) {
    await_guest(daemon, name, "all that it shares is merged", |status| {
        // Four kinds of pages; of two of them nobody else has the same.
        figure(status, "pages_merged") >= PAGES as u64 / 5
            && figure(status, "zero_pages") >= PAGES as u64 / 5
    });
}

/// The frames behind a guest's memory, by page; `None` when the kernel hides them.
fn frames(guest: &ProcessGuest) -> Option<Vec<u64>> {
    match physical_frames(guest.pid(), guest.address(), PAGES) {
        Ok(frames) => Some(frames.into_iter().map(Option::unwrap_or_default).collect()),
        Err(error @ FrameError::Hidden) => {
            skipped!("{error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The kernel's zero page, which is everybody's: the frame that is behind most pages.
fn zero_frame(frames: &[u64]) -> u64 {
    let mut times = BTreeMap::new();
    frames.iter().for_each(|frame| *times.entry(*frame).or_insert(0) += 1);
    let (frame, times) = times.into_iter().max_by_key(|(_, times)| *times).unwrap();
    assert!(times >= PAGES / 5, "no frame is behind all zero pages: at most {times}");
    frame
}

/// The frames that are behind the same page of both guests, the zero page aside.
fn shared(one: &[u64], other: &[u64]) -> usize {
    let zero = zero_frame(one);
    one.iter().zip(other).filter(|(a, b)| a == b && **a != zero && **a != 0).count()
}

/// The frames that are behind any page of both guests, the zero page aside.
fn anywhere(one: &[u64], other: &[u64]) -> usize {
    let zero = zero_frame(one);
    let set = |frames: &[u64]| -> BTreeSet<u64> {
        frames.iter().copied().filter(|frame| *frame != zero && *frame != 0).collect()
    };
    set(one).intersection(&set(other)).count()
}

/// A guest has no descriptor of a store, but while it merges.
fn assert_holds_no_store(guest: &ProcessGuest) {
    await_some(
        "a guest holds no store",
        fire::PATIENCE,
        || store_descriptors(guest.pid()).is_empty().then_some(()),
        || format!("{:?}", store_descriptors(guest.pid())),
    );
}

/// The ranges of `/proc/PID/maps` in which a process maps a store.
fn mapped_ranges(pid: u32) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let stores = maps.lines().filter(|line| line.contains("bindery-store"));
    stores.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
}

#[test]
fn guests_of_two_domains_share_no_page_and_no_store() {
    let Some(bindery) = bindery() else { return };
    let daemon = eager_daemon(&bindery);
    let names = [("red-1", "red"), ("red-2", "red"), ("blue-1", "blue"), ("blue-2", "blue")];
    let mut guests: Vec<ProcessGuest> =
        (1..).zip(names).map(|(seed, (name, domain))| start(&daemon, name, domain, seed)).collect();
    names.iter().for_each(|(name, _)| await_merged(&daemon, name));

    if guests.iter().any(|guest| frames(guest).is_none()) {
        return;
    }
    // What one guest merged with pages of its own joins the others' a little later.
    let found = await_some(
        "guests of one domain share frames",
        fire::PATIENCE,
        || {
            let found = guests.iter().map(frames).collect::<Option<Vec<_>>>()?;
            let are_shared = [(0, 1), (2, 3)]
                .iter()
                .all(|(one, other)| shared(&found[*one], &found[*other]) >= PAGES / 5);
            are_shared.then_some(found)
        },
        || format!("{:?}", daemon.guests()),
    );
    for (one, other) in [(0, 2), (0, 3), (1, 2), (1, 3)] {
        let shared = anywhere(&found[one], &found[other]);
        assert_eq!(shared, 0, "{:?} and {:?} share frames", names[one], names[other]);
    }

    guests.iter().for_each(assert_holds_no_store);
    let stores: Vec<_> = guests.iter().map(|guest| mapped_stores(guest.pid())).collect();
    for (one, other) in [(0, 1), (2, 3)] {
        assert!(!stores[one].is_disjoint(&stores[other]), "one domain has one store: {stores:?}");
    }
    for (one, other) in [(0, 2), (0, 3), (1, 2), (1, 3)] {
        assert!(stores[one].is_disjoint(&stores[other]), "domains share a store: {stores:?}");
    }
    for guest in &mut guests {
        assert_eq!(guest.verify().unwrap().bad, 0);
    }
}

/// The shim and this program where another user may run them. By another process: if this one wrote
/// them, a child that another thread starts meanwhile would hold them open for writing, and they
/// could not be run.
fn programs_for_all(bindery: &Bindery, directory: &Path) {
    let all = PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(directory, all).unwrap();
    let shim = bindery.program().with_file_name(SHIM);
    let test = std::env::current_exe().unwrap();
    let programs = [(shim.as_path(), SHIM), (&test, "test"), (bindery.program(), "bindery")];
    for (from, to) in programs {
        let copied = Command::new("cp").arg(from).arg(directory.join(to)).status();
        assert!(copied.unwrap().success());
    }
}

/// A guest of [`NOBODY`] and this group, in a domain of this name among those of that user. Started
/// without `bindery run`, which would start a daemon where it is refused.
fn start_as_nobody(
    daemon: &Daemon,
    directory: &Path,
    (name, domain): (&str, &str),
    gid: u32,
) -> ProcessGuest {
    let program: OsString = directory.join("test").into_os_string();
    let mut guest = ProcessGuest::start_program(&[], program, PAGES, 9, |command| {
        command.env("LD_PRELOAD", directory.join(SHIM));
        command.env("BINDERY_SOCKET", daemon.socket()).env("BINDERY_NAME", name);
        command.env("BINDERY_DOMAIN", domain).uid(NOBODY).gid(gid).current_dir("/");
    })
    .unwrap();
    guest.offer().unwrap();
    guest
}

/// A member of the group gives its own guest's memory back, and nobody else's.
fn handling_is_each_users_own(daemon: &Daemon, directory: &Path) {
    let ask_as_nobody = |arguments: [&str; 2]| {
        let mut command = Command::new(directory.join("bindery"));
        command.args(arguments).env("BINDERY_SOCKET", daemon.socket()).current_dir("/");
        command.uid(NOBODY).gid(GROUP.1).output().unwrap()
    };
    for command in ["unmerge", "dirty", "unmanage"] {
        let refused = ask_as_nobody([command, "ours"]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(5), "{command}: {said}");
        assert!(said.contains("another user's guest"), "{command}: {said}");
    }
    let unmerged = ask_as_nobody(["unmerge", "theirs"]);
    assert_eq!(unmerged.status.code(), Some(0), "{}", String::from_utf8_lossy(&unmerged.stderr));
}

/// The kernel's word counts, not the socket's mode: who is no member is no guest.
fn a_stranger_is_refused(daemon: &Daemon, directory: &Path) {
    std::fs::set_permissions(daemon.socket(), PermissionsExt::from_mode(0o666)).unwrap();
    let stranger = start_as_nobody(daemon, directory, ("stranger", "web"), NOBODY);
    await_some(
        "a guest of no member to be refused",
        fire::PATIENCE,
        || daemon.log().contains("refused a guest of another user").then_some(()),
        || daemon.log(),
    );
    assert!(!daemon.command(&["ps"]).unwrap().contains("stranger"));
    drop(stranger);
}

#[test]
fn a_guest_of_another_user_shares_nothing_and_opens_no_store() {
    let Some(bindery) = bindery() else { return };
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        return skipped!("acting as another user takes root");
    }
    let allowed = SettingGuard::set(UNPRIVILEGED_USERFAULTFD, 1);
    let _allowed = match allowed {
        Ok(guard) => guard,
        Err(error) => return skipped!("{error}"),
    };
    let directory = tempfile::tempdir().unwrap();
    programs_for_all(&bindery, directory.path());
    if group_id(GROUP.0).unwrap() != Some(GROUP.1) {
        return skipped!("group {} is not {}", GROUP.0, GROUP.1);
    }
    let daemon = daemon_with(&bindery, &["--group", GROUP.0]);
    let mut ours = start(&daemon, "ours", "web", 1);
    let twin = start(&daemon, "twin", "web", 2);
    let socket = daemon.socket();
    std::fs::set_permissions(socket.parent().unwrap(), PermissionsExt::from_mode(0o755)).unwrap();
    let mut theirs = start_as_nobody(&daemon, directory.path(), ("theirs", "web"), GROUP.1);
    await_merged(&daemon, "ours");
    await_guest(&daemon, "theirs", "its zero pages are merged", |status| {
        figure(status, "zero_pages") >= PAGES as u64 / 5
    });
    let uid = await_guest(&daemon, "theirs", "it is another user's", |_| true)["uid"].as_u64();
    assert_eq!(uid, Some(u64::from(NOBODY)));

    if let (Some(mine), Some(yours)) = (frames(&ours), frames(&theirs)) {
        assert_eq!(anywhere(&mine, &yours), 0, "users share frames");
    }
    [&ours, &theirs].into_iter().for_each(assert_holds_no_store);
    let others = mapped_stores(ours.pid());
    assert!(!others.is_empty() && mapped_stores(theirs.pid()).is_disjoint(&others));
    let daemon_pid = daemon.pid().unwrap();
    let daemons = store_descriptors(daemon_pid);
    assert!(!daemons.is_empty());
    let mapped =
        |pid: u32| mapped_ranges(pid).into_iter().map(move |range| (pid, "map_files", range));
    let (of_ours, of_theirs) = (mapped(ours.pid()), mapped(theirs.pid()));
    let of_daemon = daemons.keys().map(|number| (daemon_pid, "fd", number.to_string()));
    for (pid, kind, name) in of_ours.chain(of_theirs).chain(of_daemon) {
        let path = format!("/proc/{pid}/{kind}/{name}");
        for for_writing in [false, true] {
            assert!(!theirs.try_to_open(&path, for_writing).unwrap(), "{path} was opened");
        }
    }
    handling_is_each_users_own(&daemon, directory.path());
    a_stranger_is_refused(&daemon, directory.path());
    assert_eq!(theirs.verify().unwrap().bad, 0);
    assert_eq!(ours.verify().unwrap().bad, 0);
    drop(twin);
}
