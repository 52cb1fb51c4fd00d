//! Who may open a device, and ranges that readers hold, among processes.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use bindery_pool::device::{Device, DeviceAccess, DeviceOptions, FileDevice};
use bindery_sys::lock::RangeLocks;
use bindery_sys::socket;

use super::{READ, WRITE, assert_is_ours, create, offset, patiently};

const OTHER: &str = "BINDERY_TEST_DEVICE";

/// This program once more, that opens the device and holds blocks 8 to 16 until it is ended.
struct Other(Child);

impl Other {
    fn spawn(path: &Path, access: &str) -> Self {
        Self::spawn_with(path, access, Stdio::piped())
    }

    fn spawn_with(path: &Path, access: &str, input: Stdio) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "locks::the_other_process", "--nocapture"])
            .env(OTHER, path)
            .env("BINDERY_TEST_ACCESS", access)
            .stdin(input)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("ready")), "the other process failed");
        Self(child)
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_other_process() {
    let Some(path) = std::env::var_os(OTHER) else { return };
    let access = match std::env::var("BINDERY_TEST_ACCESS").unwrap().as_str() {
        "write" => DeviceAccess::Write,
        "send" => return send_a_lock(path.as_ref()),
        _ => DeviceAccess::Read,
    };
    let device = FileDevice::open(path.as_ref(), &DeviceOptions::new(access)).unwrap();
    let _hold = device.hold(offset(8), offset(8)).unwrap().unwrap();
    println!("ready");
    io::stdout().flush().unwrap();
    // Ends with the test that started it, too.
    let _ = io::stdin().read_line(&mut String::new());
}

/// Locks as one that writes does, sends the descriptor to whoever listens, and waits for its end.
fn send_a_lock(path: &Path) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let locks = RangeLocks::new(file.try_clone().unwrap());
    let writer = i64::MAX as u64 - 1..i64::MAX as u64;
    let _lock = patiently(|| locks.exclude(writer.clone()).unwrap().ok_or(())).unwrap();
    socket::send(io::stdin(), b"a lock", &[file.as_fd()]).unwrap();
    println!("ready");
    io::stdout().flush().unwrap();
    let _ = io::stdin().read_line(&mut String::new());
}

#[test]
fn one_writes_and_is_named_to_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let device = create(directory.path(), 32, &WRITE);
    let path = device.path().to_owned();
    assert_is_ours(&path, &WRITE);
    drop(device);

    let other = Other::spawn(&path, "write");
    let error = FileDevice::open(&path, &WRITE).unwrap_err().to_string();
    let expected = format!("is in use by process {}", other.0.id());
    assert!(error.contains(&expected), "{error}");
    let reader = FileDevice::open(&path, &READ).unwrap();
    assert!(reader.hold(offset(8), offset(1)).unwrap().is_some());
    other.kill();
    patiently(|| FileDevice::open(&path, &WRITE)).unwrap();
}

/// Whether this process has a descriptor of a file.
fn has_opened(path: &Path) -> bool {
    let descriptors = fs::read_dir("/proc/self/fd").unwrap().flatten();
    descriptors.into_iter().any(|it| fs::read_link(it.path()).is_ok_and(|link| link == path))
}

/// As the kernel keeps the file of a killed process while its transfers are under way: what keeps it here is
/// a message that nobody has received.
#[test]
fn a_lock_that_no_process_has_any_more_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = create(directory.path(), 32, &WRITE).path().canonicalize().unwrap();
    let (ours, theirs) = socket::stream_pair().unwrap();
    Other::spawn_with(&path, "send", theirs.into()).kill();
    let next = {
        let path = path.clone();
        thread::spawn(move || FileDevice::open(&path, &WRITE).map(drop))
    };
    // Long enough for one that does not wait to have failed.
    patiently(|| if has_opened(&path) { Ok(()) } else { Err(()) }).unwrap();
    thread::sleep(Duration::from_millis(100));
    assert!(!next.is_finished(), "{:?}", next.join());
    drop(ours);
    next.join().unwrap().unwrap();
}

#[test]
fn what_a_reader_holds_is_held_until_it_dies() {
    let directory = tempfile::tempdir().unwrap();
    let device = create(directory.path(), 32, &WRITE);
    let own = device.hold(0, offset(32)).unwrap().unwrap();
    assert!(!device.is_held(0, offset(32)).unwrap(), "what the owner holds needs no lock");
    drop(own);
    let other = Other::spawn(device.path(), "read");
    let here = FileDevice::open(device.path(), &READ).unwrap();
    let [first, second] = [(); 2].map(|()| here.hold(offset(8), offset(8)).unwrap().unwrap());
    assert!(device.is_held(offset(15), offset(1)).unwrap());
    assert!(!device.is_held(offset(16), offset(16)).unwrap());
    assert!(!device.is_held(0, offset(8)).unwrap());
    assert!(here.hold(offset(9), offset(8)).is_err(), "ranges overlap");
    other.kill();
    drop(first);
    assert!(device.is_held(0, offset(32)).unwrap());
    drop(second);
    patiently(|| if device.is_held(0, offset(32)).unwrap() { Err(()) } else { Ok(()) })
        .expect("no lock outlives who held it");
}
