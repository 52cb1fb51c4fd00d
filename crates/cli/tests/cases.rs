//! Programs of strangers that lost bytes or were hindered, each the smallest that was: they say and do
//! the same under `bindery run` as without it.
//!
//! A case is a program in `tests/cases` and its modes. Each mode runs once without Bindery, and twice
//! at once with it, so that equal memory of two processes is merged. To add one: write
//! `tests/cases/NAME.c` (see `case.h`), and a line in `cases!`.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod fire;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bindery_space::Space;
use bindery_testkit::bindery::Daemon;
use bindery_testkit::machine::SettingGuard;
use bindery_testkit::skipped;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process_group};

/// Exit status of a case whose memory was never merged, as `case.h` has it.
const NEVER_MERGED: i32 = 99;

/// How long a case may take on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(90);

/// Lines that the library may log for one program.
const MESSAGES_MAX: usize = 20;

/// A user that owns nothing here.
const NOBODY: u32 = 65534;

const UNPRIVILEGED_USERFAULTFD: &str = "/proc/sys/vm/unprivileged_userfaultfd";

/// Bytes of memory that `inherit` has.
const INHERITED_BYTES: usize = 1024 * 4096;

/// How a case ended.
#[derive(Debug, PartialEq, Eq)]
struct Ended {
    status: Option<i32>,
    output: String,
}

/// A daemon that merges at full speed; says loudly why cases cannot run here.
fn daemon() -> Option<Daemon> {
    if let Err(error) = Space::start() {
        skipped!("cases: {error}");
        return None;
    }
    let arguments = ["--period", "50ms", "--set", "advisor_mode=none"];
    Some(fire::bindery()?.daemon(&arguments).unwrap_or_else(|error| panic!("{error}")))
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(name)
}

/// Builds `tests/cases/NAME.c`; says loudly if there is no compiler.
fn build(name: &str) -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    // Tests build at the same time: each in a directory of its own, and then into its place.
    let directory = tempfile::tempdir_in(target).unwrap();
    let program = directory.path().join(name);
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]);
    match compiler.arg(&program).arg(source(name).with_extension("c")).output() {
        Ok(built) => {
            assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
            let place = target.join(format!("case-{name}"));
            std::fs::rename(program, &place).unwrap();
            Some(place)
        }
        Err(error) => {
            skipped!("cases: {name}: no C compiler (cc): {error}");
            None
        }
    }
}

/// Runs a case to its end. One that hangs is ended with all its children.
fn ended(command: &mut Command) -> Ended {
    let mut output = tempfile::tempfile().unwrap();
    command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(Stdio::null());
    let mut child = command.process_group(0).spawn().unwrap();
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() < deadline => thread::sleep(Duration::from_millis(10)),
            None => {
                kill_process_group(Pid::from_child(&child), Signal::KILL).unwrap();
                break child.wait().unwrap();
            }
        }
    };
    let mut text = String::new();
    output.rewind().unwrap();
    output.read_to_string(&mut text).unwrap();
    Ended { status: status.code(), output: text }
}

/// Returns the command that runs `words` with Bindery as guest `name`, logging to a file of that name.
fn managed(daemon: &Daemon, name: &str, words: &[&str], logs: &Path) -> Command {
    let launcher = daemon.launcher(name);
    let mut command = Command::new(&launcher[0]);
    command.args(&launcher[1..]).args(words);
    command.env("CASE_MANAGED", "1").env("BINDERY_LOG_FILE", logs.join(name));
    command
}

