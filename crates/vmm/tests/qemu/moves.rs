//! Real guests are saved, their memory is copied, and they go on in another QEMU.

use std::time::Duration;

use bindery_testkit::guest::{AioMode, CacheMode, Drive, Qemu as Version};
use bindery_vmm::{
    DeviceState, IncomingVmm, Overlay, PauseTimes, Paused, Purpose, QemuSettings, SaveMethod, Vmm,
    VmmError,
};
use serde_json::json;

use crate::support::{Beat, Bench, Monitored, assert_goes_on, image_info};

/// The longest that an overlay's commit may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

fn says(what: &str, state: &DeviceState, times: PauseTimes) {
    let DeviceState { machine, version, method, bytes } = state;
    println!("{version} {machine} {what}: {} bytes by {method}, {times:?}", bytes.len());
}

/// Saves a guest, copies its memory to `name`, and ends it: nobody writes its disks any more.
fn save_and_end(
    bench: &Bench,
    source: Monitored,
    settings: QemuSettings,
    name: &str,
) -> (DeviceState, Beat) {
    let mut qemu = source.connect(settings);
    let mut paused = Paused::begin(&mut qemu, &[]).unwrap_or_else(|error| panic!("{error}"));
    let state = paused.save(Purpose::HandOver).unwrap_or_else(|error| panic!("{error}"));
    let times = paused.leave_paused().unwrap();
    bench.copy_memory(qemu.qmp(), name);
    // Nothing runs that could beat once more.
    let last = source.beat().expect("it has beaten");
    says("handed over", &state, times);
    drop(qemu);
    source.guest.shut_down();
    (state, last)
}

fn moves(machine: &str, cpus: u32, kernel_arguments: &str) {
    let Some(bench) = Bench::new() else { return };
    for version in Version::ALL {
        let builder = bench.builder(version, machine).cpus(cpus);
        let builder = builder.kernel_arguments(kernel_arguments);
        let name = format!("{version:?}");
        let (mut loaded, mut incoming) = bench.start_incoming(builder.clone(), &name);
        let source = bench.start(builder, &format!("{name}-source"));
        let (state, last) = save_and_end(&bench, source, QemuSettings::default(), &name);
        assert_eq!(state.method, SaveMethod::XenSaveDevicesState);
        let took = incoming.load_device_state(&state).unwrap_or_else(|error| panic!("{error}"));
        println!("{version:?} {machine}: loaded in {took:?}");
        assert_goes_on(&mut loaded, &mut incoming, &last);
        // And once more from there: a loaded guest is one like any other.
        let mut qemu = incoming.into_qemu().unwrap();
        let mut paused = Paused::begin(&mut qemu, &[]).unwrap();
        paused.save(Purpose::Checkpoint).unwrap();
        paused.resume().unwrap();
        loaded.wait_beats(3);
        loaded.guest.shut_down();
    }
}

#[test]
fn pc_guests_go_on_elsewhere() {
    moves("pc", 2, "");
}

#[test]
fn microvm_guests_go_on_elsewhere() {
    // It has one timer to find out the TSC's speed by. On a busy host that fails, and Linux waits for ever.
    moves("microvm,pcie=on,rtc=on", 1, "tsc_early_khz=2000000");
}

#[test]
fn q35_guests_go_on_elsewhere() {
    moves("q35", 1, "");
}

#[test]
fn guests_with_memory_in_a_file_go_on_without_the_xen_command() {
    let Some(bench) = Bench::new() else { return };
    for version in Version::ALL {
        let builder = bench.builder(version, "pc");
        let name = format!("{version:?}");
        let (mut loaded, mut incoming) = bench.start_incoming(builder.clone(), &name);
        let file = bench.memory_file(&format!("{name}-source"));
        let source = bench.start(builder.memory_file(file), &format!("{name}-source"));
        let settings =
            QemuSettings { methods: vec![SaveMethod::IgnoreShared], ..QemuSettings::default() };
        // The guest may run on after it, and is saved again.
        let mut qemu = source.connect(settings.clone());
        let mut paused = Paused::begin(&mut qemu, &[]).unwrap_or_else(|error| panic!("{error}"));
        let first = paused.save(Purpose::Checkpoint).unwrap_or_else(|e| panic!("{e}"));
        let times = paused.resume().unwrap_or_else(|error| panic!("{error}"));
        says("runs on", &first, times);
        drop(qemu);
        let (state, last) = save_and_end(&bench, source, settings, &name);
        assert_eq!(state.method, SaveMethod::IgnoreShared);
        incoming.load_device_state(&state).unwrap_or_else(|error| panic!("{error}"));
        assert_goes_on(&mut loaded, &mut incoming, &last);
        let capabilities = incoming.qmp().execute("query-migrate-capabilities", json!({})).unwrap();
        let left_on = json!({ "capability": "x-ignore-shared", "state": true });
        assert!(!capabilities.as_array().unwrap().contains(&left_on));
        loaded.guest.shut_down();
    }
}

