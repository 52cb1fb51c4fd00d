//! `bindery checkpoint export` and `import`: files that this command reads and writes by its own rights, and
//! passes on to the daemon through a pair of sockets.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use bindery_checkpoint::SecretKey;
use bindery_host::printable;
use bindery_host::protocol::Request;
use bindery_host::protocol::checkpoint::{CheckpointName, ExportKey};
use bindery_host::protocol::job::JobResult;
use bindery_sys::socket;
use serde_json::json;

use super::PATIENCE;
use super::args::{ExportArgs, ImportArgs};
use super::job::{Cancel, begun, follow};
use super::verify::other;
use crate::args::Global;
use crate::connect::connect;
use crate::exit::{Failure, Reason};
use crate::output::{human_bytes, print, print_json};
use crate::pool::Target;

/// Bytes that are passed on at once.
const PIECE_BYTES: usize = 256 << 10;

/// Time for which the daemon may take nothing of a stream.
pub(super) const STREAM_PATIENCE: Duration = Duration::from_secs(120);

/// Time in which a stream that broke says why.
const REASON_PATIENCE: Duration = Duration::from_millis(500);

pub(super) fn export(global: &Global, arguments: &ExportArgs) -> Result<(), Failure> {
    let ExportArgs { checkpoint, file, key_file, owner, pool } = arguments;
    let key = key_file.as_deref().map(read_key).transpose()?;
    let pool = pool.paths()?;
    let cannot =
        |error: &io::Error| Failure::of_io(format_args!("cannot write {}", file.display()), error);
    let mut client = connect(global)?;
    let mut sink = match is_standard(file) {
        true => Sink::Stdout(io::stdout()),
        false => Sink::File(Target::open(file).map_err(|error| cannot(&error))?),
    };
    let cancel = Cancel::on_signals()?;
    let (ours, theirs) = pair()?;
    let request = Request::CheckpointExport { pool, checkpoint: owner.of(checkpoint), key };
    let answer = client.ask_passing(&request, &[theirs.as_fd()], PATIENCE)?;
    drop(theirs);
    let (result, written) = thread::scope(|scope| {
        // Ends when the daemon closes its end, and closes ours when it cannot write.
        let relay = scope.spawn(|| receive_into(ours, &mut sink));
        let result = begun(&answer).and_then(|job| follow(&mut client, job, &cancel));
        (result, relay.join().expect("passing on does not panic"))
    });
    written.map_err(|error| cannot(&error))?;
    let result = result?;
    let JobResult::Exported { pages, bytes } = result else { return Err(other(&result)) };
    sink.finish().map_err(|error| cannot(&error))?;
    if is_standard(file) {
        return Ok(());
    }
    if global.json {
        return print_json(&json!({ "file": file, "pages": pages, "bytes": bytes }));
    }
    let name = printable(&checkpoint.to_string());
    print(|out| writeln!(out, "{name} is in {}, {}", file.display(), human_bytes(bytes)))
}

pub(super) fn import(global: &Global, arguments: &ImportArgs) -> Result<(), Failure> {
    let ImportArgs { file, guest, name, domain, key_file, pool } = arguments;
    let key = key_file.as_deref().map(read_key).transpose()?;
    let cannot =
        |error: &io::Error| Failure::of_io(format_args!("cannot read {}", file.display()), error);
    let (source, bytes) = open_source(file).map_err(|error| cannot(&error))?;
    let request = Request::CheckpointImport {
        pool: pool.paths()?,
        guest: guest.clone(),
        name: name.clone(),
        domain: Some(domain.clone()),
        key,
        bytes,
        base: None,
    };
    send_in(global, &request, file, |socket| send_from(source, socket))
}

