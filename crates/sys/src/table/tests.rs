use std::os::fd::AsFd;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use super::*;
use crate::event::Event;
use crate::socket::wait_readable;

const LONG: Duration = Duration::from_secs(20);

/// Returns true if a table has the file that is called `name`.
fn has(table: &str, name: &Path) -> bool {
    let directory = std::fs::read_dir(format!("/proc/{table}/fd")).expect("proc");
    directory.flatten().any(|entry| std::fs::read_link(entry.path()).is_ok_and(|link| link == name))
}

fn name_of(table: &str, file: &impl AsFd) -> PathBuf {
    let number = file.as_fd().as_raw_fd();
    std::fs::read_link(format!("/proc/{table}/fd/{number}")).expect("an open descriptor")
}

#[test]
fn the_program_has_nothing_of_our_table_and_we_nothing_of_its() {
    start().unwrap();
    let (reader, writer) = io::pipe().unwrap();
    let theirs = name_of("self", &reader);
    assert!(has("self", &theirs) && !run(|| has("thread-self", &theirs)));
    drop(writer);
    assert!(wait_readable(&reader, LONG).unwrap(), "the last writer was here");
    let kept = Kept::open(|| Ok(io::pipe()?.0)).unwrap();
    let ours = kept.with(|pipe| name_of("thread-self", pipe));
    assert!(!has("self", &ours) && run(|| has("thread-self", &ours)));
    drop(kept);
    assert!(!run(|| has("thread-self", &ours)));
}

#[test]
fn nothing_is_written_by_who_writes_to_the_standard_streams() {
    start().unwrap();
    run(|| {
        for number in 0..3 {
            let link = std::fs::read_link(format!("/proc/thread-self/fd/{number}")).unwrap();
            let link = link.to_string_lossy();
            assert!(link == "/dev/null" || link.contains("eventfd"), "{number}: {link}");
        }
    });
}

#[test]
fn errands_at_once_do_not_wait_for_each_other() {
    start().unwrap();
    let all_there = Arc::new(Barrier::new(12));
    std::thread::scope(|scope| {
        for number in 0..12u32 {
            let all_there = &all_there;
            scope.spawn(move || {
                assert_eq!(run(|| (is_inside(), all_there.wait(), number).2), number);
            });
        }
    });
    assert!(!is_inside());
}

#[test]
fn errands_of_errands_are_done_at_once_and_panics_come_back() {
    start().unwrap();
    let same = run(|| std::thread::current().id() == run(|| std::thread::current().id()));
    assert!(same);
    let panic = catch_unwind(|| run(|| panic!("as it was"))).unwrap_err();
    assert_eq!(*panic.downcast_ref::<String>().unwrap(), "as it was");
    assert_eq!(run(|| 5), 5);
}

#[test]
fn many_small_errands_are_each_done_once() {
    start().unwrap();
    let (done, bell) = (AtomicU32::new(0), Bell::new().unwrap());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    run(|| done.fetch_add(1, Ordering::Relaxed));
                    bell.ring();
                }
            });
        }
    });
    assert_eq!(done.into_inner(), 16_000);
    let rung = || run(|| wait_readable(bell.event(), LONG).unwrap());
    assert!(rung());
    // The last of them may be on its way yet.
    while bell.is_on_its_way() {
        std::thread::yield_now();
    }
    bell.clear();
    assert!(!run(|| wait_readable(bell.event(), Duration::ZERO).unwrap()));
    bell.ring();
    assert!(rung());
}

#[test]
fn a_descriptor_can_be_moved_in() {
    start().unwrap();
    let (reader, writer) = io::pipe().unwrap();
    let moved = match adopt(writer.into()) {
        Ok(moved) => moved,
        Err(error) => {
            bindery_testkit::skipped!("pidfd_getfd: {error}");
            return;
        }
    };
    assert!(!wait_readable(&reader, Duration::ZERO).unwrap(), "it is open still");
    moved.with(|writer| rustix::io::write(writer.as_fd(), b"x")).unwrap();
    drop(moved);
    let mut read = String::new();
    io::Read::read_to_string(&mut &reader, &mut read).unwrap();
    assert_eq!(read, "x");
}

#[test]
fn a_broken_pipe_raises_no_signal_in_the_program() {
    start().unwrap();
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    // SAFETY: the test's own process; the default would end it.
    let before = unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let Ok(broken) = adopt(writer.into()) else {
        bindery_testkit::skipped!("pidfd_getfd is refused");
        return;
    };
    let result = broken.with(|pipe| rustix::io::write(pipe.as_fd(), b"x"));
    assert_eq!(result, Err(rustix::io::Errno::PIPE));
    // SAFETY: as above.
    unsafe { libc::signal(libc::SIGPIPE, before) };
}

/// The program's numbers, from 3 on, are closed under our feet.
#[test]
fn no_call_of_the_program_reaches_our_table() {
    start().unwrap();
    let event = Kept::open(Event::new).unwrap();
    let number = event.with(|event| event.as_fd().as_raw_fd());
    std::thread::spawn(move || {
        // A copy of the program's table, so that other tests keep theirs.
        // SAFETY: this thread uses no descriptor.
        assert_eq!(unsafe { syscall!(libc::SYS_unshare, libc::CLONE_FILES) }, 0);
        // SAFETY: the same.
        unsafe {
            assert_eq!(syscall!(libc::SYS_close_range, 3, u32::MAX, 0), 0);
            assert!(syscall!(libc::SYS_dup3, 2, number, 0) == i64::from(number) || number == 2);
        }
        event.with(Event::notify);
        assert!(event.with(|event| wait_readable(event, Duration::ZERO).unwrap()));
    })
    .join()
    .unwrap();
}
