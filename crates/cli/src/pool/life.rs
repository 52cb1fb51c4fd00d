//! `bindery pool rename`, `destroy`, `export` and `import`.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use bindery_pool::{FoundPool, Pool, PoolName, scan_pools};
use serde_json::json;

use super::Pools;
use super::args::{DestroyArgs, ImportArgs, RenameArgs};
use super::places::{absolute, devices_of, usual};
use super::registry::Entry;
use super::values::id_text;
use crate::exit::{Failure, Reason};
use crate::output::{print, print_json};

pub(super) fn rename(pools: &Pools, arguments: &RenameArgs) -> Result<(), Failure> {
    let RenameArgs { name, new_name } = arguments;
    let entry = pools.registry.find(name)?;
    if name == new_name {
        return Ok(());
    }
    pools.registry.require_free(new_name, None)?;
    pools.open(name)?.rename(new_name.clone())?;
    pools.registry.put(new_name, &entry)?;
    pools.registry.forget(name)?;
    report(pools, new_name, &format!("pool {name} is called {new_name} now"))
}

pub(super) fn destroy(pools: &Pools, arguments: &DestroyArgs) -> Result<(), Failure> {
    let DestroyArgs { name, yes } = arguments;
    let Entry { id, devices, .. } = pools.registry.find(name)?;
    if !yes {
        ask(name, &devices)?;
    }
    let (there, missing): (Vec<PathBuf>, Vec<PathBuf>) =
        devices.into_iter().partition(|device| device.exists());
    if !there.is_empty() {
        let own = u128::from_str_radix(&id, 16).map(|id| devices_of(id, &there));
        let own = own.unwrap_or_else(|_| Ok(Vec::new()))?;
        Pool::destroy(&there, name)?;
        own.iter().filter(|path| is_made(path)).try_for_each(|path| remove(path))?;
    }
    pools.registry.forget(name)?;
    let rest = missing.iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
    let rest = match rest.as_slice() {
        [] => String::new(),
        rest => format!("; what is on {} was not there, and is left as it is", rest.join(", ")),
    };
    report(pools, name, &format!("pool {name} is gone{rest}"))
}

pub(super) fn export(pools: &Pools, name: &PoolName) -> Result<(), Failure> {
    pools.open(name)?.export()?;
    pools.registry.forget(name)?;
    report(
        pools,
        name,
        &format!("pool {name} is exported: `bindery pool import` takes it into use"),
    )
}

pub(super) fn import(pools: &Pools, arguments: &ImportArgs) -> Result<(), Failure> {
    let places = match arguments.directory.as_slice() {
        [] => usual(&pools.registry)?,
        given => given.to_vec(),
    };
    let found = choose(pools, &places, arguments.name.as_ref())?;
    let id = id_text(found.id);
    pools.registry.require_free(&found.name, Some(&id))?;
    let paths: Vec<PathBuf> = found.paths().map(absolute).collect::<Result<_, _>>()?;
    let pool = Pool::import(&paths, Some(&found.name))?;
    // What was known of it before; its archive is not written on its devices.
    let known = pools.registry.list()?.into_iter().find(|(_, entry)| entry.id == id);
    let archive = known.as_ref().and_then(|(_, entry)| entry.archive.clone());
    let archive = arguments.archive.clone().or(archive);
    pools.registry.put(&pool.name(), &Entry { id, devices: paths, archive })?;
    if let Some((before, _)) = known.filter(|(before, _)| *before != pool.name()) {
        pools.registry.forget(&before)?;
    }
    report(pools, &pool.name(), &format!("pool {} is in use here", pool.name()))
}

/// The pool with a name, or the only one that is not known.
fn choose(
    pools: &Pools,
    places: &[PathBuf],
    name: Option<&PoolName>,
) -> Result<FoundPool, Failure> {
    let known = pools.registry.list()?;
    let is_known = |found: &FoundPool| {
        let is_where = |entry: &Entry| {
            let mut paths = found.paths().map(absolute);
            paths.all(|path| path.is_ok_and(|path| entry.devices.contains(&path)))
        };
        let id = id_text(found.id);
        known.iter().any(|(name, entry)| *name == found.name && entry.id == id && is_where(entry))
    };
    let scanned = scan_pools(places)?;
    let mut pools = scanned.pools;
    let all: Vec<String> = pools.iter().map(|pool| pool.name.to_string()).collect();
    match name {
        Some(name) => pools.retain(|pool| pool.name == *name),
        None => pools.retain(|pool| !is_known(pool)),
    }
    let names: Vec<String> = pools.iter().map(|pool| pool.name.to_string()).collect();
    match (pools.pop(), names.len(), name) {
        (Some(pool), 1, _) => Ok(pool),
        (None, _, _) => Err(none(places, name, &all)),
        (_, _, None) => {
            let message =
                format!("there are several pools, name one of them: {}", names.join(", "));
            Err(Failure::new(Reason::Usage, message))
        }
        (_, _, Some(name)) => {
            let message = format!(
                "there are several pools called {name}: name the devices of one of them with \
                 --directory, as `bindery pool scan` shows them"
            );
            Err(Failure::new(Reason::Usage, message))
        }
    }
}

fn none(places: &[PathBuf], name: Option<&PoolName>, all: &[String]) -> Failure {
    let what = name.map_or("no pool that is not known already".into(), |name| {
        format!("no pool called {name}")
    });
    let places: Vec<String> = places.iter().map(|path| path.display().to_string()).collect();
    let places = if places.is_empty() { "no device".into() } else { places.join(", ") };
    let all = if all.is_empty() { "none".into() } else { all.join(", ") };
    let message = format!(
        "{what} was found on {places} (pools there: {all}): say with --directory where its devices are"
    );
    Failure::new(Reason::NotFound, message)
}

/// Asks the user to confirm that a pool may be lost.
fn ask(name: &PoolName, devices: &[PathBuf]) -> Result<(), Failure> {
    if !io::stdin().is_terminal() {
        let message = format!("nobody can be asked whether pool {name} may be lost: say --yes");
        return Err(Failure::new(Reason::Usage, message));
    }
    let devices: Vec<String> = devices.iter().map(|path| path.display().to_string()).collect();
    eprint!(
        "pool {name}, and all that it holds on {}, will be lost. Type its name to destroy it: ",
        devices.join(", ")
    );
    let mut answer = String::new();
    let asked = io::stderr().flush().and_then(|()| io::stdin().read_line(&mut answer));
    asked.map_err(|error| Failure::of_io("cannot ask", &error))?;
    match answer.trim() == name.as_str() {
        true => Ok(()),
        false => Err(Failure::new(Reason::Failed, format!("pool {name} is left as it is"))),
    }
}

/// Returns true if the file is one that `bindery pool create` has made in a directory.
fn is_made(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "bindery") && path.is_file()
}

fn remove(path: &Path) -> Result<(), Failure> {
    let removed = fs::remove_file(path);
    removed
        .map_err(|error| Failure::of_io(format_args!("cannot remove {}", path.display()), &error))
}

fn report(pools: &Pools, name: &PoolName, text: &str) -> Result<(), Failure> {
    if pools.json {
        return print_json(&json!({ "name": name.as_str() }));
    }
    print(|out| writeln!(out, "{text}"))
}
