//! `bindery pool sweep`: removes from the archive what belongs to no object of the pool.

use bindery_pool::ArchiveSweep;
use bindery_pool::archive::{ArchiveOptions, Orphan, Removal};
use serde_json::json;

use super::Pools;
use super::args::SweepArgs;
use crate::exit::Failure;
use crate::output::{human_bytes, print, print_json};

pub(super) fn run(pools: &Pools, arguments: &SweepArgs) -> Result<(), Failure> {
    let SweepArgs { name, dry_run, older_than } = arguments;
    // Nobody else archives or deletes objects of the pool meanwhile.
    let pool = pools.open(name)?;
    pools.connect(&pool, ArchiveOptions::default())?;
    let sweep = match dry_run {
        true => pool.survey_archive(*older_than)?,
        false => pool.sweep_archive(*older_than)?,
    };
    let url = pool.archive_url().unwrap_or_default();
    report(pools, &url, *dry_run, &sweep)
}

fn report(pools: &Pools, url: &str, dry_run: bool, sweep: &ArchiveSweep) -> Result<(), Failure> {
    let ArchiveSweep { known, young, removed, removed_bytes, kept, strangers } = sweep;
    if pools.json {
        let kept =
            kept.iter().map(|(orphan, why)| json!({ "key": orphan.key, "why": reason(why) }));
        return print_json(&json!({
            "archive": url, "dry_run": dry_run, "removed_keys": removed,
            "removed_bytes": removed_bytes, "known_keys": known, "young_keys": young,
            "kept": kept.collect::<Vec<_>>(), "strangers": strangers,
        }));
    }
    print(|out| {
        let done = if dry_run { "would remove" } else { "removed" };
        let bytes = human_bytes(*removed_bytes);
        writeln!(out, "{done} {removed} keys of {bytes} from {url}")?;
        writeln!(out, "{known} keys are of objects of the pool")?;
        if *young > 0 {
            writeln!(out, "{young} keys are of none, and younger than --older-than")?;
        }
        for (Orphan { key, .. }, why) in kept {
            writeln!(out, "kept {key}: {}", reason(why))?;
        }
        strangers.iter().try_for_each(|key| writeln!(out, "kept {key}: it is not Bindery's"))
    })
}

/// Why a key was kept that is of no object.
fn reason(removal: &Removal) -> String {
    match removal {
        Removal::Anothers(writer) => {
            format!("{writer} wrote it: sweep there, or remove it by hand if that machine is gone")
        }
        Removal::Strange => "it is damaged, or not Bindery's: remove it by hand".into(),
        Removal::Removed | Removal::Gone | Removal::Known | Removal::Young => {
            "it changed meanwhile: sweep again".into()
        }
    }
}
