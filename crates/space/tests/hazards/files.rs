//! The same for memory that was mapped from a memfd: it comes out of the file and goes back.

use std::{
    fs::File,
    os::{fd::AsFd, unix::fs::FileExt},
    sync::Arc,
};

use bindery_space::ReleaseError;
use bindery_sys::{mapping::Mapping, memfd};
use bindery_units::PAGE_BYTES;

use crate::{
    alone::alone,
    guest::{Guest, Lived},
    kernel::{Call, Kernel, UFFDIO_MOVE, UFFDIO_REGISTER, Verdict, supervised},
    plan::{EBUSY, ENOMEM, Failure, Plan, moved_and_denied, unmapped_first, walk},
};

const PAGES: u32 = 160;

const REGISTERING: Call =
    Call { number: libc::SYS_ioctl, arguments: [0, UFFDIO_REGISTER, 0, 0, 0, 0] };

const ENOSPC: fn(&Call) -> Verdict = |_| Verdict::Fail(libc::ENOSPC);

/// Takes the file's memory, merges some of it, and gives it back.
fn live(guest: &mut Guest) -> Lived {
    let space = Arc::clone(&guest.bench.space);
    guest.bench.region = space.manage(guest.bench.memory.address(), guest.bytes())?;
    for page in (0..PAGES).filter(|page| page % 10 != 9) {
        guest.write(page, u64::from(page) + 1);
    }
    let mut worker = space.worker()?;
    guest.merge(&mut worker, 0, 64, 0);
    guest.write(5, 77);
    guest.verify("merged");
    guest.hear(&mut worker);
    space.release()?;
    Ok(())
}

fn live_through(
    guest: &mut Guest,
    plan: &Plan,
    (nth, times): (u64, u64),
    lives_with_strays: bool,
) -> bool {
    let file = memfd::create("ram", guest.bytes() as u64).expect("memfd");
    guest.bench.memory = Mapping::shared(file.as_fd(), guest.bytes(), true).expect("map");
    guest.bench.region.address = guest.bench.memory.address();
    guest.holds.fill(0);
    let (failed, lived) = guest.suffer(plan, (nth, times), live);
    match guest.bench.space.release() {
        Ok(_) => {
            guest.verify("given back");
            expect_in(&file, &guest.holds);
            // It is the file that is mapped, and not a copy.
            file.write_all_at(&[7; 8], 0).expect("write");
            // SAFETY: the page is in the mapping.
            let seen = unsafe { guest.bench.words(0).read_volatile() };
            assert_eq!(seen, u64::from_ne_bytes([7; 8]), "the file is mapped again");
        }
        // A page that the kernel copied inside the store's mapping cannot leave it, as nothing tells
        // whether it is pinned: the memory stays managed.
        Err(ReleaseError::Pinned) if lives_with_strays => guest.verify("kept"),
        Err(error) => panic!("{error}, after {lived:?}"),
    }
    guest.believes_nothing();
    guest.bench.space.forget(guest.bench.memory.address(), guest.bytes());
    failed
}

fn expect_in(file: &File, holds: &[u64]) {
    let mut bytes = vec![0; PAGE_BYTES];
    for (page, &word) in (0..).zip(holds) {
        file.read_exact_at(&mut bytes, page * PAGE_BYTES as u64).expect("read");
        let full = bytes.chunks_exact(8).all(|found| found == word.to_ne_bytes());
        assert!(full, "page {page} of the file is to hold {word}");
    }
}

#[test]
fn files_that_cannot_be_given_their_memory_back_lose_nothing() {
    static FAILURES: [Failure; 7] = [
        Failure { name: "mmap over: ENOMEM", concerns: Call::is_mmap_over, fails: ENOMEM },
        Failure { name: "mmap over: gone", concerns: Call::is_mmap_over, fails: unmapped_first },
        Failure { name: "pwrite: ENOSPC", concerns: is_write, fails: ENOSPC },
        Failure { name: "punch: ENOMEM", concerns: is_punch, fails: ENOMEM },
        Failure { name: "move: EBUSY", concerns: is_move, fails: EBUSY },
        Failure { name: "move: false EEXIST", concerns: is_move, fails: moved_and_denied },
        Failure { name: "register: ENOMEM", concerns: is_register, fails: ENOMEM },
    ];
    let work = |kernel: &Kernel| {
        let Some(mut guest) = Guest::new(PAGES, PAGES) else { return };
        guest.bench.space.release().expect("release");
        for failure in &FAILURES {
            let strays = (failure.concerns)(&REGISTERING);
            walk(kernel, failure, |plan, nth, times| {
                live_through(&mut guest, plan, (nth, times), strays)
            });
        }
    };
    let name = "files::files_that_cannot_be_given_their_memory_back_lose_nothing";
    alone(name, || _ = supervised(work));
}

fn is_write(call: &Call) -> bool {
    call.number == libc::SYS_pwrite64
}

fn is_punch(call: &Call) -> bool {
    call.number == libc::SYS_fallocate
}

fn is_move(call: &Call) -> bool {
    call.is_ioctl(UFFDIO_MOVE)
}

fn is_register(call: &Call) -> bool {
    call.is_ioctl(UFFDIO_REGISTER)
}
