//! `bindery checkpoint delete`.

use bindery_host::printable;
use bindery_host::protocol::Request;
use bindery_host::protocol::checkpoint::Selection;
use bindery_host::protocol::job::JobResult;
use serde_json::json;

use super::args::{DeleteArgs, parse_checkpoint};
use super::ask;
use super::job::{Cancel, begun, follow};
use super::verify::other;
use crate::args::Global;
use crate::exit::{Failure, Reason};
use crate::output::{human_bytes, print, print_json};

pub(super) fn run(global: &Global, arguments: &DeleteArgs) -> Result<(), Failure> {
    if let Some(store) = arguments.at.store()? {
        return super::remote::delete(global, store, &arguments.names, arguments.keep);
    }
    let select = selection(arguments).map_err(|message| Failure::new(Reason::Usage, message))?;
    let cancel = Cancel::on_signals()?;
    let (pool, force) = (arguments.pool.paths()?, arguments.force);
    let request = Request::CheckpointDelete { pool, select, force };
    let (mut client, answer) = ask(global, &request)?;
    let result = follow(&mut client, begun(&answer)?, &cancel)?;
    let JobResult::Deleted { checkpoints, bytes, has_kept_packs, merged_layers, layers_left } =
        result
    else {
        return Err(other(&result));
    };
    if global.json {
        return print_json(&json!({
            "checkpoints": checkpoints, "bytes": bytes, "has_kept_packs": has_kept_packs,
            "merged_layers": merged_layers, "layers_left": layers_left,
        }));
    }
    print(|out| {
        for name in &checkpoints {
            writeln!(out, "{} is deleted", printable(&name.to_string()))?;
        }
        writeln!(out, "{} checkpoints, {} are free again", checkpoints.len(), human_bytes(bytes))?;
        if merged_layers > 0 {
            writeln!(out, "{merged_layers} layers of disks were merged into the ones below")?;
        }
        if let Some(why) = &layers_left {
            writeln!(out, "layers of disks are left for a later deletion: {}", printable(why))?;
        }
        if has_kept_packs {
            writeln!(
                out,
                "some packs are kept: a checkpoint is being written, or a manifest cannot be read; they go \
                 with a later deletion"
            )?;
        }
        Ok(())
    })
}

fn selection(arguments: &DeleteArgs) -> Result<Selection, String> {
    let DeleteArgs { names, keep, owner, .. } = arguments;
    match (keep, names.as_slice()) {
        (Some(keep), [guest]) => Ok(Selection::Older {
            guest: guest.clone(),
            keep: *keep,
            domain: owner.domain.clone(),
            uid: owner.user,
        }),
        (Some(_), _) => Err("--keep goes with one guest".into()),
        (None, names) => {
            let named = names.iter().map(|name| Ok(owner.of(&parse_checkpoint(name)?)));
            named.collect::<Result<_, String>>().map(Selection::Named)
        }
    }
}
