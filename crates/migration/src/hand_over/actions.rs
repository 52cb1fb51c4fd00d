//! Events, actions and notes of the two sides.

use crate::format::Message;

/// Time at which pages move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CopyMode {
    /// All pages are at the destination before the guest runs there.
    PreCopy,
    /// The guest runs at the destination, and its pages follow.
    PostCopy,
}

/// Note that the source has on disk, synced, of one migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourceNote {
    /// The guest may be paused, and is the source's. Written before the last pause.
    Moving,
    /// The guest was given away. Written before [`Message::Take`] is sent.
    Gave,
    /// The guest stayed. Written before it runs, if [`Gave`](Self::Gave) may have been written.
    Kept,
    /// The guest runs elsewhere, with all of its pages. Written before the VMM is ended.
    Gone,
}

/// Note that the destination has on disk, synced, of one migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DestinationNote {
    /// A VMM waits for the guest. Written before it is started.
    Receiving,
    /// The guest is loaded. Written before [`Message::Ready`] is sent.
    Ready,
    /// The guest is the destination's. Written before it runs.
    Took,
    /// The guest never ran here, and never will. Written before the VMM is ended.
    Dropped,
}

/// Matter that a person is to know or to decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Report {
    /// The guest was given away, and the destination does not answer: it runs there or nowhere.
    InDoubt,
    /// The destination took the guest, and its VMM ended: the guest may have run there, and written its disks.
    MayHaveRun,
    /// The destination has no note of a guest that was given to it.
    NotKnownThere,
    /// The guest was kept by order of an operator, and the destination has it too: end one of them.
    Conflict,
    /// A loaded guest waits for its source, which does not answer.
    WaitsForSource,
    /// Pages are missing, and the source does not answer: threads of the guest that touch them wait.
    PagesWait,
}

/// Event at the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourceEvent {
    /// The destination said something.
    Received(Message),
    /// The connection was lost, or sending failed.
    Cut,
    /// There is a connection again.
    Connected,
    /// Nothing came for as long as the phase allows.
    TimedOut,
    /// Somebody cancelled.
    Cancelled,
    /// The note could not be written; it may be on disk or not.
    NoteFailed(SourceNote),
    /// An operator, who knows that the guest does not run at the destination and will not, wants it here.
    ResumeOrdered,
}

/// Action at the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourceAction {
    /// Write and sync a note, in place of the one before.
    Note(SourceNote),
    /// Remove the note.
    DropNote,
    /// Pause the guest, and send what is left of memory and the device state. A failure of it is
    /// [`SourceEvent::Cancelled`].
    SendRest,
    /// Send a message, if there is a connection.
    Send(Message),
    /// Let the guest run. No harm if it runs.
    ResumeGuest,
    /// End the VMM.
    EndVmm,
    /// Show it, in `bindery migrations` and the log.
    Report(Report),
}

/// Event at the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DestinationEvent {
    /// The source said something.
    Received(Message),
    /// The guest is loaded.
    Loaded,
    /// The guest could not be loaded.
    LoadFailed,
    /// The guest runs.
    Resumed,
    /// The guest could not be let run, and has certainly not run.
    NeverRan,
    /// The VMM had ended when it was to be let run: this daemon has not let it run. Replaces
    /// [`VmmEnded`](Self::VmmEnded).
    EndedBefore,
    /// The VMM has ended.
    VmmEnded,
    /// All pages are there.
    PagesComplete,
    /// The connection was lost, or sending failed.
    Cut,
    /// Nothing came for as long as the phase allows.
    TimedOut,
    /// An operator wants the guest no more.
    Cancelled,
    /// An operator, who knows that the guest does not run at the source and will not, wants it here.
    ResumeOrdered,
    /// The note could not be written; it may be on disk or not.
    NoteFailed(DestinationNote),
}

/// Action at the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DestinationAction {
    /// Write and sync a note, in place of the one before.
    Note(DestinationNote),
    /// Remove the note.
    DropNote,
    /// Send a message, if there is a connection.
    Send(Message),
    /// Load the device state; [`DestinationEvent::Loaded`] or [`DestinationEvent::LoadFailed`] follows.
    Load,
    /// Let the guest run; [`DestinationEvent::Resumed`], [`DestinationEvent::NeverRan`] or
    /// [`DestinationEvent::EndedBefore`] follows. No harm if it runs.
    ResumeGuest,
    /// End the VMM, and wait until it has ended.
    EndVmm,
    /// Show it, in `bindery migrations` and the log.
    Report(Report),
}
