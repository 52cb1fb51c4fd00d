//! mcache maps and the reaper, over objects in plain files.

#![expect(clippy::unwrap_used, reason = "what a test does not expect fails it")]
#![expect(unreachable_pub, reason = "a test has no public")]

mod damage;
mod oracle;
mod reaper;
mod sharing;
mod support;

use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bindery_pool::map::{
    BackEndChoice, BackEndKind, MapAccess, MapOptions, Maps, PageRun, Temperature,
};
use bindery_pool::object::Object;
use bindery_sys::cache;
use bindery_sys::direct::Buffer;
use bindery_testkit::skipped;

use self::support::{Bench, FileDevice, TestObject, bytes, purge, row};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const BOTH: [BackEndKind; 2] = [BackEndKind::File, BackEndKind::Memfd];

fn fixed(kind: BackEndKind) -> MapOptions {
    MapOptions { choice: BackEndChoice::Fixed(kind), ..MapOptions::default() }
}

/// The lines of `/proc/self/maps` that name `path`.
fn mappings_of(path: &std::path::Path) -> usize {
    let path = path.to_str().unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.ends_with(path)).count()
}

#[test]
fn all_maps_of_a_device_are_one_mapping() {
    let bench = Bench::new();
    let device = bench.device("one");
    let (maps, objects) = (Maps::default(), row(&device, 600, 8 * KIB, 8 * KIB));
    let map = |objects: &[Arc<dyn Object>], access| {
        let options = MapOptions { access, ..MapOptions::default() };
        maps.map(objects, Temperature::Warm, &options).unwrap()
    };
    let some: Vec<_> = objects.chunks(100).map(|some| map(some, MapAccess::Random)).collect();
    assert!(some.iter().all(|map| map.back_end() == BackEndKind::File));
    assert_eq!(mappings_of(&device.path), 1);
    let other = map(&objects, MapAccess::Sequential);
    assert_eq!(mappings_of(&device.path), 2);
    assert_eq!(other.get(599, 0, 16).unwrap().to_vec(), bytes(objects[599].id(), 0, 16));
    drop((some, other));
    assert_eq!(mappings_of(&device.path), 0);
}

#[test]
fn objects_of_several_devices_are_one_mapping_too() {
    let bench = Bench::new();
    let (one, two) = (bench.device("one"), bench.device("two"));
    let mut objects = row(&one, 50, 12 * KIB, 16 * KIB);
    objects.extend((0..50).map(|at| {
        Arc::new(TestObject::new(1000 + at, &two, at * 8 * KIB, 8 * KIB)) as Arc<dyn Object>
    }));
    two.file.sync_all().unwrap();
    let map = Maps::default().map(&objects, Temperature::Warm, &MapOptions::default()).unwrap();
    assert_eq!((map.back_end(), map.len()), (BackEndKind::Memfd, 100));
    let starts = [0, 99].map(|object| map.get(object, 0, 1).unwrap().address().0);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.starts_with(&format!("{:x}-", starts[0]))).unwrap();
    let end = line.split(['-', ' ']).nth(1).unwrap();
    assert!(usize::from_str_radix(end, 16).unwrap() > starts[1], "{line}");
    for (at, object) in objects.iter().enumerate() {
        let length = object.length_bytes() as usize;
        assert_eq!(map.get(at, 0, length).unwrap().to_vec(), bytes(object.id(), 0, length));
    }
}

#[test]
fn what_is_purged_is_gone_and_comes_back() {
    let bench = Bench::new();
    let device = bench.device("one");
    let objects = row(&device, 40, 128 * KIB, 128 * KIB);
    for kind in BOTH {
        let maps = Maps::default();
        let map = maps.map(&objects, Temperature::Cold, &fixed(kind)).unwrap();
        purge(&map);
        let all: Vec<_> =
            (0..40).map(|object| PageRun { object, first_page: 0, pages: u64::MAX }).collect();
        assert_eq!(map.prefetch(&all).unwrap().pages, 40 * 32);
        let residency = map.residency().unwrap();
        assert_eq!((residency.pages, residency.resident_pages), (1280, 1280), "{kind:?}");
        map.get(39, 0, 128 * KIB as usize).unwrap().touch();
        purge(&map);
        assert_eq!(map.get(7, 5, 100).unwrap().to_vec(), bytes(objects[7].id(), 5, 100));
        let now = map.residency().unwrap().resident_pages;
        assert!((1..100).contains(&now), "{kind:?}: {now}");
    }
}

