//! What those who work on guests need of one.

use bindery_wire::control::{Region, StoreId};

use crate::{GuestError, LaneLease, RegionChange, Written};

/// Who a guest is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// What the daemon calls it.
    pub id: u32,
    /// Its name, unique among the daemon's guests.
    pub name: String,
    /// The domain that it shares pages in.
    pub domain: String,
    /// The user that its process acts as.
    pub uid: u32,
    /// Its process, in the daemon's PID namespace.
    pub pid: i32,
    /// The command of its process, safe to print.
    pub command: String,
    /// Drawn by its shim once per process: tells a guest that comes back from a new one.
    pub instance: u64,
}

/// A connected guest, or a model of one.
pub trait Connection: Send + Sync {
    /// Who it is.
    fn identity(&self) -> &Identity;

    /// How its shim calls the domain's store.
    fn store(&self) -> StoreId;

    /// Whether it came with pages that are merged with stores of daemons that ended.
    fn holds_other_stores(&self) -> bool;

    /// Its regions now.
    fn regions(&self) -> Vec<Region>;

    /// Reads what came over its control connection, without blocking, and tells which regions came
    /// and went since this was last called, in order.
    ///
    /// # Errors
    /// [`GuestError`]; all but a few of them end the connection, see [`GuestError::is_fatal`].
    fn changes(&self) -> Result<Vec<RegionChange>, GuestError>;

    /// A lane of its own for the caller, opened if none is idle.
    ///
    /// # Errors
    /// [`GuestError::Daemon`] if descriptors are short, and those of a connection that failed.
    fn lane(&self) -> Result<LaneLease<'_>, GuestError>;

    /// Which of its pages were written, for whoever wants to know.
    fn written(&self) -> &Written;

    /// Gives back memory that its idle lanes hold: there is nothing more to ask for a while.
    fn rest(&self);

    /// Takes late answers. True if no lane owes one. Never blocks.
    ///
    /// # Errors
    /// [`GuestError`] of a connection that failed.
    fn settle(&self) -> Result<bool, GuestError>;

    /// Ends the connection. The guest sees it, goes on as it is, and looks for a daemon again. Not
    /// while the guest was asked to step aside and has not answered.
    fn close(&self);

    /// Whether it has given everything back (`unmanage`): all its pages are private.
    fn has_released(&self) -> bool;

    /// Whether its process has ended. A connection may fail long before. Children of fork may map on what
    /// it had mapped: what that is stays in the files of its segments, whoever has closed them.
    fn has_ended(&self) -> bool;
}
