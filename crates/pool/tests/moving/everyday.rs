//! Moving objects where nothing fails.

use std::sync::Arc;
use std::time::Duration;

use bindery_pool::MediaClass::{Archive, Capacity, Staging};
use bindery_pool::format::record::ObjectEntry;
use bindery_pool::map::{BackEndChoice, BackEndKind, MapError, MapOptions, Maps, Temperature};
use bindery_pool::object::{BeyondEnd, Object, ReadError};
use bindery_pool::{
    ArchiveError, FindError, Finding, MoveError, PoolReader, ReaderError, UNIT_BYTES,
};
use bindery_sys::direct::Buffer;

use crate::life::{Place, commit};
use crate::model::{Written, read};

const LONG: Written = Written { seed: 1, length: 100_000 };

#[test]
fn an_object_goes_to_the_archive_is_read_there_and_comes_back() {
    let place = Place::new();
    let pool = place.create();
    let empty = pool.usage(Capacity);
    let id = commit(&pool, Capacity, LONG).id();
    let there = pool.move_to_archive(id).unwrap();
    assert_eq!((there.class(), there.length_bytes(), there.id()), (Archive, 100_000, id));
    assert_eq!(read(&there), LONG.bytes());
    assert!(Arc::ptr_eq(&there, &pool.get(id).unwrap()), "there are two of one object");
    assert!(matches!(pool.list()[..], [ObjectEntry::Archived(entry)] if entry.id == id));
    assert_eq!(pool.usage(Archive).used_bytes, 100_000);
    pool.reclaim();
    assert_eq!(pool.usage(Capacity), empty);
    // In place, by range.
    let mut unit = Buffer::zeroed(UNIT_BYTES);
    there.read(10 * UNIT_BYTES as u64, &mut unit).unwrap();
    assert_eq!(unit[..], LONG.bytes()[10 * UNIT_BYTES..][..UNIT_BYTES]);
    there.load_checksums().unwrap();
    there.verify_unit(10, &unit).unwrap();
    let damage = there.verify_unit(11, &unit).unwrap_err();
    assert_eq!((damage.object, damage.offset_bytes), (id, 11 * UNIT_BYTES as u64));
    let beyond = there.read(25 * UNIT_BYTES as u64, &mut unit).unwrap_err();
    assert!(
        matches!(beyond, ReadError::BeyondEnd(BeyondEnd { length_bytes: 100_000, .. })),
        "{beyond}"
    );
    drop((there, pool));

    let pool = place.rig.open().unwrap();
    assert_eq!(pool.get(id).unwrap_err(), FindError::Archived(id));
    let report = pool.verify();
    assert!(matches!(report.findings[..], [Finding::ArchiveClosed { objects: 1 }]), "{report:?}");
    pool.connect_archive(Place::options()).unwrap();
    let report = pool.verify();
    assert!(report.findings.is_empty(), "{report:?}");
    assert_eq!((report.objects, report.object_bytes), (1, 100_000));
    let back = pool.bring_back(id, Staging).unwrap();
    assert_eq!((back.class(), read(&back)), (Staging, LONG.bytes()));
    assert!(Arc::ptr_eq(&back, &pool.get(id).unwrap()), "there are two of one object");
    drop((back, pool));
    let pool = place.rig.open().unwrap();
    assert_eq!(read(&pool.get(id).unwrap()), LONG.bytes());
    assert_eq!(pool.usage(Archive).used_bytes, 0);
}

#[test]
fn what_cannot_be_moved_says_why() {
    let place = Place::new();
    let pool = place.rig.create();
    let id = commit(&pool, Capacity, LONG).id();
    let none = pool.move_to_archive(id).unwrap_err();
    assert!(matches!(none, MoveError::Archive(ArchiveError::None(_))), "{none}");
    assert!(matches!(pool.connect_archive(Place::options()), Err(ArchiveError::None(_))));
    pool.set_archive(place.archive()).unwrap();
    let here = pool.bring_back(id, Staging).unwrap_err();
    assert!(matches!(here, MoveError::There { class: Capacity, .. }), "{here}");
    assert!(matches!(pool.bring_back(id, Archive), Err(MoveError::Class)));
    pool.move_to_archive(id).unwrap();
    let there = pool.move_to_archive(id).unwrap_err();
    assert!(matches!(there, MoveError::There { class: Archive, .. }), "{there}");
    let log = pool.create_log(Staging, 40_000, 1).unwrap().id();
    let kind = pool.move_to_archive(log).unwrap_err();
    assert!(matches!(kind, MoveError::Find(FindError::Kind { .. })), "{kind}");
    pool.delete(id).unwrap();
    let gone = pool.move_to_archive(id).unwrap_err();
    assert!(matches!(gone, MoveError::Find(FindError::NotFound(_))), "{gone}");
    drop(pool);
    let pool = place.rig.open().unwrap();
    let closed = pool.sweep_archive(Duration::ZERO).unwrap_err();
    assert!(closed.to_string().contains(&place.url()), "{closed}");

    // No room: it stays where it is.
    pool.connect_archive(Place::options()).unwrap();
    let large = commit(&pool, Capacity, Written { seed: 2, length: 2 << 20 }).id();
    let object = pool.move_to_archive(large).unwrap();
    let full = pool.bring_back(large, Staging).unwrap_err();
    assert!(matches!(full, MoveError::Allocate(_)), "{full}");
    assert_eq!(read(&object).len(), 2 << 20);
    assert!(pool.verify().findings.is_empty());
}

