//! Overlays of guests' disks: noted when they are made, and merged once no checkpoint needs what lies between them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bindery_checkpoint::{DiskOverlay, Name, OverlayUse};
use bindery_vmm::{Disk, DiskChain, Overlay, Qemu, QemuSettings};

use super::catalogue::Visible;
use super::create::{CheckpointNames, of_vmm};
use super::layers::{Layer, merges};
use super::overlay_file::{backing_of, may_be_there, remove};
use super::{Lease, failed, failure, names};
use crate::jobs::Progress;
use crate::protocol::Failure;

/// Paths of images.
type Images = BTreeSet<Vec<u8>>;

/// VMM that runs.
#[derive(Clone, Debug)]
pub(crate) struct RunningVmm {
    pub(crate) guest: String,
    pub(crate) uid: u32,
    pub(crate) pid: i32,
    pub(crate) monitor: PathBuf,
}

/// Notes the overlays that disks got in a pause. Those that cannot be noted are never merged.
pub(super) fn note_captured(
    lease: &Lease,
    names: &CheckpointNames,
    disks: &[Disk],
    overlays: &[Overlay],
) {
    let noted = overlays.iter().filter_map(|overlay| {
        let disk = disks.iter().find(|disk| disk.node == overlay.node)?;
        Some(DiskOverlay {
            domain: names.domain.clone(),
            guest: names.guest.clone(),
            purpose: OverlayUse::Captured,
            path: overlay.path.as_os_str().as_bytes().to_vec(),
            below: disk.image.clone().into_bytes(),
        })
    });
    let noted: Vec<DiskOverlay> = noted.collect();
    if let Err(error) = lease.note_overlays(&noted) {
        tracing::warn!(guest = %names.guest, "overlays are not noted, and will not be merged: {error}");
    }
}

/// Notes the overlays that a restored guest writes to, over images of its checkpoint.
pub(super) fn note_restored(lease: &Lease, checkpoint: &Visible, guest: &str, qemu: &mut Qemu) {
    let mut note = || {
        let kept = images_of(lease, checkpoint)?;
        let guest = names::guest(guest)?;
        let chains = qemu.disk_chains().map_err(|error| of_vmm(&error))?;
        let noted = chains.into_iter().filter_map(|chain| {
            let (path, below) = match chain.images.as_slice() {
                [.., below, path] => (path.clone().into_bytes(), below.clone().into_bytes()),
                _ => return None,
            };
            let (domain, guest) = (checkpoint.summary.domain.clone(), guest.clone());
            let purpose = OverlayUse::Restored;
            kept.contains(&below).then_some(DiskOverlay { domain, guest, purpose, path, below })
        });
        let noted: Vec<DiskOverlay> = noted.collect();
        lease.note_overlays(&noted).map_err(|error| failure::of_checkpoint(&error))
    };
    let noted: Result<(), Failure> = note();
    if let Err(failure) = noted {
        tracing::warn!(
            guest,
            "the guest's overlays are not noted, and do not keep its checkpoint: {failure}"
        );
    }
}

/// Returns the guests whose overlays, which are there still, stand on the disks of a checkpoint.
pub(super) fn users_of(lease: &Lease, checkpoint: &Visible) -> Vec<String> {
    // One that cannot be read can be deleted all the same: what guests stand on stays.
    let kept = images_of(lease, checkpoint).unwrap_or_default();
    let overlays = lease.overlays();
    let users =
        overlays.iter().filter(|overlay| is_restored(overlay) && kept.contains(&overlay.below));
    let names: BTreeSet<String> = users.map(|overlay| names::shown_guest(&overlay.guest)).collect();
    names.into_iter().collect()
}

/// Returns true for an overlay of a restored guest whose file is there.
fn is_restored(overlay: &DiskOverlay) -> bool {
    overlay.purpose == OverlayUse::Restored && may_be_there(path_of(&overlay.path))
}

