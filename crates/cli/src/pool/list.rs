//! `bindery pool list` and `scan`: which pools there are, and whether they can be used.

use std::path::{Path, PathBuf};

use bindery_pool::format::superblock::Residence;
use bindery_pool::{
    FoundPool, MediaClass, OpenError, PoolName, PoolReader, PoolScan, SpaceUsage, scan_pools,
};
use serde_json::{Value, json};

use super::args::ScanArgs;
use super::registry::Entry;
use super::values::id_text;
use super::{Pools, places};
use crate::exit::Failure;
use crate::output::{Table, human_bytes, print, print_json};

/// State of a pool: usable or not.
struct State {
    /// In a word.
    word: &'static str,
    /// Why not.
    why: Option<String>,
    reader: Option<PoolReader>,
}

impl State {
    fn not(word: &'static str, why: String) -> Self {
        Self { word, why: Some(why), reader: None }
    }

    /// Of a pool of which devices were found.
    fn of(found: &FoundPool) -> Self {
        if found.residence == Residence::Exported {
            return Self::not(
                "exported",
                format!("use it with `bindery pool import {}`", found.name),
            );
        }
        let paths: Vec<PathBuf> = found.paths().map(Path::to_path_buf).collect();
        match PoolReader::open(&paths, Some(&found.name)) {
            Ok(reader) => Self { word: "ready", why: None, reader: Some(reader) },
            Err(error) if found.is_complete() => Self::not("unusable", error.to_string()),
            Err(error) => Self::not("incomplete", error.to_string()),
        }
    }

    /// Of a pool that is known to be on some devices.
    fn known(entry: &Entry) -> Self {
        if let Some(missing) = entry.devices.iter().find(|device| !device.exists()) {
            return Self::not("incomplete", format!("{} is not there", missing.display()));
        }
        match scan_pools(&entry.devices) {
            Err(error) => Self::not("unusable", error.to_string()),
            Ok(found) => match found.pools.iter().find(|pool| id_text(pool.id) == entry.id) {
                Some(pool) => Self::of(pool),
                None => Self::not("unusable", "its devices are no longer of it".into()),
            },
        }
    }

    fn usage(&self) -> Option<SpaceUsage> {
        let reader = self.reader.as_ref()?;
        Some(MediaClass::ALL.into_iter().map(|class| reader.usage(class)).sum())
    }

    fn objects(&self) -> Option<usize> {
        self.reader.as_ref().map(|reader| reader.with_contents(|it| it.objects().len()))
    }
}

pub(super) fn list(pools: &Pools) -> Result<(), Failure> {
    let known = pools.registry.list()?;
    let known: Vec<(PoolName, Entry, State)> = known
        .into_iter()
        .map(|(name, entry)| {
            let state = State::known(&entry);
            (name, entry, state)
        })
        .collect();
    if pools.json {
        let list = known.iter().map(|(name, entry, state)| to_json(name, entry, state));
        return print_json(&list.collect::<Vec<_>>());
    }
    let mut table =
        Table::new(["NAME", "STATE", " SIZE", " FREE", " OBJECTS", " DEVICES", "ARCHIVE"]);
    for (name, entry, state) in &known {
        let bytes = |of: fn(&SpaceUsage) -> u64| {
            state.usage().map_or("-".into(), |usage| human_bytes(of(&usage)))
        };
        table.row([
            name.to_string(),
            state.word.into(),
            bytes(|usage| usage.total_bytes),
            bytes(|usage| usage.free_bytes),
            state.objects().map_or("-".into(), |objects| objects.to_string()),
            entry.devices.len().to_string(),
            entry.archive.clone().unwrap_or_default(),
        ]);
    }
    print(|out| {
        table.lines().try_for_each(|line| writeln!(out, "{line}"))?;
        known.iter().try_for_each(|(name, _, state)| match &state.why {
            Some(why) => writeln!(out, "{name}: {why}"),
            None => Ok(()),
        })
    })
}

fn to_json(name: &PoolName, entry: &Entry, state: &State) -> Value {
    let usage = state.usage();
    json!({
        "name": name.as_str(),
        "id": entry.id,
        "state": state.word,
        "why": state.why,
        "total_bytes": usage.map(|usage| usage.total_bytes),
        "free_bytes": usage.map(|usage| usage.free_bytes),
        "objects": state.objects(),
        "devices": entry.devices,
        "archive": entry.archive,
    })
}

pub(super) fn scan_paths(pools: &Pools, arguments: &ScanArgs) -> Result<(), Failure> {
    let mut found = match arguments.paths.as_slice() {
        [] => scan_pools(&places::usual(&pools.registry)?)?,
        paths => scan_pools(paths)?,
    };
    if arguments.paths.is_empty() {
        // Most block devices of a machine are of no pool.
        found.unusable.retain(|(_, error)| !matches!(error, OpenError::NoPool { .. }));
    }
    let states: Vec<State> = found.pools.iter().map(State::of).collect();
    if pools.json {
        return print_json(&scan_json(&found, &states));
    }
    if found.pools.is_empty() && found.unusable.is_empty() {
        return print(|out| writeln!(out, "no pool was found"));
    }
    print(|out| {
        for (pool, state) in found.pools.iter().zip(&states) {
            let FoundPool { id, name, devices, unlisted, .. } = pool;
            writeln!(out, "pool {name}, {}: {}", id_text(*id), state.word)?;
            for (entry, path) in devices {
                let place =
                    path.as_deref().map_or("missing".into(), |path| path.display().to_string());
                let (index, class, bytes) = (entry.index, entry.class, human_bytes(entry.bytes));
                writeln!(out, "  device {index} ({class}, {bytes}): {place}")?;
            }
            for path in unlisted {
                writeln!(out, "  stray: {}", path.display())?;
            }
            if let Some(why) = &state.why {
                writeln!(out, "  {why}")?;
            }
        }
        found.unusable.iter().try_for_each(|(_, error)| writeln!(out, "{error}"))
    })
}

fn scan_json(found: &PoolScan, states: &[State]) -> Value {
    let pool = |(pool, state): (&FoundPool, &State)| {
        let devices = pool.devices.iter().map(|(entry, path)| {
            json!({
                "index": entry.index.0, "id": id_text(entry.id), "class": entry.class.name(),
                "total_bytes": entry.bytes, "path": path,
            })
        });
        json!({
            "name": pool.name.as_str(),
            "id": id_text(pool.id),
            "state": state.word,
            "why": state.why,
            "opening": pool.openings,
            "devices": devices.collect::<Vec<_>>(),
            "strays": pool.unlisted,
        })
    };
    let unusable = found.unusable.iter();
    let unusable =
        unusable.map(|(path, error)| json!({ "path": path, "message": error.to_string() }));
    json!({
        "pools": found.pools.iter().zip(states).map(pool).collect::<Vec<_>>(),
        "unusable": unusable.collect::<Vec<_>>(),
    })
}
