//! What the daemon shows over HTTP.

use std::collections::BTreeMap;

use bindery_guest::Connection;

use super::Shared;
use crate::access::Rights;
use crate::http::{Memory, Pulse, Source, Viewer};
use crate::keeper::board::{KeptFigures, KeptGuest};
use crate::protocol::checkpoint::CheckpointInfo;
use crate::protocol::job::JobStatus;
use crate::status::{GuestStatus, HostStatus};

impl Source for Shared {
    fn status(&self) -> HostStatus {
        Self::status(self)
    }

    fn guests(&self) -> Vec<GuestStatus> {
        self.engine.guests()
    }

    fn memory(&self, guest: &str) -> Option<Memory> {
        let (name, entry) = self.guests.find(guest)?;
        let guest = self.engine.guest(entry.id)?;
        let (regions, map) = (guest.regions(), self.engine.map(entry.id));
        Some(Memory { id: entry.id, name, regions, map, guest })
    }

    fn checkpoints(&self, viewer: Viewer, latest: usize) -> Vec<CheckpointInfo> {
        self.keeper.board().checkpoints(self.rights_of(viewer), latest)
    }

    fn jobs(&self, viewer: Viewer) -> Vec<JobStatus> {
        self.jobs.list(self.rights_of(viewer))
    }

    fn kept(&self) -> BTreeMap<KeptGuest, KeptFigures> {
        let mut guests = self.keeper.board().by_guest();
        for (guest, left) in self.sources.filled() {
            let figures = guests.entry(guest).or_default();
            figures.missing_pages = Some(figures.missing_pages.unwrap_or(0) + left.unwrap_or(0));
        }
        guests
    }

    fn pulse(&self) -> Pulse {
        self.engine.pulse()
    }
}

impl Shared {
    /// Returns what somebody who looks over HTTP may see of checkpoints.
    fn rights_of(&self, viewer: Viewer) -> Rights {
        match viewer {
            Viewer::Admitted => Rights::Owner,
            Viewer::User(uid) => self.access.rights_of_user(uid),
            Viewer::Unknown => Rights::None,
        }
    }
}