#[test]
fn whoever_has_an_object_goes_on_reading_it_where_it_was() {
    let place = Place::new();
    let pool = place.create();
    let local = commit(&pool, Capacity, LONG);
    let id = local.id();
    let before = pool.usage(Capacity);
    let archived = pool.move_to_archive(id).unwrap();
    pool.reclaim();
    assert_eq!((local.class(), read(&local)), (Capacity, LONG.bytes()));
    // Not used any more, and not free either.
    let meanwhile = pool.usage(Capacity);
    assert!(meanwhile.limbo_bytes > 100_000, "{meanwhile:?}");
    assert_eq!(meanwhile.used_bytes + meanwhile.limbo_bytes, before.used_bytes);
    assert_eq!(meanwhile.free_bytes, before.free_bytes);
    drop(local);
    assert!(pool.reclaim() > 100_000);

    let back = pool.bring_back(id, Staging).unwrap();
    pool.delete(id).unwrap();
    assert_eq!((read(&archived), read(&back)), (LONG.bytes(), LONG.bytes()));
    let keys = place.keys(&pool);
    assert_eq!(pool.sweep_archive(Duration::ZERO).unwrap().known, keys as u64);
    assert_eq!(read(&archived), LONG.bytes());
    drop(archived);
    assert_eq!(pool.sweep_archive(Duration::from_secs(3600)).unwrap().young, keys as u64);
    assert_eq!(pool.sweep_archive(Duration::ZERO).unwrap().removed, keys as u64);
    assert_eq!(place.keys(&pool), 0);
    assert_eq!(read(&back), LONG.bytes());
}

#[test]
fn deletion_removes_what_is_in_the_archive() {
    let place = Place::new();
    let pool = place.create();
    let ids = [1, 2].map(|seed| commit(&pool, Capacity, Written { seed, ..LONG }).id());
    ids.iter().for_each(|&id| drop(pool.move_to_archive(id).unwrap()));
    let keys = place.keys(&pool);
    pool.delete(ids[0]).unwrap();
    assert_eq!(place.keys(&pool), keys / 2);
    // Where the archive is not open, the object is gone and a sweep finds the rest.
    drop(pool);
    let pool = place.rig.open().unwrap();
    pool.delete(ids[1]).unwrap();
    assert_eq!((pool.list().len(), place.keys(&pool)), (0, keys / 2));
    pool.connect_archive(Place::options()).unwrap();
    assert_eq!(pool.sweep_archive(Duration::ZERO).unwrap().removed, keys as u64 / 2);
}

#[test]
fn maps_refuse_what_is_in_the_archive() {
    let place = Place::new();
    let pool = place.create();
    let id = commit(&pool, Capacity, LONG).id();
    let archived: Arc<dyn Object> = pool.move_to_archive(id).unwrap();
    let local: Arc<dyn Object> = commit(&pool, Capacity, LONG);
    for kind in [BackEndKind::File, BackEndKind::Memfd] {
        for objects in [&[Arc::clone(&archived)][..], &[Arc::clone(&archived), Arc::clone(&local)]]
        {
            let options =
                MapOptions { choice: BackEndChoice::Fixed(kind), ..MapOptions::default() };
            let error = Maps::default().map(objects, Temperature::Warm, &options).unwrap_err();
            let refused = matches!(error, MapError::Archived { object } if object == id);
            let apart = matches!(error, MapError::SeveralDevices { .. });
            assert!(refused || (apart && kind == BackEndKind::File), "{error}");
        }
    }
}

