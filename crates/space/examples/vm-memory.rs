//! A VMM in Rust whose guest memory is managed: no preload, no change but one line.
//!
//! Run it twice beside a daemon (`bindery daemon`), and `bindery ps` shows what the two share:
//! `cargo run -p bindery-space --features vm-memory --example vm-memory`

use std::error::Error;
use std::time::Duration;

use bindery_space::agent::AgentConfig;
use bindery_space::vm_memory::{ManagedMemory, Manager};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

const GUEST_BYTES: usize = 64 << 20;
const PAGE_BYTES: u64 = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let seconds = std::env::args().nth(1).map_or(Ok(60), |seconds| seconds.parse())?;

    let memory: GuestMemoryMmap = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), GUEST_BYTES)])?;
    let manager = Manager::start(AgentConfig::from_environment())?;
    let memory = ManagedMemory::new(&manager, memory)?;

    // What a guest's kernel and its page cache would be: the same in each guest.
    for page in 0..GUEST_BYTES as u64 / PAGE_BYTES {
        let words = (page + 1).to_le_bytes().repeat(PAGE_BYTES as usize / 8);
        memory.write_slice(&words, GuestAddress(page * PAGE_BYTES))?;
    }
    println!("{} MiB of guest memory are managed for {seconds} s", GUEST_BYTES >> 20);
    std::thread::sleep(Duration::from_secs(seconds));

    // A balloon takes a part of it back, and the guest still has the rest.
    memory.discard(GuestAddress(0), GUEST_BYTES / 2)?;
    let kept: u64 = memory.read_obj(GuestAddress(GUEST_BYTES as u64 / 2))?;
    println!("after the balloon, a page still holds {kept}");
    Ok(())
}
