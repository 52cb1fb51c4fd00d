//! An unmodified program with the shim in front: whatever it does to its memory while that is merged,
//! it can tell no difference. The program is `tests/c/vmm/`.

mod copies;
mod descriptors;
mod environment;
mod linked;
mod outlive;
mod peer;
mod shared;
mod vmm;

use bindery_guest::Connection;
use bindery_space::Space;
use bindery_wire::control::REGIONS_MAX;
use peer::{Peer, merge_all, merge_until_gone, region, wait_until};
use vmm::Vmm;

/// Whether memory can be managed on this machine; says so loudly if not.
pub(crate) fn can_manage() -> bool {
    match Space::start() {
        Ok(_) => true,
        Err(error) => {
            bindery_testkit::skipped!("{error}");
            false
        }
    }
}

/// Runs an action on memory that is merged.
fn act(backing: &str, action: &str) {
    if !can_manage() {
        return;
    }
    let directory = tempfile::tempdir().expect("directory");
    let peer = Peer::listen(&Vmm::socket_in(&directory));
    let mut vmm = Vmm::start(directory, &[backing, action]);
    assert_eq!(vmm.line(), "ready");
    let guest = peer.accept();
    merge_all(&guest, &peer.segment());
    let ended = vmm.go();
    assert_eq!(ended.said, "ok", "log: {}", ended.log);
    let said_aside = ended.log.contains("stepped aside");
    assert_eq!(said_aside, steps_aside(action), "log: {}", ended.log);
    assert!(!ended.log.contains("bug"), "{}", ended.log);
}

/// What cannot be done with managed memory: it is given back first, and the log says so.
fn steps_aside(action: &str) -> bool {
    let aside = [
        "unmergeable",
        "dontdump",
        "mremap",
        "mremap-of-copies",
        "mprotect",
        "mprotect-exec",
        "pkey",
        "mseal",
        "mremap-dontunmap",
        "mremap-within",
        "userfault-move",
        "mlock",
        "mlockall",
        "guard",
        "userfault",
        "device-reads",
        "tear",
        "by-number",
    ];
    aside.contains(&action) || descriptors::steps_aside(action)
}

macro_rules! act {
    ($($test:ident: $backing:literal $action:literal;)*) => {
        $(
            #[test]
            fn $test() {
                act($backing, $action);
            }
        )*
    };
}

act! {
    pages_read_as_written: "anonymous" "nothing";
    pages_can_be_written: "anonymous" "write";
    dontneed_leaves_zeros: "anonymous" "dontneed";
    free_leaves_zeros_or_nothing_new: "anonymous" "free";
    remove_is_for_files: "anonymous" "remove";
    hints_cut_no_mapping: "anonymous" "hints";
    unmergeable_gives_back: "anonymous" "unmergeable";
    offered_again_nothing_happens: "anonymous" "again";
    munmap_takes_away: "anonymous" "munmap";
    memory_that_is_unmapped_page_by_page_is_given_back: "anonymous" "tear";
    mmap_replaces: "anonymous" "mmap-over";
    mremap_shrinks_and_moves: "anonymous" "mremap";
    copies_of_the_kernels_cannot_be_moved: "anonymous" "mremap-of-copies";
    mprotect_protects: "anonymous" "mprotect";
    memory_can_be_made_executable: "anonymous" "mprotect-exec";
    memory_can_have_a_key_of_its_own: "anonymous" "pkey";
    memory_that_is_wiped_on_fork_is_left_alone: "anonymous" "wiped-on-fork";
    memory_can_be_sealed: "anonymous" "mseal";
    memory_can_be_bound_to_nodes: "anonymous" "mbind";
    a_process_can_advise_itself: "anonymous" "process-madvise";
    mremap_leaves_empty_memory_behind: "anonymous" "mremap-dontunmap";
    mremap_that_is_refused_changes_nothing: "anonymous" "mremap-refused";
    mremap_moves_within_memory: "anonymous" "mremap-within";
    pages_can_be_moved_out_by_a_userfaultfd: "anonymous" "userfault-move";
    mlock_locks: "anonymous" "mlock";
    mlockall_locks: "anonymous" "mlockall";
    guards_guard: "anonymous" "guard";
    the_vmm_can_watch_its_memory: "anonymous" "userfault";
    children_see_the_pages: "anonymous" "fork";
    children_advise_their_memory_as_any: "anonymous" "child-advice";
    children_execute: "anonymous" "child-executes";
    children_of_clone_advise_their_memory: "anonymous" "clone-advice";
    forks_and_breaks_do_not_wait_for_each_other: "anonymous" "fork-often";
    children_without_the_memory: "anonymous" "dontfork";
    dumps_without_the_memory: "anonymous" "dontdump";
    others_can_write_to_it: "anonymous" "written-from-outside";
    programs_can_be_started_from_it: "anonymous" "spawn";
    a_device_reads_what_is_there: "anonymous" "device-reads";
    what_a_device_writes_can_stay_merged: "anonymous" "device-writes";
}

#[test]
fn the_daemon_hears_of_memory_that_comes_and_goes() {
    if !can_manage() {
        return;
    }
    let directory = tempfile::tempdir().expect("directory");
    let peer = Peer::listen(&Vmm::socket_in(&directory));
    let mut vmm = Vmm::start(directory, &["anonymous", "unmergeable-then-wait"]);
    assert_eq!(vmm.line(), "ready");
    let guest = peer.accept();
    assert_eq!(region(&guest).pages.count, 512);
    assert_eq!(guest.identity().name, "little-vmm");
    assert!(guest.identity().command.ends_with(" anonymous unmergeable-then-wait"));
    vmm.send("go");
    wait_until(&guest, <[_]>::is_empty);
    assert_eq!(vmm.go().said, "ok");
}

#[test]
fn ranges_beyond_the_most_are_left_to_ksm() {
    if !can_manage() {
        return;
    }
    let directory = tempfile::tempdir().expect("directory");
    let peer = Peer::listen(&Vmm::socket_in(&directory));
    let mut vmm = Vmm::start(directory, &["anonymous", "many"]);
    assert_eq!(vmm.line(), "ready");
    let guest = peer.accept();
    vmm.send("go");
    wait_until(&guest, |regions| regions.len() == REGIONS_MAX);
    vmm.wait_for_log("offered 16384 ranges");
    let ended = vmm.go();
    assert_eq!(ended.said, "ok", "log: {}", ended.log);
    assert!(ended.log.lines().count() < 10, "log: {}", ended.log);
    assert_eq!(guest.regions().len(), REGIONS_MAX);
}

/// Writers, a discarder, a thread that maps and unmaps, and children of fork, all at once, while every
/// page is merged as soon as it was written. `STORM_SECONDS` makes it longer.
#[test]
fn everything_at_once() {
    if !can_manage() {
        return;
    }
    let directory = tempfile::tempdir().expect("directory");
    let peer = Peer::listen(&Vmm::socket_in(&directory));
    let mut vmm = Vmm::start(directory, &["anonymous", "storm"]);
    assert_eq!(vmm.line(), "ready");
    let guest = peer.accept();
    merge_all(&guest, &peer.segment());
    let segment = peer.segment();
    let merging = std::thread::spawn(move || merge_until_gone(&guest, &segment));
    let ended = vmm.go();
    assert_eq!(ended.said, "ok", "log: {}", ended.log);
    let (merged, told) = merging.join().expect("the merging thread");
    println!("{merged} pages merged, {told} lost again");
    assert!(merged > 1000 && told > 100, "{merged} merged, {told} lost");
}
