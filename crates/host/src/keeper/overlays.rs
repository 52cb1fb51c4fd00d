//! Names of the overlays that a guest's disks get in a checkpoint.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use bindery_vmm::{Disk, Overlay};

use super::create::CheckpointNames;
use crate::protocol::checkpoint::DiskPolicy;
use crate::protocol::{Failure, FailureKind};

/// Names an overlay for each disk, beside its image or in the directory that `policy` names.
///
/// # Errors
/// `BadRequest` if a disk has no directory to put one in.
pub(super) fn overlays(
    policy: &DiskPolicy,
    disks: &[Disk],
    names: &CheckpointNames,
) -> Result<Vec<Overlay>, Failure> {
    let directory = match policy {
        DiskPolicy::Without => return Ok(Vec::new()),
        DiskPolicy::Overlays { directory } => directory.as_deref().map(Path::new),
    };
    if let Some(directory) = directory.filter(|directory| !directory.is_absolute()) {
        let message = format!("{} is no absolute path", directory.display());
        return Err(Failure::new(FailureKind::BadRequest, message));
    }
    // Node names of one QEMU differ, checkpoint after checkpoint.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_micros());
    let named = disks.iter().enumerate().map(|(at, disk)| {
        let directory = match (directory, beside(disk)) {
            (Some(directory), _) => directory,
            (None, Some(beside)) => beside,
            (None, None) => return Err(nowhere(disk)),
        };
        let path = directory.join(file_name(disk, at, names));
        let overlay_node = format!("bindery{now:x}d{at}");
        Ok(Overlay { node: disk.node.clone(), path, overlay_node })
    });
    named.collect()
}

/// Returns the directory of a disk's image.
fn beside(disk: &Disk) -> Option<&Path> {
    let image = Path::new(&disk.image);
    image.parent().filter(|_| image.is_absolute())
}

fn file_name(disk: &Disk, at: usize, names: &CheckpointNames) -> PathBuf {
    let device = if disk.device.is_empty() { &disk.node } else { &disk.device };
    let device = device.rsplit('/').next().unwrap_or(device);
    // Devices may have names that files cannot.
    let device: String = device.chars().map(plain).collect();
    format!("{}-{device}{at}-{}.qcow2", names.guest, names.name).into()
}

fn plain(letter: char) -> char {
    if letter.is_ascii_alphanumeric() || letter == '-' { letter } else { '_' }
}

fn nowhere(disk: &Disk) -> Failure {
    let message = format!(
        "disk {} is {}, which has no directory for an overlay: name one with --disks-directory, or leave \
         disks out with --without-disks",
        disk.node, disk.image
    );
    Failure::new(FailureKind::BadRequest, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> CheckpointNames {
        let name = |text: &str| text.parse().unwrap();
        CheckpointNames { guest: name("web"), name: name("monday"), domain: name("0:default") }
    }

    fn disk(device: &str, image: &str) -> Disk {
        let [node, format] = ["#block1", "raw"].map(str::to_owned);
        Disk { node, device: device.into(), image: image.into(), format }
    }

    #[test]
    fn overlays_lie_beside_their_images_unless_a_directory_is_named() {
        let disks = [disk("virtio0", "/srv/a.raw"), disk("/machine/x/", "/srv/b/c.img")];
        let paths = |policy: &DiskPolicy| -> Vec<String> {
            let named = overlays(policy, &disks, &names()).unwrap();
            assert!(named.iter().all(|overlay| overlay.overlay_node.len() <= 31));
            named.iter().map(|overlay| overlay.path.display().to_string()).collect()
        };
        let beside = DiskPolicy::Overlays { directory: None };
        assert_eq!(paths(&beside), ["/srv/web-virtio00-monday.qcow2", "/srv/b/web-1-monday.qcow2"]);
        let named = DiskPolicy::Overlays { directory: Some("/o".into()) };
        assert_eq!(paths(&named), ["/o/web-virtio00-monday.qcow2", "/o/web-1-monday.qcow2"]);
        assert!(paths(&DiskPolicy::Without).is_empty());
    }

    #[test]
    fn a_disk_without_a_directory_is_named() {
        let disks = [disk("net", "json:{\"driver\":\"nbd\"}")];
        let beside = DiskPolicy::Overlays { directory: None };
        let failure = overlays(&beside, &disks, &names()).unwrap_err();
        assert!(failure.message.contains("--disks-directory"), "{failure}");
        let relative = DiskPolicy::Overlays { directory: Some("o".into()) };
        overlays(&relative, &disks, &names()).unwrap_err();
    }
}
