//! What the daemon shows over HTTP.

use bindery_guest::Connection;

use super::Shared;
use crate::http::{Memory, Pulse, Source};
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

    fn pulse(&self) -> Pulse {
        self.engine.pulse()
    }
}
