//! Whatever cannot be saved or loaded is refused with its name, and the guest runs on.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{Bench, signal};
use bindery_testkit::guest::Qemu as Version;
use bindery_vmm::qmp::{Event, QmpError};
use bindery_vmm::{
    DeviceState, GuestAfter, IncomingQemu, IncomingVmm, Paused, Purpose, QemuSettings, SaveMethod,
    Vmm, VmmError,
};

/// Goes through a whole pause.
fn save(vmm: &mut dyn Vmm) -> Result<DeviceState, VmmError> {
    let mut paused = Paused::begin(vmm, &[])?;
    let state = paused.save(Purpose::Checkpoint)?;
    paused.resume().map(|_| state)
}

#[test]
fn a_device_that_cannot_be_saved_is_refused_by_name() {
    let Some(bench) = Bench::new() else { return };
    let disk = bench.path("nvme.raw");
    std::fs::File::create(&disk).and_then(|file| file.set_len(1 << 20)).unwrap();
    for version in Version::ALL {
        let drive = format!("if=none,id=n0,file={},format=raw", disk.display());
        let nvme = ["-drive", &drive, "-device", "nvme,drive=n0,serial=1"];
        let builder = bench.builder(version, "pc").args(nvme);
        let mut started = bench.start(builder, &format!("{version:?}"));
        let mut qemu = started.connect(QemuSettings::default());
        let error = save(&mut qemu).unwrap_err();
        assert!(
            matches!(error, VmmError::Obstructed(_)) && error.to_string().contains("nvme"),
            "{error}"
        );
        assert!(qemu.describe().unwrap().obstacles[0].what.contains("nvme"));
        started.wait_beats(3);
        started.guest.shut_down();
    }
}

#[test]
fn a_guest_whose_state_cannot_be_written_runs_on() {
    let Some(bench) = Bench::new() else { return };
    for version in Version::ALL {
        let mut started = bench.start(bench.builder(version, "pc"), &format!("{version:?}"));
        // Neither a directory that is not there nor a descriptor that nobody passed can be written to.
        for directory in ["/nonexistent", "/dev/fdset"] {
            let mut qemu = started.connect(QemuSettings {
                state_directory: Some(directory.into()),
                ..QemuSettings::default()
            });
            let error = save(&mut qemu).unwrap_err();
            assert!(
                matches!(error, VmmError::Interrupted { guest: GuestAfter::RunsOn, .. }),
                "{error}"
            );
            started.wait_beats(3);
        }
        let mut qemu =
            started.connect(QemuSettings { state_bytes_max: 1000, ..Default::default() });
        let error = save(&mut qemu).unwrap_err().to_string();
        assert!(error.contains("1000") && error.contains("the guest runs on"), "{error}");
        drop(qemu);
        // A path works where descriptors cannot be passed, and nothing is left there.
        let directory = bench.path(&format!("{version:?}-states"));
        std::fs::create_dir(&directory).unwrap();
        let mut qemu = started.connect(QemuSettings {
            state_directory: Some(directory.clone()),
            ..QemuSettings::default()
        });
        assert!(save(&mut qemu).unwrap().bytes.len() > 1000);
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
        started.wait_beats(3);
        started.guest.shut_down();
    }
}

#[test]
fn a_state_is_read_only_once_it_is_written() {
    let Some(bench) = Bench::new() else { return };
    // A `cat` that QEMU has done with long before it has written anything.
    let slow = "#!/bin/sh\nstate=$(mktemp) && /bin/cat > $state && sleep 0.5 && /bin/cat $state; rm $state\n";
    let (bin, states) = (bench.path("bin"), bench.path("states"));
    std::fs::create_dir(&bin).and_then(|()| std::fs::create_dir(&states)).unwrap();
    std::fs::write(bin.join("cat"), slow).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(bin.join("cat"), executable).unwrap();
    for version in Version::ALL {
        let name = format!("{version:?}");
        let builder = bench.builder(version, "pc").memory_file(bench.memory_file(&name));
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let mut started = bench.spawn(builder.env("PATH", path), &name);
        started.wait_monitor();
        let settings = QemuSettings {
            methods: vec![SaveMethod::IgnoreShared],
            state_directory: Some(states.clone()),
            ..Default::default()
        };
        let state = save(&mut started.connect(settings)).unwrap_or_else(|e| panic!("{e}"));
        // The description of its sections is the end of it.
        assert!(state.bytes.ends_with(b"}]}"), "{} bytes", state.bytes.len());
        assert_eq!(std::fs::read_dir(&states).unwrap().count(), 0);
        started.guest.shut_down();
    }
}

#[test]
fn a_guest_with_private_memory_has_no_other_way() {
    let Some(bench) = Bench::new() else { return };
    let mut started = bench.spawn(bench.builder(Version::V10, "pc"), "private");
    started.wait_monitor();
    let settings = QemuSettings { methods: vec![SaveMethod::IgnoreShared], ..Default::default() };
    let error = save(&mut started.connect(settings)).unwrap_err().to_string();
    assert!(error.contains("memory-backend-file,share=on"), "{error}");
    started.guest.shut_down();
}

