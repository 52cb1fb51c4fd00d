//! Bytes that are not what was written, and devices that give none.

use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;

use bindery_pool::map::{BackEndKind, Lost, MapAccess, MapOptions, Maps, PageRun, Temperature};
use bindery_pool::object::{Object, ReadError};
use bindery_sys::cache;
use std::os::fd::AsFd;

use crate::support::{Bench, FileDevice, bytes, from_parent, in_child, row};
use crate::{BOTH, KIB, fixed};

/// Twenty objects of 64 KiB, of which one has a byte changed behind its back.
fn damaged(device: &Arc<FileDevice>) -> Vec<Arc<dyn Object>> {
    let objects = row(device, 20, 64 * KIB, 64 * KIB);
    let at = 7 * 64 * KIB + 2 * 4096 + 99;
    let mut byte = [0];
    device.file.read_exact_at(&mut byte, at).unwrap();
    device.file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    device.file.sync_all().unwrap();
    cache::evict(device.file.as_fd(), 0, 20 * 64 * KIB).unwrap();
    objects
}

#[test]
fn damage_is_named_and_costs_nobody_else_anything() {
    let bench = Bench::new();
    let device = bench.device("one");
    let objects = damaged(&device);
    for kind in BOTH {
        let map = Maps::default().map(&objects, Temperature::Warm, &fixed(kind)).unwrap();
        let mut into = vec![0; 64 * KIB as usize];
        match map.read(7, 0, &mut into).unwrap_err() {
            ReadError::Damaged(damage) => {
                assert_eq!((damage.object, damage.offset_bytes), (objects[7].id(), 8192));
            }
            other => panic!("{kind:?}: {other}"),
        }
        map.read(7, 12 * KIB, &mut into[..4096]).unwrap();
        for object in (0..20).filter(|object| *object != 7) {
            map.read(object, 0, &mut into).unwrap();
            assert_eq!(into, bytes(objects[object].id(), 0, into.len()), "{kind:?}");
        }
        if kind == BackEndKind::Memfd {
            let all = |object| PageRun { object, first_page: 0, pages: 16 };
            assert!(map.prefetch(&[all(7)]).is_err());
            map.prefetch(&[all(6), all(8)]).unwrap();
        }
    }
}

fn tell(lost: Lost) {
    let line = format!("lost {} {}\n", lost.object, lost.offset_bytes);
    let _ = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
}

/// What a child that is to end by `SIGBUS` says before and while it does.
fn last_words(name: &str, told: &str) -> String {
    let output = in_child(name, told);
    assert_eq!(output.status.signal(), Some(libc_sigbus()), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const fn libc_sigbus() -> i32 {
    7
}

#[test]
fn who_touches_damage_is_told_of_the_object_and_ends() {
    let Some(access) = from_parent() else {
        for access in ["random", "sequential"] {
            let words =
                last_words("damage::who_touches_damage_is_told_of_the_object_and_ends", access);
            assert!(
                words.contains("others are there") && words.contains("lost 0x7 8192"),
                "{words}"
            );
        }
        return;
    };
    let bench = Bench::new();
    let device = bench.device("one");
    let objects = damaged(&device);
    let access = if access == "random" { MapAccess::Random } else { MapAccess::Sequential };
    let options = MapOptions { on_lost: Some(tell), access, ..fixed(BackEndKind::Memfd) };
    let map = Maps::default().map(&objects, Temperature::Warm, &options).unwrap();
    for (at, object) in objects.iter().enumerate() {
        for page in (0..16).filter(|page| at != 7 || *page != 2) {
            let seen = map.get(at, page * 4096, 4096).unwrap().to_vec();
            assert_eq!(seen, bytes(object.id(), page * 4096, 4096));
        }
    }
    let mut page = vec![0; 4096];
    assert!(map.read(7, 8192, &mut page).is_err());
    eprintln!("others are there");
    // The directory would stay, for nobody returns from here.
    drop(bench);
    let _ = map.get(7, 8192 + 50, 1).unwrap().byte(0);
}

#[test]
fn who_touches_what_a_device_lost_is_told_of_the_object_and_ends() {
    let Some(kind) = from_parent() else {
        for kind in ["file", "memfd"] {
            let name = "damage::who_touches_what_a_device_lost_is_told_of_the_object_and_ends";
            let words = last_words(name, kind);
            assert!(
                words.contains("errors are errors") && words.contains("lost 0x3 4096"),
                "{words}"
            );
        }
        return;
    };
    let bench = Bench::new();
    let device = bench.device("one");
    let objects = row(&device, 4, 64 * KIB, 64 * KIB);
    let kind = if kind == "file" { BackEndKind::File } else { BackEndKind::Memfd };
    let options = MapOptions { on_lost: Some(tell), ..fixed(kind) };
    let map = Maps::default().map(&objects, Temperature::Warm, &options).unwrap();
    let maps = Maps::default();
    let gone = maps.map(&objects, Temperature::Warm, &options).unwrap();
    drop(gone);
    device.file.set_len(3 * 64 * KIB).unwrap();
    let error = map.read(3, 0, &mut [0; 9]).unwrap_err().to_string();
    assert!(error.contains("object 0x3 cannot be read at byte 0"), "{error}");
    assert!(map.prefetch_object(3).is_err());
    assert_eq!(map.get(2, 0, 99).unwrap().to_vec(), bytes(objects[2].id(), 0, 99));
    eprintln!("errors are errors");
    drop(bench);
    let _ = map.get(3, 4096 + 50, 1).unwrap().byte(0);
}
