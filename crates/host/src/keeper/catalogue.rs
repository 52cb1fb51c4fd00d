//! Checkpoints that an operator may see, by the names that people know.

use bindery_checkpoint::{CheckpointSummary, Manifest, Store};
use bindery_guest::printable;
use bindery_units::PAGE_BYTES;

use super::board::KeptGuest;
use super::{failure, names};
use crate::access::Rights;
use crate::protocol::checkpoint::{
    BlockInfo, CheckpointDetail, CheckpointInfo, CheckpointName, DiskInfo, Selection,
};
use crate::protocol::{Failure, FailureKind};

const PAGE: u64 = PAGE_BYTES as u64;

/// A checkpoint of a store and the user whose guest it was, if that is known.
#[derive(Clone, Debug)]
pub(crate) struct Visible {
    pub(crate) summary: CheckpointSummary,
    pub(crate) uid: Option<u32>,
    /// Name of the domain as people know it.
    pub(crate) domain: String,
    /// Name of the guest as people know it.
    pub(crate) guest: String,
}

impl Visible {
    /// Describes a checkpoint, whoever may see it.
    pub(crate) fn new(summary: CheckpointSummary) -> Self {
        let of_user = names::split_domain(&summary.domain);
        let (uid, domain) = match of_user {
            Some((uid, domain)) => (Some(uid), domain),
            None => (None, summary.domain.to_string()),
        };
        let guest = names::shown_guest(&summary.guest);
        Self { summary, uid, domain, guest }
    }

    /// Returns the names that find it and no other.
    pub(crate) fn name(&self) -> CheckpointName {
        CheckpointName {
            guest: self.guest.clone(),
            name: self.summary.name.to_string(),
            domain: Some(self.domain.clone()),
            uid: self.uid,
        }
    }

    pub(crate) fn info(&self) -> CheckpointInfo {
        let CheckpointSummary {
            time_ns,
            memory_pages,
            stored_pages,
            new_pages,
            new_bytes,
            capture,
            ..
        } = self.summary;
        let own_pages = new_pages.min(stored_pages);
        CheckpointInfo {
            guest: self.guest.clone(),
            name: self.summary.name.to_string(),
            domain: self.domain.clone(),
            uid: self.uid,
            time_ns,
            pause_us: capture.and_then(|capture| capture.pause_us),
            rounds: capture.map(|capture| capture.rounds),
            memory_bytes: memory_pages * PAGE,
            stored_bytes: stored_pages * PAGE,
            own_bytes: own_pages * PAGE,
            shared_bytes: (stored_pages - own_pages) * PAGE,
            written_bytes: new_bytes,
        }
    }

    /// Returns true if an operator may see it. Those of domains that are no user's are the owners' alone.
    pub(super) fn is_visible_to(&self, rights: Rights) -> bool {
        match self.uid {
            Some(uid) => rights.cover_guests_of(uid),
            None => rights == Rights::Owner,
        }
    }

    /// Returns the guest that it is of.
    pub(crate) fn kept_guest(&self) -> KeptGuest {
        KeptGuest { guest: self.guest.clone(), domain: self.domain.clone(), uid: self.uid }
    }

    fn is_called(&self, wanted: &CheckpointName) -> bool {
        self.summary.name.as_str() == wanted.name
            && self.is_of(&wanted.guest, wanted.domain.as_deref(), wanted.uid)
    }

    /// Returns true if it is of that guest, in that domain of that user where they are named.
    pub(crate) fn is_of(&self, guest: &str, domain: Option<&str>, uid: Option<u32>) -> bool {
        self.guest == guest
            && domain.is_none_or(|domain| self.domain == domain)
            && (uid.is_none() || self.uid == uid)
    }
}

/// Returns the checkpoints that an operator may see, in the order in which they were made.
pub(crate) fn visible(store: &Store, rights: Rights) -> Vec<Visible> {
    let all = store.list().into_iter().map(Visible::new);
    all.filter(|checkpoint| checkpoint.is_visible_to(rights)).collect()
}

