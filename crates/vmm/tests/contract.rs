//! The contract of a pause, whatever the VMM: one of callbacks records them, and fails where it is told.

use std::time::{Duration, SystemTime};

use bindery_vmm::qmp::QmpError;
use bindery_vmm::{
    DeviceState, GuestAfter, GuestDescription, Obstacle, Overlay, Pause, Paused, Purpose,
    SaveMethod, Vmm, VmmError,
};

/// The calls of a whole pause, in order.
const WHOLE: [&str; 6] = ["prepare", "pause", "snapshot", "save", "check", "resume"];

/// Records calls, and fails in those named.
#[derive(Default)]
struct Recorder {
    calls: Vec<&'static str>,
    fails: Vec<&'static str>,
    was_paused: bool,
    is_disturbed: bool,
    is_in_doubt: bool,
    runs_already: bool,
}

impl Recorder {
    fn failing(fails: &[&'static str]) -> Self {
        Self { fails: fails.to_vec(), ..Self::default() }
    }

    fn call(&mut self, name: &'static str) -> Result<(), VmmError> {
        self.calls.push(name);
        if self.fails.contains(&name) {
            let (doing, reason) = (name.to_owned(), "it was told to fail".to_owned());
            return Err(VmmError::Callback { doing, reason });
        }
        Ok(())
    }

    /// A clock that ticks once a call.
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(self.calls.len() as u64)
    }
}

impl Vmm for Recorder {
    fn describe(&mut self) -> Result<GuestDescription, VmmError> {
        self.call("describe")?;
        Ok(GuestDescription {
            name: None,
            machine: "recorder".to_owned(),
            version: "1".to_owned(),
            vcpus: 1,
            is_running: !self.was_paused,
            memory: Vec::new(),
            disks: Vec::new(),
            plugged_arguments: Vec::new(),
            obstacles: Vec::new(),
        })
    }

    fn prepare_overlays(&mut self, _overlays: &[Overlay]) -> Result<(), VmmError> {
        self.call("prepare")
    }

    fn discard_overlays(&mut self, _overlays: &[Overlay]) {
        self.calls.push("discard");
    }

    fn pause(&mut self) -> Result<Pause, VmmError> {
        self.call("pause")?;
        Ok(if self.was_paused { Pause::WasPaused } else { Pause::Stopped { at: self.now() } })
    }

    fn snapshot_disks(&mut self, _overlays: &[Overlay]) -> Result<(), VmmError> {
        self.call("snapshot")?;
        if self.is_in_doubt { Err(VmmError::OverlaysInDoubt(QmpError::Ended)) } else { Ok(()) }
    }

    fn save_device_state(&mut self, _purpose: Purpose) -> Result<DeviceState, VmmError> {
        self.call("save")?;
        Ok(DeviceState {
            machine: "recorder".to_owned(),
            version: "1".to_owned(),
            method: SaveMethod::Callback,
            bytes: vec![1, 2, 3],
        })
    }

    fn check_paused(&mut self) -> Result<(), VmmError> {
        self.call("check")?;
        if self.is_disturbed { Err(VmmError::Disturbed) } else { Ok(()) }
    }

    fn resume(&mut self) -> Result<SystemTime, VmmError> {
        self.call("resume")?;
        if self.runs_already { Err(VmmError::Disturbed) } else { Ok(self.now()) }
    }
}

fn overlay() -> Overlay {
    let node = "disk0".to_owned();
    Overlay { node, path: "/overlays/disk0.qcow2".into(), overlay_node: "overlay0".to_owned() }
}

/// Goes through a whole pause.
fn save(vmm: &mut Recorder) -> Result<Option<Duration>, VmmError> {
    let overlays = [overlay()];
    let mut paused = Paused::begin(vmm, &overlays)?;
    paused.save(Purpose::Checkpoint)?;
    paused.resume().map(|times| times.outage)
}

#[test]
fn disks_come_before_device_state_and_time_is_the_vmms() {
    let mut vmm = Recorder::default();
    assert_eq!(save(&mut vmm).unwrap(), Some(Duration::from_millis(4)));
    assert_eq!(vmm.calls, WHOLE);
}

#[test]
fn a_failure_at_any_call_leaves_the_guest_running() {
    for (at, name) in WHOLE.iter().enumerate().skip(2).take(3) {
        let mut vmm = Recorder::failing(&[name]);
        let error = save(&mut vmm).unwrap_err();
        let VmmError::Interrupted { guest: GuestAfter::RunsOn, overlays, .. } = &error else {
            panic!("{name}: {error}")
        };
        assert_eq!(overlays.is_empty(), *name == "snapshot", "{error}");
        assert!(error.to_string().contains("the guest runs on"), "{error}");
        let after = if *name == "snapshot" { &["resume", "discard"][..] } else { &["resume"] };
        assert_eq!(vmm.calls, [&WHOLE[..=at], after].concat());
    }
}