#[test]
fn readers_in_other_processes_read_in_place() {
    let place = Place::new();
    let pool = place.create();
    let id = commit(&pool, Capacity, LONG).id();
    let reader = PoolReader::open_on(place.rig.attached()).unwrap();
    assert_eq!(read(&reader.get(id).unwrap()), LONG.bytes());
    pool.move_to_archive(id).unwrap();
    assert!(matches!(reader.get(id), Err(ReaderError::Deleted(moved)) if moved == id));
    reader.refresh().unwrap();
    assert!(matches!(reader.get(id), Err(ReaderError::Find(FindError::Archived(_)))));
    assert_eq!(reader.archive_url(), Some(place.url()));
    reader.set_archive(place.archive());
    let object = reader.get(id).unwrap();
    assert_eq!((object.class(), read(&object)), (Archive, LONG.bytes()));
    assert_eq!(reader.usage(Archive), pool.usage(Archive));
    pool.bring_back(id, Capacity).unwrap();
    assert_eq!(read(&object), LONG.bytes());
    reader.refresh().unwrap();
    assert_eq!(reader.get(id).unwrap().class(), Capacity);
}

#[test]
fn an_archive_takes_anothers_place_only_with_all_objects() {
    let place = Place::new();
    let pool = place.create();
    let ids = [1, 2].map(|seed| commit(&pool, Capacity, Written { seed, ..LONG }).id());
    ids.iter().for_each(|&id| drop(pool.move_to_archive(id).unwrap()));
    let other = Place::new();
    let error = pool.set_archive(other.archive()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&place.url()) && text.contains(&other.url()), "{text}");
    assert_eq!(pool.archive_url(), Some(place.url()));
    let name = uuid::Uuid::from_u128(pool.id()).to_string();
    std::fs::create_dir(other.path().join(&name)).unwrap();
    for key in std::fs::read_dir(place.path().join(&name)).unwrap() {
        let key = key.unwrap();
        std::fs::copy(key.path(), other.path().join(&name).join(key.file_name())).unwrap();
    }
    pool.set_archive(other.archive()).unwrap();
    std::fs::remove_dir_all(place.path()).unwrap();
    assert_eq!(read(&pool.get(ids[0]).unwrap()), Written { seed: 1, ..LONG }.bytes());
    assert!(pool.verify().findings.is_empty());
}

#[test]
fn damage_in_the_archive_is_found_and_named() {
    let place = Place::new();
    let pool = place.create();
    let ids = [1, 2].map(|seed| commit(&pool, Capacity, Written { seed, ..LONG }).id());
    ids.iter().for_each(|&id| drop(pool.move_to_archive(id).unwrap()));
    let directory = place.path().join(uuid::Uuid::from_u128(pool.id()).to_string());
    let part =
        |id: bindery_pool::ObjectId, rest: &str| directory.join(format!("{:016x}{rest}", id.0));
    let mut bytes = std::fs::read(part(ids[0], ".000003")).unwrap();
    bytes[5000] ^= 1;
    std::fs::write(part(ids[0], ".000003"), bytes).unwrap();
    // What another object holds does not pass for this one.
    std::fs::copy(part(ids[0], ""), part(ids[1], "")).unwrap();
    let report = pool.verify();
    let texts: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), 2, "{texts:?}");
    for (text, id) in texts.iter().zip(ids) {
        assert!(text.contains(&format!("object {id} ")), "{text}");
    }
    assert!(texts[0].contains(".000003 in file://"), "{texts:?}");
    let error = pool.bring_back(ids[0], Staging).unwrap_err();
    assert!(matches!(error, MoveError::Read(_)), "{error}");
    pool.reclaim();
    assert_eq!(pool.usage(Staging).held_bytes, 0);
    assert_eq!(pool.get(ids[0]).unwrap().class(), Archive);
}

#[test]
fn a_full_catalogue_still_lets_objects_move() {
    let place = Place::new();
    let pool = place.create();
    let mut ids = Vec::new();
    loop {
        let mut writer = pool.allocate_mblock(Capacity, 1).unwrap();
        writer.append(&[7]).unwrap();
        let Ok(object) = writer.commit() else { break };
        ids.push(object.id());
    }
    assert!(ids.len() > 100, "only {} objects", ids.len());
    for &id in &ids {
        pool.move_to_archive(id).unwrap();
    }
    let mut writer = pool.allocate_mblock(Capacity, 1).unwrap();
    writer.append(&[7]).unwrap();
    assert!(writer.commit().is_err(), "there is no room to bring all back");
    for &id in &ids {
        pool.bring_back(id, Capacity).unwrap();
    }
    ids.iter().for_each(|&id| pool.delete(id).unwrap());
    assert!(pool.list().is_empty());
}
