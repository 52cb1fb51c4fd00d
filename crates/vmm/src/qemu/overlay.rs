//! Overlays over disks.
//!
//! QEMU makes an image in 3 to 12 ms (on a quiet disk), most of it waiting for the disk, and so does that while
//! the guest runs. In the pause it only opens them, all in one transaction, and inherits each disk's cache mode.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::answer::Field;
use super::disks::QUERY;
use crate::qmp::{Qmp, QmpError};
use crate::{Overlay, VmmError};

/// The command that makes an image without a pause.
pub(super) const COMMAND: &str = "blockdev-create";

/// Name of the jobs that make images.
const JOB: &str = "bindery-overlay";

/// Name of the block node of an image while it is made.
const FILE_NODE: &str = "bindery-overlay-file";

/// Makes the images of `overlays`: all, or none.
pub(super) fn prepare(
    qmp: &mut Qmp,
    overlays: &[Overlay],
    limit: Duration,
) -> Result<(), VmmError> {
    are_distinct(overlays)?;
    for (at, overlay) in overlays.iter().enumerate() {
        is_free(overlay)?;
        if let Err(error) = make(qmp, overlay, limit) {
            overlays[..=at].iter().for_each(|overlay| remove(&overlay.path));
            return Err(error);
        }
    }
    Ok(())
}

fn make(qmp: &mut Qmp, overlay: &Overlay, limit: Duration) -> Result<(), VmmError> {
    let below = CoveredImage::of(qmp, overlay)?;
    clear(qmp)?;
    let path = path_text(overlay)?;
    create(qmp, json!({ "driver": "file", "filename": path, "size": 0 }), limit)?;
    let file = json!({ "driver": "file", "node-name": FILE_NODE, "filename": path });
    qmp.execute("blockdev-add", file)?;
    let image = json!({
        "driver": "qcow2",
        "file": FILE_NODE,
        "size": below.bytes,
        "backing-file": below.image,
        "backing-fmt": below.format,
    });
    let made = create(qmp, image, limit);
    let removed = qmp.execute("blockdev-del", json!({ "node-name": FILE_NODE }));
    made.and(removed.map(drop).map_err(VmmError::from))
}

