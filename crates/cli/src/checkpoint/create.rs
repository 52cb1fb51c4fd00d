//! `bindery checkpoint create`.

use std::io::{self, Write};
use std::path::Path;

use bindery_host::printable;
use bindery_host::protocol::Request;
use bindery_host::protocol::checkpoint::{Created, DiskPolicy};
use bindery_host::protocol::job::JobResult;

use super::args::CreateArgs;
use super::ask;
use super::job::{Cancel, begun, follow};
use super::repeat;
use super::verify::other;
use crate::args::Global;
use crate::exit::{Failure, Reason};
use crate::output::{human_bytes, print, print_json};

pub(super) fn run(global: &Global, arguments: &CreateArgs) -> Result<(), Failure> {
    if let Some(every) = arguments.every {
        return repeat::run(global, arguments, every);
    }
    let cancel = Cancel::on_signals()?;
    let created = create(global, arguments, arguments.name.as_deref(), &cancel)?;
    if global.json {
        return print_json(&created);
    }
    show(&created)
}

/// Makes one checkpoint, and waits until it is there.
pub(super) fn create(
    global: &Global,
    arguments: &CreateArgs,
    name: Option<&str>,
    cancel: &Cancel,
) -> Result<Created, Failure> {
    let (mut client, answer) = ask(global, &request(arguments, name)?)?;
    match follow(&mut client, begun(&answer)?, cancel)? {
        JobResult::Created(created) => Ok(*created),
        result => Err(other(&result)),
    }
}

fn request(arguments: &CreateArgs, name: Option<&str>) -> Result<Request, Failure> {
    let text = |path: &Path| absolute(path);
    let directory = arguments.disks_directory.as_deref().map(text).transpose()?;
    let disks = match arguments.without_disks {
        true => DiskPolicy::Without,
        false => DiskPolicy::Overlays { directory },
    };
    Ok(Request::CheckpointCreate {
        pool: arguments.pool.paths()?,
        guest: arguments.guest.clone(),
        name: name.map(str::to_owned),
        disks,
        monitor: arguments.qmp.as_deref().map(text).transpose()?,
        compress: arguments.compress,
        pause_max_ms: arguments.pause_max.map(|pause| pause.as_millis() as u64),
    })
}

/// Returns a path as the daemon, which has another working directory, is to take it.
pub(super) fn absolute(path: &Path) -> Result<String, Failure> {
    let absolute = std::path::absolute(path);
    let absolute = absolute
        .map_err(|error| Failure::of_io(format_args!("cannot find {}", path.display()), &error))?;
    absolute.into_os_string().into_string().map_err(|path| {
        let message = format!("{} is no text, which the protocol needs", path.display());
        Failure::new(Reason::Unsupported, message)
    })
}

pub(super) fn show(created: &Created) -> Result<(), Failure> {
    let info = &created.checkpoint;
    print(|out| {
        let name = format!("{}@{}", info.guest, info.name);
        writeln!(
            out,
            "{}: {} of {} are not zero, {} of that are new and took {}",
            printable(&name),
            human_bytes(info.stored_bytes),
            human_bytes(info.memory_bytes),
            human_bytes(info.own_bytes),
            human_bytes(info.written_bytes)
        )?;
        show_pause(out, created)
    })
}

/// Shows how long the guest stood still, and what its disks write to from now on.
pub(super) fn show_pause(out: &mut dyn Write, created: &Created) -> io::Result<()> {
    let ms = |micros: u64| format!("{:.1} ms", micros as f64 / 1000.0);
    match created.pause_us {
        Some(pause) => writeln!(
            out,
            "the guest stood still for {} (device state {}, disks {}, {} pages in {})",
            ms(pause),
            ms(created.device_state_us),
            ms(created.disks_us),
            created.pages_in_pause,
            ms(created.memory_us)
        )?,
        None => writeln!(out, "the guest was paused before, and is still")?,
    }
    for overlay in &created.overlays {
        writeln!(
            out,
            "the guest writes to {} from now on: start it with that next",
            printable(overlay)
        )?;
    }
    Ok(())
}
