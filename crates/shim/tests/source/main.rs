//! Memory that comes from a source: a program under the preload library, and a daemon that serves it.
//!
//! Each test starts this program once more, as the guest, with the library in front. The guest maps memory, has
//! it bound, and does what the test is about; whatever it reads is compared with what the image says.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod content;
mod daemon;
mod guest;
mod program;
mod qemu;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bindery_guest::{GuestError, ServeOptions, Served, SourceError, SourceLink};
use bindery_space::Space;
use bindery_units::{HostAddress, PAGE_BYTES, PageIndex, PageRange};
use bindery_wire::control::BoundRange;
use content::{Content, PAGES};
use daemon::Daemon;
use program::Program;

const TOKEN: &[u8] = b"guest@checkpoint";

/// Returns true if memory can be managed on this machine; says so loudly if not.
fn can_manage() -> bool {
    Space::start().map_err(|error| bindery_testkit::skipped!("{error}")).is_ok()
}

fn slowly() -> ServeOptions {
    ServeOptions { ahead_bytes_per_s: Some(4 << 20), ..ServeOptions::default() }
}

fn nothing_ahead() -> std::iter::Empty<PageRange> {
    std::iter::empty()
}

/// A guest with bound memory that has not been told to go.
struct Bound {
    program: Program,
    daemon: Daemon,
    link: Option<SourceLink>,
}

impl Bound {
    fn new(scenario: &str) -> Option<Self> {
        if !can_manage() {
            return None;
        }
        let mut program = Program::start(scenario);
        assert_eq!(program.line(), "ready");
        let daemon = Daemon::accept(&program);
        let ranges = daemon.offered(1);
        assert_eq!(ranges[0].bytes, u64::from(PAGES) * PAGE_BYTES as u64);
        let link = daemon.guest.bind(&[whole(ranges[0].address)], TOKEN).unwrap();
        Some(Self { program, daemon, link: Some(link) })
    }

    fn link(&mut self) -> SourceLink {
        self.link.take().unwrap()
    }

    /// Lets the guest go and serves it until it has all.
    fn run(mut self, options: ServeOptions) -> Served {
        let link = self.link();
        self.program.send("go");
        let served = link.serve(&Content, nothing_ahead(), options);
        let served = served.unwrap_or_else(|error| panic!("{error}: {}", self.program.line()));
        self.end();
        served
    }

    /// Waits for the guest's end, and until its memory is managed.
    fn end(mut self) {
        assert_eq!(self.program.line(), "done", "{}", self.program.log());
        self.daemon.wait_for_region();
        self.program.send("end");
        assert_eq!(self.program.line(), "ended", "{}", self.program.log());
        assert!(!self.program.log().contains("bug"), "{}", self.program.log());
    }
}

/// All of the guest's memory, bound to page 1000 and so on.
fn whole(address: HostAddress) -> BoundRange {
    let bytes = u64::from(PAGES) * PAGE_BYTES as u64;
    BoundRange { address, bytes, first: PageIndex(content::FIRST) }
}

/// The guest's end, in a process of its own. Nothing, unless a test started it.
#[test]
fn guest_role() {
    guest::play();
}

#[test]
fn pages_come_when_they_are_touched_and_before() {
    let Some(bound) = Bound::new("read") else { return };
    let served = bound.run(ServeOptions::default());
    let zeros = (0..PAGES).filter(|&page| content::is_zero(page)).count() as u64;
    assert_eq!(served.zero_pages, zeros);
    assert_eq!(served.content_pages + zeros, u64::from(PAGES));
    println!("{served:?}");
}

#[test]
fn threads_discards_and_system_calls_race_with_pages_that_come() {
    let Some(bound) = Bound::new("storm") else { return };
    let served = bound.run(slowly());
    assert!(served.faults > 50, "{served:?}");
    let touched: u64 = served.touched.iter().map(|run| u64::from(run.count)).sum();
    assert!(touched > 0 && served.touched.len() as u64 <= served.faults);
    println!(
        "{} faults, longest {:?}, {} pushed",
        served.faults, served.longest_fault, served.pushed_pages
    );
}

/// More threads wait at once than the guest has room for questions.
#[test]
fn two_thousand_threads_that_wait_at_once_are_all_answered() {
    let Some(mut bound) = Bound::new("crowd") else { return };
    let link = bound.link();
    bound.program.send("go");
    // By then most of them wait.
    thread::sleep(Duration::from_secs(1));
    let served = link.serve(&Content, nothing_ahead(), slowly()).unwrap();
    assert!(served.faults > 1000, "{served:?}");
    bound.end();
}

#[test]
fn who_reads_a_damaged_page_gets_sigbus_and_nobody_else() {
    let Some(mut bound) = Bound::new("damaged") else { return };
    let link = bound.link();
    bound.program.send("go");
    let image = content::Damaged(BTreeSet::from([3, 690, 691]));
    let served = link.serve(&image, nothing_ahead(), slowly()).unwrap();
    let lost: BTreeSet<u32> = served
        .damaged
        .iter()
        .flat_map(|run| run.pages())
        .map(|page| page.0 - content::FIRST)
        .collect();
    assert_eq!(lost, image.0);
    bound.end();
}

#[test]
fn calls_about_memory_that_is_on_its_way_do_what_they_say() {
    let Some(bound) = Bound::new("calls") else { return };
    bound.run(slowly());
}

