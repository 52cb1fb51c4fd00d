//! The tiny guest computes what it is asked to, in memory that is the caller's.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bindery_testkit::kvm::{TinyGuest, Tracking};
use bindery_testkit::skipped;

const PAGE: usize = 4096;

#[repr(align(4096))]
#[derive(Clone)]
struct Page([u32; PAGE / 4]);

fn guest(memory: &mut [Page]) -> Option<TinyGuest> {
    if let Some(why) = TinyGuest::unavailable() {
        skipped!("{why}");
        return None;
    }
    // SAFETY: the slice is whole pages, outlives the guest in each test, and is read only between
    // its runs.
    let guest = unsafe { TinyGuest::new(memory.as_mut_ptr().cast(), size_of_val(memory)) };
    Some(guest.unwrap_or_else(|error| panic!("{error}")))
}

#[test]
fn fills_sums_and_increments() {
    let mut memory = vec![Page([0; PAGE / 4]); 40];
    let Some(mut guest) = guest(&mut memory) else { return };
    guest.fill(3..37, 0x0102_0304).unwrap();
    guest.increment(0..40, 4092, 5).unwrap();
    assert_eq!(guest.sum(0).unwrap(), 5);
    assert_eq!(guest.sum(36).unwrap(), 0x0102_0304_u32.wrapping_mul(1024) + 5);
    drop(guest);
    for (number, page) in memory.iter().enumerate() {
        let word = if (3..37).contains(&number) { 0x0102_0304 } else { 0 };
        assert!(page.0[..1023].iter().all(|&found| found == word), "page {number}");
        assert_eq!(page.0[1023], word + 5, "page {number}");
    }
}

#[test]
fn runs_until_it_is_stopped() {
    let mut memory = vec![Page([7; PAGE / 4]); 33];
    // The word that the guest adds to.
    let word = memory[0].0[2..].as_ptr().expose_provenance();
    let Some(mut guest) = guest(&mut memory) else { return };
    let (stop, deadline) = (AtomicBool::new(false), Instant::now() + Duration::from_secs(20));
    let increments = std::thread::scope(|scope| {
        let running = scope.spawn(|| guest.run_until(&stop, 8));
        // SAFETY: the word is the guest's memory, which outlives the scope; nobody refers to it while
        // the guest writes it.
        let now = || unsafe { std::ptr::with_exposed_provenance::<u32>(word).read_volatile() };
        while now() == 7 && Instant::now() < deadline {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        running.join().unwrap().unwrap()
    });
    drop(guest);
    assert!(increments > 0);
    assert!(memory.iter().all(|page| page.0[2] == 7 + increments && page.0[3] == 7));
}

#[test]
fn touches_the_pages_of_a_list_in_any_order() {
    let mut memory = vec![Page([0; PAGE / 4]); 700];
    let Some(mut guest) = guest(&mut memory) else { return };
    let pages: Vec<usize> = (0..700).rev().filter(|page| page % 3 == 0).collect();
    let twice = [pages.as_slice(), &pages, &[0, 0, 699]].concat();
    guest.touch(&twice, &mut || panic!("it has no ring")).unwrap();
    drop(guest);
    for (number, page) in memory.iter().enumerate() {
        let extra = [(0, 2), (699, 1)].iter().find(|(at, _)| *at == number).map_or(0, |(_, n)| *n);
        let expected = if number % 3 == 0 { 2 } else { 0 } + extra;
        assert_eq!((page.0[0], page.0[1]), (expected, 0), "page {number}");
    }
}

#[test]
fn each_cpu_touches_words_of_its_own() {
    const CPUS: usize = 3;
    let mut memory = vec![Page([0; PAGE / 4]); 100];
    if let Some(why) = TinyGuest::unavailable() {
        return skipped!("{why}");
    }
    // SAFETY: as in `guest`.
    let guest = unsafe {
        TinyGuest::with_cpus(memory.as_mut_ptr().cast(), &[60, 40], Tracking::None, CPUS)
    };
    let mut guest = guest.unwrap();
    std::thread::scope(|scope| {
        for (at, cpu) in guest.cpus().iter_mut().enumerate() {
            let pages: Vec<usize> = (0..1000).map(|n| n * (at + 1) % 100).collect();
            scope.spawn(move || cpu.touch(&pages, &mut || panic!("it has no ring")).unwrap());
        }
    });
    drop(guest);
    for (number, page) in memory.iter().enumerate() {
        let expected = [10, if number % 2 == 0 { 20 } else { 0 }, 10, 0];
        assert_eq!(page.0[..4], expected, "page {number}");
    }
}