/// Finds one checkpoint.
///
/// # Errors
/// `NoSuchCheckpoint` if no checkpoint that may be seen has that name, or several have.
pub(crate) fn find(
    store: &Store,
    rights: Rights,
    wanted: &CheckpointName,
) -> Result<Visible, Failure> {
    let mut found: Vec<Visible> = visible(store, rights);
    found.retain(|checkpoint| checkpoint.is_called(wanted));
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => Err(missing(&wanted.to_string())),
        _ => {
            let place = |checkpoint: &Visible| match checkpoint.uid {
                Some(uid) => format!("user {uid}, domain {}", checkpoint.domain),
                None => format!("domain {}", checkpoint.domain),
            };
            let places: Vec<String> = found.iter().map(place).collect();
            let message = format!(
                "several guests have a checkpoint {wanted} ({}): say which with --user and --domain",
                places.join("; ")
            );
            Err(Failure::new(FailureKind::NoSuchCheckpoint, message))
        }
    }
}

fn missing(wanted: &str) -> Failure {
    let wanted: String = printable(wanted).chars().take(200).collect();
    let message =
        format!("there is no checkpoint {wanted}; `bindery checkpoint list` shows those there are");
    Failure::new(FailureKind::NoSuchCheckpoint, message)
}

/// Finds all that is selected, each once.
///
/// # Errors
/// As [`find`]; `NoSuchCheckpoint` if the guest has none.
pub(crate) fn select(
    store: &Store,
    rights: Rights,
    selection: &Selection,
) -> Result<Vec<Visible>, Failure> {
    match selection {
        Selection::Named(names) => {
            let mut found: Vec<Visible> = Vec::with_capacity(names.len());
            for name in names {
                let checkpoint = find(store, rights, name)?;
                if found.iter().all(|other| other.summary.id != checkpoint.summary.id) {
                    found.push(checkpoint);
                }
            }
            Ok(found)
        }
        Selection::All {} => Ok(visible(store, rights)),
        Selection::Older { guest, keep, domain, uid } => {
            let mut found = visible(store, rights);
            found.retain(|checkpoint| checkpoint.is_of(guest, domain.as_deref(), *uid));
            if found.is_empty() {
                return Err(missing(&format!("of guest {guest}")));
            }
            one_guests(&found, guest)?;
            found.sort_by_key(|checkpoint| (checkpoint.summary.time_ns, checkpoint.summary.id));
            let keep = usize::try_from(*keep).unwrap_or(usize::MAX);
            found.truncate(found.len().saturating_sub(keep));
            Ok(found)
        }
    }
}

/// Refuses checkpoints of several guests of one name, of which the last ones of each are to be kept.
fn one_guests(found: &[Visible], guest: &str) -> Result<(), Failure> {
    let domain = |checkpoint: &Visible| checkpoint.summary.domain.clone();
    if found.windows(2).all(|pair| domain(&pair[0]) == domain(&pair[1])) {
        return Ok(());
    }
    let message = format!(
        "guests called {guest} of several users or domains have checkpoints: say which with --user and \
         --domain"
    );
    Err(Failure::new(FailureKind::NoSuchCheckpoint, message))
}

/// Reads all about a checkpoint but its pages.
///
/// # Errors
/// `Damaged` if the manifest cannot be read; `Refused` if it is encrypted.
pub(crate) fn detail(store: &Store, checkpoint: &Visible) -> Result<CheckpointDetail, Failure> {
    let manifest = store.manifest(checkpoint.summary.id);
    let manifest = manifest.map_err(|error| failure::of_checkpoint(&error))?;
    let text = |bytes: &[u8]| printable(&String::from_utf8_lossy(bytes));
    let Manifest { description, packs, pages } = manifest;
    let blocks = description.blocks.iter().zip(&pages).map(|(block, map)| {
        let stored: u64 = map.runs().iter().map(|run| u64::from(run.pages.count)).sum();
        let (name, memory_bytes) = (text(block.name.as_bytes()), block.bytes);
        BlockInfo { name, memory_bytes, stored_bytes: stored * PAGE }
    });
    let disks = description.disks.iter().map(|disk| DiskInfo {
        device: text(disk.device.as_bytes()),
        path: text(&disk.path),
        format: text(disk.format.as_bytes()),
    });
    Ok(CheckpointDetail {
        info: checkpoint.info(),
        vmm: text(description.vmm.kind.as_bytes()),
        vmm_version: text(description.vmm.version.as_bytes()),
        machine: text(description.vmm.machine.as_bytes()),
        arguments: description.vmm.arguments.iter().map(|argument| text(argument)).collect(),
        blocks: blocks.collect(),
        disks: disks.collect(),
        device_state_bytes: description.device_state.len() as u64,
        packs: packs.len() as u64,
        is_restored: checkpoint.summary.touched.is_some(),
    })
}