/// Removes the job and the block node of an earlier try whose end did not come in time.
fn clear(qmp: &mut Qmp) -> Result<(), VmmError> {
    let leftovers = [
        ("job-dismiss", json!({ "id": JOB })),
        ("blockdev-del", json!({ "node-name": FILE_NODE })),
    ];
    for (command, arguments) in leftovers {
        match qmp.execute(command, arguments) {
            // Nearly always: there is none.
            Ok(_) | Err(QmpError::Refused { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Runs a job that makes an image.
fn create(qmp: &mut Qmp, options: Value, limit: Duration) -> Result<(), VmmError> {
    qmp.forget_events("JOB_STATUS_CHANGE");
    qmp.execute(COMMAND, json!({ "job-id": JOB, "options": options }))?;
    let is_concluded = |event: &crate::qmp::Event| {
        event.name == "JOB_STATUS_CHANGE"
            && event.data["id"] == JOB
            && event.data["status"] == "concluded"
    };
    let concluded = qmp.wait_event(is_concluded, limit)?;
    concluded.ok_or(VmmError::TimedOut { what: "making an overlay", limit })?;
    let jobs = qmp.execute("query-jobs", json!({}))?;
    let job = jobs.list("query-jobs")?.iter().find(|job| job["id"] == JOB);
    let error = job.and_then(|job| job.get("error")?.as_str()).map(str::to_owned);
    qmp.execute("job-dismiss", json!({ "id": JOB }))?;
    match error {
        None => Ok(()),
        Some(description) => {
            Err(QmpError::Refused { command: COMMAND.to_owned(), description }.into())
        }
    }
}

/// The image that an overlay is to cover.
struct CoveredImage {
    image: String,
    format: String,
    bytes: u64,
}

impl CoveredImage {
    fn of(qmp: &mut Qmp, overlay: &Overlay) -> Result<Self, VmmError> {
        let answer = qmp.execute(QUERY, json!({}))?;
        let mut inserted = answer.list(QUERY)?.iter().filter_map(|entry| entry.get("inserted"));
        let found = inserted.find(|inserted| inserted["node-name"] == *overlay.node);
        let inserted = found.ok_or_else(|| {
            refused(overlay, format!("the guest has no disk on block node {}", overlay.node))
        })?;
        let bytes = inserted["image"]["virtual-size"].as_u64();
        let image = inserted.text(QUERY, "file")?.to_owned();
        if is_relative(&image) {
            let why = format!(
                "the path of the disk below, {image}, is relative: give QEMU an absolute one"
            );
            return Err(refused(overlay, why));
        }
        Ok(Self {
            image,
            format: inserted.text(QUERY, "drv")?.to_owned(),
            bytes: bytes.ok_or(VmmError::Answer { command: QUERY, missing: "virtual-size" })?,
        })
    }
}

/// Puts `overlays` over disks in one transaction: all, or none. Those that are not among the `prepared` are
/// made now.
pub(super) fn snapshot(
    qmp: &mut Qmp,
    overlays: &[Overlay],
    prepared: &HashSet<PathBuf>,
    limit: Duration,
) -> Result<(), VmmError> {
    are_distinct(overlays)?;
    let is_prepared = |overlay: &Overlay| prepared.contains(&overlay.path);
    for overlay in overlays.iter().filter(|overlay| !is_prepared(overlay)) {
        CoveredImage::of(qmp, overlay)?;
    }
    let actions = overlays.iter().map(|overlay| action(overlay, is_prepared(overlay)));
    let arguments = json!({ "actions": actions.collect::<Result<Vec<_>, _>>()? });
    qmp.execute_within("transaction", arguments, &[], limit).map(drop).map_err(|error| {
        if !matches!(error, QmpError::Refused { .. }) {
            return VmmError::OverlaysInDoubt(error);
        }
        // Images that were made before another was refused are left.
        let made = overlays.iter().filter(|overlay| !is_prepared(overlay));
        made.for_each(|overlay| remove(&overlay.path));
        error.into()
    })
}

fn action(overlay: &Overlay, is_prepared: bool) -> Result<Value, VmmError> {
    if !is_prepared {
        is_free(overlay)?;
    }
    let data = json!({
        "node-name": overlay.node,
        "snapshot-file": path_text(overlay)?,
        "snapshot-node-name": overlay.overlay_node,
        "format": "qcow2",
        "mode": if is_prepared { "existing" } else { "absolute-paths" },
    });
    Ok(json!({ "type": "blockdev-snapshot-sync", "data": data }))
}

/// Returns true for a path that an overlay in another directory would look for in its own.
fn is_relative(image: &str) -> bool {
    // Anything else than a path has a protocol, `json:` for one.
    let (first, _) = image.split_once('/').unwrap_or((image, ""));
    !first.is_empty() && !first.contains(':')
}

fn refused(overlay: &Overlay, why: impl Into<String>) -> VmmError {
    VmmError::Overlay { path: overlay.path.clone(), why: why.into() }
}

fn path_text(overlay: &Overlay) -> Result<&str, VmmError> {
    overlay.path.to_str().ok_or_else(|| refused(overlay, "its path must be UTF-8"))
}

/// Makes sure that QEMU would overwrite nothing.
fn is_free(overlay: &Overlay) -> Result<(), VmmError> {
    if !overlay.path.is_absolute() {
        return Err(refused(
            overlay,
            "its path must be absolute: QEMU may work in another directory",
        ));
    }
    match fs::symlink_metadata(&overlay.path) {
        Ok(_) => Err(refused(overlay, "something is there already: choose another path")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(refused(overlay, error.to_string())),
    }
}

fn are_distinct(overlays: &[Overlay]) -> Result<(), VmmError> {
    let mut seen = HashSet::new();
    let twice = overlays.iter().find(|overlay| !seen.insert(&overlay.path));
    twice.map_or(Ok(()), |overlay| Err(refused(overlay, "two disks cannot have the same overlay")))
}

/// Removes an image that is not in use.
pub(super) fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!("an overlay that is not in use, {}, stays: {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_are_told_from_protocols() {
        for image in ["disk.raw", "images/disk.raw", "../a:b/disk.raw"] {
            assert!(is_relative(image), "{image}");
        }
        for image in
            ["/disk.raw", "/a:b", "nbd:localhost:1", "json:{\"driver\": \"nbd\"}", "nbd://h/x"]
        {
            assert!(!is_relative(image), "{image}");
        }
    }

    #[test]
    fn overlays_are_never_made_over_something() {
        let directory = tempfile::tempdir().unwrap();
        let overlay = |path: &Path| Overlay {
            node: "n".to_owned(),
            path: path.to_owned(),
            overlay_node: "o".to_owned(),
        };
        let (free, taken) = (directory.path().join("free"), directory.path().join("taken"));
        std::os::unix::fs::symlink("nowhere", &taken).unwrap();
        assert!(action(&overlay(&free), false).is_ok());
        assert!(action(&overlay(&taken), false).is_err());
        assert!(action(&overlay(&taken), true).is_ok());
        assert!(action(&overlay(Path::new("relative")), false).is_err());
        assert!(are_distinct(&[overlay(&free), overlay(&taken)]).is_ok());
        assert!(are_distinct(&[overlay(&free), overlay(&free)]).is_err());
    }
}
