//! A host of 64 guests that merge as fast as they can: how long `/metrics` takes, what the daemon
//! holds, and whether the dashboard stays smooth.
//!
//! The ordinary run shares the machine with other tests: its bounds only tell a server that waits for
//! merging from one that does not. With `BINDERY_HTTP_SECONDS` it goes on for that long, with a machine
//! of its own, and holds the daemon to what was promised.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;
#[path = "common/http.rs"]
mod http;

use std::time::{Duration, Instant};

use bindery_testkit::bindery::{Bindery, Daemon};
use bindery_testkit::browser::Browser;
use bindery_testkit::process::{ENTRY, ProcessGuest, serve_if_started};
use bindery_testkit::skipped;
use http::Http;

/// The process that is a guest; nothing where it is not asked for.
#[test]
fn guest_process() {
    assert_eq!(ENTRY, "guest_process");
    serve_if_started();
}

const GUESTS: u64 = 64;

/// Pages of a guest: 64 MiB.
const PAGES: usize = 1 << 14;

/// How long it may take until most of what is equal is merged, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(180);

/// Between two batches of pages that a guest writes: so that there is always something to merge, and
/// some of it stays merged.
const CHURN_PAUSE_US: u64 = 50_000;

/// What the daemon may take for the 4 GiB that it manages: 32 bytes a page, and itself.
const RESIDENT_MAX: u64 = (GUESTS * PAGES as u64 * 32) + (64 << 20);

/// The promise: so long may an answer take, 99 of 100 times.
const ANSWER_MAX: Duration = Duration::from_millis(50);

/// On a machine that runs other tests at the same time.
const BUSY_MEDIAN_MAX: Duration = Duration::from_millis(100);
const BUSY_ANSWER_MAX: Duration = Duration::from_secs(1);

/// For how long more answers are timed, and frames counted, in seconds each.
const SECONDS_VARIABLE: &str = "BINDERY_HTTP_SECONDS";

/// The time between each two frames that the dashboard draws within two seconds, in milliseconds.
const FRAMES: &str = "new Promise((done) => {
    const times = [];
    const frame = (now) => {
        times.push(now);
        if (now - times[0] < 2000) requestAnimationFrame(frame);
        else done(times.slice(1).map((time, at) => time - times[at]));
    };
    requestAnimationFrame(frame);
})";

/// A gap that one sees: six frames were left out, at 60 a second.
const GAP_MS: f64 = 100.0;

fn timed(http: Http, path: &str) -> (Duration, usize) {
    let start = Instant::now();
    let reply = http.get(path);
    assert_eq!(reply.status, 200, "{path}: {}", reply.body);
    (start.elapsed(), reply.body.len())
}

fn at(sorted: &[Duration], part: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3
}

