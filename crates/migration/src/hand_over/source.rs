//! The source's side of the hand-over.

use super::actions::{
    CopyMode, Report, SourceAction as Action, SourceEvent as Event, SourceNote as Note,
};
use crate::format::Message;

/// Phase of a migration at its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourcePhase {
    /// The rest was sent or is being sent; the guest is paused, and the source's.
    Preparing,
    /// The guest was given away, and no answer came yet. It runs at the destination, or nowhere. The one phase,
    /// with [`Withdrawing`](Self::Withdrawing), that only the destination or an operator can end.
    Given,
    /// Giving the guest away could not be noted, nor that it stays: it runs once the destination has dropped it.
    Withdrawing,
    /// The guest runs at the destination, and its pages are served from here.
    Serving,
    /// The guest is the source's and runs. The destination does not know yet.
    Kept,
    /// The guest is the source's and runs, which is not noted yet.
    KeptUnnoted,
    /// The guest is the destination's. The destination's notes are to go.
    Gone,
    /// There is nothing left to do.
    Closed,
}

/// The source's side: events in, actions out.
///
/// Actions are done in order, before the next event. If a note fails, the rest of the list is left out, and
/// [`Event::NoteFailed`] is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    phase: SourcePhase,
    mode: CopyMode,
}

impl Source {
    /// Begins the hand-over, before the last pause.
    #[must_use]
    pub fn begin(mode: CopyMode) -> (Self, Vec<Action>) {
        let actions =
            vec![Action::Note(Note::Moving), Action::SendRest, Action::Send(Message::Prepare)];
        (Self { phase: SourcePhase::Preparing, mode }, actions)
    }

    /// Goes on after the daemon was started, with the note that is on disk.
    #[must_use]
    pub fn restart(note: Option<Note>, mode: CopyMode) -> (Self, Vec<Action>) {
        let (phase, actions) = match note {
            None => (SourcePhase::Closed, vec![]),
            Some(Note::Moving | Note::Kept) => (SourcePhase::Kept, vec![Action::ResumeGuest]),
            Some(Note::Gave) => (SourcePhase::Given, vec![Action::Report(Report::InDoubt)]),
            Some(Note::Gone) => (SourcePhase::Gone, vec![Action::EndVmm]),
        };
        (Self { phase, mode }, actions)
    }

    /// Returns the phase.
    #[must_use]
    pub const fn phase(&self) -> SourcePhase {
        self.phase
    }

    /// Takes an event, and returns what is to be done.
    pub fn on(&mut self, event: Event) -> Vec<Action> {
        match self.phase {
            SourcePhase::Preparing => self.preparing(event),
            SourcePhase::Given => self.given(event),
            SourcePhase::Withdrawing => self.withdrawing(event),
            SourcePhase::Serving => self.serving(event),
            SourcePhase::Kept => self.kept(event),
            SourcePhase::KeptUnnoted => self.kept_unnoted(event),
            SourcePhase::Gone => self.gone(event),
            SourcePhase::Closed => vec![],
        }
    }

    fn preparing(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::Received(Message::Ready) => {
                self.phase = SourcePhase::Given;
                vec![Action::Note(Note::Gave), Action::Send(Message::Take)]
            }
            Event::Received(Message::Dropped | Message::Unknown | Message::Lost)
            | Event::Cut
            | Event::TimedOut
            | Event::Cancelled
            | Event::NoteFailed(_) => {
                // On disk is at most that it moves, after which a restart keeps it too.
                self.phase = SourcePhase::Kept;
                vec![Action::ResumeGuest, Action::Send(Message::Cancel)]
            }
            Event::Received(_) | Event::Connected | Event::ResumeOrdered => vec![],
        }
    }

    fn given(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::Received(Message::Taken) if self.mode == CopyMode::PostCopy => {
                self.phase = SourcePhase::Serving;
                vec![]
            }
            Event::Received(Message::Taken | Message::Complete) => self.go(),
            Event::Received(Message::Dropped) => self.keep(Message::Settled),
            Event::Received(Message::Lost) => vec![Action::Report(Report::MayHaveRun)],
            Event::Received(Message::Unknown) => vec![Action::Report(Report::NotKnownThere)],
            Event::ResumeOrdered | Event::NoteFailed(Note::Gave) => self.keep(Message::Cancel),
            Event::Connected => vec![Action::Send(Message::Take)],
            Event::Cut | Event::TimedOut => vec![Action::Report(Report::InDoubt)],
            Event::Received(_) | Event::Cancelled | Event::NoteFailed(_) => vec![],
        }
    }

    fn withdrawing(&mut self, event: Event) -> Vec<Action> {
        match event {
            // Take was not sent.
            Event::Received(Message::Dropped | Message::Unknown) => self.run_unnoted(),
            Event::ResumeOrdered => self.run_unnoted(),
            Event::Connected => vec![Action::Send(Message::Cancel)],
            Event::TimedOut => {
                self.phase = SourcePhase::Given;
                self.keep(Message::Cancel)
            }
            _ => vec![],
        }
    }

    fn serving(&mut self, event: Event) -> Vec<Action> {
        match event {
            // It ran there: what is here is old.
            Event::Received(Message::Complete | Message::Lost) => self.go(),
            Event::Connected => vec![Action::Send(Message::Take)],
            Event::Cut | Event::TimedOut => vec![Action::Report(Report::PagesWait)],
            _ => vec![],
        }
    }

    fn kept(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::NoteFailed(Note::Kept) => {
                self.phase = SourcePhase::Withdrawing;
                vec![Action::Send(Message::Cancel)]
            }
            Event::Received(Message::Dropped) => vec![Action::Send(Message::Settled)],
            Event::Received(Message::Unknown | Message::Forgotten) => self.close(),
            Event::Received(Message::Taken | Message::Lost | Message::Complete) => {
                vec![Action::Report(Report::Conflict)]
            }
            Event::Connected | Event::TimedOut => vec![Action::Send(Message::Cancel)],
            _ => vec![],
        }
    }

    fn kept_unnoted(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::Connected | Event::TimedOut => {
                vec![Action::Note(Note::Kept), Action::Send(Message::Settled)]
            }
            Event::Received(Message::Forgotten | Message::Unknown) => self.close(),
            _ => vec![],
        }
    }

    fn gone(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::Received(Message::Forgotten) => self.close(),
            Event::Connected | Event::TimedOut => self.go(),
            _ => vec![],
        }
    }

    /// Keeps the guest although a note on disk may say that it was given away.
    fn keep(&mut self, then: Message) -> Vec<Action> {
        self.phase = SourcePhase::Kept;
        vec![Action::Note(Note::Kept), Action::ResumeGuest, Action::Send(then)]
    }

    fn run_unnoted(&mut self) -> Vec<Action> {
        self.phase = SourcePhase::KeptUnnoted;
        vec![Action::ResumeGuest, Action::Note(Note::Kept), Action::Send(Message::Settled)]
    }

    fn go(&mut self) -> Vec<Action> {
        self.phase = SourcePhase::Gone;
        vec![Action::Note(Note::Gone), Action::EndVmm, Action::Send(Message::Settled)]
    }

    fn close(&mut self) -> Vec<Action> {
        self.phase = SourcePhase::Closed;
        vec![Action::DropNote]
    }
}
