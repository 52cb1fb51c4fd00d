//! Memory of a guest that is filled from here: a restored guest's, from its checkpoint.
//!
//! [`Guest::bind`] has a guest discard some of its memory and ask for it page by page. [`SourceLink::serve`] answers
//! until nothing is missing. If this daemon ends before, the guest reports its lost source to the next one
//! ([`Guest::lost_source`]), which goes on with [`Guest::rebind`].
//!
//! # Trust
//! A page that a guest asks for costs it a wait and no more: pages that were sent are not sent again, others are none of
//! the source's. The token of a lost source is what the guest says: check that the source may be this guest's.

mod image;
mod link;
mod push;
mod serve;
mod served;
mod wanted;

pub use image::{Image, ImageError};
pub use link::{SourceHandle, SourceLink};
pub use serve::{ServeOptions, SourceError};
pub use served::Served;

use std::os::fd::AsFd;

use bindery_wire::control::{BoundRange, FromDaemon, TOKEN_BYTES_MAX, are_bindable};

use crate::{Guest, GuestError};

/// A source that a guest has lost with pages missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostSource {
    /// Token that the memory was bound with, as the guest says: not to be trusted.
    pub token: Vec<u8>,
    /// Number of pages that are missing, as the guest says.
    pub missing_pages: u64,
}

impl Guest {
    /// Discards ranges of the guest's memory, and binds them to a source. `token` names the source to a later
    /// daemon, in at most [`TOKEN_BYTES_MAX`] bytes. Waits for the guest, some seconds at most.
    ///
    /// # Errors
    /// [`GuestError::Refused`] if the ranges are not [bindable](are_bindable) or the token is too long,
    /// [`GuestError::Failed`] with the guest's reason: `EBUSY` while another source has pages missing,
    /// `EOPNOTSUPP` for memory that is not private and anonymous. The memory may have been discarded then. The
    /// guest's log says more.
    pub fn bind(&self, ranges: &[BoundRange], token: &[u8]) -> Result<SourceLink, GuestError> {
        if !are_bindable(ranges) || token.len() > TOKEN_BYTES_MAX {
            return Err(GuestError::Refused { request: "to bind memory" });
        }
        let (mut link, ends) = SourceLink::open()?;
        let bind = FromDaemon::Bind { ranges: ranges.to_vec(), token: token.to_vec() };
        self.send(&bind, &[ends.socket.as_fd(), ends.window.as_fd()])?;
        drop(ends);
        link.await_bound()?;
        for pages in ranges.iter().filter_map(BoundRange::pages) {
            link.want(pages);
        }
        Ok(link)
    }

    /// Returns the source that the guest has lost last, if it has not been given another since.
    #[must_use]
    pub fn lost_source(&self) -> Option<LostSource> {
        self.control().lost_source.clone()
    }

    /// Gives a guest another source in place of a lost one. What it lacks is found out.
    ///
    /// # Errors
    /// As [`bind`](Self::bind); `ENOENT` if it has lost no source of that token.
    pub fn rebind(&self, lost: &LostSource) -> Result<SourceLink, GuestError> {
        self.control().lost_source.take_if(|known| known.token == lost.token);
        self.try_rebind(lost).inspect_err(|error| {
            let has_none = matches!(error, GuestError::Failed { error, .. }
                if error.kind() == std::io::ErrorKind::NotFound);
            if !has_none {
                // Pages are missing still, and the next attempt is to find it.
                self.control().lost_source.get_or_insert_with(|| lost.clone());
            }
        })
    }

    fn try_rebind(&self, lost: &LostSource) -> Result<SourceLink, GuestError> {
        let (mut link, ends) = SourceLink::open()?;
        let rebind = FromDaemon::Rebind { token: lost.token.clone() };
        self.send(&rebind, &[ends.socket.as_fd(), ends.window.as_fd()])?;
        drop(ends);
        link.await_bound()?;
        Ok(link)
    }
}
