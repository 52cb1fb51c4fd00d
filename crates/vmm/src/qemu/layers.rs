//! Chains of images below disks, and layers of them that are merged while the guest runs.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::answer::Field;
use super::disks::QUERY;
use crate::VmmError;
use crate::qmp::{Event, Qmp, QmpError};

/// Name of the job.
const JOB: &str = "bindery-merge";

/// The command that merges, for errors.
const COMMAND: &str = "block-commit";

const QUERY_NODES: &str = "query-named-block-nodes";

/// Bytes that a merge may copy in a second, so that the guest's own I/O goes on.
const BYTES_PER_SECOND: u64 = 128 << 20;

/// Interval at which a merge is asked to end, if it is to.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Time in which a job that is cancelled must end.
const CANCEL_PATIENCE: Duration = Duration::from_secs(60);

/// Most images of a chain that are looked at.
const LAYERS_MAX: usize = 4096;

/// Images below a disk of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskChain {
    /// Name of the topmost block node.
    pub node: String,
    /// Images as the VMM names them, from the lowest to the topmost.
    pub images: Vec<String>,
}

/// Returns the chains of all disks, those that the guest cannot write included.
pub(super) fn chains(qmp: &mut Qmp) -> Result<Vec<DiskChain>, VmmError> {
    let answer = qmp.execute(QUERY, json!({}))?;
    let inserted = answer.list(QUERY)?.iter().filter_map(|entry| entry.get("inserted"));
    inserted.filter(|inserted| !inserted.is_null()).map(read).collect()
}

fn read(inserted: &Value) -> Result<DiskChain, VmmError> {
    let (mut images, mut image) = (Vec::new(), inserted.get("image"));
    while let Some(found) = image {
        images.push(found.text(QUERY, "filename")?.to_owned());
        image = found.get("backing-image");
        if images.len() > LAYERS_MAX {
            return Err(VmmError::Answer { command: QUERY, missing: "end of a chain of images" });
        }
    }
    images.reverse();
    Ok(DiskChain { node: inserted.text(QUERY, "node-name")?.to_owned(), images })
}

/// Waits for a merge that an earlier connection began, and dismisses it. Returns true if there was one.
pub(super) fn settle(qmp: &mut Qmp, is_cancelled: &dyn Fn() -> bool) -> Result<bool, VmmError> {
    if state(qmp)?.is_none() {
        return Ok(false);
    }
    // Whether it failed shows in the chain.
    await_end(qmp, is_cancelled).map(|_| true)
}

/// Merges into `base` what the images from above it to `top` have, which no disk uses afterwards. The view at `top`, and all
/// above, stay as they are. `top` is not the topmost.
pub(super) fn merge(
    qmp: &mut Qmp,
    disk: &DiskChain,
    (base, top): (&str, &str),
    is_cancelled: &dyn Fn() -> bool,
) -> Result<(), VmmError> {
    let nodes = qmp.execute(QUERY_NODES, json!({ "flat": true }))?;
    let nodes = nodes.list(QUERY_NODES)?;
    let arguments = json!({
        "job-id": JOB,
        "device": disk.node,
        "base-node": node_of(nodes, base)?,
        "top-node": node_of(nodes, top)?,
        "speed": BYTES_PER_SECOND,
        "auto-dismiss": false,
    });
    qmp.forget_events("JOB_STATUS_CHANGE");
    qmp.execute(COMMAND, arguments)?;
    match await_end(qmp, is_cancelled)? {
        None => Ok(()),
        Some(description) => {
            Err(QmpError::Refused { command: COMMAND.to_owned(), description }.into())
        }
    }
}

/// Returns the only block node of an image's format.
fn node_of<'n>(nodes: &'n [Value], image: &str) -> Result<&'n str, VmmError> {
    // Below the node of a format is one of the file, of the same name.
    let is_it = |node: &&Value| node["file"] == image && node["drv"] == "qcow2";
    let mut found = nodes.iter().filter(is_it);
    match (found.next(), found.next()) {
        (Some(node), None) => node.text(QUERY_NODES, "node-name"),
        _ => Err(VmmError::Answer { command: QUERY_NODES, missing: "only node of an image" }),
    }
}

/// Returns the job's status; none if there is no such job.
fn state(qmp: &mut Qmp) -> Result<Option<Value>, VmmError> {
    let jobs = qmp.execute("query-jobs", json!({}))?;
    Ok(jobs.list("query-jobs")?.iter().find(|job| job["id"] == JOB).cloned())
}

/// Waits for the job's end and dismisses it. Returns its error, if it has one.
fn await_end(qmp: &mut Qmp, is_cancelled: &dyn Fn() -> bool) -> Result<Option<String>, VmmError> {
    let is_ours = |event: &Event| {
        event.name == "JOB_STATUS_CHANGE"
            && event.data["id"] == JOB
            && event.data["status"] == "concluded"
    };
    let (mut asked, mut looked) = (None::<Instant>, None::<Instant>);
    loop {
        // The event of a job that has just ended may have gone to an earlier connection.
        let is_due = looked.is_none_or(|at| at.elapsed() > Duration::from_secs(1));
        if is_due || qmp.wait_event(is_ours, LOOK_EVERY)?.is_some() {
            looked = Some(Instant::now());
            let Some(job) = state(qmp)? else { return Ok(None) };
            if job["status"] == "concluded" {
                qmp.execute("job-dismiss", json!({ "id": JOB }))?;
                let error = job.get("error").and_then(Value::as_str).map(str::to_owned);
                return Ok(error.or_else(|| asked.map(|_| "it was cancelled".to_owned())));
            }
        }
        if asked.is_some_and(|at| at.elapsed() > CANCEL_PATIENCE) {
            let description = "it has not ended though it was cancelled".to_owned();
            return Err(QmpError::Refused { command: COMMAND.to_owned(), description }.into());
        }
        if is_cancelled() && asked.is_none() {
            asked = Some(Instant::now());
            match qmp.execute("job-cancel", json!({ "id": JOB })) {
                // It is about to end by itself.
                Ok(_) | Err(QmpError::Refused { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_read_from_the_lowest_image_on() {
        let image = json!({
            "filename": "/c", "backing-image": { "filename": "/b", "backing-image": { "filename": "/a" } }
        });
        let chain = read(&json!({ "node-name": "#block1", "image": image })).unwrap();
        assert_eq!(chain.images, ["/a", "/b", "/c"]);
        assert!(read(&json!({ "node-name": "n", "image": { "format": "raw" } })).is_err());
    }

    #[test]
    fn the_node_of_an_image_is_that_of_its_format() {
        let node = |name: &str, file: &str, drv: &str| json!({ "node-name": name, "file": file, "drv": drv });
        let nodes = [node("f", "/a", "file"), node("q", "/a", "qcow2"), node("o", "/b", "qcow2")];
        assert_eq!(node_of(&nodes, "/a").unwrap(), "q");
        assert!(node_of(&nodes, "/c").is_err());
        let twice = [node("q", "/a", "qcow2"), node("r", "/a", "qcow2")];
        assert!(node_of(&twice, "/a").is_err(), "two disks have it");
    }
}