/// Asks the daemon for a checkpoint of the stream that `send` sends, and shows it. `send` has read `file` if it fails.
pub(super) fn send_in(
    global: &Global,
    request: &Request,
    file: &Path,
    send: impl FnOnce(&OwnedFd) -> io::Result<()> + Send + 'static,
) -> Result<(), Failure> {
    let cannot =
        |error: &io::Error| Failure::of_io(format_args!("cannot read {}", file.display()), error);
    let mut client = connect(global)?;
    let cancel = Cancel::on_signals()?;
    let (ours, theirs) = pair()?;
    let answer = client.ask_passing(request, &[theirs.as_fd()], PATIENCE)?;
    drop(theirs);
    // It may wait for its input for ever, and is not waited for then.
    let relay = thread::spawn(move || send(&ours));
    let result = begun(&answer).and_then(|job| follow(&mut client, job, &cancel));
    if result.is_err() {
        let deadline = Instant::now() + REASON_PATIENCE;
        while !relay.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        if relay.is_finished()
            && let Err(error) = relay.join().expect("passing on does not panic")
        {
            return Err(cannot(&error));
        }
    }
    let result = result?;
    let JobResult::Imported(info) = result else { return Err(other(&result)) };
    if global.json {
        return print_json(&info);
    }
    let name = printable(&format!("{}@{}", info.guest, info.name));
    let (stored, own) = (human_bytes(info.stored_bytes), human_bytes(info.own_bytes));
    print(|out| writeln!(out, "{name} is there, {stored}, of which {own} are new"))
}

fn is_standard(file: &Path) -> bool {
    file == Path::new("-")
}

fn read_key(path: &Path) -> Result<ExportKey, Failure> {
    let key = SecretKey::read(path);
    let key = key.map_err(|error| Failure::new(Reason::BadInput, error.to_string()))?;
    Ok(ExportKey(key.expose().iter().map(|byte| format!("{byte:02x}")).collect()))
}

/// Makes the two ends of a stream.
pub(super) fn pair() -> Result<(OwnedFd, OwnedFd), Failure> {
    socket::stream_pair().map_err(|error| Failure::of_io("cannot make a pair of sockets", &error))
}

/// Opens what is imported, and returns its length where it is known.
fn open_source(file: &Path) -> io::Result<(Box<dyn Read + Send>, Option<u64>)> {
    if is_standard(file) {
        return Ok((Box::new(io::stdin()), None));
    }
    let source = File::open(file)?;
    let found = source.metadata()?;
    let bytes = found.is_file().then_some(found.len());
    Ok((Box::new(source), bytes))
}

/// Writes the device state of a checkpoint to a file.
pub(super) fn save_device_state(
    global: &Global,
    (pool, checkpoint): (Option<Vec<String>>, CheckpointName),
    file: &Path,
) -> Result<(), Failure> {
    let cannot =
        |error: &io::Error| Failure::of_io(format_args!("cannot write {}", file.display()), error);
    let mut sink = Sink::File(Target::open(file).map_err(|error| cannot(&error))?);
    let mut client = connect(global)?;
    let cancel = Cancel::on_signals()?;
    let (ours, theirs) = pair()?;
    let request = Request::CheckpointDeviceState { pool, checkpoint };
    let answer = client.ask_passing(&request, &[theirs.as_fd()], PATIENCE)?;
    drop(theirs);
    receive_into(ours, &mut sink).map_err(|error| cannot(&error))?;
    match follow(&mut client, begun(&answer)?, &cancel)? {
        JobResult::DeviceState { .. } => sink.finish().map_err(|error| cannot(&error)),
        result => Err(other(&result)),
    }
}

/// Receives up to the stream's end.
fn receive_into(socket: OwnedFd, sink: &mut Sink) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let count = socket::receive(&socket, &mut piece, &mut Vec::new())?;
        if count == 0 {
            return sink.flush();
        }
        sink.write_all(&piece[..count])?;
    }
}

/// Sends all there is. The daemon's going away is no error here: its job says why.
fn send_from(mut source: impl Read, socket: &OwnedFd) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let count = source.read(&mut piece)?;
        if count == 0 || socket::send_all(socket, &piece[..count], &[], STREAM_PATIENCE).is_err() {
            return Ok(());
        }
    }
}

/// Target of an export.
enum Sink {
    Stdout(io::Stdout),
    File(Target),
}

impl Sink {
    fn finish(self) -> io::Result<()> {
        match self {
            Self::Stdout(_) => Ok(()),
            Self::File(target) => target.finish(),
        }
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stdout(out) => out.write(bytes),
            Self::File(target) => target.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout(out) => out.flush(),
            Self::File(target) => target.flush(),
        }
    }
}
