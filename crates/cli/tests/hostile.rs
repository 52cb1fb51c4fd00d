//! Nothing that comes over the socket stops the daemon, or stays behind in it.
//!
//! Streams are made right and then spoiled: of bytes at random most are refused at the first look, and
//! a near miss gets further. They go to a live daemon, from operators and from shims, with descriptors
//! that nobody asked for, and down the lanes of a shim that was taken. `BINDERY_HOSTILE_SECONDS` has
//! it go on for longer, `BINDERY_HOSTILE_SEED` has it do the same again.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod common;
#[path = "common/shim.rs"]
mod shim;

use std::fs::{self, File};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use bindery_host::protocol::{LINE_BYTES_MAX, Request, decode_request};
use bindery_sys::socket;
use bindery_units::{HostAddress, PageIndex, PageRange};
use bindery_wire::control::{FromShim, MAGIC, Region, StoreId, VERSION};
use bindery_wire::frame::encode;
use common::{PATIENCE, TestDaemon};
use rustix::net::sockopt::set_socket_linger;

/// Who send at the same time.
const STRANGERS: usize = 8;

/// Streams of each between two looks at whether the daemon still answers.
const STREAMS: usize = 32;

/// How long a stream waits for what the daemon says to it.
const ANSWER: Duration = Duration::from_millis(20);

fn of_environment(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): a run is told by its seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.roll() % end as u64) as usize
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.roll() as u8).collect()
    }
}

/// Changes some bytes: flips, cuts, repeats, inserts.
fn spoil(dice: &mut Dice, bytes: &mut Vec<u8>) {
    for _ in 0..dice.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = dice.below(bytes.len());
        match dice.below(5) {
            0 => bytes[at] ^= 1 << dice.below(8),
            1 => bytes.truncate(at),
            2 => {
                let length = dice.below(bytes.len() - at).min(200);
                let part = bytes[at..at + length].to_vec();
                bytes.splice(at..at, part);
            }
            3 => {
                let count = dice.below(40);
                let new = dice.bytes(count);
                bytes.splice(at..at, new);
            }
            _ => bytes[at] = dice.pick(&[0, b'\n', b'"', b'{', 0x7f, 0x80, 0xff]),
        }
    }
}

