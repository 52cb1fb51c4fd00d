//! KVM guests whose memory is managed: they read, write and verify it while pages merge and break.
//!
//! KVM maps a guest's memory once more, in tables of its own: whatever is put in a page's place has
//! to go from those as well, and a guest's first write to a merged page faults inside the kernel.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fire;

use bindery_testkit::bindery::Daemon;
use bindery_testkit::kvm::TinyGuest;
use bindery_testkit::process::{MachineFigures, ProcessGuest, serve_if_started};
use bindery_testkit::skipped;
use fire::{PATIENCE, amount, await_guest, await_some, bindery, eager_daemon, figure};

/// How often all that can happen happens.
const ROUNDS_VARIABLE: &str = "BINDERY_KVM_ROUNDS";
const ROUNDS: u32 = 3;

const PAGES: usize = 1024;
const NAMES: [&str; 2] = ["one", "two"];
const MACHINES: usize = 2;

/// Most pages are left alone for longer than merging them takes.
const PAUSE_US: u64 = 4000;

/// What machines do between two looks at them, in pages.
const PROGRESS: u64 = PAGES as u64 / 8;

#[test]
fn guest_process() {
    serve_if_started();
}

/// Waits until the machines of a process have read and written many pages more.
fn await_progress(guest: &mut ProcessGuest) -> MachineFigures {
    let before = guest.machine_figures().unwrap();
    let goes_on = || {
        let now = guest.machine_figures().unwrap();
        let has_done = |before, now| now - before >= PROGRESS;
        (has_done(before.read, now.read) && has_done(before.written, now.written)).then_some(now)
    };
    let now = await_some("the machines go on", PATIENCE, goes_on, || format!("{before:?}"));
    assert_eq!(now.bad, 0, "{now:?}");
    now
}

/// Waits until pages of a process are merged, and have broken more often than `breaks` times.
fn await_merges_and_breaks(daemon: &Daemon, name: &str, breaks: u64) -> u64 {
    let status = await_guest(daemon, name, "its pages merge and break", |status| {
        figure(status, "pages_merged") > 0
            && figure(status, "zero_pages") > 0
            && figure(status, "breaks") > breaks
    });
    figure(&status, "breaks")
}

#[test]
fn kvm_guests_go_on_while_their_pages_merge_and_break() {
    if let Some(why) = TinyGuest::unavailable() {
        return skipped!("{why}");
    }
    let Some(bindery) = bindery() else { return };
    let daemon = eager_daemon(&bindery);
    let mut guests: Vec<ProcessGuest> = (1..)
        .zip(NAMES)
        .map(|(seed, name)| ProcessGuest::start(&daemon.launcher(name), PAGES, seed).unwrap())
        .collect();
    // Memory that is managed becomes a machine's, and a machine's memory comes to be managed.
    guests[0].offer().unwrap();
    guests[0].run_machines(MACHINES, PAUSE_US).unwrap();
    guests[1].run_machines(MACHINES, PAUSE_US).unwrap();
    guests[1].offer().unwrap();

    let mut breaks = [0; NAMES.len()];
    for round in 0..amount(ROUNDS_VARIABLE, ROUNDS) as usize {
        for ((guest, name), breaks) in guests.iter_mut().zip(NAMES).zip(&mut breaks) {
            *breaks = await_merges_and_breaks(&daemon, name, *breaks);
            await_progress(guest);
        }
        let name = NAMES[round % NAMES.len()];
        daemon.command(&["unmerge", name]).unwrap();
        await_progress(&mut guests[round % NAMES.len()]);
        daemon.command(&["merge", name]).unwrap();
    }

    for (guest, name) in guests.iter_mut().zip(NAMES) {
        await_merges_and_breaks(&daemon, name, 0);
        println!("{name}: {:?}\n{}", await_progress(guest), daemon.guests().unwrap());
    }
    // The one ends while its pages are merged, the other after it has stepped aside.
    daemon.command(&["unmanage", NAMES[1]]).unwrap();
    await_progress(&mut guests[1]);
    for guest in &mut guests {
        let figures = guest.halt_machines().unwrap();
        assert!(figures.read > 0 && figures.bad == 0, "{figures:?}");
    }
}
