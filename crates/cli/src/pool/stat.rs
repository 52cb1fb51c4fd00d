//! `bindery pool stat`: a pool's devices, what is on them, its catalogue.

use std::collections::BTreeMap;

use bindery_pool::format::record::ObjectEntry;
use bindery_pool::{DeviceIndex, DeviceUsage, MediaClass, PoolName, PoolReader, SpaceUsage};
use serde_json::{Value, json};

use super::Pools;
use super::values::id_text;
use crate::exit::Failure;
use crate::output::{Table, human_bytes, print, print_json};

/// Space of a class.
#[derive(Default)]
struct Class {
    usage: SpaceUsage,
    objects: u64,
    object_bytes: u64,
}

/// Space of the catalogue.
struct Catalogue {
    opening: u64,
    objects: usize,
    /// Bytes that are needed of each log, about.
    log_bytes: u64,
    /// Bytes that each log has.
    capacity_bytes: u64,
}

pub(super) fn run(pools: &Pools, name: &PoolName) -> Result<(), Failure> {
    let archive = pools.registry.find(name)?.archive;
    let reader = pools.reader(name)?;
    let devices = reader.device_usages();
    let classes = classes(&reader, &devices);
    let capacity_bytes = reader.catalogue_bytes();
    let catalogue = reader.with_contents(|contents| Catalogue {
        opening: contents.last_opening(),
        objects: contents.objects().len(),
        log_bytes: contents.log_bytes(),
        capacity_bytes,
    });
    if pools.json {
        return print_json(&to_json(&reader, &archive, &devices, &classes, &catalogue));
    }
    print(|out| {
        writeln!(out, "pool {name}, {}", id_text(reader.id()))?;
        let Catalogue { opening, objects, log_bytes, capacity_bytes } = catalogue;
        writeln!(out, "opened for writing {opening} times")?;
        let (needed, has) = (human_bytes(log_bytes), human_bytes(capacity_bytes));
        writeln!(out, "catalogue: {objects} objects, which need {needed} of {has}")?;
        if let Some(archive) = &archive {
            writeln!(out, "archive: {archive}")?;
        }
        for table in [device_table(&devices), class_table(&classes)] {
            writeln!(out)?;
            table.lines().try_for_each(|line| writeln!(out, "{line}"))?;
        }
        Ok(())
    })
}

fn classes(reader: &PoolReader, devices: &[DeviceUsage]) -> BTreeMap<MediaClass, Class> {
    let mut classes: BTreeMap<MediaClass, Class> = BTreeMap::new();
    for device in devices {
        let class = device.entry.class;
        classes.entry(class).or_default().usage = reader.usage(class);
    }
    let class_of = |index: DeviceIndex| {
        devices.iter().find(|device| device.entry.index == index).map(|device| device.entry.class)
    };
    for object in reader.list() {
        let on = object.extents().next().and_then(|extent| class_of(extent.device));
        // What is in the archive is on no device.
        let class = on.unwrap_or(MediaClass::Archive);
        let class = classes.entry(class).or_default();
        class.objects += 1;
        class.object_bytes += length_bytes(&object);
    }
    classes
}

/// Returns the length of an object, or of a log the length that it can have, in bytes.
pub(super) fn length_bytes(object: &ObjectEntry) -> u64 {
    match object {
        log @ (ObjectEntry::Log(_) | ObjectEntry::Mdc(_)) => {
            log.extents().map(|extent| extent.bytes).sum()
        }
        mblock => mblock.length_bytes().unwrap_or(0),
    }
}

fn device_table(devices: &[DeviceUsage]) -> Table {
    let mut table = Table::new([" DEVICE", "CLASS", " SIZE", " USED", " FREE", "PATH"]);
    for DeviceUsage { entry, label, usage } in devices {
        table.row([
            entry.index.to_string(),
            entry.class.to_string(),
            human_bytes(usage.total_bytes),
            human_bytes(usage.used_bytes),
            human_bytes(usage.free_bytes),
            label.clone(),
        ]);
    }
    table
}

fn class_table(classes: &BTreeMap<MediaClass, Class>) -> Table {
    let mut table = Table::new(["CLASS", " OBJECTS", " THEIR BYTES", " USED", " FREE"]);
    for (class, Class { usage, objects, object_bytes }) in classes {
        table.row([
            class.to_string(),
            objects.to_string(),
            human_bytes(*object_bytes),
            human_bytes(usage.used_bytes),
            human_bytes(usage.free_bytes),
        ]);
    }
    table
}

fn to_json(
    reader: &PoolReader,
    archive: &Option<String>,
    devices: &[DeviceUsage],
    classes: &BTreeMap<MediaClass, Class>,
    catalogue: &Catalogue,
) -> Value {
    let classes = classes.iter().map(|(class, Class { usage, objects, object_bytes })| {
        let figures = json!({
            "total_bytes": usage.total_bytes, "used_bytes": usage.used_bytes,
            "free_bytes": usage.free_bytes, "objects": objects, "object_bytes": object_bytes,
        });
        (class.to_string(), figures)
    });
    let Catalogue { opening, objects, log_bytes, capacity_bytes } = catalogue;
    json!({
        "name": reader.name().as_str(),
        "id": id_text(reader.id()),
        "opening": opening,
        "archive": archive,
        "devices": devices.iter().map(device_json).collect::<Vec<_>>(),
        "classes": classes.collect::<serde_json::Map<_, _>>(),
        "catalogue": {
            "objects": objects, "log_bytes": log_bytes, "capacity_bytes": capacity_bytes,
        },
    })
}

/// A device for programs.
pub(super) fn device_json(device: &DeviceUsage) -> Value {
    let DeviceUsage { entry, label, usage } = device;
    json!({
        "index": entry.index.0,
        "id": id_text(entry.id),
        "class": entry.class.name(),
        "path": label,
        "total_bytes": usage.total_bytes,
        "used_bytes": usage.used_bytes,
        "free_bytes": usage.free_bytes,
    })
}
