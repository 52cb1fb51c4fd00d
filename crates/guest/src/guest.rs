//! A connected guest.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bindery_sys::pidfd::PeerProcess;
use bindery_sys::socket::{shutdown, wait_readable};
use bindery_wire::channel::Channel;
use bindery_wire::control::{FromDaemon, FromShim, Offered, Region, StoreId, TOKEN_BYTES_MAX};
use std::os::fd::AsFd;

use crate::offered::OfferedTable;
use crate::{
    ANSWER_PATIENCE, Connection, GuestError, Identity, Lane, LaneLease, LanePool, LostSource,
    RegionChange, RegionTable, SocketLane, Written,
};

/// The most reads of a connection at a time: a shim says all that it has to say in fewer.
pub(crate) const READS_MAX: usize = 64;

/// A process with a shim in it that has been welcomed.
///
/// Dropping it closes the connection and all lanes; the shim then tries to find a daemon again.
pub struct Guest {
    identity: Identity,
    store: StoreId,
    holds_other_stores: bool,
    process: PeerProcess,
    control: Mutex<Control>,
    /// The connection once more, to wait on without the lock.
    watch: OwnedFd,
    asked_to_release: AtomicBool,
    released: AtomicBool,
    lanes: LanePool,
    written: Written,
}

pub(crate) struct Control {
    channel: Channel<FromDaemon, FromShim>,
    regions: RegionTable,
    offered: OfferedTable,
    /// The source that it has lost last, and was given no other for.
    pub(crate) lost_source: Option<LostSource>,
}

/// What a guest is made of.
pub(crate) struct Parts {
    pub(crate) identity: Identity,
    pub(crate) store: StoreId,
    pub(crate) holds_other_stores: bool,
    pub(crate) process: PeerProcess,
    pub(crate) channel: Channel<FromDaemon, FromShim>,
    pub(crate) watch: OwnedFd,
}

impl Guest {
    pub(crate) fn new(parts: Parts) -> Self {
        let (regions, offered) = (RegionTable::default(), OfferedTable::default());
        let control = Control { channel: parts.channel, regions, offered, lost_source: None };
        Self {
            identity: parts.identity,
            store: parts.store,
            holds_other_stores: parts.holds_other_stores,
            process: parts.process,
            control: Mutex::new(control),
            watch: parts.watch,
            asked_to_release: AtomicBool::new(false),
            released: AtomicBool::new(false),
            lanes: LanePool::default(),
            written: Written::default(),
        }
    }

    pub(crate) fn control(&self) -> MutexGuard<'_, Control> {
        // A panic under the lock cannot leave a message half taken in.
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the connection, whatever is to be answered still: the daemon ends.
    pub fn hang_up(&self) {
        // It fails if the guest has closed its own end: then there is nobody to be told.
        let _ = shutdown(&self.watch);
    }

    /// Waits until the guest says something on its control connection, closes it or ends, for at most
    /// `patience`, and takes in what it said. False if nothing came. Regions that come and go show in
    /// [`Connection::regions`], the answer to [`Guest::release`] in [`Connection::has_released`].
    ///
    /// # Errors
    /// [`GuestError`]: the connection is of no further use.
    pub fn wait_events(&self, patience: Duration) -> Result<bool, GuestError> {
        let doing = "waiting for a guest";
        let waited = self.process.wait_readable_or_ended(&self.watch, patience);
        let (comes, has_ended) = waited.map_err(|error| GuestError::Daemon { doing, error })?;
        if comes {
            self.take_in()?;
        }
        // A child of fork has the connection open as well.
        if has_ended { Err(GuestError::Gone) } else { Ok(comes) }
    }

    /// Reads what came over the control connection, and no more than [`READS_MAX`] times: who writes
    /// faster than is read holds nobody up who waits for the lock. Never blocks.
    fn take_in(&self) -> Result<(), GuestError> {
        let mut control = self.control();
        self.apply_all(&mut control)?;
        for _ in 0..READS_MAX {
            // Looked at under the lock: another thread may have read what the caller waited for.
            let readable = wait_readable(control.channel.as_fd(), Duration::ZERO);
            if !readable.map_err(|error| GuestError::of_socket("reading a guest", error))? {
                return Ok(());
            }
            if !control.channel.fill()? {
                return Err(GuestError::Gone);
            }
            self.apply_all(&mut control)?;
        }
        Ok(())
    }

    fn apply_all(&self, control: &mut Control) -> Result<(), GuestError> {
        while let Some((message, _)) = control.channel.pop().map_err(frame_error)? {
            self.apply(control, message)?;
        }
        Ok(())
    }