/// A row of objects of which the kernel has huge pages, if it makes any: it does for who writes much at
/// once. An object is a part of one.
fn row_of_huge_pages(device: &Arc<FileDevice>) -> Option<Vec<Arc<dyn Object>>> {
    let objects = row(device, 128, 128 * KIB, 128 * KIB);
    let mut content = vec![0; 16 * MIB as usize];
    device.file.read_exact_at(&mut content, 0).unwrap();
    cache::evict(device.file.as_fd(), 0, 16 * MIB).unwrap();
    device.file.write_all_at(&content, 0).unwrap();
    device.file.sync_all().unwrap();
    let (start, length) = (40 * 128 * KIB, 128 * KIB);
    cache::evict(device.file.as_fd(), start, length).unwrap();
    let stays = cache::cached(device.file.as_fd(), start, length).unwrap().resident_pages == 32;
    stays.then_some(objects)
}

#[test]
fn huge_pages_that_stick_out_of_a_map_are_evicted() {
    let bench = Bench::new();
    let Some(objects) = row_of_huge_pages(&bench.device("one")) else {
        return skipped!("the kernel made no huge pages of a file that was written");
    };
    let map = Maps::default().map(&objects[40..41], Temperature::Cold, &MapOptions::default());
    let map = map.unwrap();
    map.get(0, 0, 128 * KIB as usize).unwrap().touch();
    assert_eq!(map.residency().unwrap().resident_pages, 32);
    purge(&map);
}

#[test]
fn huge_pages_of_which_another_map_has_a_part_stay() {
    let bench = Bench::new();
    let Some(objects) = row_of_huge_pages(&bench.device("one")) else {
        return skipped!("the kernel made no huge pages of a file that was written");
    };
    let maps = Maps::default();
    let map = |object: usize, temperature| {
        let map = maps.map(&objects[object..=object], temperature, &MapOptions::default()).unwrap();
        map.get(0, 0, 128 * KIB as usize).unwrap().touch();
        map
    };
    let (cold, pinned) = (map(40, Temperature::Cold), map(43, Temperature::Pinned));
    assert_eq!(cold.purge().unwrap(), 32);
    assert_eq!(pinned.residency().unwrap().resident_pages, 32);
    drop(pinned);
    purge(&cold);
}

#[test]
fn a_map_keeps_its_objects() {
    let bench = Bench::new();
    let device = bench.device("one");
    for kind in BOTH {
        let objects = row(&device, 3, 64 * KIB, 64 * KIB);
        let watch = Arc::downgrade(&objects[1]);
        let map = Maps::default().map(&objects, Temperature::Hot, &fixed(kind)).unwrap();
        let id = objects[1].id();
        drop(objects);
        assert_eq!(map.get(1, 4 * KIB, 64).unwrap().to_vec(), bytes(id, 4 * KIB, 64));
        assert!(watch.upgrade().is_some(), "{kind:?}");
        drop(map);
        assert!(watch.upgrade().is_none(), "{kind:?}");
    }
}

#[test]
fn a_device_that_grows_is_mapped_anew() {
    let bench = Bench::new();
    let device = bench.device("one");
    let maps = Maps::default();
    let near = row(&device, 1, 64 * KIB, 64 * KIB);
    let near = maps.map(&near, Temperature::Warm, &MapOptions::default()).unwrap();
    let far = TestObject::new(77, &device, 1500 * MIB, 64 * KIB);
    let objects: Vec<Arc<dyn Object>> = vec![Arc::new(far)];
    let far = maps.map(&objects, Temperature::Warm, &MapOptions::default()).unwrap();
    assert_eq!(far.get(0, 1, 64).unwrap().to_vec(), bytes(objects[0].id(), 1, 64));
    assert_eq!(near.get(0, 1, 64).unwrap().to_vec(), bytes(near.objects()[0].id(), 1, 64));
    device.file.sync_all().unwrap();
    purge(&near);
    purge(&far);
    assert_eq!(mappings_of(&device.path), 2);
}

