//! The destination's side of the hand-over.

use super::actions::{
    DestinationAction as Action, DestinationEvent as Event, DestinationNote as Note, Report,
};
use crate::format::Message;

/// Phase of a migration at its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DestinationPhase {
    /// Memory arrives, or is loaded.
    Receiving,
    /// The guest is loaded, and waits for [`Message::Take`], for as long as that takes.
    Ready,
    /// The guest is the destination's, and is being let run.
    Taking,
    /// The guest runs, or has run and ended. True if all of its pages are there.
    Running(bool),
    /// The guest never ran here, and never will.
    Dropped,
    /// The guest was taken, and its VMM has ended: it may have run.
    Lost,
    /// There is nothing left to do.
    Closed,
}

/// The destination's side: events in, actions out, as at the [source](super::Source).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Destination {
    phase: DestinationPhase,
    /// True if an earlier daemon may have let the guest run.
    may_have_run: bool,
}

impl Destination {
    /// Begins, before the VMM is started.
    #[must_use]
    pub fn begin() -> (Self, Vec<Action>) {
        (Self::at(DestinationPhase::Receiving), vec![Action::Note(Note::Receiving)])
    }

    /// Goes on after the daemon was started, with the note that is on disk. `has_vmm` says that its VMM is there.
    #[must_use]
    pub fn restart(note: Option<Note>, has_vmm: bool) -> (Self, Vec<Action>) {
        let (phase, actions) = match (note, has_vmm) {
            (None, _) => (DestinationPhase::Closed, vec![]),
            (Some(Note::Receiving | Note::Dropped), _) | (Some(Note::Ready), false) => {
                (DestinationPhase::Dropped, vec![Action::EndVmm, Action::Note(Note::Dropped)])
            }
            (Some(Note::Ready), true) => {
                (DestinationPhase::Ready, vec![Action::Report(Report::WaitsForSource)])
            }
            (Some(Note::Took), true) => (DestinationPhase::Taking, vec![Action::ResumeGuest]),
            (Some(Note::Took), false) => {
                (DestinationPhase::Lost, vec![Action::Report(Report::MayHaveRun)])
            }
        };
        (Self { phase, may_have_run: note == Some(Note::Took) }, actions)
    }

    const fn at(phase: DestinationPhase) -> Self {
        Self { phase, may_have_run: false }
    }

    /// Returns the phase.
    #[must_use]
    pub const fn phase(&self) -> DestinationPhase {
        self.phase
    }

    /// Takes an event, and returns what is to be done.
    pub fn on(&mut self, event: Event) -> Vec<Action> {
        match self.phase {
            DestinationPhase::Receiving => self.receiving(event),
            DestinationPhase::Ready => self.ready(event),
            DestinationPhase::Taking => self.taking(event),
            DestinationPhase::Running(_) => self.running(event),
            DestinationPhase::Dropped => self.dropped(event),
            DestinationPhase::Lost => self.lost(event),
            DestinationPhase::Closed => closed(event),
        }
    }

    fn receiving(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::Received(Message::Prepare) => vec![Action::Load],
            Event::Loaded => {
                self.phase = DestinationPhase::Ready;
                vec![Action::Note(Note::Ready), Action::Send(Message::Ready)]
            }
            Event::Received(Message::Cancel | Message::Take)
            | Event::LoadFailed
            | Event::VmmEnded
            | Event::Cut
            | Event::TimedOut
            | Event::Cancelled
            | Event::NoteFailed(_) => self.drop_guest(),
            _ => vec![],
        }
    }

    fn ready(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::Received(Message::Take) | Event::ResumeOrdered => {
                self.phase = DestinationPhase::Taking;
                vec![Action::Note(Note::Took), Action::ResumeGuest]
            }
            Event::Received(Message::Cancel)
            | Event::VmmEnded
            | Event::Cancelled
            | Event::NoteFailed(_) => self.drop_guest(),
            // The source may have given the guest away already: this may be the only one.
            Event::Cut | Event::TimedOut => vec![Action::Report(Report::WaitsForSource)],
            _ => vec![],
        }
    }

    fn taking(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::Resumed => {
                self.phase = DestinationPhase::Running(false);
                vec![Action::Send(Message::Taken)]
            }
            Event::NeverRan | Event::NoteFailed(Note::Took) => self.drop_guest(),
            Event::EndedBefore if !self.may_have_run => self.drop_guest(),
            Event::VmmEnded | Event::EndedBefore => {
                self.phase = DestinationPhase::Lost;
                vec![Action::Send(Message::Lost), Action::Report(Report::MayHaveRun)]
            }
            _ => vec![],
        }
    }

    fn running(&mut self, event: Event) -> Vec<Action> {
        let DestinationPhase::Running(is_complete) = self.phase else { return vec![] };
        match event {
            Event::Received(Message::Take | Message::Cancel) if is_complete => {
                vec![Action::Send(Message::Taken), Action::Send(Message::Complete)]
            }
            Event::Received(Message::Take | Message::Cancel) => vec![Action::Send(Message::Taken)],
            Event::PagesComplete => {
                self.phase = DestinationPhase::Running(true);
                vec![Action::Send(Message::Complete)]
            }
            Event::VmmEnded => {
                // It ran and ended here: nothing is to be fetched for it any more.
                self.phase = DestinationPhase::Running(true);
                vec![Action::Send(Message::Complete)]
            }
            Event::Received(Message::Settled) => self.forget(),
            Event::Cut | Event::TimedOut if !is_complete => vec![Action::Report(Report::PagesWait)],
            _ => vec![],
        }
    }

    fn dropped(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::Received(Message::Take | Message::Cancel) => {
                vec![Action::Send(Message::Dropped)]
            }
            // That it never ran is true, noted or not.
            Event::NoteFailed(_) => vec![Action::EndVmm, Action::Send(Message::Dropped)],
            Event::Received(Message::Settled) => self.forget(),
            _ => vec![],
        }
    }

    fn lost(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::Received(Message::Take) => vec![Action::Send(Message::Lost)],
            // An operator has decided for the source.
            Event::Received(Message::Cancel) => self.drop_guest(),
            Event::Received(Message::Settled) => self.forget(),
            _ => vec![],
        }
    }

    fn drop_guest(&mut self) -> Vec<Action> {
        self.phase = DestinationPhase::Dropped;
        // Noted first: a VMM that ended before might have run, for all that a later daemon knows.
        vec![Action::Note(Note::Dropped), Action::EndVmm, Action::Send(Message::Dropped)]
    }

    fn forget(&mut self) -> Vec<Action> {
        self.phase = DestinationPhase::Closed;
        vec![Action::DropNote, Action::Send(Message::Forgotten)]
    }
}

fn closed(event: Event) -> Vec<Action> {
    match event {
        Event::Received(Message::Settled) => vec![Action::Send(Message::Forgotten)],
        Event::Received(Message::Take | Message::Cancel) => vec![Action::Send(Message::Unknown)],
        _ => vec![],
    }
}
