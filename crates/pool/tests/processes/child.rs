//! This program once more, in another role. It says what it does, line by line.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use bindery_pool::device::OpenError;
use bindery_pool::format::record::ObjectEntry;
use bindery_pool::object::Object;
use bindery_pool::{MediaClass, ObjectId, PathError, Pool, PoolReader};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::model::{Written, read};

const ROLE: &str = "BINDERY_POOL_ROLE";
const PATHS: &str = "BINDERY_POOL_PATHS";
const DETAIL: &str = "BINDERY_POOL_DETAIL";

/// Another process. Killed when dropped.
pub(crate) struct Other {
    child: Child,
    pub(crate) lines: BufReader<ChildStdout>,
}

impl Other {
    pub(crate) fn spawn(role: &str, paths: &[PathBuf], detail: u64) -> Self {
        let paths: Vec<_> = paths.iter().map(|path| path.to_str().unwrap()).collect();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child::plays_its_role", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(PATHS, paths.join(":"))
            .env(DETAIL, detail.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it says so.
    pub(crate) fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        while self.lines.read_line(&mut line).unwrap() > 0 {
            if line.trim_end().ends_with(word) {
                return;
            }
            line.clear();
        }
        panic!("it ended before it said {word:?}");
    }

    /// Has it go on where it waits.
    pub(crate) fn go_on(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a child says. It must be whole lines, also from several threads.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

/// Waits for the parent; ends with it.
fn wait() {
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line).unwrap() == 0 {
        std::process::exit(1);
    }
}

#[test]
fn plays_its_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let paths: Vec<PathBuf> = std::env::var(PATHS).unwrap().split(':').map(Into::into).collect();
    let detail = std::env::var(DETAIL).unwrap().parse().unwrap();
    match &*role {
        "write" => {
            let _pool = open(&paths);
            say("opened");
            wait();
        }
        "read" => hold(&paths, ObjectId(detail)),
        "live" => live(&paths, detail),
        "fork" => crate::forks::commit_and_fork(&paths),
        _ => panic!("{role}?"),
    }
}

/// Holds an object while the parent deletes it, and reads it.
fn hold(paths: &[PathBuf], id: ObjectId) {
    let reader = PoolReader::open(paths, None).unwrap();
    let object = reader.get(id).unwrap();
    let before = read(&object);
    say("held");
    wait();
    assert_eq!(read(&object), before, "object {} was given to another", object.id());
    say("unchanged");
    wait();
    drop(object);
    say("let go");
    wait();
}

/// Commits and deletes until it is killed, in two threads.
fn live(paths: &[PathBuf], seed: u64) {
    let pool = open(paths);
    say("opened");
    // Each goes on with half of what those before have left.
    let left: Vec<ObjectId> = pool.list().iter().map(ObjectEntry::id).collect();
    let (first, second) = left.split_at(left.len() / 2);
    std::thread::scope(|scope| {
        for (thread, left) in (0..).zip([first.to_vec(), second.to_vec()]) {
            let pool = &pool;
            scope.spawn(move || live_alone(pool, seed * 2 + thread, left));
        }
    });
}

fn live_alone(pool: &Pool, seed: u64, mut own: Vec<ObjectId>) {
    let mut random = StdRng::seed_from_u64(seed);
    loop {
        if own.len() > 12 || (!own.is_empty() && random.random_ratio(1, 3)) {
            let id = own.swap_remove(random.random_range(0..own.len()));
            say(&format!("delete {}", id.0));
            pool.delete(id).unwrap();
            say(&format!("deleted {}", id.0));
            continue;
        }
        let class = if random.random() { MediaClass::Capacity } else { MediaClass::Staging };
        let it = Written { seed: random.random(), length: random.random_range(1..90_000) };
        let Ok(mut writer) = pool.allocate_mblock(class, it.length as u64) else { continue };
        let id = writer.id();
        writer.append(&it.bytes()).unwrap();
        say(&format!("commit {} {} {}", id.0, it.seed, it.length));
        writer.commit().unwrap();
        say(&format!("committed {}", id.0));
        own.push(id);
    }
}

/// Opens a pool, patiently.
pub(crate) fn open(paths: &[PathBuf]) -> Pool {
    patiently(|| Pool::open(paths, None)).unwrap()
}

/// Waits while a device is in use: a process that another test starts at this moment has this one's
/// descriptors until it executes, and their locks with them.
pub(crate) fn patiently<T>(
    mut attempt: impl FnMut() -> Result<T, PathError>,
) -> Result<T, PathError> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match attempt() {
            Err(PathError::Device(OpenError::InUse { .. })) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(2));
            }
            outcome => return outcome,
        }
    }
}