#[test]
fn locked_memory_is_refused() {
    let Some(bench) = Bench::new() else { return };
    let builder = bench.builder(Version::V10, "pc").args(["-overcommit", "mem-lock=on"]);
    let mut started = bench.spawn(builder, "locked");
    started.wait_monitor();
    let error = save(&mut started.connect(QemuSettings::default())).unwrap_err().to_string();
    assert!(error.contains("locked") && error.contains("mem-lock=off"), "{error}");
    started.guest.shut_down();
}

#[test]
fn a_migration_under_way_is_not_disturbed() {
    let Some(bench) = Bench::new() else { return };
    for version in Version::ALL {
        let mut started = bench.start(bench.builder(version, "pc"), &format!("{version:?}"));
        let mut qemu = started.connect(QemuSettings::default());
        let qmp = qemu.qmp();
        qmp.execute("migrate-set-parameters", json!({ "max-bandwidth": 4096 })).unwrap();
        let events = json!({ "capabilities": [{ "capability": "events", "state": true }] });
        qmp.execute("migrate-set-capabilities", events).unwrap();
        qmp.execute("migrate", json!({ "uri": "exec:cat > /dev/null" })).unwrap();
        let error = save(&mut qemu).unwrap_err();
        assert!(matches!(error, VmmError::Obstructed(_)), "{error}");
        assert!(error.to_string().contains("migrate_cancel"), "{error}");
        let qmp = qemu.qmp();
        qmp.execute("migrate_cancel", json!({})).unwrap();
        let is_over = |event: &Event| event.data["status"] == "cancelled";
        qmp.wait_event(is_over, Duration::from_secs(30)).unwrap().unwrap();
        save(&mut qemu).unwrap_or_else(|error| panic!("{error}"));
        started.wait_beats(3);
        started.guest.shut_down();
    }
}

#[test]
fn a_guest_that_stands_stays_as_it_is() {
    let Some(bench) = Bench::new() else { return };
    for version in Version::ALL {
        let name = format!("{version:?}");
        let mut started = bench.spawn(bench.builder(version, "pc").args(["-S"]), &name);
        started.wait_monitor();
        let mut qemu = started.connect(QemuSettings::default());
        let error = save(&mut qemu).unwrap_err().to_string();
        assert!(error.contains("prelaunch") && error.contains("cont"), "{error}");
        for command in ["cont", "stop"] {
            qemu.qmp().execute(command, json!({})).unwrap();
        }
        save(&mut qemu).unwrap_or_else(|error| panic!("{error}"));
        assert!(!qemu.describe().unwrap().is_running);
        // Somebody else lets it run in the middle of a pause.
        let mut paused = Paused::begin(&mut qemu, &[]).unwrap();
        paused.save(Purpose::Checkpoint).unwrap();
        started.guest.qmp().unwrap().execute("cont", &json!({})).unwrap();
        assert!(is_disturbed(&paused.resume().unwrap_err()));
        // One that fails after somebody else ended it is not said to stand, and nobody waits for its start.
        drop(qemu);
        let settings = QemuSettings { state_bytes_max: 1000, ..Default::default() };
        let limit = settings.answer_limit;
        let mut qemu = started.connect(settings);
        let mut paused = Paused::begin(&mut qemu, &[]).unwrap();
        started.guest.qmp().unwrap().execute("cont", &json!({})).unwrap();
        let begun = Instant::now();
        let error = paused.save(Purpose::Checkpoint).unwrap_err();
        assert!(
            matches!(error, VmmError::Interrupted { guest: GuestAfter::RunsOn, .. }),
            "{error}"
        );
        assert!(begun.elapsed() < limit, "{error}");
        started.guest.shut_down();
    }
}

fn is_disturbed(error: &VmmError) -> bool {
    matches!(error, VmmError::Interrupted { error, guest: GuestAfter::Theirs, .. }
        if matches!(**error, VmmError::Disturbed))
}

#[test]
fn a_short_run_by_others_in_a_pause_is_noticed() {
    let Some(bench) = Bench::new() else { return };
    for version in Version::ALL {
        let name = format!("{version:?}");
        let builder = bench.builder(version, "pc").memory_file(bench.memory_file(&name));
        let mut started = bench.spawn(builder, &name);
        started.wait_monitor();
        for method in [SaveMethod::XenSaveDevicesState, SaveMethod::IgnoreShared] {
            // The first one leaves it paused.
            started.guest.qmp().unwrap().execute("cont", &json!({})).unwrap();
            let mut qemu =
                started.connect(QemuSettings { methods: vec![method], ..Default::default() });
            let mut paused =
                Paused::begin(&mut qemu, &[]).unwrap_or_else(|error| panic!("{error}"));
            for command in ["cont", "stop"] {
                started.guest.qmp().unwrap().execute(command, &json!({})).unwrap();
            }
            paused.save(Purpose::Checkpoint).unwrap_or_else(|error| panic!("{error}"));
            assert!(is_disturbed(&paused.resume().unwrap_err()), "{version:?} {method}");
        }
        // A migration would not leave a paused guest in that state.
        for command in ["cont", "stop"] {
            started.guest.qmp().unwrap().execute(command, &json!({})).unwrap();
        }
        let methods = vec![SaveMethod::IgnoreShared];
        let mut qemu = started.connect(QemuSettings { methods, ..Default::default() });
        let error = save(&mut qemu).unwrap_err();
        assert!(matches!(error, VmmError::Obstructed(_)), "{error}");
        assert!(error.to_string().contains("is paused"), "{error}");
        started.guest.shut_down();
    }
}

