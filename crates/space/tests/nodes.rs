//! Nodes that memory is bound to: pages that come back are of these.

mod common;

use std::io;

use bindery_sys::{
    mapping::{Mapping, copy_page},
    numa::Policy,
};
use bindery_units::{HostAddress, PAGE_BYTES, Slot};
use bindery_wire::lane::{BLOCK_PAGES, BlockOutcome, Run, RunTarget};
use common::{Bench, blocks_of, merged};

/// Binds memory of ours to the first node, the only one that there is everywhere.
fn bind(start: HostAddress, bytes: usize) -> io::Result<()> {
    let (nodes, bits) = (1_u64, 65_u64);
    let mask = &raw const nodes;
    // SAFETY: the memory is ours, and the mask has as many bits, less one.
    let result = unsafe {
        bindery_sys::syscall!(libc::SYS_mbind, start.0, bytes, libc::MPOL_BIND, mask, bits, 0)
    };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the policy of memory that is bound, or nothing where the kernel knows no nodes.
fn bound() -> Option<Policy> {
    let page = Mapping::anonymous(PAGE_BYTES).expect("memory");
    match bind(page.address(), PAGE_BYTES) {
        Ok(()) => Some(policy(page.address())),
        Err(error) => {
            bindery_testkit::skipped!("memory cannot be bound to a node: {error}");
            None
        }
    }
}

fn policy(address: HostAddress) -> Policy {
    Policy::of(address).expect("the page is mapped")
}

fn write(address: HostAddress, value: u64) {
    // SAFETY: the page is mapped, and ours.
    unsafe { (address.0 as *mut u64).write_volatile(value) };
}

#[test]
fn what_comes_back_is_of_the_nodes_that_its_memory_was_bound_to_before_it_was_managed() {
    let (Some(bound), Some(bench)) = (bound(), Bench::new(16, 16)) else { return };
    let memory = Mapping::anonymous(16 * PAGE_BYTES).expect("memory");
    let address = |page| memory.address().plus_pages(page);
    bind(address(4), 8 * PAGE_BYTES).expect("the first node");
    let region = common::manage(&bench.space, memory.address(), memory.bytes());
    let wanted = |page| if (4..12).contains(&page) { bound } else { Policy::default() };
    let mut worker = bench.space.worker().expect("worker");
    for page in 0..16 {
        bench.fill_slot(Slot(page), u64::from(page) + 1);
        bench.fill(page, u64::from(page) + 1);
        // SAFETY: both pages are mapped, and nobody else's.
        unsafe { copy_page(bench.address(page).0 as *const u8, address(page).0 as *mut u8) };
    }
    let run = Run { page: region.pages.first.0, count: 16, slot: 0, target: RunTarget::Slots };
    let mut outcomes = Vec::new();
    worker.merge(&bench.segments(), &[run], &mut outcomes);
    assert_eq!(outcomes, merged(16));
    assert!((0..16).all(|page| policy(address(page)) == Policy::default()), "a store's pages");
    // Written by turns, discarded, and unmerged.
    for page in [0, 4, 1, 5, 12, 6] {
        write(address(page), 77);
        assert_eq!(policy(address(page)), wanted(page), "page {page} was written");
    }
    for page in [2, 8] {
        bench.space.discard(address(page), PAGE_BYTES, libc::MADV_DONTNEED).expect("discarded");
        assert_eq!(policy(address(page)), wanted(page), "page {page} was discarded");
    }
    bench.space.release().expect("release");
    assert!((0..16).all(|page| policy(address(page)) == wanted(page)), "all is unmerged");
}

#[test]
fn memory_that_is_bound_while_it_is_merged_is_bound_when_it_comes_back() {
    let (Some(bound), Some(bench)) = (bound(), Bench::new(16, 16)) else { return };
    let mut worker = bench.space.worker().expect("worker");
    for page in 0..16 {
        bench.fill(page, u64::from(page) + 1);
        bench.fill_slot(Slot(page), u64::from(page) + 1);
    }
    assert_eq!(bench.merge(&mut worker, 4, 8, Slot(4)), merged(8));
    bench.fill(7, 70);
    let mut parts = Vec::new();
    let result = bench.space.bind(bench.address(2), 12 * PAGE_BYTES, bound, |start, bytes| {
        parts.push(((start.0 - bench.address(0).0) / PAGE_BYTES, bytes / PAGE_BYTES));
        bind(start, bytes)
    });
    result.expect("the first node");
    assert_eq!(parts, [(2, 2), (7, 1), (12, 2)], "what is merged is left alone");
    bench.fill(8, 80);
    bench.space.release().expect("release");
    for page in 0..16 {
        let wanted = if (2..14).contains(&page) { bound } else { Policy::default() };
        assert_eq!(policy(bench.address(page)), wanted, "page {page}");
    }
    let failed = bench.space.bind(bench.address(0), PAGE_BYTES, bound, |_, _| {
        Err(io::Error::from_raw_os_error(libc::EIO))
    });
    assert_eq!(failed.expect_err("as it was told").raw_os_error(), Some(libc::EIO));
}

#[test]
fn a_block_that_is_made_whole_is_of_its_nodes() {
    let Some(bound) = bound() else { return };
    let Some(bench) = Bench::of_huge_pages(3 * BLOCK_PAGES as usize, 64) else { return };
    let all = bench.all();
    bench.space.bind(bench.address(0), bench.memory.bytes(), bound, bind).expect("the first node");
    (0..all.count).for_each(|page| bench.fill(page, u64::from(page) + 1));
    (0..64).for_each(|slot| bench.fill_slot(Slot(slot), u64::from(slot) + 1));
    let mut worker = bench.space.worker().expect("worker");
    assert_eq!(bench.merge(&mut worker, 0, 64, Slot(0)), merged(64));
    let mut outcomes = Vec::new();
    worker.collapse(&blocks_of(all)[..1], &mut outcomes);
    if outcomes == [BlockOutcome::Stuck] {
        bindery_testkit::skipped!("the kernel makes no huge pages here");
    }
    assert!((0..all.count).all(|page| policy(bench.address(page)) == bound));
    bench.space.release().expect("release");
}
