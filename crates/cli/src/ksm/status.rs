//! `bindery ksm status`: what KSM saves, what it costs, and for whom.

use std::io::{self, Write};

use bindery_host::printable;
use bindery_ksm::{Processes, Savings, SetBy, Status};

use super::args::StatusArgs;
use crate::exit::Failure;
use crate::output::{Table, human_bytes, human_signed_bytes, print, print_json};

pub(crate) fn run(arguments: &StatusArgs, json: bool) -> Result<(), Failure> {
    let status = Status::measure(arguments.duration, arguments.top)?;
    if json {
        return print_json(&status);
    }
    print(|out| write_status(out, &status))?;
    if status.processes.lines.is_empty() {
        return Ok(());
    }
    print(|out| writeln!(out))?;
    table(&status.processes).print()
}

fn write_status(out: &mut dyn Write, status: &Status) -> io::Result<()> {
    let run = match status.run {
        0 => "stopped",
        1 => "running",
        _ => "stopped, everything unmerged",
    };
    writeln!(out, "KSM       {run}, {} full scans", status.full_scans)?;
    let Savings { saved_bytes, metadata_bytes, net_bytes, .. } = status.savings;
    writeln!(
        out,
        "saves     {}: {} less {} of its own",
        human_signed_bytes(net_bytes),
        human_bytes(saved_bytes),
        human_bytes(metadata_bytes)
    )?;
    write!(out, "pages     {} saved by sharing {}", status.pages_sharing, status.pages_shared)?;
    if let Some(zero) = status.ksm_zero_pages {
        write!(out, ", {zero} zero")?;
    }
    writeln!(out, ", {} unique, {} volatile", status.pages_unshared, status.pages_volatile)?;
    match status.ksmd_cpu_percent {
        Some(percent) => write!(out, "costs     {percent:.1}% of a CPU")?,
        None => write!(out, "costs     unknown: ksmd cannot be seen from here")?,
    }
    match status.pages_per_second {
        Some(pages) => writeln!(out, ", {pages} pages looked at a second")?,
        None => writeln!(out)?,
    }
    let Status { pages_to_scan, sleep_millisecs, .. } = status;
    writeln!(
        out,
        "pace      {pages_to_scan} pages every {sleep_millisecs} ms, {}",
        setter(status)
    )?;
    let Processes { tells_profit, gaining, losing, unreadable, .. } = status.processes;
    match tells_profit {
        true => write!(out, "processes {gaining} gain, {losing} lose")?,
        false => write!(out, "processes who gains is not told by this kernel; Linux 6.1 does")?,
    }
    match unreadable {
        0 => writeln!(out),
        _ => writeln!(out, "; {unreadable} of other users cannot be read without root"),
    }
}

fn setter(status: &Status) -> String {
    match &status.set_by {
        SetBy::Pilot(holder) => format!("set by a pilot, {holder}"),
        SetBy::KernelAdvisor => "set by the kernel's own advisor".into(),
        SetBy::Hand => "set by hand".into(),
        SetBy::Unknown => "set by hand or by a pilot: only root is told".into(),
    }
}

fn table(processes: &Processes) -> Table {
    let mut table = Table::new([" PID", "COMMAND", " PROFIT", " MERGED", " ZERO", " KNOWN"]);
    let number = |value: Option<u64>| value.map_or("?".into(), |value| value.to_string());
    for line in &processes.lines {
        table.row([
            line.pid.to_string(),
            printable(&line.command),
            line.profit_bytes.map_or("?".into(), human_signed_bytes),
            line.merging_pages.to_string(),
            number(line.zero_pages),
            number(line.rmap_items),
        ]);
    }
    table
}