#[test]
fn checkpoints_of_a_running_guest_leave_its_disk_below_an_overlay() {
    let Some(bench) = Bench::new() else { return };
    for version in Version::ALL {
        let disk = bench.path(&format!("{version:?}.raw"));
        std::fs::File::create(&disk).and_then(|file| file.set_len(64 << 20)).unwrap();
        let drive = Drive {
            path: disk.clone(),
            format: "raw",
            cache: CacheMode::None,
            aio: AioMode::Threads,
        };
        let builder = bench.server(version).drive(drive).args(["-name", "alice"]);
        let mut started = bench.start(builder, &format!("{version:?}"));
        started.guest.check("mke2fs -q /dev/vda && mount /dev/vda /mnt && sync").unwrap();
        let writer = "guest_agent writer --dir /mnt/w --direct 1 --rounds 100000 --files 2";
        started.guest.run_in_background("writer", writer).unwrap();

        let mut qemu = started.connect(QemuSettings::default());
        let guest = qemu.describe().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((guest.name.as_deref(), guest.vcpus), (Some("alice"), 1));
        assert!(guest.is_running && guest.obstacles.is_empty(), "{guest:?}");
        let ram = guest.memory.iter().find(|block| block.name == "pc.ram").unwrap();
        assert_eq!((ram.bytes, ram.host_address.is_some()), (256 << 20, version == Version::V10));
        let [root] = &guest.disks[..] else { panic!("{:?}", guest.disks) };
        assert_eq!((&*root.device, &*root.image), ("disk0", disk.to_str().unwrap()));

        let path = bench.path(&format!("{version:?}.qcow2"));
        let overlay_node = "overlay0".to_owned();
        let overlay = Overlay { node: root.node.clone(), path: path.clone(), overlay_node };
        let overlays_before = [overlay];
        let mut paused = Paused::begin(&mut qemu, &overlays_before).unwrap();
        let state = paused.save(Purpose::Checkpoint).unwrap();
        let times = paused.resume().unwrap_or_else(|error| panic!("{error}"));
        says("with disk I/O", &state, times);
        assert!(times.outage.is_some_and(|outage| outage <= times.total), "{times:?}");

        let below = std::fs::read(&disk).unwrap();
        started.wait_beats(20);
        assert!(std::fs::read(&disk).unwrap() == below, "the disk below was written");
        assert_eq!(qemu.describe().unwrap().disks[0].image, path.to_str().unwrap());
        assert!(image_info(bench.kit(), &path).contains(disk.to_str().unwrap()));
        // A second one over nothing that exists, in one transaction with one that could be made: neither is.
        let (good, bad) = (bench.path("good.qcow2"), bench.path("bad.qcow2"));
        let overlays = [
            Overlay {
                node: "overlay0".to_owned(),
                path: good.clone(),
                overlay_node: "a".to_owned(),
            },
            Overlay { node: "nothing".to_owned(), path: bad.clone(), overlay_node: "b".to_owned() },
        ];
        let error = Paused::begin(&mut qemu, &overlays).unwrap_err();
        assert!(matches!(&error, VmmError::Overlay { .. }));
        assert!(error.to_string().contains("nothing"), "{error}");
        assert!(!good.exists() && !bad.exists());
        // What was written since goes down again, and the overlay is gone.
        qemu.commit_overlay(&overlays_before[0], LIMIT).unwrap_or_else(|error| panic!("{error}"));
        assert!(!path.exists() && std::fs::read(&disk).unwrap() != below);
        assert_eq!(qemu.describe().unwrap().disks[0].image, disk.to_str().unwrap());
        started.wait_beats(10);
        // A hand-over that comes to nothing: the guest takes its disks back.
        let mut paused = Paused::begin(&mut qemu, &[]).unwrap();
        paused.save(Purpose::HandOver).unwrap_or_else(|error| panic!("{error}"));
        paused.leave_paused().unwrap();
        qemu.resume().unwrap_or_else(|error| panic!("{error}"));
        started.wait_beats(10);
        assert_eq!(started.guest.kernel_complaints().unwrap(), Vec::<String>::new());
        let log = started.guest.check("cat /tmp/writer.log").unwrap();
        assert_eq!(log, "", "the disk's verifier found wrong pages");
        started.guest.shut_down();
    }
}

/// Prints the figures of the crate's documentation. On a busy machine they are anything.
#[test]
fn a_pause_is_timed_by_qemus_clock() {
    let Some(bench) = Bench::new() else { return };
    for version in Version::ALL {
        let started = bench.start(bench.builder(version, "pc"), &format!("{version:?}"));
        let mut qemu = started.connect(QemuSettings::default());
        let mut pause = || {
            let mut paused = Paused::begin(&mut qemu, &[]).unwrap();
            paused.save(Purpose::Checkpoint).unwrap();
            let times = paused.resume().unwrap();
            let outage = times.outage.unwrap();
            assert!(!outage.is_zero() && outage <= times.total, "{times:?}");
            outage
        };
        let mut outages: Vec<_> = (0..30).map(|_| pause()).collect();
        outages.sort();
        println!(
            "{version:?}: STOP to RESUME {:?} least, {:?} median of 30",
            outages[0], outages[15]
        );
        started.guest.shut_down();
    }
}
