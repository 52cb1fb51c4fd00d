//! `bindery pool create` and `grow`.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use bindery_pool::{CreateOptions, DeviceIndex, DevicePath, MediaClass, Pool, PoolName, archive};
use serde_json::json;

use super::Pools;
use super::args::{CreateArgs, GrowArgs};
use super::places::{absolute, devices_of};
use super::registry::Entry;
use super::values::id_text;
use crate::exit::{Failure, Reason};
use crate::output::{human_bytes, print, print_json};

pub(super) fn create(pools: &Pools, arguments: &CreateArgs) -> Result<(), Failure> {
    let CreateArgs { name, capacity, staging, size, catalogue, archive, force } = arguments;
    pools.registry.require_free(name, None)?;
    let devices = device_paths(capacity, staging, *size)?;
    // What cannot be reached or written is better known now than when something is to go there.
    let opened = archive.as_ref().map(|url| pools.archive(url, archive::ArchiveOptions::default()));
    let opened = opened.transpose()?;
    let options = CreateOptions { force: *force, catalogue_bytes: *catalogue };
    let pool = Pool::create(name, &devices, &options)?;
    opened.map_or(Ok(()), |archive| pool.set_archive(archive))?;
    let paths: Vec<PathBuf> = devices.into_iter().map(|device| device.path).collect();
    let devices = devices_of(pool.id(), &paths)?;
    let entry = Entry { id: id_text(pool.id()), devices, archive: archive.clone() };
    pools.registry.put(name, &entry).map_err(|error| {
        let message = format!(
            "{error}; so pool {name} is made, and not known by its name: end that, and then have \
             `bindery pool import {name} --directory {}` find it",
            paths[0].display()
        );
        Failure::new(Failure::from(error).reason(), message)
    })?;
    report(pools, "created", &pool, &entry)
}

pub(super) fn grow(pools: &Pools, arguments: &GrowArgs) -> Result<(), Failure> {
    let GrowArgs { name, device, size, add_capacity, add_staging, force } = arguments;
    let added = device_paths(add_capacity, add_staging, *size);
    let added = if device.is_some() { Vec::new() } else { added? };
    let mut entry = pools.registry.find(name)?;
    let pool = pools.open(name)?;
    if let Some(path) = device {
        let index = index_of(&pool, name, path)?;
        let bytes = size.map_or_else(|| length_of(path), Ok)?;
        pool.grow_device(index, bytes)?;
    }
    for device in &added {
        pool.add(device, *force)?;
        let mut paths = entry.devices.clone();
        paths.push(device.path.clone());
        entry.devices = devices_of(pool.id(), &paths)?;
        // After each: those that were added are part of the pool, whatever becomes of the others.
        pools.registry.put(name, &entry)?;
    }
    report(pools, "grown", &pool, &entry)
}

fn device_paths(
    capacity: &[PathBuf],
    staging: &[PathBuf],
    size: Option<u64>,
) -> Result<Vec<DevicePath>, Failure> {
    let capacity = capacity.iter().map(|path| (path, MediaClass::Capacity));
    let all: Vec<_> =
        capacity.chain(staging.iter().map(|path| (path, MediaClass::Staging))).collect();
    for (at, (path, _)) in all.iter().enumerate() {
        require_there(path)?;
        let is_directory = path.is_dir();
        if !is_directory && all[..at].iter().any(|(other, _)| other == path) {
            let message = format!("{} is given twice", path.display());
            return Err(Failure::new(Reason::Usage, message));
        }
        if is_directory && size.is_none() {
            let message = format!(
                "{} is a directory: say with --size how long the file in it is to be",
                path.display()
            );
            return Err(Failure::new(Reason::Usage, message));
        }
    }
    if size.is_some() && !all.iter().any(|(path, _)| path.is_dir()) {
        let message = "--size is for files that are made in directories, and no directory is \
                       given: leave it out, files and block devices are used whole";
        return Err(Failure::new(Reason::Usage, message));
    }
    let device =
        |(path, class): (&PathBuf, _)| Ok(DevicePath { path: absolute(path)?, class, bytes: size });
    all.into_iter().map(device).collect()
}

/// Refuses a path where nothing is: nobody knows whether a directory or a file was meant.
fn require_there(path: &Path) -> Result<(), Failure> {
    match path.metadata() {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let message = format!(
                "{}: no such directory, file or block device: make the directory first, or name what is \
                 there",
                path.display()
            );
            Err(Failure::new(Reason::NotFound, message))
        }
        Err(error) => {
            Err(Failure::of_io(format_args!("cannot look at {}", path.display()), &error))
        }
    }
}

/// Returns the index of the device of a pool that is at a path.
fn index_of(pool: &Pool, name: &PoolName, path: &Path) -> Result<DeviceIndex, Failure> {
    let devices = pool.device_usages();
    let is_it = |label: &str| match (Path::new(label).canonicalize(), path.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    };
    if let Some(device) = devices.iter().find(|device| is_it(&device.label)) {
        return Ok(device.entry.index);
    }
    let labels: Vec<&str> = devices.iter().map(|device| &*device.label).collect();
    let message = format!(
        "{} is no device of pool {name}: its devices are {}; --add-capacity and --add-staging add one",
        path.display(),
        labels.join(", ")
    );
    Err(Failure::new(Reason::NotFound, message))
}

/// Returns the current length of a file or block device, in bytes.
fn length_of(path: &Path) -> Result<u64, Failure> {
    let length = File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0)));
    length
        .map_err(|error| Failure::of_io(format_args!("cannot measure {}", path.display()), &error))
}

fn report(pools: &Pools, done: &str, pool: &Pool, entry: &Entry) -> Result<(), Failure> {
    let usages = pool.device_usages();
    if pools.json {
        let devices: Vec<_> = usages.iter().map(super::stat::device_json).collect();
        return print_json(&json!({
            "name": pool.name().as_str(), "id": entry.id, "archive": entry.archive,
            "devices": devices,
        }));
    }
    print(|out| {
        writeln!(out, "{done} pool {} on", pool.name())?;
        usages.iter().try_for_each(|device| {
            let (class, bytes) = (device.entry.class, human_bytes(device.entry.bytes));
            writeln!(out, "  {} ({class}, {bytes})", device.label)
        })
    })
}
