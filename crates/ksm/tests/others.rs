//! The seed's third objection: "When the advisor is active we want to disable that other users can
//! manually set the scan rate". And whoever stops KSM has the right to.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bindery_advisor::Mode;
use bindery_ksm::{Event, Suspect};
use common::{Memory, Piloted, file, ksm, settings, wait_until};

/// Another process that writes a setting and stays until it is dropped, so that it can be named.
struct Writer(Child);

impl Writer {
    fn start(setting: &str, value: &str) -> Self {
        let script = format!("echo {value} > /sys/kernel/mm/ksm/{setting}; read end");
        let shell = Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()).spawn();
        Self(shell.unwrap())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn foreign(event: &Event) -> Option<(&'static str, String, String, Option<Suspect>)> {
    match event {
        Event::ForeignWrite { setting, found, restored, suspect, .. } => {
            Some((*setting, found.clone(), restored.clone(), suspect.clone()))
        }
        _ => None,
    }
}

#[test]
fn nobody_else_sets_the_rate_meanwhile() {
    let Some(_ksm) = ksm("nobody_else_sets_the_rate_meanwhile") else { return };
    let _memory = Memory::offer(1000);
    let pilot = Piloted::start(settings(Mode::Steady, 1));
    let names_writers = pilot.next(|event| match event {
        Event::Started { names_writers, .. } => Some(*names_writers),
        _ => None,
    });
    let mut writes = vec![("pages_to_scan", "7"), ("sleep_millisecs", "999")];
    if std::path::Path::new("/sys/kernel/mm/ksm/advisor_mode").exists() {
        writes.push(("advisor_mode", "scan-time"));
    }
    for (setting, value) in &writes {
        let writer = Writer::start(setting, value);
        let (reported, found, restored, suspect) = pilot.next(foreign);
        assert_eq!((reported, found.as_str()), (*setting, *value));
        if names_writers {
            let command = Some("sh".to_owned());
            assert_eq!(suspect, Some(Suspect { pid: writer.0.id(), command }));
        }
        wait_until("the value of before", || {
            let now = file(setting);
            now == restored || now.contains(&format!("[{restored}]"))
        });
    }
    // Someone who does not give up.
    let script = "for i in $(seq 300); do echo 7 > /sys/kernel/mm/ksm/pages_to_scan; done";
    assert!(Command::new("sh").args(["-c", script]).status().unwrap().success());
    wait_until("an end of it", || file("pages_to_scan") != "7");
    let totals = pilot.end();
    println!("{} foreign writes were put back", totals.foreign_writes);
    assert!(totals.foreign_writes > writes.len() as u64);
    assert_eq!((file("pages_to_scan").as_str(), file("sleep_millisecs").as_str()), ("100", "20"));
}

/// Runs `script` in a shell again and again for `time`, in KSM's directory.
fn write_for(time: Duration, script: &str) {
    let script = format!("cd /sys/kernel/mm/ksm; while [ ! -e \"$0\" ]; do {script}; done");
    let directory = tempfile::tempdir().unwrap();
    let end = directory.path().join("end");
    let mut shell = Writer(Command::new("sh").args(["-c", &script]).arg(&end).spawn().unwrap());
    std::thread::sleep(time);
    std::fs::write(&end, "").unwrap();
    assert!(shell.0.wait().unwrap().success());
}

#[test]
fn a_quarrel_has_its_bounds_and_is_told_of_together() {
    let Some(_ksm) = ksm("a_quarrel_has_its_bounds_and_is_told_of_together") else { return };
    let _memory = Memory::offer(1000);
    let pilot = Piloted::start(settings(Mode::Steady, 1));
    let begun = Instant::now();
    write_for(Duration::from_secs(3), "echo 7 > pages_to_scan");
    let mut together = 0;
    wait_until("an end of it", || file("pages_to_scan") != "7");
    let totals = pilot.end_with(|event| {
        if let Event::ForeignWrite { setting: "pages_to_scan", count, .. } = event {
            together += u64::from(count > 1);
        }
    });
    let seconds = begun.elapsed().as_secs() + 1;
    assert!(together >= 1, "nothing was told of together");
    // Five at once, and one a tick, of which there are five a second.
    assert!(totals.foreign_writes <= 5 + 6 * seconds, "{} in {seconds} s", totals.foreign_writes);
    println!("{} were put back in {seconds} s, {together} times together", totals.foreign_writes);
}

#[test]
fn who_switches_the_kernels_advisor_on_again_and_again_does_not_end_it() {
    let test = "who_switches_the_kernels_advisor_on_again_and_again_does_not_end_it";
    let Some(_ksm) = ksm(test) else { return };
    if !std::path::Path::new("/sys/kernel/mm/ksm/advisor_mode").exists() {
        return bindery_testkit::skipped!("{test}: this kernel has no advisor");
    }
    let _memory = Memory::offer(1000);
    let pilot = Piloted::start(settings(Mode::Steady, 1));
    write_for(Duration::from_secs(3), "echo scan-time > advisor_mode");
    wait_until("an end of it", || file("advisor_mode") == "[none] scan-time");
    pilot.next(|event| matches!(event, Event::KsmAdvisor { .. }).then_some(()));
    assert!(pilot.end().foreign_writes > 0);
    assert_eq!((file("pages_to_scan").as_str(), file("sleep_millisecs").as_str()), ("100", "20"));
}

#[test]
fn who_stops_ksm_is_let_and_named() {
    let Some(ksm) = ksm("who_stops_ksm_is_let_and_named") else { return };
    let _memory = Memory::offer(1000);
    let pilot = Piloted::start(settings(Mode::Steady, 1));
    pilot.next(|event| matches!(event, Event::KsmAdvisor { .. }).then_some(()));
    let writer = Writer::start("run", "0");
    let suspect = pilot.next(|event| match event {
        Event::KsmStopped { run: 0, suspect } => Some(suspect.clone()),
        _ => None,
    });
    if let Some(suspect) = suspect {
        assert_eq!(suspect.pid, writer.0.id());
    }
    let scans = file("full_scans");
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!((file("run").as_str(), file("full_scans")), ("0", scans), "it is left alone");
    ksm.resume().unwrap();
    pilot.next(|event| matches!(event, Event::KsmRunning).then_some(()));
    // The scan that stood still is told of as what it was, and the next one as whole again.
    pilot.next(|event| matches!(event, Event::KsmAdvisor { is_whole: false, .. }).then_some(()));
    pilot.next(|event| matches!(event, Event::KsmAdvisor { is_whole: true, .. }).then_some(()));
    pilot.end();
}
