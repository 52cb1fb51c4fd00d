//! Devices that are not those of the pool, or not as they were: each is named.

use bindery_pool::format::superblock::{SUPERBLOCK_OFFSETS, Superblock};
use bindery_pool::{
    BLOCK_BYTES, CreateError, CreateOptions, JoinError, MediaClass, NewDevice, OpenError, Pool,
};

use crate::rig::{MIB, Rig, attached};

use MediaClass::{Archive, Capacity, Staging};

/// Opens, for reading and for writing, and has the same error from both.
fn refused(rig: &Rig) -> OpenError {
    let reading = rig.read().unwrap_err();
    let writing = rig.open().unwrap_err();
    assert_eq!(reading.to_string(), writing.to_string());
    writing
}

fn named<'a>(error: &'a OpenError, words: &[&str]) -> &'a OpenError {
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
    error
}

#[test]
fn an_old_copy_of_a_device_is_named() {
    for old in [0, 1] {
        let rig = Rig::two();
        drop(rig.create());
        let copy = rig.device(old).content();
        drop(rig.open().unwrap());
        let current = rig.device(old).content();
        rig.device(old).replace(copy);
        let error = refused(&rig);
        let words = [&*format!("disk{old}"), "old copy", "opening 1", "in 2"];
        assert!(matches!(named(&error, &words), OpenError::OldCopy { .. }));
        rig.device(old).replace(current);
        rig.open().unwrap();
    }
}

#[test]
fn old_copies_of_all_that_hold_the_catalogue_are_named() {
    let rig = Rig::new(&[(Capacity, 4 * MIB), (Capacity, 4 * MIB), (Staging, MIB)]);
    drop(rig.create());
    let copies = [rig.device(0).content(), rig.device(1).content()];
    drop(rig.open().unwrap());
    let [first, second] = copies;
    rig.device(0).replace(first);
    rig.device(1).replace(second);
    let error = refused(&rig);
    assert!(matches!(
        named(&error, &["disk0 and disk1 is an old copy"]),
        OpenError::OldCopy { .. }
    ));
}

#[test]
fn a_device_that_was_used_with_a_copy_of_the_pool_is_named() {
    let rig = Rig::new(&[(Capacity, 4 * MIB), (Capacity, 4 * MIB), (Staging, MIB)]);
    drop(rig.create());
    let copies: Vec<_> = (0..3).map(|index| rig.device(index).content()).collect();
    drop(rig.open().unwrap());
    let apart = rig.device(2).content();
    // The copy is opened as often, somewhere else.
    (0..3).for_each(|index| rig.device(index).replace(copies[index].clone()));
    drop(rig.open().unwrap());
    rig.device(2).replace(apart);
    let error = refused(&rig);
    assert!(matches!(named(&error, &["disk2", "apart"]), OpenError::Diverged { .. }), "{error}");
}

#[test]
fn devices_that_are_missing_doubled_cut_off_or_of_another_pool_are_named() {
    let rig = Rig::two();
    let pool = rig.create();
    let id = pool.id();
    drop(pool);
    let only = |index: usize| Pool::open_on(vec![rig.attached().swap_remove(index)]).unwrap_err();
    assert!(matches!(only(0), OpenError::Missing { .. }));
    named(&only(0), &["device 1 (class staging", "guests"]);
    named(&only(1), &["device 0 (class capacity"]);
    assert!(matches!(Pool::open_on(Vec::new()), Err(OpenError::NoDevices)));

    let mut doubled = rig.attached();
    doubled.push(doubled[1].clone());
    doubled[2].label = "copy".into();
    let error = Pool::open_on(doubled).unwrap_err();
    assert!(matches!(named(&error, &["copy", "disk1"]), OpenError::Twice { .. }));

    let other = Rig::new(&[(Capacity, 4 * MIB)]);
    drop(other.create());
    let mut mixed = rig.attached();
    mixed.push(attached(7, other.device(0)));
    let error = Pool::open_on(mixed).unwrap_err();
    // The one that was opened most often, or last, is taken for the pool.
    assert!(matches!(error, OpenError::Foreign { .. }), "{error}");
    assert!(error.to_string().contains(&format!("{id:032x}")), "{error}");

    let whole = rig.device(1).content();
    rig.device(1).replace(whole[..MIB as usize].to_vec());
    let error = refused(&rig);
    assert!(matches!(named(&error, &["disk1", "1048576"]), OpenError::Shrunk { .. }));
    rig.device(1).replace(vec![0; 2 * MIB as usize]);
    assert!(matches!(named(&refused(&rig), &["disk1"]), OpenError::NoPool { .. }));
}