/// Asks for the metrics while guests are merged, until `is_done`; tells how long it took.
fn ask_while_merging(daemon: &Daemon, http: Http) -> Vec<Duration> {
    let (mut times, mut bytes) = (Vec::new(), 0);
    let deadline = Instant::now() + PATIENCE;
    // A quarter of the pages are the same in all guests.
    let wanted = GUESTS * PAGES as u64 / 6;
    loop {
        let (time, length) = timed(http, "/metrics");
        times.push(time);
        bytes = length.max(bytes);
        let status = http.json("/api/v1/status");
        let merged = status["domains"][0]["pages_merged"].as_u64().unwrap_or(0);
        if merged > wanted && times.len() >= 50 {
            break;
        }
        assert!(Instant::now() < deadline, "{merged} of {wanted} pages: {}", daemon.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    eprintln!("an answer has {} KiB", bytes >> 10);
    sorted("while they merge", times)
}

/// Asks for the metrics for this long, while guests write and are merged again.
fn ask_while_churning(http: Http, length: Duration) -> Vec<Duration> {
    let digested = || {
        let status = http.json("/api/v1/status");
        status["domains"][0]["pages_digested"].as_u64().unwrap()
    };
    let (start, before) = (Instant::now(), digested());
    let mut times = Vec::new();
    while start.elapsed() < length {
        times.push(timed(http, "/metrics").0);
        std::thread::sleep(Duration::from_millis(50));
    }
    let (pages, elapsed) = (digested() - before, start.elapsed());
    eprintln!("{:.0} pages a second were digested", pages as f64 / elapsed.as_secs_f64());
    assert!(pages > 0, "nothing was merged meanwhile");
    sorted("while they write", times)
}

fn sorted(when: &str, mut times: Vec<Duration>) -> Vec<Duration> {
    times.sort();
    eprintln!(
        "/metrics of {GUESTS} guests {when}: {} answers, median {:.1} ms, 99% {:.1} ms, longest {:.1} \
         ms, {} beyond 50 ms",
        times.len(),
        at(&times, 0.5),
        at(&times, 0.99),
        at(&times, 1.0),
        beyond(&times, ANSWER_MAX),
    );
    times
}

fn beyond(times: &[Duration], most: Duration) -> usize {
    times.iter().filter(|time| **time > most).count()
}

#[test]
fn with_64_guests_at_full_rate_metrics_are_quick_and_memory_is_bounded() {
    let bindery = match Bindery::locate() {
        Ok(bindery) => bindery,
        Err(error) => return skipped!("{error}"),
    };
    let daemon = bindery
        .daemon(&[
            "--http",
            "127.0.0.1:0",
            "--period",
            "10ms",
            "--workers",
            "2",
            // At full rate.
            "--set",
            "advisor_mode=none",
        ])
        .unwrap_or_else(|error| panic!("{error}"));
    let http = Http(daemon.status().unwrap()["http"].as_str().unwrap().parse().unwrap());
    let mut guests: Vec<ProcessGuest> = Vec::new();
    for seed in 0..GUESTS {
        let launcher = daemon.launcher(&format!("guest-{seed}"));
        match ProcessGuest::start(&launcher, PAGES, seed) {
            Ok(guest) => guests.push(guest),
            Err(error) => return skipped!("no guest can be started: {error}"),
        }
    }
    for guest in &mut guests {
        guest.offer().unwrap();
    }
    let times = ask_while_merging(&daemon, http);
    assert!(times[times.len() / 2] < BUSY_MEDIAN_MAX, "{:?}", times[times.len() / 2]);
    assert!(beyond(&times, BUSY_ANSWER_MAX) * 100 <= times.len(), "{times:?}");
    for guest in &mut guests {
        guest.churn(CHURN_PAUSE_US).unwrap();
    }
    let long = long_form();
    if let Some(length) = long {
        let times = ask_while_churning(http, length);
        assert!(beyond(&times, ANSWER_MAX) * 100 <= times.len(), "{times:?}");
    }
    watch_smoothly(http, long);

    // Clients that ask for everything, again and again, cost no memory.
    let resident = || http.json("/api/v1/status")["resident_bytes"].as_u64().unwrap();
    let before = resident();
    for round in 0..300 {
        let guest = round % GUESTS;
        timed(http, "/metrics");
        timed(http, &format!("/api/v1/guests/guest-{guest}/map?cells=16384"));
        timed(http, "/api/v1/history");
    }
    let after = resident();
    eprintln!("the daemon holds {:.1} MiB, {:.1} before 900 requests", mib(after), mib(before));
    assert!(after < RESIDENT_MAX, "{after} bytes");
    assert!(after < before + (32 << 20), "requests cost memory: {before}, then {after} bytes");
    for guest in &mut guests {
        guest.rest().unwrap();
        assert_eq!(guest.verify().unwrap().bad, 0);
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// How long to go on; `None` in an ordinary run.
fn long_form() -> Option<Duration> {
    let text = std::env::var(SECONDS_VARIABLE).ok()?;
    let seconds = text.parse();
    Some(Duration::from_secs(
        seconds.unwrap_or_else(|_| panic!("{SECONDS_VARIABLE}={text}: a number is expected")),
    ))
}

/// Looks at the dashboard of all guests, for two seconds or for `long`, and tells how it was.
fn watch_smoothly(http: Http, long: Option<Duration>) {
    let Some(mut browser) = Browser::start().unwrap() else {
        return skipped!("there is no browser to look at the dashboard: run `cargo xtask setup`");
    };
    browser.show_as(1280, 900, false).unwrap();
    browser.open(&format!("http://{}/", http.0)).unwrap();
    let count = format!("document.querySelectorAll('.guest').length === {GUESTS}");
    browser.wait_until(&count).unwrap();
    browser.wait_until("[...cards.values()].some((card) => card.map.map !== null)").unwrap();
    let mut gaps = Vec::new();
    let start = Instant::now();
    while gaps.is_empty() || long.is_some_and(|length| start.elapsed() < length) {
        let more = browser.evaluate(FRAMES).unwrap();
        gaps.extend(more.as_array().unwrap().iter().map(|gap| gap.as_f64().unwrap()));
    }
    gaps.sort_by(f64::total_cmp);
    let seconds = gaps.iter().sum::<f64>() / 1e3;
    let rate = gaps.len() as f64 / seconds;
    let seen = gaps.iter().filter(|gap| **gap > GAP_MS).count();
    let (most, longest) = (gaps[gaps.len() * 99 / 100], gaps[gaps.len() - 1]);
    eprintln!(
        "the dashboard of {GUESTS} guests: {} frames in {seconds:.1} s ({rate:.0} a second), 99% \
         within {most:.0} ms, {seen} gaps beyond {GAP_MS} ms, the longest {longest:.0} ms",
        gaps.len(),
    );
    // Two workers, 64 guests that write and a browser share the machine's CPUs.
    let (rate_least, longest_most) = if long.is_some() { (30.0, 1000.0) } else { (5.0, 2000.0) };
    assert!(rate >= rate_least, "{rate} frames a second");
    assert!(longest < longest_most, "the page stood still for {longest} ms");
    assert!(long.is_none() || seen * 100 <= gaps.len(), "{seen} gaps in {} frames", gaps.len());
    assert_eq!(browser.complaints(), [] as [&str; 0]);
}