fn path_of(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

/// Returns the images of a checkpoint's disks.
fn images_of(lease: &Lease, checkpoint: &Visible) -> Result<Images, Failure> {
    let manifest = lease.manifest(checkpoint.summary.id);
    let manifest = manifest.map_err(|error| failure::of_checkpoint(&error))?;
    Ok(manifest.description.disks.into_iter().map(|disk| disk.path).collect())
}

/// Merges layers of a guest's disks that no checkpoint needs any more, and removes what an earlier merge left. Returns
/// the number of layers that are gone. Blocks while the VMM copies.
///
/// # Errors
/// `Failed` if it does not show what is needed, or a VMM fails; `Damaged`. Layers are left then, and disks as they were.
pub(super) fn tidy(
    lease: &Lease,
    (domain, guest): (&Name, &Name),
    vmms: &[RunningVmm],
    progress: &Progress,
) -> Result<u64, Failure> {
    let noted = lease.overlays();
    let is_own = |overlay: &&DiskOverlay| {
        overlay.domain == *domain
            && overlay.guest == *guest
            && overlay.purpose != OverlayUse::Restored
    };
    let own: BTreeMap<Vec<u8>, DiskOverlay> = noted
        .iter()
        .filter(is_own)
        .map(|overlay| (overlay.path.clone(), overlay.clone()))
        .collect();
    if own.is_empty() {
        return Ok(0);
    }
    // Those of others, too: what was exported is imported by other names, and has the same disks.
    let mut kept = Images::new();
    for checkpoint in lease.list().into_iter().map(Visible::new) {
        kept.append(&mut images_of(lease, &checkpoint)?);
    }
    // Images are their user's: guests of others have none of them.
    let uid = names::split_domain(domain).map(|(uid, _)| uid);
    let vmms = vmms.iter().filter(|vmm| Some(vmm.uid) == uid);
    let mut running = connect_all(vmms, progress)?;
    let stood_on = noted.iter().filter(|overlay| is_restored(overlay));
    let mut known = Known {
        kept,
        shared: stood_on.map(|overlay| overlay.below.clone()).collect(),
        used: uses(&running),
        own,
    };
    for (qemu, chains) in &mut running {
        for chain in chains.iter() {
            if known.is_owner(chain) {
                known.merge(lease, qemu, chain, progress)?;
            }
        }
    }
    let mut used = Images::new();
    for (qemu, _) in &mut running {
        let chains = qemu.disk_chains().map_err(|error| of_vmm(&error))?;
        used.extend(chains.into_iter().flat_map(|chain| chain.images).map(String::into_bytes));
    }
    drop_merged(lease, domain, &known.own, &used)
}

/// Connects to VMMs, and reads the chains of their disks.
fn connect_all<'v>(
    vmms: impl Iterator<Item = &'v RunningVmm>,
    progress: &Progress,
) -> Result<Vec<(Qemu, Vec<DiskChain>)>, Failure> {
    let mut running = Vec::new();
    for RunningVmm { guest, pid, monitor, .. } in vmms {
        let silent = |error: bindery_vmm::VmmError| {
            failed(format!("what guest {guest} needs is not known: {error}"))
        };
        let mut qemu = Qemu::connect(monitor, QemuSettings::default()).map_err(silent)?;
        if qemu.pid() != *pid {
            return Err(failed(format!(
                "what guest {guest} needs is not known: it has lost its monitor"
            )));
        }
        qemu.settle_merge(&|| progress.is_cancelled()).map_err(silent)?;
        let chains = qemu.disk_chains().map_err(silent)?;
        running.push((qemu, chains));
    }
    Ok(running)
}

/// Counts the disks that have each image in their chains.
fn uses(running: &[(Qemu, Vec<DiskChain>)]) -> BTreeMap<Vec<u8>, usize> {
    let mut uses = BTreeMap::new();
    let images = running.iter().flat_map(|(_, chains)| chains).flat_map(|chain| &chain.images);
    images.for_each(|image| *uses.entry(image.clone().into_bytes()).or_insert(0) += 1);
    uses
}

/// Images that a guest has, and those that are needed.
struct Known {
    /// Overlays that were made for checkpoints of the guest.
    own: BTreeMap<Vec<u8>, DiskOverlay>,
    /// Images of its checkpoints.
    kept: Images,
    /// Images that overlays of restored guests stand on.
    shared: Images,
    /// Number of disks that have each image in their chains.
    used: BTreeMap<Vec<u8>, usize>,
}

impl Known {
    /// Returns true for a chain whose topmost image is the guest's own.
    fn is_owner(&self, chain: &DiskChain) -> bool {
        chain.images.last().is_some_and(|top| self.own.contains_key(top.as_bytes()))
    }

    fn layer(&self, image: &str) -> Layer {
        let path = image.as_bytes();
        Layer {
            is_own: self.own.contains_key(path),
            is_kept: self.kept.contains(path),
            is_shared: self.shared.contains(path)
                || self.used.get(path).is_some_and(|uses| *uses > 1),
        }
    }

    /// Merges layers of one disk.
    fn merge(
        &mut self,
        lease: &Lease,
        qemu: &mut Qemu,
        chain: &DiskChain,
        progress: &Progress,
    ) -> Result<(), Failure> {
        let layers: Vec<Layer> = chain.images.iter().map(|image| self.layer(image)).collect();
        for run in merges(&layers).into_iter().rev() {
            progress.check()?;
            progress.begin("merging layers of disks", None);
            let (base, top) = (&chain.images[*run.start()], &chain.images[*run.end()]);
            self.note(lease, &chain.images[run.start() + 1..=*run.end()], |overlay| {
                overlay.purpose = OverlayUse::Merging;
            })?;
            let merged = qemu.merge_layers(chain, (base, top), &|| progress.is_cancelled());
            if let Err(error) = merged {
                // They are as they were, and are not to be taken for merged later.
                self.note(lease, &chain.images[run.start() + 1..=*run.end()], |overlay| {
                    overlay.purpose = OverlayUse::Captured;
                })?;
                return Err(of_vmm(&error));
            }
            self.note(lease, &chain.images[run.end() + 1..=run.end() + 1], |overlay| {
                overlay.below = base.clone().into_bytes();
            })?;
        }
        Ok(())
    }

