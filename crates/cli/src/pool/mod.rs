//! `bindery pool`: pools of immutable objects, made, filled, looked through, moved and ended.

mod archiving;
mod args;
mod connect;
mod create;
mod failure;
mod life;
mod list;
mod objects;
mod places;
mod registry;
mod stat;
mod sweep;
mod target;
mod values;
mod verify;

use std::path::PathBuf;

use bindery_pool::{Pool, PoolName, PoolReader};
use indicatif::{ProgressBar, ProgressStyle};

pub(crate) use self::args::PoolCommand;
use self::registry::{Entry, Registry};
pub(crate) use self::target::Target;
use crate::exit::{Failure, Reason};

pub(crate) fn run(command: &PoolCommand, json: bool) -> Result<(), Failure> {
    let pools = Pools { registry: Registry::of_user(), json };
    match command {
        PoolCommand::Create(arguments) => create::create(&pools, arguments),
        PoolCommand::List => list::list(&pools),
        PoolCommand::Stat(arguments) => stat::run(&pools, &arguments.name),
        PoolCommand::Scan(arguments) => list::scan_paths(&pools, arguments),
        PoolCommand::Verify(arguments) => verify::run(&pools, arguments),
        PoolCommand::Grow(arguments) => create::grow(&pools, arguments),
        PoolCommand::Rename(arguments) => life::rename(&pools, arguments),
        PoolCommand::Destroy(arguments) => life::destroy(&pools, arguments),
        PoolCommand::Export(arguments) => life::export(&pools, &arguments.name),
        PoolCommand::Import(arguments) => life::import(&pools, arguments),
        PoolCommand::Put(arguments) => objects::put(&pools, arguments),
        PoolCommand::Get(arguments) => objects::get(&pools, arguments),
        PoolCommand::Objects(arguments) => objects::list(&pools, &arguments.name),
        PoolCommand::Delete(arguments) => objects::delete(&pools, arguments),
        PoolCommand::Archive(arguments) => archiving::archive(&pools, arguments),
        PoolCommand::Restore(arguments) => archiving::restore(&pools, arguments),
        PoolCommand::Sweep(arguments) => sweep::run(&pools, arguments),
    }
}

/// Returns the devices of a pool that this user knows by name.
///
/// # Errors
/// If there is none, or a device is not there.
pub(crate) fn device_paths(name: &PoolName) -> Result<Vec<PathBuf>, Failure> {
    Pools { registry: Registry::of_user(), json: false }.devices(name)
}

/// The pools of this machine, and how to speak of them.
struct Pools {
    registry: Registry,
    json: bool,
}

impl Pools {
    /// Opens a pool for writing, which one process at a time may.
    fn open(&self, name: &PoolName) -> Result<Pool, Failure> {
        let pool = Pool::open(&self.devices(name)?, Some(name))?;
        if !self.json {
            for damage in pool.healed() {
                eprintln!("bindery: {damage}: made good from the other copy");
            }
        }
        Ok(pool)
    }

    /// Opens a pool for reading, beside all others.
    fn reader(&self, name: &PoolName) -> Result<PoolReader, Failure> {
        Ok(PoolReader::open(&self.devices(name)?, Some(name))?)
    }

    /// Returns the devices of a pool, all of which are there.
    fn devices(&self, name: &PoolName) -> Result<Vec<PathBuf>, Failure> {
        let Entry { devices, .. } = self.registry.find(name)?;
        match devices.iter().find(|device| !device.exists()) {
            None => Ok(devices),
            Some(missing) => {
                let message = format!(
                    "{}, a device of pool {name}, is not there: attach it, or have \
                     `bindery pool import {name}` find it if it is called something else now",
                    missing.display()
                );
                Err(Failure::new(Reason::NotFound, message))
            }
        }
    }
}

/// A bar on stderr; nothing where that is no terminal.
fn progress_bar(doing: &str, bytes: u64) -> ProgressBar {
    let template =
        format!("{doing} {{bar:40}} {{binary_bytes}} of {{binary_total_bytes}}, {{eta}} left");
    let style = ProgressStyle::with_template(&template).expect("the template is a valid one");
    ProgressBar::new(bytes).with_style(style)
}
