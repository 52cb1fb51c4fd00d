//! `bindery checkpoint list`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bindery_host::printable;
use bindery_host::protocol::checkpoint::CheckpointInfo;
use bindery_host::protocol::{Answer, Request};

use super::args::ListArgs;
use super::ask;
use crate::args::Global;
use crate::connect::misplaced;
use crate::exit::Failure;
use crate::output::{Table, human_bytes, print_json};

pub(super) fn run(global: &Global, arguments: &ListArgs) -> Result<(), Failure> {
    let ListArgs { guest, pool, at } = arguments;
    if let Some(store) = at.store()? {
        return super::remote::list(global, store, guest.as_deref());
    }
    let request = Request::CheckpointList { pool: pool.paths()?, guest: guest.clone() };
    match ask(global, &request)?.1 {
        Answer::Checkpoints { checkpoints } if global.json => print_json(&checkpoints),
        Answer::Checkpoints { checkpoints } => table(&checkpoints).print(),
        answer => Err(misplaced(&answer)),
    }
}

fn table(checkpoints: &[CheckpointInfo]) -> Table {
    let headings = [
        "GUEST", "NAME", " AGE", " PAUSE", " RAM", " STORED", " OWN", " SHARED", " WRITTEN",
        "DOMAIN", " USER",
    ];
    let mut table = Table::new(headings);
    for info in checkpoints {
        table.row([
            printable(&info.guest),
            printable(&info.name),
            age(info.time_ns),
            pause(info.pause_us),
            human_bytes(info.memory_bytes),
            human_bytes(info.stored_bytes),
            human_bytes(info.own_bytes),
            human_bytes(info.shared_bytes),
            human_bytes(info.written_bytes),
            printable(&info.domain),
            info.uid.map_or("-".into(), |uid| uid.to_string()),
        ]);
    }
    table
}

/// Returns the time since `time_ns` in its largest unit.
pub(super) fn age(time_ns: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = now.saturating_sub(Duration::from_nanos(time_ns)).as_secs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Returns a pause in milliseconds; a dash where nobody knows it.
pub(super) fn pause(pause_us: Option<u64>) -> String {
    pause_us.map_or("-".into(), |us| format!("{:.1} ms", us as f64 / 1000.0))
}
