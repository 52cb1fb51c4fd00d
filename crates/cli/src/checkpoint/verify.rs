//! `bindery checkpoint verify`.

use bindery_host::printable;
use bindery_host::protocol::Request;
use bindery_host::protocol::checkpoint::{DamageInfo, Selection, Verified};
use bindery_host::protocol::job::JobResult;

use super::args::VerifyArgs;
use super::ask;
use super::job::{Cancel, begun, follow};
use crate::args::Global;
use crate::exit::{Failure, Reason};
use crate::output::{print, print_json};

pub(super) fn run(global: &Global, arguments: &VerifyArgs) -> Result<(), Failure> {
    let VerifyArgs { checkpoints, all, owner, pool } = arguments;
    let select = match all {
        true => Selection::All {},
        false => Selection::Named(checkpoints.iter().map(|name| owner.of(name)).collect()),
    };
    let cancel = Cancel::on_signals()?;
    let request = Request::CheckpointVerify { pool: pool.paths()?, select };
    let (mut client, answer) = ask(global, &request)?;
    let result = follow(&mut client, begun(&answer)?, &cancel)?;
    let JobResult::Verified(verified) = result else { return Err(other(&result)) };
    if global.json {
        print_json(&verified)?;
    } else {
        print(|out| {
            verified.iter().flat_map(describe).try_for_each(|line| writeln!(out, "{line}"))
        })?;
    }
    let damaged = verified.iter().filter(|verified| !verified.is_whole()).count();
    if damaged == 0 {
        return Ok(());
    }
    let message = format!(
        "{damaged} of {} checkpoints cannot be read whole: restores get an error where they touch what is \
         damaged; the next checkpoint of the guest stores it anew",
        verified.len()
    );
    Err(Failure::new(Reason::Damaged, message))
}

/// Failure of a job whose result is another job's.
pub(super) fn other(result: &JobResult) -> Failure {
    Failure::new(Reason::Failed, format!("the daemon's job has another result: {result:?}"))
}

fn describe(verified: &Verified) -> Vec<String> {
    let name = printable(&verified.checkpoint.to_string());
    let mut lines = Vec::new();
    if let Some(why) = &verified.unreadable {
        lines.push(format!("{name}: damaged: {why}"));
    } else if verified.damaged_pages == 0 {
        lines.push(format!("{name}: whole, {} pages were read", verified.pages));
    } else {
        let Verified { pages, damaged_pages, .. } = verified;
        lines.push(format!("{name}: damaged, {damaged_pages} pages cannot be read, {pages} can"));
    }
    lines.extend(verified.damaged.iter().map(|run| {
        let DamageInfo { block, first_page, pages, why } = run;
        format!("  {block}, {pages} pages from {first_page} on: {why}")
    }));
    if let Some(why) = &verified.touched {
        lines.push(format!("  its next restore will not know what to fetch first: {why}"));
    }
    lines
}
