//! `bindery checkpoint`: checkpoints of guests, listed, read, verified, deleted, taken out and in.

mod args;
mod clone;
mod create;
mod delete;
mod fork;
mod hook;
mod import_memory;
mod job;
mod list;
mod remote;
mod remote_args;
mod repeat;
mod restore;
mod serve_faults;
mod show;
mod transfer;
mod verify;

use std::time::Duration;

use bindery_host::client::Client;
use bindery_host::protocol::{Answer, Request};
use bindery_pool::PoolName;

use self::args::PoolArgs;
pub(crate) use self::args::{CheckpointCommand, CloneArgs, ForkArgs, RestoreArgs, ServeFaultsArgs};
pub(crate) use self::clone::run as clone;
pub(crate) use self::fork::run as fork;
pub(crate) use self::restore::run as restore;
pub(crate) use self::serve_faults::run as serve_faults;
use crate::args::Global;
use crate::connect::connect;
use crate::exit::{Failure, Reason};
use crate::pool;

/// Time that the daemon may take to open a pool with many objects, and to look something up in it.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn run(command: &CheckpointCommand, global: &Global) -> Result<(), Failure> {
    match command {
        CheckpointCommand::Create(arguments) => create::run(global, arguments),
        CheckpointCommand::List(arguments) => list::run(global, arguments),
        CheckpointCommand::Show(arguments) => show::run(global, arguments),
        CheckpointCommand::Verify(arguments) => verify::run(global, arguments),
        CheckpointCommand::Delete(arguments) => delete::run(global, arguments),
        CheckpointCommand::Export(arguments) => transfer::export(global, arguments),
        CheckpointCommand::Import(arguments) => transfer::import(global, arguments),
        CheckpointCommand::Push(arguments) => remote::push(global, arguments),
        CheckpointCommand::Pull(arguments) => remote::pull(global, arguments),
        CheckpointCommand::ImportMemory(arguments) => import_memory::run(global, arguments),
    }
}

/// Connects to the daemon and asks.
fn ask(global: &Global, request: &Request) -> Result<(Client, Answer), Failure> {
    let mut client = connect(global)?;
    let answer = client.ask(request, PATIENCE)?;
    Ok((client, answer))
}

impl PoolArgs {
    /// Returns the pool's paths as a request names them: those of a pool that this user knows by name, or the
    /// path given; nothing for the daemon's own.
    fn paths(&self) -> Result<Option<Vec<String>>, Failure> {
        let Some(pool) = &self.pool else { return Ok(None) };
        let paths = if pool.contains('/') {
            let path = std::path::absolute(pool);
            vec![path.map_err(|error| Failure::of_io(format_args!("cannot find {pool}"), &error))?]
        } else {
            let name = pool.parse::<PoolName>();
            pool::device_paths(
                &name.map_err(|error| Failure::new(Reason::Usage, error.to_string()))?,
            )?
        };
        let text = |path: std::path::PathBuf| {
            path.into_os_string().into_string().map_err(|path| {
                let message = format!("{} is no text, which the protocol needs", path.display());
                Failure::new(Reason::Unsupported, message)
            })
        };
        paths.into_iter().map(text).collect::<Result<_, _>>().map(Some)
    }
}
