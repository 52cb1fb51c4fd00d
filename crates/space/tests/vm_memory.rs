//! Guest memory of a Rust VMM: managed, merged, ballooned, released.
#![cfg(feature = "vm-memory")]

use std::path::PathBuf;

use bindery_space::StartError;
use bindery_space::agent::AgentConfig;
use bindery_space::vm_memory::{ManagedMemory, Manager};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

const MIB: usize = 1 << 20;

fn config() -> AgentConfig {
    let socket = PathBuf::from("/nonexistent/bindery.sock");
    AgentConfig { socket, name: None, domain: None, command: "test".into() }
}

#[test]
fn memory_is_managed_until_it_is_dropped() {
    let manager = match Manager::start(config()) {
        Ok(manager) => manager,
        Err(error @ (StartError::NotPermitted(_) | StartError::Unsupported(_))) => {
            bindery_testkit::skipped!("{error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let low = (GuestAddress(0), 2 * MIB);
    let high = (GuestAddress(1 << 32), 4 * MIB);
    let memory: GuestMemoryMmap = GuestMemoryMmap::from_ranges(&[low, high]).expect("memory");
    let clone = memory.clone();
    let memory = ManagedMemory::new(&manager, memory).expect("managed");
    assert!(ManagedMemory::new(&manager, clone.clone()).is_err(), "managed already");

    memory.write_obj(7u64, GuestAddress(4096)).expect("write");
    memory.write_obj(8u64, GuestAddress((1 << 32) + 8192)).expect("write");
    memory.discard(GuestAddress(0), MIB).expect("discard");
    assert_eq!(memory.read_obj::<u64>(GuestAddress(4096)).expect("read"), 0);
    assert_eq!(memory.read_obj::<u64>(GuestAddress((1 << 32) + 8192)).expect("read"), 8);
    for (address, bytes) in [(1, 4096), (0, 100), (MIB as u64, 2 * MIB), (1 << 40, 4096)] {
        assert!(memory.discard(GuestAddress(address), bytes).is_err(), "{address} {bytes}");
    }

    drop(memory);
    let again = ManagedMemory::new(&manager, clone.clone()).expect("what is dropped is released");
    drop(again);
    assert_eq!(clone.read_obj::<u64>(GuestAddress((1 << 32) + 8192)).expect("read"), 8);
    manager.agent().stop();
}
