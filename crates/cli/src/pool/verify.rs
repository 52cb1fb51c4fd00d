//! `bindery pool verify`: reads everything, names what is damaged, and makes good what can be.

use bindery_pool::format::record::ObjectEntry;
use bindery_pool::{Finding, PoolName, PoolReader, VerifyReport, archive};
use serde_json::json;

use super::args::VerifyArgs;
use super::{Pools, progress_bar};
use crate::exit::{Failure, Reason};
use crate::output::{human_bytes, print, print_json};

/// Something that was found, and what became of it.
struct Found {
    finding: Finding,
    is_repaired: bool,
}

pub(super) fn run(pools: &Pools, arguments: &VerifyArgs) -> Result<(), Failure> {
    let VerifyArgs { name, repair } = arguments;
    let reader = pools.reader(name)?;
    let unreachable = pools.connect_for(&reader, |_| true).err();
    let bytes = reader.with_contents(|contents| contents.objects().map(read_bytes).sum());
    let progress = progress_bar("verifying", bytes);
    let report = reader.verify(|bytes| progress.inc(bytes));
    progress.finish_and_clear();
    let VerifyReport { objects, object_bytes, findings, .. } = report?;
    let left = match *repair && findings.iter().any(has_second_copy) {
        true => Some(repaired(pools, arguments, &reader)?),
        false => None,
    };
    let found = findings.into_iter().map(|finding| {
        let is_left = left.as_ref().is_none_or(|left| left.contains(&finding.to_string()));
        Found { is_repaired: has_second_copy(&finding) && !is_left, finding }
    });
    let found: Vec<Found> = found.collect();
    print_report(pools, objects, object_bytes, &found)?;
    conclude(name, &found, unreachable)
}

/// Outcome of a verification: whole, damaged, or unknown because the archive cannot be reached.
fn conclude(
    name: &PoolName,
    found: &[Found],
    unreachable: Option<archive::OpenError>,
) -> Result<(), Failure> {
    let damaged = found.iter().filter(|found| found.finding.is_damage()).count();
    let unread = found.len() - damaged;
    let repaired = found.iter().filter(|found| found.is_repaired).count();
    let why = unreachable.map(|error| format!(": {error}")).unwrap_or_default();
    let mut message = match (damaged, damaged - repaired) {
        (0, _) if unread == 0 => return Ok(()),
        (0, _) => {
            let message = format!(
                "nothing of pool {name} is damaged that was read, and what is in its archive was not{why}"
            );
            return Err(Failure::new(Reason::Failed, message));
        }
        (_, 0) => format!("pool {name} was damaged, and is repaired ({repaired} findings)"),
        (_, left) => format!("pool {name} is damaged: {left} findings, and {repaired} repaired"),
    };
    if unread > 0 {
        message = format!("{message}; what is in its archive was not read{why}");
    }
    Err(Failure::new(Reason::Damaged, message))
}

/// Makes good what has a second copy; what is left of that.
fn repaired(
    pools: &Pools,
    arguments: &VerifyArgs,
    reader: &PoolReader,
) -> Result<Vec<String>, Failure> {
    let pool = pools.open(&arguments.name)?;
    pool.repair()?;
    drop(pool);
    let left = reader.verify_structure()?;
    Ok(left.findings.iter().map(ToString::to_string).collect())
}

fn has_second_copy(finding: &Finding) -> bool {
    matches!(finding, Finding::Superblock { .. } | Finding::Catalogue(_))
}

/// Returns the bytes that are read of an object.
fn read_bytes(object: &ObjectEntry) -> u64 {
    match object {
        ObjectEntry::Mblock(mblock) => mblock.data.bytes,
        ObjectEntry::Archived(archived) => archived.length_bytes,
        _ => 0,
    }
}

fn kind(finding: &Finding) -> &'static str {
    match finding {
        Finding::Superblock { .. } => "superblock",
        Finding::Catalogue(_) => "catalogue",
        Finding::CatalogueUnreadable(_) => "catalogue-unreadable",
        Finding::Device { .. } => "device",
        Finding::Object(_) if !finding.is_damage() => "archive-unreachable",
        Finding::Object(_) => "object",
        Finding::OtherProcess(_) => "other-process",
        Finding::Space { .. } => "space",
        Finding::ArchiveClosed { .. } => "archive-closed",
    }
}

fn print_report(
    pools: &Pools,
    objects: u64,
    object_bytes: u64,
    found: &[Found],
) -> Result<(), Failure> {
    if pools.json {
        let findings = found.iter().map(|Found { finding, is_repaired }| {
            json!({
                "kind": kind(finding), "message": finding.to_string(), "is_repaired": is_repaired,
            })
        });
        return print_json(&json!({
            "objects": objects, "object_bytes": object_bytes,
            "findings": findings.collect::<Vec<_>>(),
        }));
    }
    print(|out| {
        for Found { finding, is_repaired } in found {
            let what = match (finding.is_damage(), is_repaired) {
                (true, true) => "repaired",
                (true, false) => "damaged",
                (false, _) => "not read",
            };
            writeln!(out, "{what}: {finding}")?;
        }
        let bytes = human_bytes(object_bytes);
        writeln!(out, "{objects} objects of {bytes} were read, {} findings", found.len())
    })
}
