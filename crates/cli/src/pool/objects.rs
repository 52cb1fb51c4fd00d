//! `bindery pool put`, `get`, `objects` and `delete`.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use bindery_pool::archive::ArchiveOptions;
use bindery_pool::format::record::ObjectEntry;
use bindery_pool::mblock::Committed;
use bindery_pool::object::{Object, ReadError};
use bindery_pool::{MediaClass, ObjectId, Pool, PoolName, UNIT_BYTES};
use bindery_sys::direct::Buffer;
use serde_json::{Value, json};

use super::args::{DeleteArgs, GetArgs, PutArgs};
use super::connect::is_archived;
use super::stat::length_bytes;
use super::target::Target;
use super::{Pools, progress_bar};
use crate::exit::{Failure, Reason};
use crate::output::{Table, human_bytes, print, print_json};

/// Bytes that are read at once.
const READ_BYTES: u64 = 1 << 20;

pub(super) fn put(pools: &Pools, arguments: &PutArgs) -> Result<(), Failure> {
    let PutArgs { name, class, files } = arguments;
    let pool = pools.open(name)?;
    let mut stored: Vec<Value> = Vec::new();
    let outcome = files.iter().enumerate().try_for_each(|(at, path)| {
        let object =
            put_file(&pool, *class, path).map_err(|error| and_those(error, &files[at..]))?;
        let (id, length_bytes) = (object.id(), object.length_bytes());
        if !pools.json {
            return print(|out| writeln!(out, "{id}  {}", path.display()));
        }
        stored.push(json!({ "id": id.to_string(), "file": path, "length_bytes": length_bytes }));
        Ok(())
    });
    if pools.json {
        // Those that were stored before another failed are there.
        print_json(&stored)?;
    }
    outcome
}

/// A failure to store the first of some files, which names the others.
fn and_those(error: Failure, files: &[PathBuf]) -> Failure {
    match files {
        [] | [_] => error,
        [_, others @ ..] => {
            let others: Vec<_> = others.iter().map(|path| path.display().to_string()).collect();
            let message = format!("{error}. Nor were stored: {}", others.join(", "));
            Failure::new(error.reason(), message)
        }
    }
}

fn put_file(
    pool: &Pool,
    class: MediaClass,
    path: &Path,
) -> Result<std::sync::Arc<Committed>, Failure> {
    let cannot =
        |error: io::Error| Failure::of_io(format_args!("cannot read {}", path.display()), &error);
    let wrong = |what: &str| Failure::new(Reason::BadInput, format!("{} {what}", path.display()));
    let mut file = File::open(path).map_err(cannot)?;
    let metadata = file.metadata().map_err(cannot)?;
    if !metadata.is_file() {
        return Err(wrong("is no regular file: store it in one first"));
    }
    let length_bytes = metadata.len();
    if length_bytes == 0 {
        return Err(wrong("is empty: an object has one byte at least"));
    }
    let mut writer = pool.allocate_mblock(class, length_bytes)?;
    let progress = progress_bar("storing", length_bytes);
    let mut buffer = vec![0; READ_BYTES.min(length_bytes) as usize];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) if writer.length_bytes() + read as u64 > length_bytes => {
                return Err(wrong("grew while it was read: store it when nobody writes it"));
            }
            Ok(read) => {
                writer.append(&buffer[..read])?;
                progress.inc(read as u64);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(cannot(error)),
        }
    }
    progress.finish_and_clear();
    if writer.length_bytes() < length_bytes {
        return Err(wrong("was cut off while it was read: store it when nobody writes it"));
    }
    Ok(writer.commit()?)
}

/// Why an object was not copied.
enum CopyError {
    Read(ReadError),
    Write(io::Error),
}

pub(super) fn get(pools: &Pools, arguments: &GetArgs) -> Result<(), Failure> {
    let GetArgs { name, id, output } = arguments;
    let reader = pools.reader(name)?;
    pools.connect_for(&reader, |archived| archived == *id)?;
    let object = reader.get(*id)?;
    let Some(path) = output else {
        let mut outcome = Ok(());
        print(|out| match copy(&object, out) {
            Err(CopyError::Write(error)) => Err(error),
            Err(CopyError::Read(error)) => {
                outcome = Err(error.into());
                Ok(())
            }
            Ok(()) => Ok(()),
        })?;
        return outcome;
    };
    let cannot =
        |error: &io::Error| Failure::of_io(format_args!("cannot write {}", path.display()), error);
    let mut target = Target::open(path).map_err(|error| cannot(&error))?;
    copy(&object, &mut target).map_err(|error| match error {
        CopyError::Write(error) => cannot(&error),
        CopyError::Read(error) => error.into(),
    })?;
    target.finish().map_err(|error| cannot(&error))?;
    let (id, length_bytes) = (id.to_string(), object.length_bytes());
    match pools.json {
        true => print_json(&json!({ "id": id, "file": path, "length_bytes": length_bytes })),
        false => Ok(()),
    }
}