#[test]
fn a_qemu_that_hangs_is_an_error_in_time() {
    let Some(bench) = Bench::new() else { return };
    let mut started = bench.start(bench.builder(Version::V10, "pc"), "hangs");
    let limit = Duration::from_millis(300);
    let settings = QemuSettings { answer_limit: limit, save_limit: limit, ..Default::default() };
    let mut qemu = started.connect(settings);
    signal(qemu.pid(), "STOP");
    let begun = Instant::now();
    let error = save(&mut qemu).unwrap_err();
    let took = begun.elapsed();
    signal(qemu.pid(), "CONT");
    assert!(matches!(error, VmmError::Qmp(QmpError::Silent { .. })), "{error}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    started.wait_beats(3);
    save(&mut qemu).unwrap_or_else(|error| panic!("{error}"));
    started.wait_beats(3);
    started.guest.shut_down();
}

#[test]
fn a_qemu_that_ends_in_a_pause_is_an_error() {
    let Some(bench) = Bench::new() else { return };
    for version in Version::ALL {
        let name = format!("{version:?}");
        let mut started = bench.spawn(bench.builder(version, "pc"), &name);
        started.wait_monitor();
        let mut qemu = started.connect(QemuSettings::default());
        let pid = qemu.pid();
        let mut paused = Paused::begin(&mut qemu, &[]).unwrap();
        signal(pid, "KILL");
        let error = paused.save(Purpose::Checkpoint).unwrap_err();
        let VmmError::Interrupted { error, guest: GuestAfter::Stuck(Some(_)), .. } = error else {
            panic!("{error}")
        };
        assert!(matches!(*error, VmmError::Qmp(QmpError::Ended)), "{error}");
    }
}

#[test]
fn a_state_that_does_not_fit_is_refused_in_qemus_words() {
    let Some(bench) = Bench::new() else { return };
    for version in Version::ALL {
        let started = bench.start(bench.builder(version, "pc"), &format!("{version:?}"));
        let state = save(&mut started.connect(QemuSettings::default())).unwrap();
        let error = connect_incoming(&started.monitor).unwrap_err();
        assert!(matches!(&error, VmmError::NotIncoming { state } if state == "running"), "{error}");
        started.guest.shut_down();

        let name = format!("{version:?}-q35");
        let (_other, mut incoming) = bench.start_incoming(bench.builder(version, "q35"), &name);
        let error = incoming.load_device_state(&state).unwrap_err();
        assert!(matches!(error, VmmError::Machine { .. }), "{error}");
        let machine = incoming.machine().to_owned();
        // As one of another machine that calls itself by the right name.
        let error =
            incoming.load_device_state(&DeviceState { machine, ..state.clone() }).unwrap_err();
        let VmmError::Load { words } = &error else { panic!("{error}") };
        assert!(version == Version::V7 || words.contains("load of migration failed"), "{words}");

        let name = format!("{version:?}-cut");
        let (_cut, mut incoming) = bench.start_incoming(bench.builder(version, "pc"), &name);
        let bytes = state.bytes[..state.bytes.len() / 2].to_vec();
        let error =
            incoming.load_device_state(&DeviceState { bytes, ..state.clone() }).unwrap_err();
        let VmmError::Load { words } = &error else { panic!("{error}") };
        println!("{version:?}: {words}");
    }
}

fn connect_incoming(monitor: &Path) -> Result<IncomingQemu, VmmError> {
    IncomingQemu::connect(monitor, QemuSettings::default())
}

#[test]
fn a_guest_that_starts_by_itself_is_noticed() {
    let Some(bench) = Bench::new() else { return };
    for version in Version::ALL {
        let name = format!("{version:?}");
        let started = bench.start(bench.builder(version, "pc"), &name);
        let file = bench.memory_file("itself");
        let builder = bench.builder(version, "pc").memory_file(file).incoming("defer");
        let mut itself = bench.spawn(builder, &format!("{name}-itself"));
        itself.wait_monitor();
        let mut qemu = started.connect(QemuSettings::default());
        let mut paused = Paused::begin(&mut qemu, &[]).unwrap();
        let state = paused.save(Purpose::HandOver).unwrap();
        paused.leave_paused().unwrap();
        bench.copy_memory(qemu.qmp(), "itself");
        started.guest.shut_down();
        let error =
            connect_incoming(&itself.monitor).unwrap().load_device_state(&state).unwrap_err();
        assert!(matches!(error, VmmError::StartedItself), "{error}");
        itself.guest.shut_down();
    }
}
