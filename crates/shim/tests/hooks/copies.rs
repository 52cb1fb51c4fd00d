//! Children that are copies of their VMM, made in each way there is, while its pages are merged.

use crate::peer::{Peer, merge_all, merge_until_gone};
use crate::vmm::Vmm;
use crate::{act, can_manage};

fn copies(action: &str) {
    if !can_manage() {
        return;
    }
    let directory = tempfile::tempdir().expect("directory");
    let peer = Peer::listen(&Vmm::socket_in(&directory));
    let mut vmm = Vmm::start(directory, &["anonymous", action]);
    assert_eq!(vmm.line(), "ready");
    let guest = peer.accept();
    let segment = peer.segment();
    merge_all(&guest, &segment);
    let merging = std::thread::spawn(move || merge_until_gone(&guest, &segment));
    let ended = vmm.go();
    assert_eq!(ended.said, "ok", "log: {}", ended.log);
    let (merged, _) = merging.join().expect("the merging thread");
    assert!(merged > 100, "{merged} pages merged");
}

macro_rules! copies {
    ($($test:ident: $action:literal;)*) => {
        $(
            #[test]
            fn $test() {
                copies($action);
            }
        )*
    };
}

copies! {
    a_child_of_fork_has_every_page: "copies-fork";
    a_child_of_underscore_fork_has_every_page: "copies-_Fork";
    a_child_of_clone_has_every_page: "copies-clone";
    a_child_of_the_clone_call_has_every_page: "copies-syscall-clone";
    a_child_of_the_clone3_call_has_every_page: "copies-syscall-clone3";
    a_child_of_the_fork_call_has_every_page: "copies-syscall-fork";
}

#[test]
fn a_child_that_shares_the_memory_is_no_copy() {
    act("anonymous", "sharing-child");
}

#[test]
fn calls_by_number_are_the_calls() {
    act("anonymous", "by-number");
}
