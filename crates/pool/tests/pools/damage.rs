//! Bits that flip, in every structure: found, named, read around where there is a copy, and confined
//! to their object where there is none.

use bindery_pool::format::record::ObjectEntry;
use bindery_pool::format::superblock::{NoSuperblock, SUPERBLOCK_OFFSETS, Superblock};
use bindery_pool::object::{Object, ReadError};
use bindery_pool::{BLOCK_BYTES, Extent, Finding, MediaClass, OpenError, Pool};
use bindery_sys::direct::Buffer;

use crate::life;
use crate::model::{Model, read};
use crate::rig::{CATALOGUE_BYTES, Rig};

/// A pool with something in it, closed; and what it holds.
fn filled() -> (Rig, Model) {
    let (mut rig, mut model) = (Rig::two(), Model::default());
    let pool = rig.create();
    for step in life::script() {
        life::go(&mut rig, &pool, &mut model, step).unwrap();
    }
    pool.reclaim();
    model.check(&pool);
    drop(pool);
    (rig, model)
}

/// What the pool must be whatever one copy of something has become.
fn check_whole(pool: &Pool, model: &mut Model) {
    let list = pool.list();
    model.check_objects(&list, |id| pool.get(id).unwrap());
}

#[test]
fn one_superblock_is_enough_and_the_other_is_made_good() {
    let (rig, mut model) = filled();
    let used = 256 + 2 * 32;
    for (device, copy) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        // Each opening writes both anew.
        for at in (0..used).step_by(7).chain([BLOCK_BYTES - 1]) {
            let offset = SUPERBLOCK_OFFSETS[copy] + at as u64;
            rig.device(device).flip(offset, at as u32 % 8);
            assert_eq!(rig.read().unwrap().list().len(), model.sure.len() + 1);
            let pool = rig.open().unwrap();
            if at % 5 == 0 {
                check_whole(&pool, &mut model);
            }
            assert!(pool.verify().findings.is_empty());

            // While it is open: found, named, and made good.
            rig.device(device).flip(offset, 3);
            let findings = pool.repair().unwrap();
            let wrong: Vec<String> = findings.iter().map(ToString::to_string).collect();
            assert_eq!(wrong.len(), 1, "{wrong:?}");
            assert!(wrong[0].contains(&format!("disk{device}, superblock {copy}")), "{wrong:?}");
            assert!(pool.repair().unwrap().is_empty());
        }
    }
}

#[test]
fn one_superblock_that_can_be_read_is_enough() {
    let (rig, mut model) = filled();
    for (device, copy) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        rig.device(device).spoil(SUPERBLOCK_OFFSETS[copy]);
        assert_eq!(rig.read().unwrap().list().len(), model.sure.len() + 1);
        // Opening writes it anew.
        let pool = rig.open().unwrap();
        check_whole(&pool, &mut model);
        assert!(pool.verify().findings.is_empty());
        rig.device(device).spoil(SUPERBLOCK_OFFSETS[copy]);
        let found = pool.verify().findings;
        let text = found.iter().map(ToString::to_string).collect::<String>();
        assert!(text.contains(&format!("disk{device}, superblock {copy}")), "{text}");
        assert_eq!(pool.repair().unwrap().len(), 1);
        assert!(pool.verify().findings.is_empty());
    }
    SUPERBLOCK_OFFSETS.into_iter().for_each(|offset| rig.device(1).spoil(offset));
    let error = rig.open().unwrap_err();
    assert!(matches!(&error, OpenError::Read { device, .. } if device == "disk1"), "{error}");
}

#[test]
fn a_device_without_any_superblock_left_is_named() {
    let (rig, _) = filled();
    for offset in SUPERBLOCK_OFFSETS {
        rig.device(1).flip(offset + 100, 1);
    }
    let error = rig.open().unwrap_err();
    assert!(matches!(&error, OpenError::Superblocks { device } if device == "disk1"), "{error}");
}

#[test]
fn a_superblock_with_any_bit_flipped_is_none() {
    let (rig, _) = filled();
    let content = rig.device(0).content();
    let block = &content[..BLOCK_BYTES];
    Superblock::decode(0, block).unwrap();
    assert_eq!(Superblock::decode(1, block), Err(NoSuperblock::Damaged));
    for bit in 0..BLOCK_BYTES * 8 {
        let mut block = block.to_vec();
        block[bit / 8] ^= 1 << (bit % 8);
        assert!(matches!(
            Superblock::decode(0, &block),
            Err(NoSuperblock::Absent | NoSuperblock::Damaged)
        ));
    }
}

/// Where the catalogue's logs are: first on device 0, and their copies on device 1.
fn catalogue(rig: &Rig) -> [[Extent; 2]; 2] {
    Superblock::decode(0, &rig.device(0).content()[..BLOCK_BYTES]).unwrap().catalogue
}

#[test]
fn one_copy_of_the_catalogue_is_enough_and_the_other_is_made_good() {
    let (rig, mut model) = filled();
    for place in catalogue(&rig).into_iter().flatten() {
        let device = usize::from(place.device.0);
        for offset in (0..CATALOGUE_BYTES).step_by(1733) {
            rig.device(device).flip(place.offset_bytes + offset, (offset % 8) as u32);
            if offset % 5 == 0 {
                assert_eq!(rig.read().unwrap().list().len(), model.sure.len() + 1);
            }
        }
        // All of it, at once.
        let pool = rig.open().unwrap();
        check_whole(&pool, &mut model);
        assert!(!pool.healed().is_empty());
        assert!(pool.healed().iter().all(|damage| damage.device == place.device));
        assert!(pool.verify().findings.is_empty());

        // While it is open.
        let first = place.offset_bytes + 9;
        rig.device(device).flip(first, 2);
        let named = |findings: &[Finding]| {
            assert!(
                matches!(findings, [Finding::Catalogue(damage)] if damage.device == place.device)
            );
        };
        named(&pool.verify().findings);
        named(&pool.repair().unwrap());
        assert!(pool.verify().findings.is_empty());
    }
}