    /// Changes what is noted of some images.
    fn note(
        &mut self,
        lease: &Lease,
        images: &[String],
        change: impl Fn(&mut DiskOverlay),
    ) -> Result<(), Failure> {
        let mut changed = Vec::new();
        for image in images {
            if let Some(overlay) = self.own.get_mut(image.as_bytes()) {
                change(overlay);
                changed.push(overlay.clone());
            }
        }
        lease.note_overlays(&changed).map_err(|error| failure::of_checkpoint(&error))
    }
}

/// Removes overlays that were merged: those on which no other overlay that is there stands, nor a disk in use.
fn drop_merged(
    lease: &Lease,
    domain: &Name,
    own: &BTreeMap<Vec<u8>, DiskOverlay>,
    used: &Images,
) -> Result<u64, Failure> {
    let is_merged = |overlay: &&DiskOverlay| {
        overlay.purpose == OverlayUse::Merging && !used.contains(&overlay.path)
    };
    let going: Images =
        own.values().filter(is_merged).map(|overlay| overlay.path.clone()).collect();
    let mut backings = BTreeMap::new();
    let uid = names::split_domain(domain).map(|(uid, _)| uid);
    let mut gone = Vec::new();
    for DiskOverlay { path, below, purpose, .. } in of_user(lease, uid) {
        let place = path_of(&path);
        // One that cannot be read may stand on any, and one that is not seen stands where it was put.
        let backing = backing_of(place)
            .map_err(|error| failed(format!("cannot read {}: {error}", place.display())))?;
        if backing.is_none() && purpose == OverlayUse::Restored && !may_be_there(place) {
            gone.push(path.clone());
        }
        let is_unseen = backing.is_none() && may_be_there(place);
        backings.insert(path, if is_unseen { Some(below) } else { backing });
    }
    for path in unneeded(going, &backings) {
        match remove(path_of(&path), uid) {
            Ok(()) => gone.push(path),
            Err(error) => {
                tracing::warn!("a merged overlay, {}, stays: {error}", path_of(&path).display());
            }
        }
    }
    let layers = gone.iter().filter(|path| own.contains_key(*path)).count();
    lease.forget_overlays(domain, &gone).map_err(|error| failure::of_checkpoint(&error))?;
    Ok(layers as u64)
}

/// Returns the overlays that a user's guests have, or had. Images are their user's: others stand on none of them.
fn of_user(lease: &Lease, uid: Option<u32>) -> impl Iterator<Item = DiskOverlay> {
    let is_of_user = move |overlay: &DiskOverlay| {
        names::split_domain(&overlay.domain).map(|(uid, _)| uid) == uid
    };
    lease.overlays().into_iter().filter(is_of_user)
}

/// Returns those of `going` that nothing else stands on, directly or not. `backings` has what each image stands on.
fn unneeded(mut going: Images, backings: &BTreeMap<Vec<u8>, Option<Vec<u8>>>) -> Images {
    loop {
        let stays = backings.iter().filter(|(path, _)| !going.contains(*path));
        let needed: Images = stays.filter_map(|(_, backing)| backing.clone()).collect();
        let before = going.len();
        going.retain(|path| needed.iter().all(|backing| !stands_on(backing, path)));
        if going.len() == before {
            return going;
        }
    }
}

/// Returns true if a backing file may be the image at `path`. One that is no absolute path is a description that has the
/// path in it, or a part.
fn stands_on(backing: &[u8], path: &[u8]) -> bool {
    if backing.first() == Some(&b'/') {
        return backing == path;
    }
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    !name.is_empty() && backing.windows(name.len()).any(|part| part == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_something_stands_on_is_never_dropped() {
        let path = |text: &str| format!("/{text}").into_bytes();
        let backings = |pairs: &[(&str, &str)]| -> BTreeMap<Vec<u8>, Option<Vec<u8>>> {
            pairs.iter().map(|(image, below)| (path(image), Some(path(below)))).collect()
        };
        let going = || Images::from([path("b"), path("c")]);
        // Merged: d stands on a.
        let merged = backings(&[("b", "a"), ("c", "b"), ("d", "a")]);
        assert_eq!(unneeded(going(), &merged), going());
        // Not yet: d stands on c, and c on b.
        let unmerged = backings(&[("b", "a"), ("c", "b"), ("d", "c")]);
        assert!(unneeded(going(), &unmerged).is_empty());
        // Another guest's overlay stands on b alone.
        let shared = backings(&[("b", "a"), ("c", "b"), ("d", "a"), ("r", "b")]);
        assert_eq!(unneeded(going(), &shared), Images::from([path("c")]));
        assert!(stands_on(b"/x/b", b"/x/b") && !stands_on(b"/x/b", b"/y/b"));
        assert!(stands_on(b"json:{\"filename\": \"/x/b\"}", b"/x/b") && stands_on(b"b", b"/x/b"));
        assert!(!stands_on(b"nfs://h/x", b"/x/b"));
    }
}
