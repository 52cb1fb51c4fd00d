//! Pools by path: made, found, opened by one at a time, ended.

use std::fs;
use std::path::PathBuf;

use bindery_pool::{
    CreateError, CreateOptions, DevicePath, JoinError, MediaClass, OpenError, PathError, Pool,
    PoolName, PoolReader, device, scan_pools,
};

use crate::child::{Other, open, patiently};
use crate::model::{Written, read};

use MediaClass::{Capacity, Staging};

fn at(path: &std::path::Path, class: MediaClass) -> DevicePath {
    DevicePath { path: path.into(), class, bytes: Some(4 << 20) }
}

fn name(name: &str) -> PoolName {
    name.parse().unwrap()
}

fn files(directory: &std::path::Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_pool_is_made_found_filled_and_ended() {
    let [fast, slow] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let devices = [at(slow.path(), Capacity), at(fast.path(), Staging)];
    let paths: Vec<PathBuf> = devices.iter().map(|device| device.path.clone()).collect();
    let options = CreateOptions::default();
    let pool = Pool::create(&name("guests"), &devices, &options).unwrap();
    assert_eq!(files(slow.path()), ["guests.capacity.0.bindery"]);
    assert_eq!(files(fast.path()), ["guests.staging.1.bindery"]);
    let it = Written { seed: 1, length: 300_000 };
    let mut writer = pool.allocate_mblock(Staging, 300_000).unwrap();
    writer.append(&it.bytes()).unwrap();
    let id = writer.commit().unwrap().entry().id();
    let added = pool.add(&at(slow.path(), Capacity), false).unwrap();
    assert_eq!(added.0, 2);
    drop(pool);

    let found = scan_pools(&paths).unwrap();
    assert!(found.unusable.is_empty());
    let [found] = &found.pools[..] else { panic!("{found:?}") };
    assert!(found.is_complete() && found.unlisted.is_empty());
    assert_eq!((found.name.as_str(), found.devices.len()), ("guests", 3));
    let half = scan_pools(&paths[..1]).unwrap();
    assert!(!half.pools[0].is_complete());
    let missing = Pool::open(&paths[..1], None).unwrap_err();
    assert!(matches!(missing, PathError::Open(OpenError::Missing { .. })), "{missing}");

    let pool = open(&paths);
    assert_eq!(read(&pool.get(id).unwrap()), it.bytes());
    assert!(pool.verify().findings.is_empty());
    let in_use = Pool::destroy(&paths, &name("guests")).unwrap_err();
    assert!(matches!(in_use, PathError::Device(device::OpenError::InUse { .. })), "{in_use}");
    drop(pool);
    patiently(|| Pool::destroy(&paths, &name("guests"))).unwrap();
    assert!(files(slow.path()).is_empty() && files(fast.path()).is_empty());
}

#[test]
fn names_are_taken_once_and_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let paths = [directory.path().to_path_buf()];
    let create = |text: &str, force| {
        let options = CreateOptions { force, ..CreateOptions::default() };
        Pool::create(&name(text), &[at(directory.path(), Capacity)], &options)
    };
    drop(create("one", false).unwrap());
    let taken = create("one", false).unwrap_err();
    assert!(
        matches!(&taken, PathError::NameTaken { name, .. } if name.as_str() == "one"),
        "{taken}"
    );
    drop(create("two", false).unwrap());
    let several = Pool::open(&paths, None).unwrap_err();
    assert!(matches!(&several, PathError::Several(_)), "{several}");
    assert!(several.to_string().contains("one") && several.to_string().contains("two"));
    let unknown = PoolReader::open(&paths, Some(&name("three"))).unwrap_err();
    assert!(unknown.to_string().contains("named three"), "{unknown}");
    let two = patiently(|| Pool::open(&paths, Some(&name("two")))).unwrap();
    two.rename(name("three")).unwrap();
    drop(two);
    PoolReader::open(&paths, Some(&name("three"))).unwrap();
    // The file still has the old name; a pool of that name is not made over it.
    let error = create("two", false).unwrap_err();
    assert!(error.to_string().contains("two.capacity.0.bindery"), "{error}");
    PoolReader::open(&paths, Some(&name("three"))).unwrap();

    let no_length = DevicePath { bytes: None, ..at(directory.path(), Capacity) };
    let options = CreateOptions::default();
    let error = Pool::create(&name("four"), &[no_length], &options).unwrap_err();
    assert!(matches!(error, PathError::NoLength(_)), "{error}");
    let short = DevicePath { bytes: Some(8192), ..at(directory.path(), Capacity) };
    let error = Pool::create(&name("four"), &[short], &options).unwrap_err();
    let is_short =
        matches!(error, PathError::Create(CreateError::Join(JoinError::TooShort { .. })));
    assert!(is_short, "{error}");
    assert_eq!(files(directory.path()).len(), 2, "a pool that failed left its file");
}

#[test]
fn damaged_files_and_files_that_are_none_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let paths = [directory.path().to_path_buf()];
    fs::write(directory.path().join("odd.bindery"), vec![1; 200_000]).unwrap();
    let none = Pool::open(&paths, None).unwrap_err();
    assert!(matches!(&none, PathError::Open(OpenError::NoPool { .. })), "{none}");
    assert!(none.to_string().contains("odd.bindery"), "{none}");
    // Beside a pool it is no pool's business.
    drop(
        Pool::create(&name("a"), &[at(directory.path(), Capacity)], &CreateOptions::default())
            .unwrap(),
    );
    open(&paths);
    assert_eq!(scan_pools(&paths).unwrap().unusable.len(), 1);
    let nothing = Pool::open(&[directory.path().join("nothing")], None).unwrap_err();
    assert!(nothing.to_string().contains("nothing"), "{nothing}");
}

#[test]
fn one_process_writes_and_is_named_to_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let paths = [directory.path().to_path_buf()];
    let devices = [at(directory.path(), Capacity), at(directory.path(), Staging)];
    drop(Pool::create(&name("shared"), &devices, &CreateOptions::default()).unwrap());
    let mut other = Other::spawn("write", &paths, 0);
    other.wait_for("opened");
    let error = Pool::open(&paths, None).unwrap_err();
    assert!(matches!(error, PathError::Device(device::OpenError::InUse { .. })), "{error}");
    let by = format!("by process {}", other.id());
    assert!(error.to_string().contains(&by), "{error}");
    PoolReader::open(&paths, None).unwrap();
    other.kill();
    open(&paths);
}

#[test]
fn what_is_no_file_hides_no_pool_beside_it() {
    let directory = tempfile::tempdir().unwrap();
    let device = at(directory.path(), Capacity);
    drop(Pool::create(&name("guests"), &[device], &CreateOptions::default()).unwrap());
    let gone = directory.path().join("gone.capacity.0.bindery");
    std::os::unix::fs::symlink("/nowhere", &gone).unwrap();
    fs::create_dir(directory.path().join("old.bindery")).unwrap();
    let paths = [directory.path().to_path_buf()];
    assert_eq!(scan_pools(&paths).unwrap().pools.len(), 1);
    drop(Pool::open(&paths, None).unwrap());
    // What is named is meant.
    let both = [paths[0].clone(), gone];
    assert!(matches!(Pool::open(&both, None), Err(PathError::Device(_))));
}