/// Runs a program with its arguments without Bindery, then twice at once with it. Returns what was
/// different.
fn differences(daemon: &Daemon, words: &[&str]) -> Vec<String> {
    let logs = tempfile::tempdir().unwrap();
    let plain = ended(Command::new(words[0]).args(&words[1..]));
    // A guest of the run before may still be known.
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let number = RUNS.fetch_add(1, Ordering::Relaxed);
    let twins = ["one", "two"].map(|name| {
        let name = format!("{name}-{number}");
        let mut command = managed(daemon, &name, words, logs.path());
        (name, thread::spawn(move || ended(&mut command)))
    });
    let mut found = Vec::new();
    for (name, twin) in twins {
        let with = twin.join().unwrap();
        let log = std::fs::read_to_string(logs.path().join(name)).unwrap_or_default();
        let complaint = match with.status {
            Some(NEVER_MERGED) => "its memory was never merged",
            _ if with != plain => "it is different with Bindery",
            _ if log.lines().count() > MESSAGES_MAX => "the library floods its log",
            _ => continue,
        };
        found.push(format!("{words:?}: {complaint}\nplain: {plain:?}\nwith: {with:?}\nlog: {log}"));
    }
    found
}

/// Modes that are compared at once. They wait for most of their time until their memory is merged, which
/// takes too long where many merge on few CPUs.
const AT_ONCE: usize = 3;

/// Compares every mode of a program; one program at a time.
fn compare(name: &str, modes: &[&str]) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (Some(daemon), Some(program)) = (daemon(), build(name)) else { return };
    let (daemon, program) = (&daemon, &*program.to_string_lossy());
    let compare_some = |some: &[&str]| {
        thread::scope(|scope| {
            let start = |mode| scope.spawn(move || differences(daemon, &[program, mode]));
            let started: Vec<_> = some.iter().copied().map(start).collect();
            started.into_iter().flat_map(|mode| mode.join().unwrap()).collect::<Vec<_>>()
        })
    };
    let found: Vec<String> = modes.chunks(AT_ONCE).flat_map(compare_some).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

macro_rules! cases {
    ($($test:ident: $program:literal $modes:expr;)*) => {
        $(
            #[test]
            fn $test() {
                compare($program, &$modes);
            }
        )*
    };
}

cases! {
    files_show_what_the_memory_shows: "memfd" ["exec", "exec-now", "pread", "pwrite", "raw", "by-path"];
    files_are_copied_as_the_memory_is: "memfd" ["sendfile", "copy-file-range", "splice"];
    files_give_up_what_they_are_told_to: "memfd" ["truncate", "punch"];
    shared_memory_is_shared: "memfd" ["fork", "fork-parent", "fork-map", "map-again", "alias"];
    children_keep_what_they_were_born_with: "forks" ["fork", "fork-write"];
    children_that_close_all_keep_it: "forks" ["fork-close", "fork-close-write"];
    children_of_clone_keep_it: "forks" ["clone", "clone-close"];
    children_of_raw_clone_keep_it: "forks" ["raw", "raw-close"];
    children_of_plain_fork_keep_it: "forks" ["_Fork", "_Fork-close-write"];
    programs_may_close_all_descriptors: "closed" ["plain"];
    thousands_of_ranges_are_offered: "regions" ["1000", "5000"];
    programs_may_use_the_numbers_of_others: "closed" ["pipes", "dup"];
    protection_is_kept: "protect" ["execute", "read", "none", "read-execute", "pages", "key"];
    memory_moves_as_without: "move" ["keep-mapped", "alias", "fixed", "part", "userfault"];
    memory_that_did_not_move_is_as_without: "move" ["refused", "filled"];
    children_lack_what_was_kept_from_them: "advice" ["before", "resting", "again", "after", "grown"];
}

