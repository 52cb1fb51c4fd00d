//! `bindery dirty`: guests that know what they wrote.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;
#[path = "common/guest.rs"]
mod guest;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use bindery_host::client::{Client, ClientError};
use bindery_host::protocol::{Answer, Epoch, Request};
use common::TestDaemon;
use guest::{EQUAL_PAGES, PAGES, TestGuest, can_manage};

#[test]
#[ignore = "the guests' process of the other tests, not a test of its own"]
fn guest_process() {
    guest::live();
}

/// Pages that are brought back with one that was merged and is written, at most (`space`).
const NEIGHBOURS: u32 = 31;

/// Nothing is merged meanwhile.
const QUIET: [&str; 2] = ["--period", "1m"];

struct Operator(Client);

impl Operator {
    fn connect(socket: &Path) -> Self {
        Self(Client::connect(socket).unwrap())
    }

    fn ask(&mut self, guest: &str) -> Result<Epoch, ClientError> {
        let request = Request::Dirty { guest: guest.into() };
        match self.0.ask(&request, Duration::from_secs(10))? {
            Answer::Dirty(epoch) => Ok(*epoch),
            answer => panic!("{answer:?}"),
        }
    }

    /// Begins to watch a guest, once it has told of its memory. Where that begins.
    fn begin(&mut self, guest: &str) -> u32 {
        let deadline = Instant::now() + common::PATIENCE;
        loop {
            // Everything was written before anybody looked; the second epoch is an epoch.
            let regions = self.ask(guest).and_then(|_| self.ask(guest)).map(|epoch| epoch.regions);
            if let Ok([(start, pages), ..]) = regions.as_deref() {
                assert_eq!(*pages as usize, PAGES);
                return *start;
            }
            assert!(Instant::now() < deadline, "{guest} has no memory");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The runs of the epoch that ends now.
    fn runs(&mut self, guest: &str) -> Vec<(u32, u32)> {
        self.ask(guest).unwrap().runs
    }
}

#[test]
fn what_was_written_is_told_once_to_each_who_asks() {
    if !can_manage("what_was_written_is_told_once_to_each_who_asks") {
        return;
    }
    let daemon = TestDaemon::start(&QUIET);
    let mut guest = TestGuest::start(&daemon.socket(), "one", "web");
    let [mut first, mut second] = [(); 2].map(|()| Operator::connect(&daemon.socket()));
    let start = second.begin("one");
    let begun = first.ask("one").unwrap();
    assert_eq!((begun.epoch_us, begun.runs), (0, vec![]));

    guest.write(37);
    assert_eq!(first.runs("one"), [(start, 37)]);
    guest.write(5);
    // It asked later, and hears of both.
    assert_eq!(second.runs("one"), [(start, 37)]);
    assert_eq!(first.runs("one"), [(start, 5)]);
    assert_eq!((first.runs("one"), second.runs("one")), (vec![], vec![]));
    assert_eq!(first.ask("one").unwrap().block_pages, 1);
}

/// How often a guest whose pages are merged is written to and asked.
const ROUNDS: u32 = 40;

#[test]
fn merging_and_watching_hide_nothing_from_each_other() {
    if !can_manage("merging_and_watching_hide_nothing_from_each_other") {
        return;
    }
    let daemon = TestDaemon::start(&["--period", "20ms", "--workers", "2"]);
    let mut one = TestGuest::start(&daemon.socket(), "one", "web");
    let mut two = TestGuest::start(&daemon.socket(), "two", "web");
    let deadline = Instant::now() + common::PATIENCE;
    let ask = |question: &str| daemon.ask(&[question, "--json"]).json();
    // Merging begins with asking for all that is there.
    while ask("status")["domains"][0]["pages_sharing"].as_u64().unwrap_or(0) == 0 {
        assert!(Instant::now() < deadline, "nothing is merged");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut operator = Operator::connect(&daemon.socket());
    let start = operator.begin("one");
    let mut precise = 0;
    for round in 1..=ROUNDS {
        let written = 1 + round * 11 % EQUAL_PAGES as u32;
        one.write(written as usize);
        // One that is in transit while it is asked for is told when that is asked again.
        let (mut told, deadline) = (BTreeSet::new(), Instant::now() + common::PATIENCE);
        while !(start..start + written).all(|page| told.contains(&page)) {
            assert!(Instant::now() < deadline, "{written} pages in round {round}: {told:?}");
            let runs = operator.runs("one").into_iter();
            told.extend(runs.flat_map(|(first, count)| first..first + count));
        }
        // Pages that were brought back with those that were written may be told as well.
        let count = (start..).take_while(|page| told.contains(page)).count();
        precise += u32::from(count <= (written + NEIGHBOURS) as usize);
        std::thread::sleep(Duration::from_millis(u64::from(round % 7) * 20));
    }
    // Of a page that was written just while it was merged nobody knows whether it is written again.
    assert!(precise >= ROUNDS - ROUNDS / 8, "more is told than was written: {precise} of {ROUNDS}");
    one.check();
    two.check();
    assert!(ask("status")["domains"][0]["breaks"].as_u64().unwrap() > 0, "nothing was merged");
}

#[test]
fn it_says_how_fast_where_and_whether_it_can_move() {
    if !can_manage("it_says_how_fast_where_and_whether_it_can_move") {
        return;
    }
    let daemon = TestDaemon::start(&QUIET);
    let _guest = TestGuest::start(&daemon.socket(), "one", "web");
    // The command asks once: the guest must have joined, and told of its memory.
    Operator::connect(&daemon.socket()).begin("one");
    let directory = tempfile::tempdir().unwrap();
    let picture = directory.path().join("one.png");
    let path = picture.to_str().unwrap();
    let json = daemon
        .ask(&["dirty", "one", "--for", "300ms", "--interval", "100ms", "--png", path, "--json"])
        .json();
    assert_eq!(json["rates"].as_array().unwrap().len(), 3, "{json}");
    assert_eq!(json["cold_pages"], PAGES);
    assert_eq!(json["migration"]["converges"], true);
    assert!(std::fs::read(&picture).unwrap().starts_with(b"\x89PNG"));

    let text = daemon.ask(&["dirty", "one", "--for", "100ms", "--interval", "50ms"]);
    assert!(text.out.contains("can it be moved with 300 ms of downtime"), "{}", text.out);
}

#[test]
fn mistakes_are_told_apart() {
    let daemon = TestDaemon::start(&QUIET);
    let code = |arguments: &[&str]| daemon.ask(arguments).code.unwrap();
    let nobody = daemon.ask(&["dirty", "nobody"]);
    assert_eq!(nobody.code, Some(4));
    assert!(nobody.err.contains("no guest has the name or process id nobody"), "{}", nobody.err);
    assert_eq!(code(&["dirty", "one", "--bandwidth", "0G"]), 2);
    assert_eq!(code(&["dirty", "one", "--interval", "1ms"]), 2);
    assert_eq!(code(&["dirty", "one", "--watch", "--for", "1s"]), 2);
}

#[test]
fn a_guest_that_leaves_is_an_error_and_the_operator_may_go_on() {
    if !can_manage("a_guest_that_leaves_is_an_error_and_the_operator_may_go_on") {
        return;
    }
    let daemon = TestDaemon::start(&QUIET);
    let leaving = TestGuest::start(&daemon.socket(), "leaving", "web");
    let mut staying = TestGuest::start(&daemon.socket(), "staying", "web");
    let mut operator = Operator::connect(&daemon.socket());
    operator.begin("leaving");
    drop(leaving);
    // It may be known until its connection is seen to have ended.
    let error = operator.ask("leaving").unwrap_err().to_string();
    assert!(error.contains("guest") && error.contains("leaving"), "{error}");
    let start = operator.begin("staying");
    staying.write(3);
    assert_eq!(operator.runs("staying"), [(start, 3)]);
}

#[test]
fn who_watches_a_guest_that_leaves_is_told_so() {
    if !can_manage("who_watches_a_guest_that_leaves_is_told_so") {
        return;
    }
    let daemon = TestDaemon::start(&QUIET);
    let leaving = TestGuest::start(&daemon.socket(), "leaving", "web");
    Operator::connect(&daemon.socket()).begin("leaving");
    let watch = ["dirty", "leaving", "--watch", "--interval", "50ms", "--json"];
    let mut command = common::bindery(watch);
    command.arg("--socket").arg(daemon.socket());
    let mut watch = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let rates = BufReader::new(watch.stdout.take().unwrap());
    let mut leaving = Some(leaving);
    // Each line is a rate, until the guest is gone; then it ends by itself.
    for (at, rate) in rates.lines().enumerate() {
        let rate: serde_json::Value = serde_json::from_str(&rate.unwrap()).unwrap();
        assert!(rate["dirty_pages"].is_u64(), "{rate}");
        if at == 2 {
            drop(leaving.take());
        }
    }
    let mut message = String::new();
    watch.stderr.take().unwrap().read_to_string(&mut message).unwrap();
    let code = watch.wait().unwrap().code();
    assert!(leaving.is_none(), "it ended before the guest did: {message}");
    assert!(message.contains("guest") && message.contains("leaving"), "{message}");
    assert_eq!(code, Some(4), "{message}");
}
