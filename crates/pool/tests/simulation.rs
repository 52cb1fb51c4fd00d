//! The simulated machine is as bad as it should be, and no worse.

mod simulated;

use std::collections::BTreeSet;
use std::io::ErrorKind;

use bindery_pool::BLOCK_BYTES;
use bindery_pool::device::Device;
use bindery_sys::direct::Buffer;
use simulated::{Fault, Machine, Simulated};

const BLOCK: u64 = BLOCK_BYTES as u64;

fn filled(byte: u8) -> Buffer {
    let mut buffer = Buffer::zeroed(BLOCK_BYTES);
    buffer.fill(byte);
    buffer
}

fn read(device: &Simulated, block: u64) -> std::io::Result<Vec<u8>> {
    let mut buffer = Buffer::zeroed(BLOCK_BYTES);
    device.read(block * BLOCK, &mut buffer)?;
    Ok(buffer.to_vec())
}

/// Everything that may become of writes that were not synced becomes of them, sooner or later.
#[test]
fn what_was_not_synced_is_kept_lost_torn_and_reordered() {
    let mut seen = BTreeSet::new();
    for seed in 0..400 {
        let mut machine = Machine::new();
        let device = machine.device(4 * BLOCK);
        device.write(0, &filled(1)).unwrap();
        device.write(2 * BLOCK, &filled(9)).unwrap();
        device.sync().unwrap();
        for byte in [2, 3] {
            device.write(0, &filled(byte)).unwrap();
        }
        device.write(BLOCK, &filled(4)).unwrap();
        assert_eq!(read(&device, 0).unwrap()[..], filled(3)[..]);
        machine.restart(seed);
        assert_eq!(read(&device, 2).unwrap()[..], filled(9)[..], "what was synced is there");
        let mut sectors = read(&device, 0).unwrap();
        sectors.dedup();
        let later = read(&device, 1).unwrap().contains(&4);
        seen.insert((sectors, later));
    }
    for (sectors, later) in [
        (vec![1], false),
        (vec![3], true),
        (vec![1], true),
        (vec![3], false),
        // What was written first came last.
        (vec![2], true),
    ] {
        assert!(seen.contains(&(sectors.clone(), later)), "{sectors:?} {later}");
    }
    assert!(seen.iter().any(|(sectors, _)| sectors.len() > 2), "none was torn");
}

#[test]
fn the_power_fails_where_it_is_told_to() {
    let mut machine = Machine::new();
    let devices = [machine.device(BLOCK), machine.device(BLOCK)];
    machine.fail_power_after(2);
    devices[0].write(0, &filled(1)).unwrap();
    devices[0].sync().unwrap();
    devices[1].write(0, &filled(1)).unwrap_err();
    assert!(machine.is_off());
    for device in &devices {
        read(device, 0).unwrap_err();
        device.sync().unwrap_err();
    }
    assert_eq!(machine.operations(), 3);
    machine.restart(1);
    assert_eq!(read(&devices[0], 0).unwrap()[..], filled(1)[..]);
    devices[1].write(0, &filled(2)).unwrap();
    devices[1].sync().unwrap();
}

#[test]
fn devices_fail_as_they_are_told_to() {
    let mut machine = Machine::new();
    let device = machine.device(4 * BLOCK);
    let mut long = Buffer::zeroed(2 * BLOCK_BYTES);
    long.fill(5);
    device.fail(1..2, Fault::Short);
    device.fail(2..3, Fault::Full);
    device.write(0, &filled(1)).unwrap();
    assert_eq!(device.write(0, &long).unwrap_err().raw_os_error(), Some(5));
    assert_eq!(read(&device, 0).unwrap()[..], filled(5)[..]);
    assert_eq!(read(&device, 1).unwrap()[..], filled(0)[..]);
    assert_eq!(device.write(0, &long).unwrap_err().kind(), ErrorKind::StorageFull);
    device.write(0, &long).unwrap();

    device.spoil(BLOCK);
    read(&device, 0).unwrap();
    device.read(0, &mut long).unwrap_err();
    read(&device, 1).unwrap_err();
    device.write(BLOCK, &filled(6)).unwrap();
    assert_eq!(read(&device, 1).unwrap()[..], filled(6)[..]);

    device.vanish();
    read(&device, 0).unwrap_err();
    device.write(0, &filled(1)).unwrap_err();
    device.mend();
    read(&device, 0).unwrap();

    device.limit(5 * BLOCK);
    assert_eq!(device.grow(5 * BLOCK).unwrap(), 5 * BLOCK);
    assert_eq!(device.grow(6 * BLOCK).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(device.bytes(), 5 * BLOCK);
}

/// It is read until the machine stops, and then is gone, though a later sync went well.
#[test]
fn what_a_failed_sync_should_have_made_durable_is_lost() {
    let mut machine = Machine::new();
    let device = machine.device(BLOCK);
    device.write(0, &filled(1)).unwrap();
    device.fail(0..1, Fault::Error);
    device.sync().unwrap_err();
    device.sync().unwrap();
    assert_eq!(read(&device, 0).unwrap()[..], filled(1)[..]);
    machine.restart(1);
    assert_eq!(read(&device, 0).unwrap()[..], filled(0)[..]);
}