#[test]
fn a_catalogue_that_is_damaged_in_both_copies_is_named_and_never_cut_short() {
    let (rig, model) = filled();
    let before: Vec<_> = (0..2).map(|device| rig.device(device).content()).collect();
    let mut refused = 0;
    for [first, second] in catalogue(&rig) {
        for offset in (0..CATALOGUE_BYTES).step_by(BLOCK_BYTES / 4) {
            rig.device(0).flip(first.offset_bytes + offset + 50, 4);
            rig.device(1).flip(second.offset_bytes + offset + 50, 4);
            match rig.open() {
                // Nothing was there.
                Ok(pool) => assert_eq!(pool.list().len(), model.sure.len() + 1),
                Err(error) => {
                    assert!(matches!(error, OpenError::Catalogue(_)), "{error}");
                    refused += 1;
                }
            }
            (0..2).for_each(|device| rig.device(device).replace(before[device].clone()));
        }
    }
    assert!(refused > 3, "{refused}");
}

#[test]
fn damage_of_an_object_is_named_and_stays_in_it() {
    let (rig, model) = filled();
    let pool = rig.open().unwrap();
    for entry in pool.list() {
        let ObjectEntry::Mblock(entry) = entry else { continue };
        let device = rig.device(usize::from(entry.data.device.0));
        let units = entry.data.bytes / BLOCK_BYTES as u64;
        for unit in [0, units / 2, units - 1] {
            let at = entry.data.offset_bytes + unit * BLOCK_BYTES as u64 + 100 * unit % 4096;
            device.flip(at, (unit % 8) as u32);
            let found = pool.verify().findings;
            let named = matches!(
                &found[..],
                [Finding::Object(ReadError::Damaged(damage))]
                    if damage.object == entry.id && damage.offset_bytes == unit * BLOCK_BYTES as u64
            );
            assert!(named, "{found:?}");
            // The other units of it are read.
            let object = pool.get(entry.id).unwrap();
            let mut buffer = Buffer::zeroed(BLOCK_BYTES);
            for other in (0..units).filter(|other| *other != unit) {
                object.read(other * BLOCK_BYTES as u64, &mut buffer).unwrap();
            }
            device.flip(at, (unit % 8) as u32);
        }
        // Another unit of the same object, where this one is read.
        if units > 1 {
            let content = device.content();
            let at = |unit: u64| (entry.data.offset_bytes + unit * BLOCK_BYTES as u64) as usize;
            let mut swapped = content.clone();
            swapped.copy_within(at(0)..at(1), at(1));
            device.replace(swapped);
            let found = pool.verify().findings;
            assert!(matches!(&found[..], [Finding::Object(ReadError::Damaged(_))]), "{found:?}");
            device.replace(content);
        }
        // Its checksums.
        device.flip(entry.table.offset_bytes + 1, 5);
        let found = pool.verify().findings;
        let named = found.iter().all(|finding| {
            matches!(
                finding,
                Finding::Object(ReadError::Checksums { object, .. }) if *object == entry.id
            )
        });
        assert!(named && !found.is_empty(), "{found:?}");
        device.flip(entry.table.offset_bytes + 1, 5);
        assert_eq!(read(&pool.get(entry.id).unwrap()), model.sure[&entry.id].bytes());
    }
    assert!(pool.usage(MediaClass::Capacity).used_bytes > 0);
    assert!(pool.verify().findings.is_empty());
}

#[test]
fn whoever_only_reads_names_all_damage_and_writes_nothing() {
    let (rig, model) = filled();
    let reader = rig.read().unwrap();
    let mut read_bytes = 0;
    let report = reader.verify(|bytes| read_bytes += bytes).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert_eq!(report.objects, model.sure.len() as u64);
    assert!(
        (report.object_bytes..report.object_bytes + report.objects * 4096).contains(&read_bytes)
    );

    let mblock = reader.list().into_iter().find_map(|entry| match entry {
        ObjectEntry::Mblock(entry) => Some(entry),
        _ => None,
    });
    let mblock = mblock.unwrap();
    let second = catalogue(&rig)[0][1];
    rig.device(0).flip(SUPERBLOCK_OFFSETS[1] + 9, 1);
    rig.device(usize::from(second.device.0)).flip(second.offset_bytes + 9, 1);
    rig.device(usize::from(mblock.data.device.0)).flip(mblock.data.offset_bytes, 1);
    let before: Vec<_> = (0..2).map(|device| rig.device(device).content()).collect();
    let is_named = |findings: &[Finding]| {
        matches!(
            findings,
            [Finding::Superblock { copy: 1, .. }, Finding::Catalogue(_), Finding::Object(_)]
        )
    };
    let found = reader.verify(|_| {}).unwrap().findings;
    assert!(is_named(&found), "{found:?}");
    assert_eq!(reader.verify_structure().unwrap().findings.len(), 2);
    assert!((0..2).all(|device| rig.device(device).content() == before[device]));

    // Checksums that cannot be read are found, too, and nothing else is lost with them.
    rig.device(usize::from(mblock.table.device.0)).flip(mblock.table.offset_bytes, 1);
    let report = reader.verify(|_| {}).unwrap();
    let last = report.findings.last();
    assert!(matches!(last, Some(Finding::Object(ReadError::Checksums { .. }))), "{last:?}");
    assert_eq!((report.findings.len(), report.objects), (3, model.sure.len() as u64 - 1));
    drop(rig.open().unwrap());
    assert_eq!(reader.verify_structure().unwrap().findings.len(), 0);
}