#[test]
fn reading_forwards_fetches_what_follows() {
    let bench = Bench::new();
    let device = bench.device("one");
    let objects = row(&device, 2, 256 * KIB, 256 * KIB);
    let options = MapOptions { access: MapAccess::Sequential, ..fixed(BackEndKind::Memfd) };
    let map = Maps::default().map(&objects, Temperature::Warm, &options).unwrap();
    let _ = map.get(0, 4 * KIB, 1).unwrap().byte(0);
    assert_eq!(map.residency().unwrap().resident_pages, 32);
    // Not beyond the object.
    let _ = map.get(0, 252 * KIB, 1).unwrap().byte(0);
    assert_eq!(map.residency().unwrap().resident_pages, 33);
}

#[test]
fn what_cannot_be_mapped_is_said() {
    let bench = Bench::new();
    let maps = Maps::default();
    let map = |objects: &[Arc<dyn Object>], options: &MapOptions| {
        maps.map(objects, Temperature::Warm, options).unwrap_err().to_string()
    };
    assert!(map(&[], &MapOptions::default()).contains("at least one"));
    let (one, two) = (row(&bench.device("one"), 1, 1, 4096), row(&bench.device("two"), 1, 1, 4096));
    let several = [Arc::clone(&one[0]), Arc::clone(&two[0])];
    assert!(map(&several, &fixed(BackEndKind::File)).contains("another device"));
    let hidden = Arc::new(FileDevice::unmappable(&bench.directory.path().join("three")));
    let hidden = row(&hidden, 1, 1, 4096);
    assert!(map(&hidden, &MapOptions::default()).contains("move it to another class"));
    let map = maps.map(&one, Temperature::Warm, &MapOptions::default()).unwrap();
    let beyond = map.get(0, 1, 1).unwrap_err().to_string();
    assert!(beyond.contains("has 1 bytes"), "{beyond}");
    assert!(map.read(0, u64::MAX, &mut [0; 2]).is_err());
}

#[test]
fn a_place_that_is_given_away_shows_what_is_there_now() {
    let bench = Bench::new();
    let device = bench.device("one");
    let mut options = std::fs::OpenOptions::new();
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let uncached = options.write(true).custom_flags(direct).open(&device.path).unwrap();
    for kind in BOTH {
        // The kernel's cache has the old object, and the pool writes past it.
        let old = row(&device, 4, 64 * KIB, 64 * KIB);
        let maps = Maps::default();
        let before = maps.map(&old, Temperature::Warm, &fixed(kind)).unwrap();
        (0..4).for_each(|object| before.get(object, 0, 64 * KIB as usize).unwrap().touch());
        // As where another map keeps the mapping.
        let keeps = maps.map(&old[..1], Temperature::Warm, &fixed(kind)).unwrap();
        drop(before);
        let new = TestObject::placed(99, &device, 2 * 64 * KIB, 64 * KIB);
        let mut content = Buffer::zeroed(64 * KIB as usize);
        content.copy_from_slice(&bytes(new.id(), 0, 64 * KIB as usize));
        uncached.write_all_at(&content, 2 * 64 * KIB).unwrap();
        let new: Vec<Arc<dyn Object>> = vec![Arc::new(new)];
        let map = maps.map(&new, Temperature::Warm, &fixed(kind)).unwrap();
        assert_eq!(map.get(0, 0, 64 * KIB as usize).unwrap().to_vec(), content[..], "{kind:?}");
        map.read(0, 0, &mut content).unwrap();
        drop(keeps);
    }
}

#[test]
fn threads_read_what_is_evicted_under_them() {
    let bench = Bench::new();
    let device = bench.device("one");
    let objects = row(&device, 32, 128 * KIB, 128 * KIB);
    for kind in BOTH {
        let maps = Maps::default();
        let map = maps.map(&objects, Temperature::Cold, &fixed(kind)).unwrap();
        let deadline = Instant::now() + Duration::from_millis(400);
        thread::scope(|scope| {
            scope.spawn(|| {
                while Instant::now() < deadline {
                    map.purge().unwrap();
                }
            });
            for thread in 0..3 {
                let (map, objects) = (&map, &objects);
                scope.spawn(move || {
                    let mut page = vec![0; 4096];
                    for step in (thread..).take_while(|_| Instant::now() < deadline) {
                        let (object, at) = (step * 7 % 32, (step * 13 % 32) as u64 * 4096);
                        let expected = bytes(objects[object].id(), at, 4096);
                        assert_eq!(map.get(object, at, 4096).unwrap().to_vec(), expected);
                        map.read(object, at, &mut page).unwrap();
                        assert_eq!(page, expected);
                    }
                });
            }
        });
    }
}