#[test]
fn a_pause_that_fails_touches_nothing() {
    let mut vmm = Recorder::failing(&["pause"]);
    assert!(matches!(save(&mut vmm).unwrap_err(), VmmError::Callback { .. }));
    assert_eq!(vmm.calls, ["prepare", "pause", "discard"]);
    let mut vmm = Recorder::failing(&["prepare"]);
    assert!(matches!(save(&mut vmm).unwrap_err(), VmmError::Callback { .. }));
    assert_eq!(vmm.calls, ["prepare"]);
}

#[test]
fn a_guest_that_cannot_be_resumed_is_said_to_stand() {
    for fails in [&["save", "resume"][..], &["resume"]] {
        let error = save(&mut Recorder::failing(fails)).unwrap_err();
        assert!(
            matches!(error, VmmError::Interrupted { guest: GuestAfter::Stuck(_), .. }),
            "{error}"
        );
        assert!(error.to_string().contains("MAY STAND STILL"), "{error}");
    }
}

#[test]
fn a_paused_guest_stays_paused() {
    let mut vmm = Recorder { was_paused: true, ..Recorder::default() };
    assert_eq!(save(&mut vmm).unwrap(), None);
    assert_eq!(vmm.calls, WHOLE[..5]);
    let mut vmm = Recorder { was_paused: true, ..Recorder::failing(&["save"]) };
    let error = save(&mut vmm).unwrap_err();
    assert!(error.to_string().contains("paused, as it was"), "{error}");
    assert_eq!(vmm.calls, WHOLE[..4]);
}

#[test]
fn a_guest_that_others_resumed_is_left_to_them() {
    let mut vmm = Recorder { is_disturbed: true, ..Recorder::default() };
    let error = save(&mut vmm).unwrap_err();
    let VmmError::Interrupted { error: cause, guest: GuestAfter::Theirs, .. } = &error else {
        panic!("{error}")
    };
    assert!(matches!(**cause, VmmError::Disturbed), "{error}");
    assert!(error.to_string().contains("must stay: /overlays/disk0.qcow2"), "{error}");
    assert_eq!(vmm.calls, WHOLE[..5]);
}

#[test]
fn a_guest_that_runs_already_is_not_said_to_stand() {
    let mut vmm = Recorder { runs_already: true, ..Recorder::failing(&["save"]) };
    let error = save(&mut vmm).unwrap_err().to_string();
    assert!(error.contains("the guest runs on"), "{error}");
    let mut vmm = Recorder { runs_already: true, ..Recorder::default() };
    let error = save(&mut vmm).unwrap_err().to_string();
    assert!(error.contains("left to whoever resumed it"), "{error}");
}

#[test]
fn overlays_that_may_be_in_use_are_kept_and_named() {
    let mut vmm = Recorder { is_in_doubt: true, ..Recorder::default() };
    let error = save(&mut vmm).unwrap_err().to_string();
    assert!(error.contains("must stay: /overlays/disk0.qcow2"), "{error}");
    assert_eq!(vmm.calls, ["prepare", "pause", "snapshot", "resume"]);
}

#[test]
fn a_pause_ends_when_it_is_dropped_or_abandoned() {
    let mut vmm = Recorder::default();
    let overlays = [overlay()];
    drop(Paused::begin(&mut vmm, &overlays).unwrap());
    assert_eq!(vmm.calls, ["prepare", "pause", "resume", "discard"]);

    let mut vmm = Recorder::default();
    let mut paused = Paused::begin(&mut vmm, &overlays).unwrap();
    paused.save(Purpose::Checkpoint).unwrap();
    let own = VmmError::Obstructed(vec![Obstacle::new("the pool is full", "add a device")]);
    let error = paused.abandon(own).to_string();
    for part in ["the pool is full (add a device)", "the guest runs on", "/overlays/disk0.qcow2"] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(vmm.calls, [&WHOLE[..4], &["resume"]].concat());
}

#[test]
fn a_guest_that_goes_on_elsewhere_stays_paused() {
    let mut vmm = Recorder::default();
    let mut paused = Paused::begin(&mut vmm, &[]).unwrap();
    paused.save(Purpose::HandOver).unwrap();
    assert_eq!(paused.leave_paused().unwrap().outage, None);
    assert_eq!(vmm.calls, ["prepare", "pause", "save", "check"]);
}