/// What operators might send, spoiled; nothing that ends the daemon.
fn lines(dice: &mut Dice) -> Vec<u8> {
    let names = ["status", "guests", "set", "reload", "unmerge", "merge", "unmanage", "dirty", "x"];
    let fields = ["guest", "workers", "period_ms", "advisor_mode", "run_when", "pages_to_scan"];
    let mut sent = Vec::new();
    for _ in 0..=dice.below(6) {
        let number = dice.roll().to_string();
        let deep = "[".repeat(dice.below(LINE_BYTES_MAX));
        let values = ["1", "-1", "null", "\"web\"", "\"pressure\"", "\"\\ud800\"", "1e999"];
        let value = match dice.below(12) {
            0 => &deep,
            1..3 => &number,
            _ => dice.pick(&values),
        };
        let (name, field) = (dice.pick(&names), dice.pick(&fields));
        let mut line = match dice.below(3) {
            0 => format!(r#"{{"version":1,"request":"{name}"}}"#),
            _ => format!(r#"{{"version":1,"request":"{name}","{field}":{value}}}"#),
        }
        .into_bytes();
        spoil(dice, &mut line);
        line.push(b'\n');
        // Spoiled lines may be several.
        let ends = |line: &[u8]| matches!(decode_request(line), Ok(Request::Stop { .. }));
        if !line.split(|byte| *byte == b'\n').any(ends) {
            sent.extend(line);
        }
    }
    sent
}

fn hello(dice: &mut Dice, stores: usize) -> FromShim {
    let names = [None, Some("hostile"), Some("web"), Some(""), Some("a b"), Some("\u{1b}[2J")];
    let version = dice.pick(&[VERSION, VERSION, VERSION, VERSION + 1, 0]);
    FromShim::Hello {
        version,
        instance: dice.roll(),
        name: dice.pick(&names).map(Into::into),
        domain: dice.pick(&names).map(Into::into),
        command: dice.pick(&["qemu", "", "\u{7}\n\u{202e}"]).into(),
        stores: (0..stores).map(|_| StoreId(dice.roll() as u8 % 9)).collect(),
    }
}

fn event(dice: &mut Dice) -> FromShim {
    let first = dice.pick(&[0, 512, 1024, 513, u32::MAX - 511, 1 << 30]);
    let count = dice.pick(&[0, 1, 512, 4096, u32::MAX - first]);
    let pages = PageRange { first: PageIndex(first), count };
    match dice.below(8) {
        0 => FromShim::RegionRemoved(pages),
        1 => FromShim::Released,
        2 => hello(dice, 0),
        _ => FromShim::RegionAdded(Region {
            pages,
            address: HostAddress(dice.roll() as usize & !0xfff),
        }),
    }
}

/// What a shim might send, spoiled or not, and the descriptors that go with its first bytes.
fn frames(dice: &mut Dice) -> (Vec<u8>, usize) {
    let stores = dice.pick(&[0, 0, 0, 1, 3]);
    let mut sent = encode(&hello(dice, stores));
    for _ in 0..dice.below(8) {
        sent.extend(encode(&event(dice)));
    }
    if dice.below(2) == 0 {
        spoil(dice, &mut sent);
    }
    (sent, dice.pick(&[stores, stores, stores, 0, 8]))
}

/// Sends as much as the daemon takes: it may hang up before it has taken everything.
fn send(stream: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let _ = socket::send_all(stream, bytes, fds, Duration::from_secs(1));
}

/// Hears what the daemon says, and answers what comes with it: a lane's socket is a descriptor.
fn answer(dice: &mut Dice, stream: &OwnedFd) {
    for _ in 0..4 {
        let mut fds = Vec::new();
        if !matches!(socket::wait_readable(stream, ANSWER), Ok(true)) {
            return;
        }
        match socket::receive(stream, &mut [0; 4096], &mut fds) {
            Ok(count) if count > 0 => {}
            _ => return,
        }
        for fd in &fds {
            let count = 1 + dice.below(256);
            // Not all of them are sockets.
            let _ = socket::send_now(fd, &dice.bytes(count), &[]);
        }
        if dice.below(2) == 0 {
            send(stream, &encode(&event(dice)), &[]);
        }
    }
}

/// One connection, from its first byte to its end.
fn attack(dice: &mut Dice, path: &Path) {
    let stream = socket::connect(path).unwrap();
    let file = File::open("/dev/null").unwrap();
    match dice.below(4) {
        0 => send(&stream, &lines(dice), &[]),
        1 => {
            let count = dice.below(300);
            send(&stream, &dice.bytes(count), &[file.as_fd()][..usize::from(count > 0)]);
        }
        _ => {
            send(&stream, &MAGIC, &[]);
            let (bytes, fds) = frames(dice);
            if !bytes.is_empty() {
                send(&stream, &bytes, &vec![file.as_fd(); fds]);
            }
        }
    }
    answer(dice, &stream);
}

/// Open files and threads of the daemon.
fn held(daemon: &TestDaemon) -> [usize; 2] {
    ["fd", "task"]
        .map(|kind| fs::read_dir(format!("/proc/{}/{kind}", daemon.pid())).unwrap().count())
}

#[test]
fn what_strangers_send_neither_stops_the_daemon_nor_stays_in_it() {
    let start = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let seed = of_environment("BINDERY_HOSTILE_SEED", start.as_nanos() as u64);
    println!("BINDERY_HOSTILE_SEED={seed}");
    let mut dice = Dice(seed);
    let mut daemon = TestDaemon::start(&["--period", "20ms"]);
    let before = held(&daemon);
    let settings = daemon.ask(&["status", "--json"]).json()["settings"].clone();
    let end = Instant::now() + Duration::from_secs(of_environment("BINDERY_HOSTILE_SECONDS", 5));
    let mut rounds = 0;
    while Instant::now() < end {
        thread::scope(|scope| {
            for _ in 0..STRANGERS {
                let (mut dice, socket) = (Dice(dice.roll()), daemon.socket());
                scope.spawn(move || (0..STREAMS).for_each(|_| attack(&mut dice, &socket)));
            }
        });
        // What they set may be allowed: that it goes on answering is what counts.
        let status = daemon.ask(&["status", "--json"]);
        assert_eq!(status.code, Some(0), "seed {seed}: {}{}", status.err, daemon.log());
        rounds += 1;
    }
    println!("{} streams", rounds * STRANGERS * STREAMS);
    assert!(rounds > 0);
    // As many threads as before, and as often to be rid of who is gone.
    let workers = format!("workers={}", settings["workers"]);
    let set = daemon.ask(&["set", &workers, "period=20ms", "run_when=always"]);
    assert_eq!(set.code, Some(0), "seed {seed}: {}", set.err);
    let deadline = Instant::now() + PATIENCE;
    // Each domain that was asked for keeps its store for a while.
    let domains = || daemon.ask(&["status", "--json"]).json()["domains"].as_array().unwrap().len();
    let is_clean = || {
        let now = held(&daemon);
        now[0] <= before[0] + 4 * domains() + 4 && now[1] <= before[1] + 2
    };
    while daemon.ask(&["ps", "--json"]).out.trim() != "[]" || !is_clean() {
        let (now, guests) = (held(&daemon), daemon.ask(&["ps"]).out);
        assert!(
            Instant::now() < deadline,
            "seed {seed}: files and threads {now:?}, before {before:?}: {guests}"
        );
        thread::sleep(Duration::from_millis(50));
    }
    let log = daemon.log();
    assert!(!log.contains("panicked"), "seed {seed}: {log}");
    assert!(log.contains("a guest has left"), "seed {seed}: none of them got past the door: {log}");
    let resident = daemon.ask(&["status", "--json"]).json()["resident_bytes"].as_u64().unwrap();
    assert!(resident < 256 << 20, "seed {seed}: {resident} bytes");
    assert_eq!(daemon.end_with("TERM"), Some(0), "seed {seed}");
}

/// How soon a daemon that nobody holds up does what it does in milliseconds.
const SOON: Duration = Duration::from_secs(5);

/// Waits until the only domain has been through `periods`.
fn await_periods(daemon: &TestDaemon, periods: u64) -> u64 {
    let deadline = Instant::now() + SOON;
    loop {
        let status = daemon.ask_within(SOON, &["status", "--json"]).json();
        match status["domains"][0]["full_scans"].as_u64() {
            Some(done) if done >= periods => return done,
            _ => assert!(Instant::now() < deadline, "merging stands still: {}", daemon.log()),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_guest_that_never_stops_talking_holds_nobody_up() {
    let mut daemon = TestDaemon::start(&["--period", "20ms"]);
    // Another guest of the domain, which does not answer: it is waited for once.
    let _quiet = shim::welcomed(&daemon.socket(), "quiet");
    await_periods(&daemon, 1);
    let mut loud = shim::welcomed(&daemon.socket(), "loud");
    let pages = PageRange { first: PageIndex(512), count: 512 };
    let region = FromShim::RegionAdded(Region { pages, address: HostAddress(1 << 40) });
    loud.send(&region, &[], PATIENCE).unwrap();
    // Several threads, for one may be interrupted; so many at a time are sent as one.
    let words = Arc::new((loud, encode(&FromShim::Released).repeat(4000)));
    let babble = [(); STRANGERS].map(|()| {
        let words = Arc::clone(&words);
        thread::spawn(move || while socket::send(&words.0, &words.1, &[]).is_ok() {})
    });
    drop(words);
    // Periods that begin once it talks.
    thread::sleep(Duration::from_millis(200));
    let before = await_periods(&daemon, 1);
    await_periods(&daemon, before + 10);
    assert_eq!(daemon.ask_within(SOON, &["ps", "--json"]).code, Some(0));
    assert_eq!(daemon.end_with("TERM"), Some(0));
    for thread in babble {
        thread.join().unwrap();
    }
}

/// A socket that closes only once all that it sent was read, or after a minute, and its reader.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (reader, _) = listener.accept().unwrap();
    set_socket_linger(&stream, Some(Duration::from_secs(60))).unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 1 << 16]).is_ok() {}
    (stream, reader)
}

#[test]
fn a_descriptor_that_takes_long_to_close_holds_nobody_up() {
    let mut daemon = TestDaemon::start(&["--period", "20ms"]);
    let _quiet = shim::welcomed(&daemon.socket(), "quiet");
    await_periods(&daemon, 1);
    let (lingering, reader) = lingering();
    let slow = shim::hello(&daemon.socket(), "slow");
    // With part of a frame: it stays until the connection is closed.
    let sent = socket::send(&slow, &[9], &[lingering.as_fd()]);
    // Where it was refused already, closing it would take long here.
    let kept = sent.is_err().then_some(lingering);
    thread::sleep(Duration::from_millis(200));
    drop(slow);
    thread::sleep(Duration::from_millis(200));
    let before = await_periods(&daemon, 1);
    await_periods(&daemon, before + 10);
    assert_eq!(daemon.end_with("TERM"), Some(0));
    drop((reader, kept));
}

/// A shim that is hung up on comes back at once, and for the same reason.
#[test]
fn a_guest_that_is_hung_up_on_is_logged_once() {
    let mut daemon = TestDaemon::start(&["--period", "20ms"]);
    for number in 0..20 {
        let guest = shim::welcomed(&daemon.socket(), &format!("guest{number}"));
        socket::send_all(&guest, &[0xff; 64], &[], PATIENCE).unwrap();
        // Until the daemon has hung up.
        let mut rest = Vec::new();
        while socket::receive(&guest, &mut [0; 64], &mut rest).is_ok_and(|bytes| bytes > 0) {}
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(daemon.end_with("TERM"), Some(0));
    let log = daemon.log();
    let warnings = log.lines().filter(|line| line.contains("WARN")).count();
    assert_eq!(warnings, 1, "{log}");
    assert!(log.contains("speaks nonsense"), "{log}");
    assert_eq!(log.matches("a guest has come").count(), 1, "{log}");
}