#[test]
fn python_daemons_keep_their_data() {
    let Some(daemon) = daemon() else { return };
    if let Err(error) = Command::new("python3").arg("--version").output() {
        return skipped!("cases: daemonize.py: no python3: {error}");
    }
    let found = differences(&daemon, &["python3", &source("daemonize.py").to_string_lossy()]);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Starts `inherit` as a user that may not look into this process, with `launcher` before it, and
/// returns all that its file shows; then writes to the file, and has it compare.
fn file_of_another(command: &mut Command) -> (Vec<u8>, String) {
    let file = File::from(memfd_create("ram", MemfdFlags::empty()).unwrap());
    file.set_len(INHERITED_BYTES as u64).unwrap();
    let number = file.as_raw_fd().to_string();
    command.arg(number).uid(NOBODY).gid(NOBODY).current_dir("/").process_group(0);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "filled");
    let mut seen = vec![0; INHERITED_BYTES];
    file.read_exact_at(&mut seen, 0).unwrap();
    file.write_all_at(&[7; INHERITED_BYTES], 0).unwrap();
    writeln!(child.stdin.take().unwrap()).unwrap();
    let said = lines.next().unwrap().unwrap();
    child.wait().unwrap();
    (seen, said)
}

#[test]
fn whoever_gave_the_memory_sees_it() {
    let (Some(_), Some(program)) = (daemon(), build("inherit")) else { return };
    if !rustix::process::geteuid().is_root() {
        return skipped!("cases: inherit: starts a program as another user, which only root can");
    }
    let _guard = match SettingGuard::set(UNPRIVILEGED_USERFAULTFD, 1) {
        Ok(guard) => guard,
        Err(error) => return skipped!("cases: inherit: {error}"),
    };
    let directory = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(directory.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let bindery = fire::bindery().unwrap();
    let shim = bindery.program().with_file_name("libbindery_shim.so");
    let copies = [program.as_path(), bindery.program(), &shim].map(|path| {
        let copied = Command::new("cp").arg(path).arg(directory.path()).status().unwrap();
        assert!(copied.success());
        directory.path().join(path.file_name().unwrap())
    });
    let [program, bindery, shim] = copies;
    let socket = directory.path().join("socket");
    let mut daemon = Command::new(bindery)
        .args(["daemon", "--period", "50ms", "--set", "advisor_mode=none", "--socket"])
        .arg(&socket)
        .uid(NOBODY)
        .gid(NOBODY)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    fire::await_some("the daemon", PATIENCE, || socket.exists().then_some(()), String::new);
    let plain = file_of_another(&mut Command::new(&program));
    let mut managed = Command::new(&program);
    managed.env("LD_PRELOAD", shim).env("BINDERY_SOCKET", &socket).env("CASE_MANAGED", "1");
    let with = file_of_another(&mut managed);
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    assert!(with.0 == plain.0, "the file shows other bytes than the memory");
    assert_eq!((with.1, plain.1.as_str()), (plain.1.clone(), "0 bytes are no sevens"));
}

#[test]
fn a_daemon_keeps_nothing_of_who_started_it() {
    let Some(bindery) = fire::bindery() else { return };
    let directory = tempfile::tempdir().unwrap();
    let (socket, lock) = (directory.path().join("socket"), directory.path().join("lock"));
    // The pipe of our own is descriptor 7 of the command, and of nobody else.
    let script = "\"$0\" run -- true 7>&1 9>\"$1\" >/dev/null 2>/dev/null";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(bindery.program()).arg(&lock).env("BINDERY_SOCKET", &socket);
    let (send, receive) = std::sync::mpsc::channel();
    thread::spawn(move || send.send(command.output().unwrap().status.success()));
    let ended = receive.recv_timeout(Duration::from_secs(20));
    let status =
        Command::new(bindery.program()).arg("status").env("BINDERY_SOCKET", &socket).output();
    let said = String::from_utf8_lossy(&status.unwrap().stdout).into_owned();
    let pid = said.split("of pid ").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = descriptors.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let kept = links.filter(|link| *link == lock).count();
    let stop = Command::new(bindery.program()).arg("stop").env("BINDERY_SOCKET", &socket).output();
    assert!(stop.unwrap().status.success());
    assert_eq!(ended, Ok(true), "whoever reads a pipe of the command sees its end");
    assert_eq!(kept, 0, "a lock of the command is let go");
}