#[test]
fn a_newer_format_is_not_taken_for_damage() {
    let rig = Rig::two();
    drop(rig.create());
    // One copy of it is enough: an upgrade that a crash cut short.
    let at = SUPERBLOCK_OFFSETS[1] as usize;
    let mut content = rig.device(1).content();
    let block = &mut content[at..at + BLOCK_BYTES];
    block[8] = 3;
    block[12..16].fill(0);
    let checksum = crc_fast::crc32_iscsi(block);
    block[12..16].copy_from_slice(&checksum.to_le_bytes());
    rig.device(1).replace(content);
    let error = refused(&rig);
    assert!(matches!(
        named(&error, &["disk1", "version 3", "knows 2", "newer one"]),
        OpenError::Newer { version: 3, .. }
    ));
}

#[test]
fn what_was_never_added_to_the_end_is_left_out_for_ever() {
    let mut rig = Rig::two();
    let pool = rig.create();
    let stray = rig.machine.device(MIB);
    // The superblocks of the new device, two writes and two syncs, and no more.
    rig.machine.fail_power_after(4);
    let new = NewDevice { attached: attached(2, &stray), class: Staging };
    pool.add_device(new, false).unwrap_err();
    drop(pool);
    rig.machine.restart(1);
    let block = &stray.content()[..BLOCK_BYTES];
    assert_eq!(Superblock::decode(0, block).unwrap().device.0, 2);
    rig.classes.push(Staging);
    for _ in 0..3 {
        assert_eq!(rig.open().unwrap().devices().len(), 2);
        assert_eq!(rig.read().unwrap().list().len(), 0);
    }
    // Another one takes its number; the two are told apart.
    let pool = rig.open().unwrap();
    let device = rig.machine.device(MIB);
    let new = NewDevice { attached: attached(3, &device), class: Staging };
    pool.add_device(new, false).unwrap();
    drop(pool);
    rig.classes.push(Staging);
    assert_eq!(rig.open().unwrap().devices().len(), 3);
}

#[test]
fn what_somebody_may_need_is_not_made_a_pool_of() {
    let rig = Rig::two();
    drop(rig.create());
    let refused = rig.try_create(false).unwrap_err();
    let is_named = matches!(
        &refused,
        CreateError::Join(JoinError::InPool { device, name })
            if device == "disk0" && name.as_str() == "guests"
    );
    assert!(is_named, "{refused}");
    rig.try_create(true).unwrap();
    Pool::destroy_on(&rig.attached()).unwrap();
    assert!(matches!(rig.open(), Err(OpenError::NoPool { .. })));
    let pool = rig.create();

    let fresh = |class, bytes, fill: &[usize]| {
        let other = Rig::new(&[(class, bytes)]);
        fill.iter().for_each(|&at| other.device(0).change(at as u64, |_| 1));
        NewDevice { attached: attached(9, other.device(0)), class }
    };
    let add = |device| pool.add_device(device, false).unwrap_err().to_string();
    // ext4's superblock is at 1024, btrfs's at 64 KiB.
    assert!(add(fresh(Staging, MIB, &[1024 + 0x38])).contains("disk9 is not empty"));
    assert!(add(fresh(Staging, MIB, &[(64 << 10) + 64])).contains("disk9 is not empty"));
    assert!(add(fresh(Staging, 8192, &[])).contains("8192"));
    assert!(add(fresh(Archive, MIB, &[])).contains("archive"));
    let create = |device| {
        let options = CreateOptions::default();
        Pool::create_on("a".parse().unwrap(), vec![device], &options).unwrap_err()
    };
    assert!(matches!(create(fresh(Staging, 8 * MIB, &[])), CreateError::NoCapacity));
    let short = create(fresh(Capacity, MIB, &[]));
    assert!(matches!(short, CreateError::Join(JoinError::TooShort { .. })), "{short}");
}
