//! `bindery checkpoint show`.

use bindery_host::printable;
use bindery_host::protocol::checkpoint::CheckpointDetail;
use bindery_host::protocol::{Answer, Request};

use super::args::ShowArgs;
use super::ask;
use super::list::{age, pause};
use crate::args::Global;
use crate::connect::misplaced;
use crate::exit::Failure;
use crate::output::{Table, human_bytes, print, print_json};

pub(super) fn run(global: &Global, arguments: &ShowArgs) -> Result<(), Failure> {
    let ShowArgs { checkpoint, owner, pool } = arguments;
    let request = Request::CheckpointShow { pool: pool.paths()?, checkpoint: owner.of(checkpoint) };
    match ask(global, &request)?.1 {
        Answer::Checkpoint(detail) if global.json => print_json(&detail),
        Answer::Checkpoint(detail) => print_detail(&detail),
        answer => Err(misplaced(&answer)),
    }
}

fn print_detail(detail: &CheckpointDetail) -> Result<(), Failure> {
    let CheckpointDetail { info, blocks, disks, .. } = detail;
    let or_none = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let uid = info.uid.map_or("-".into(), |uid| uid.to_string());
    let restored = if detail.is_restored { "yes" } else { "no" };
    let lines = [
        ("checkpoint", format!("{}@{}", printable(&info.guest), printable(&info.name))),
        ("domain", format!("{} of user {uid}", printable(&info.domain))),
        ("age", age(info.time_ns)),
        ("pause", pause(info.pause_us)),
        ("rounds", info.rounds.map_or("-".into(), |rounds| rounds.to_string())),
        ("vmm", format!("{} {}", or_none(&detail.vmm), detail.vmm_version)),
        ("machine", or_none(&detail.machine)),
        ("arguments", or_none(&detail.arguments.join(" "))),
        ("device state", human_bytes(detail.device_state_bytes)),
        ("memory", human_bytes(info.memory_bytes)),
        ("stored", human_bytes(info.stored_bytes)),
        ("  own", human_bytes(info.own_bytes)),
        ("  shared", human_bytes(info.shared_bytes)),
        (
            "written",
            format!("{}, it names {} packs", human_bytes(info.written_bytes), detail.packs),
        ),
        ("restored", restored.to_owned()),
    ];
    let mut block_table = Table::new(["BLOCK", " RAM", " STORED"]);
    for block in blocks {
        let (memory, stored) = (human_bytes(block.memory_bytes), human_bytes(block.stored_bytes));
        block_table.row([block.name.clone(), memory, stored]);
    }
    let mut disk_table = Table::new(["DISK", "FORMAT", "PATH"]);
    for disk in disks {
        disk_table.row([disk.device.clone(), disk.format.clone(), disk.path.clone()]);
    }
    print(|out| {
        lines.iter().try_for_each(|(name, value)| {
            writeln!(out, "{}", format!("{name:13} {value}").trim_end())
        })?;
        for (table, is_empty) in [(block_table, blocks.is_empty()), (disk_table, disks.is_empty())]
        {
            if !is_empty {
                writeln!(out)?;
                table.lines().try_for_each(|line| writeln!(out, "{line}"))?;
            }
        }
        Ok(())
    })
}