#[test]
fn a_guest_that_lost_its_source_is_given_another() {
    let Some(mut bound) = Bound::new("storm") else { return };
    bound.program.send("go");
    let mut link = bound.link();
    // The connection alone, and then the daemon with it.
    for ends_daemon in [false, true, false] {
        let handle = link.handle();
        let unsent = handle.unsent_pages();
        assert!(unsent > 0, "it was all sent too early");
        let serving = thread::spawn(move || link.serve(&content::Slow, nothing_ahead(), slowly()));
        let begun = Instant::now();
        while handle.unsent_pages() > unsent.saturating_sub(300) {
            assert!(begun.elapsed() < daemon::SOON, "nothing is sent");
            thread::sleep(Duration::from_millis(1));
        }
        handle.hang_up();
        let lost = serving.join().unwrap();
        assert!(matches!(lost, Err(SourceError::Guest(_))), "{lost:?}");
        if ends_daemon {
            bound.daemon = bound.daemon.replace(&bound.program);
        }
        let lost = bound.daemon.lost_source();
        assert_eq!(lost.token, TOKEN);
        // What the guest discarded is not missing, though it was never sent.
        assert!((1..=unsent).contains(&lost.missing_pages), "{lost:?}");
        link = bound.daemon.guest.rebind(&lost).unwrap();
        assert!(bound.daemon.guest.lost_source().is_none());
    }
    link.serve(&Content, nothing_ahead(), ServeOptions::default()).unwrap();
    bound.end();
}

#[test]
fn an_image_that_cannot_be_read_is_not_damage() {
    let Some(mut bound) = Bound::new("read") else { return };
    bound.program.send("go");
    let refuses = AtomicBool::new(true);
    let image = content::Refusing(&refuses);
    let error = bound.link().serve(&image, nothing_ahead(), ServeOptions::default()).unwrap_err();
    assert!(matches!(error, SourceError::Image { .. }), "{error}");
    refuses.store(false, Ordering::Relaxed);
    let link = bound.daemon.guest.rebind(&bound.daemon.lost_source()).unwrap();
    link.serve(&image, nothing_ahead(), ServeOptions::default()).unwrap();
    bound.end();
}

#[test]
fn what_cannot_be_bound_is_refused_and_stays() {
    if !can_manage() {
        return;
    }
    let mut program = Program::start("refuse");
    assert_eq!(program.line(), "ready");
    let daemon = Daemon::accept(&program);
    let offered = daemon.offered(3);
    let numbers: Vec<u32> = offered.iter().map(|range| range.number).collect();
    assert_eq!(numbers, [0, 1, 2], "in the order of the calls, shared memory among them");
    let whole = |at: usize, first| {
        let (address, bytes) = (offered[at].address, offered[at].bytes);
        BoundRange { address, bytes, first: PageIndex(first) }
    };
    let errno = |ranges: &[BoundRange]| match daemon.guest.bind(ranges, TOKEN) {
        Err(GuestError::Failed { error, .. }) => error.raw_os_error(),
        other => panic!("{other:?}"),
    };
    // Shared memory, and what is not mapped.
    assert_eq!(errno(&[whole(0, 0), whole(1, 100)]), Some(libc::EOPNOTSUPP));
    let beyond = BoundRange { bytes: offered[2].bytes * 2, ..whole(2, 0) };
    assert_eq!(errno(&[beyond]), Some(libc::EOPNOTSUPP));
    let overlapping = [whole(0, 0), whole(2, 0)];
    let refused = daemon.guest.bind(&overlapping, TOKEN).unwrap_err();
    assert!(matches!(refused, GuestError::Refused { .. }), "{refused}");
    let lost = bindery_guest::LostSource { token: TOKEN.into(), missing_pages: 1 };
    let none = daemon.guest.rebind(&lost).unwrap_err();
    assert!(none.to_string().contains("No such file"), "{none}");
    // One at a time.
    let link = daemon.guest.bind(&[whole(0, content::FIRST)], TOKEN).unwrap();
    assert_eq!(errno(&[whole(2, 0)]), Some(libc::EBUSY));
    link.serve(&Content, nothing_ahead(), ServeOptions::default()).unwrap();
    program.send("go");
    assert_eq!(program.line(), "done", "{}", program.log());
    assert!(program.log().contains("shared memory"), "{}", program.log());
    // Withdrawn by munmap.
    daemon.wait_offered(2);
}

/// `cargo test --release -p bindery-shim --test source -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn measure() {
    for scenario in ["read", "touch"] {
        let Some(mut bound) = Bound::new(scenario) else { return };
        let link = bound.link();
        let begun = Instant::now();
        let is_pushed = scenario == "read";
        let options = match is_pushed {
            true => ServeOptions::default(),
            false => ServeOptions { ahead_bytes_per_s: Some(1), fault_pages: 1, is_lazy: false },
        };
        if !is_pushed {
            bound.program.send("go");
            let handle = link.handle();
            let serving =
                thread::spawn(move || link.serve(&content::Plain, nothing_ahead(), options));
            println!("{}", bound.program.line());
            handle.hang_up();
            let _ = serving.join().unwrap();
            continue;
        }
        let served = link.serve(&content::Plain, nothing_ahead(), options).unwrap();
        let mib = f64::from(PAGES) / 256.0;
        println!("{:.0} MB/s pushed: {served:?}", mib * 1.048_576 / begun.elapsed().as_secs_f64());
    }
}
