//! Shared memory: it is left alone, and whoever looks at it past the mapping that was offered sees what
//! the program has there.

use crate::can_manage;
use crate::peer::Peer;
use crate::vmm::Vmm;

/// Offers memory so backed, and has the program do one thing to it.
fn is_left_alone(backing: &str, action: &str) {
    if !can_manage() {
        return;
    }
    let directory = tempfile::tempdir().expect("directory");
    let peer = Peer::listen(&Vmm::socket_in(&directory));
    let mut vmm = Vmm::start(directory, &[backing, action]);
    assert_eq!(vmm.line(), "ready");
    let _guest = peer.accept();
    vmm.wait_for_log("left to KSM");
    let ended = vmm.go();
    assert_eq!(ended.said, "ok", "{backing}, {action}: {}", ended.log);
    assert!(ended.log.contains("is shared memory ("), "{backing}: {}", ended.log);
    assert!(ended.log.contains("share=off; left to KSM"), "{backing}: {}", ended.log);
}

#[test]
fn memory_of_a_file_is_what_every_descriptor_shows() {
    for backing in ["memfd", "file"] {
        for action in ["read-write", "copy", "truncate", "map-again", "child-maps", "exec"] {
            is_left_alone(backing, action);
        }
    }
}

#[test]
fn shared_memory_is_what_children_and_other_mappings_show() {
    for backing in ["memfd", "file", "shared"] {
        for action in ["child-writes", "parent-writes", "alias"] {
            is_left_alone(backing, action);
        }
    }
}