/// Writes a whole object, every unit verified before it is written.
fn copy(object: &Committed, out: &mut dyn Write) -> Result<(), CopyError> {
    let length_bytes = object.length_bytes();
    let progress = progress_bar("reading", length_bytes);
    let mut offset_bytes = 0;
    while offset_bytes < length_bytes {
        let bytes = READ_BYTES.min(length_bytes - offset_bytes);
        let mut buffer = Buffer::zeroed(bytes.next_multiple_of(UNIT_BYTES as u64) as usize);
        object.read(offset_bytes, &mut buffer).map_err(CopyError::Read)?;
        out.write_all(&buffer[..bytes as usize]).map_err(CopyError::Write)?;
        offset_bytes += bytes;
        progress.inc(bytes);
    }
    progress.finish_and_clear();
    Ok(())
}

pub(super) fn list(pools: &Pools, name: &PoolName) -> Result<(), Failure> {
    let reader = pools.reader(name)?;
    let devices = reader.device_usages();
    let mut table = Table::new(["ID", "KIND", "CLASS", " BYTES", " DEVICE", " OFFSET"]);
    let mut list = Vec::new();
    for object in reader.list() {
        // What is in the archive is on no device.
        let first = object.extents().next();
        let device = first
            .and_then(|first| devices.iter().find(|device| device.entry.index == first.device));
        let class = device.map_or(MediaClass::Archive.name(), |device| device.entry.class.name());
        let (id, kind, bytes) = (object.id().to_string(), kind(&object), length_bytes(&object));
        if pools.json {
            list.push(json!({
                "id": id, "kind": kind, "class": class, "length_bytes": bytes,
                "device": first.map(|first| first.device.0),
                "offset_bytes": first.map(|first| first.offset_bytes),
            }));
            continue;
        }
        let offset = first.map_or("-".into(), |first| format!("{:#x}", first.offset_bytes));
        let device = first.map_or("-".into(), |first| first.device.to_string());
        table.row([id, kind.into(), class.into(), human_bytes(bytes), device, offset]);
    }
    if pools.json { print_json(&list) } else { table.print() }
}

fn kind(object: &ObjectEntry) -> &'static str {
    match object {
        ObjectEntry::Mblock(_) | ObjectEntry::Archived(_) => "mblock",
        ObjectEntry::Log(_) => "mlog",
        ObjectEntry::Mdc(_) => "mdc",
    }
}

pub(super) fn delete(pools: &Pools, arguments: &DeleteArgs) -> Result<(), Failure> {
    let DeleteArgs { name, ids } = arguments;
    let pool = pools.open(name)?;
    // All are looked for before any is deleted.
    let there = pool.list();
    let find = |id: &ObjectId| there.binary_search_by_key(id, ObjectEntry::id);
    if let Some(missing) = ids.iter().find(|id| find(id).is_err()) {
        let message = format!(
            "pool {name} has no object {missing}, and none was deleted: `bindery pool objects {name}` \
             lists those that it has"
        );
        return Err(Failure::new(Reason::NotFound, message));
    }
    let any_is_archived = ids.iter().any(|id| find(id).is_ok_and(|at| is_archived(&there[at])));
    let unreachable = match any_is_archived {
        true => pools.connect(&pool, ArchiveOptions::default()).err(),
        false => None,
    };
    let mut left = Vec::new();
    for id in ids {
        left.extend(pool.delete_fully(*id)?.map(|why| (*id, why)));
    }
    pool.reclaim();
    if pools.json {
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        let left: Vec<String> = left.iter().map(|(id, _)| id.to_string()).collect();
        return print_json(&json!({ "deleted": ids, "left_in_archive": left }));
    }
    for (id, why) in &left {
        let why = unreachable.as_ref().map_or_else(|| why.to_string(), ToString::to_string);
        eprintln!(
            "bindery: object {id} is deleted, and its keys are left in the archive: {why}. Remove them with \
             `bindery pool sweep {name}` when it can be reached"
        );
    }
    Ok(())
}