    fn apply(&self, control: &mut Control, message: FromShim) -> Result<(), GuestError> {
        if self.has_released() {
            return Err(GuestError::nonsense("more words after its last"));
        }
        match message {
            FromShim::RegionAdded(region) => {
                control.regions.add(region)?;
                self.written.note_region(region.pages);
                Ok(())
            }
            FromShim::RegionRemoved(range) => {
                control.regions.remove(range)?;
                self.written.note_region(range);
                Ok(())
            }
            FromShim::Offered(offered) => control.offered.add(offered),
            FromShim::Withdrawn { number } => control.offered.withdraw(number),
            FromShim::SourceLost { token, .. } if token.len() > TOKEN_BYTES_MAX => {
                Err(GuestError::nonsense("a token that is longer than any"))
            }
            FromShim::SourceLost { token, missing_pages } => {
                control.lost_source = Some(LostSource { token, missing_pages });
                Ok(())
            }
            FromShim::Released => {
                // Release: pairs with the Acquire in `has_released`.
                self.released.store(true, Ordering::Release);
                Ok(())
            }
            FromShim::Hello { .. } => Err(GuestError::nonsense("Hello twice")),
        }
    }

    pub(crate) fn send(
        &self,
        message: &FromDaemon,
        fds: &[std::os::fd::BorrowedFd<'_>],
    ) -> Result<(), GuestError> {
        let sent = self.control().channel.send(message, fds, ANSWER_PATIENCE);
        // A stream left in the middle of a message is of no further use: a time-out is fatal.
        sent.map_err(|error| match error.kind() {
            std::io::ErrorKind::TimedOut => GuestError::Gone,
            _ => GuestError::of_socket("writing to a guest", error),
        })
    }

    /// Asks the guest to give everything back and to step aside. Its answer comes later: wait with
    /// [`Guest::wait_events`] until [`Connection::has_released`], or until the connection ends,
    /// which says that the guest could not.
    ///
    /// # Errors
    /// [`GuestError`] of a connection that failed.
    pub fn release(&self) -> Result<(), GuestError> {
        // Relaxed: a flag, set before the guest can end a lane because of the message.
        self.asked_to_release.store(true, Ordering::Relaxed);
        self.send(&FromDaemon::Release, &[])
    }

    /// Returns the ranges that its VMM offered for merging and has mapped still, managed or not, in the order in
    /// which it offered them: that in which a VMM makes its blocks of memory.
    #[must_use]
    pub fn offered(&self) -> Vec<Offered> {
        self.control().offered.ranges()
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, GuestError> {
        let doing = "opening a lane (is RLIMIT_NOFILE too low?)";
        let opened = SocketLane::open();
        let (lane, ends) = opened.map_err(|error| GuestError::Daemon { doing, error })?;
        self.send(&FromDaemon::OpenLane, &[ends.socket.as_fd(), ends.window.as_fd()])?;
        Ok(Box::new(lane))
    }
}

impl Connection for Guest {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn store(&self) -> StoreId {
        self.store
    }

    fn holds_other_stores(&self) -> bool {
        self.holds_other_stores
    }

    fn regions(&self) -> Vec<Region> {
        self.control().regions.regions()
    }

    fn changes(&self) -> Result<Vec<RegionChange>, GuestError> {
        self.take_in()?;
        Ok(self.control().regions.take_changes())
    }

    fn lane(&self) -> Result<LaneLease<'_>, GuestError> {
        self.lanes.lease(|| self.open_lane())
    }

    fn written(&self) -> &Written {
        &self.written
    }

    fn rest(&self) {
        self.lanes.rest();
    }

    fn settle(&self) -> Result<bool, GuestError> {
        self.lanes.settle()
    }

    fn close(&self) {
        // A guest that steps aside ends its lanes first, and whoever works on it sees them fail. The
        // connection has to stay for its answer; the guest ends it itself.
        if self.asked_to_release.load(Ordering::Relaxed) && !self.has_released() {
            return;
        }
        self.hang_up();
    }

    fn has_released(&self) -> bool {
        // Acquire: pairs with the Release in `apply`; the regions' removal was taken in before.
        self.released.load(Ordering::Acquire)
    }

    fn has_ended(&self) -> bool {
        // If the kernel cannot say, what the process may map stays as it is.
        self.process.has_ended().unwrap_or(false)
    }
}

fn frame_error(error: bindery_wire::frame::FrameError) -> GuestError {
    GuestError::nonsense(error.to_string())
}
