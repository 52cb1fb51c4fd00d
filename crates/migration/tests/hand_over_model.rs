//! All interleavings of a hand-over: messages, cuts, crashes of either daemon, VMMs that end, notes that fail.
//!
//! A breadth-first search over the two machines, the notes on disk, the two VMMs and what is in flight. It checks that
//! never two run, that a guest which nobody killed can run again once faults end, and where it takes an operator.

use std::collections::{HashMap, VecDeque};

use bindery_migration::format::Message;
use bindery_migration::hand_over::{
    CopyMode, Destination, DestinationAction, DestinationEvent, DestinationNote, DestinationPhase,
    Source, SourceAction, SourceEvent, SourceNote, SourcePhase,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Vm {
    Paused,
    Running,
    /// Ended by its daemon.
    Ended,
    /// Ended by a fault.
    Killed,
}

impl Vm {
    fn is_there(self) -> bool {
        matches!(self, Self::Paused | Self::Running)
    }
}

/// Side of a hand-over: a daemon, its disk, its VMM.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Side<M, N, A, E> {
    /// None while the daemon is down.
    machine: Option<M>,
    note: Option<N>,
    vm: Vm,
    todo: VecDeque<A>,
    events: VecDeque<E>,
    /// Messages to this side.
    inbox: VecDeque<Message>,
}

type SourceSide = Side<Source, SourceNote, SourceAction, SourceEvent>;
type DestinationSide = Side<Destination, DestinationNote, DestinationAction, DestinationEvent>;

/// Faults that are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Faults {
    cuts: u8,
    source_crashes: u8,
    destination_crashes: u8,
    kills: u8,
    notes: u8,
    failures: u8,
    timeouts: u8,
    /// 1 if an operator may act.
    operator: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    mode: CopyMode,
    source: SourceSide,
    destination: DestinationSide,
    is_connected: bool,
    faults: Faults,
    /// True if the guest ran at the destination.
    ran_there: bool,
    /// True if all pages have been there.
    had_pages: bool,
    /// True if an operator has decided; what the other side had is gone.
    is_decided: bool,
    /// True if the operator has powered the source off for good.
    source_is_off: bool,
}

/// Kind of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Happens by itself.
    Progress,
    /// The connection comes back, or the destination's daemon.
    Healing,
    /// An operator's decision.
    Operator,
    Fault,
}

fn world(mode: CopyMode, faults: Faults) -> World {
    let (source, source_todo) = Source::begin(mode);
    let (destination, destination_todo) = Destination::begin();
    World {
        mode,
        source: Side {
            machine: Some(source),
            note: None,
            vm: Vm::Running,
            todo: source_todo.into(),
            events: VecDeque::new(),
            inbox: VecDeque::new(),
        },
        destination: Side {
            machine: Some(destination),
            note: None,
            vm: Vm::Paused,
            todo: destination_todo.into(),
            events: VecDeque::new(),
            inbox: VecDeque::new(),
        },
        is_connected: true,
        faults,
        ran_there: false,
        had_pages: mode == CopyMode::PreCopy,
        is_decided: false,
        source_is_off: false,
    }
}

impl World {
    fn running(&self) -> usize {
        usize::from(self.source.vm == Vm::Running) + usize::from(self.destination.vm == Vm::Running)
    }

    fn source_phase(&self) -> Option<SourcePhase> {
        self.source.machine.map(|machine| machine.phase())
    }

    /// Loses the connection; sides that are up notice it later.
    fn cut(&mut self) {
        if !self.is_connected {
            return;
        }
        self.is_connected = false;
        self.source.inbox.clear();
        self.destination.inbox.clear();
        if self.source.machine.is_some() {
            self.source.events.push_back(SourceEvent::Cut);
        }
        if self.destination.machine.is_some() {
            self.destination.events.push_back(DestinationEvent::Cut);
        }
    }

    fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut next = self.clone();
        change(&mut next);
        next
    }

    fn source_event(&self, event: SourceEvent) -> Self {
        self.with(|next| {
            let actions = next.source.machine.as_mut().expect("it is up").on(event);
            next.source.todo.extend(actions);
        })
    }

    fn destination_event(&self, event: DestinationEvent) -> Self {
        self.with(|next| {
            let actions = next.destination.machine.as_mut().expect("it is up").on(event);
            next.destination.todo.extend(actions);
        })
    }

    /// Returns all worlds that can be next.
    fn steps(&self) -> Vec<(Step, World)> {
        let mut steps = Vec::new();
        self.source_steps(&mut steps);
        self.destination_steps(&mut steps);
        self.healing(&mut steps);
        self.operators(&mut steps);
        self.crashes(&mut steps);
        steps
    }

    fn source_steps(&self, steps: &mut Vec<(Step, World)>) {
        let side = &self.source;
        if self.source_is_off {
            return;
        }
        let Some(machine) = side.machine else {
            let (machine, todo) = Source::restart(side.note, self.mode);
            steps.push((
                Step::Progress,
                self.with(|next| {
                    (next.source.machine, next.source.todo) = (Some(machine), todo.into());
                }),
            ));
            return;
        };
        if let Some(action) = side.todo.front() {
            return self.source_action(*action, steps);
        }
        if let Some(event) = side.events.front() {
            let next = self.with(|next| _ = next.source.events.pop_front());
            steps.push((Step::Progress, next.source_event(*event)));
            return;
        }
        if let Some(message) = side.inbox.front() {
            let next = self.with(|next| _ = next.source.inbox.pop_front());
            steps.push((Step::Progress, next.source_event(SourceEvent::Received(*message))));
        }
        let retries = matches!(
            machine.phase(),
            SourcePhase::Kept
                | SourcePhase::KeptUnnoted
                | SourcePhase::Gone
                | SourcePhase::Withdrawing
        );
        let is_quiet = side.inbox.is_empty() && self.destination.inbox.is_empty();
        if retries && is_quiet && self.destination.todo.is_empty() {
            steps.push((Step::Progress, self.source_event(SourceEvent::TimedOut)));
        }
        if machine.phase() == SourcePhase::Preparing && self.faults.timeouts > 0 {
            let next = self.with(|next| next.faults.timeouts -= 1);
            steps.push((Step::Fault, next.source_event(SourceEvent::TimedOut)));
        }
    }

    fn source_action(&self, action: SourceAction, steps: &mut Vec<(Step, World)>) {
        let done = self.with(|next| _ = next.source.todo.pop_front());
        let next = match action {
            SourceAction::Note(note) => {
                if self.faults.notes > 0 {
                    for written in [None, Some(note)] {
                        let failed = done.with(|next| {
                            next.faults.notes -= 1;
                            next.source.note = written.or(next.source.note);
                            next.source.todo.clear();
                        });
                        steps.push((
                            Step::Fault,
                            failed.source_event(SourceEvent::NoteFailed(note)),
                        ));
                    }
                }
                done.with(|next| next.source.note = Some(note))
            }
            SourceAction::DropNote => done.with(|next| next.source.note = None),
            SourceAction::SendRest => done.with(|next| {
                if next.source.vm.is_there() {
                    next.source.vm = Vm::Paused;
                }
            }),
            SourceAction::Send(message) => done.with(|next| {
                if next.is_connected {
                    next.destination.inbox.push_back(message);
                }
            }),
            SourceAction::ResumeGuest => done.with(|next| {
                if next.source.vm.is_there() {
                    next.source.vm = Vm::Running;
                }
            }),
            SourceAction::EndVmm => done.with(|next| {
                assert!(next.ran_there, "the source ends what never ran elsewhere: {self:?}");
                let has_all = next.had_pages || !next.destination.vm.is_there();
                assert!(has_all, "pages are gone: {self:?}");
                if next.source.vm.is_there() {
                    next.source.vm = Vm::Ended;
                }
            }),
            SourceAction::Report(_) => done,
        };
        steps.push((Step::Progress, next));
    }

    fn destination_steps(&self, steps: &mut Vec<(Step, World)>) {
        let side = &self.destination;
        let Some(machine) = side.machine else {
            if !self.is_fenced() {
                let (machine, todo) = Destination::restart(side.note, side.vm.is_there());
                steps.push((
                    Step::Healing,
                    self.with(|next| {
                        (next.destination.machine, next.destination.todo) =
                            (Some(machine), todo.into());
                    }),
                ));
            }
            return;
        };
        if let Some(action) = side.todo.front() {
            return self.destination_action(*action, steps);
        }
        if let Some(event) = side.events.front() {
            let next = self.with(|next| _ = next.destination.events.pop_front());
            steps.push((Step::Progress, next.destination_event(*event)));
            return;
        }
        if let Some(message) = side.inbox.front() {
            let next = self.with(|next| _ = next.destination.inbox.pop_front());
            steps.push((
                Step::Progress,
                next.destination_event(DestinationEvent::Received(*message)),
            ));
        }
        let serves =
            self.source_phase() == Some(SourcePhase::Serving) && self.source.vm == Vm::Paused;
        let has_pages = self.had_pages || (self.is_connected && serves);
        if machine.phase() == DestinationPhase::Running(false)
            && side.vm == Vm::Running
            && has_pages
        {
            let next = self.with(|next| next.had_pages = true);
            steps.push((Step::Progress, next.destination_event(DestinationEvent::PagesComplete)));
        }
        if machine.phase() == DestinationPhase::Receiving && self.faults.timeouts > 0 {
            let next = self.with(|next| next.faults.timeouts -= 1);
            steps.push((Step::Fault, next.destination_event(DestinationEvent::TimedOut)));
        }
    }

    fn destination_action(&self, action: DestinationAction, steps: &mut Vec<(Step, World)>) {
        let done = self.with(|next| _ = next.destination.todo.pop_front());
        let fails = |event, steps: &mut Vec<(Step, World)>| {
            if self.faults.failures > 0 {
                let failed = done.with(|next| {
                    next.faults.failures -= 1;
                    next.destination.events.push_back(event);
                });
                steps.push((Step::Fault, failed));
            }
        };
        let next = match action {
            DestinationAction::Note(note) => {
                if self.faults.notes > 0 {
                    for written in [None, Some(note)] {
                        let failed = done.with(|next| {
                            next.faults.notes -= 1;
                            next.destination.note = written.or(next.destination.note);
                            next.destination.todo.clear();
                        });
                        let event = DestinationEvent::NoteFailed(note);
                        steps.push((Step::Fault, failed.destination_event(event)));
                    }
                }
                done.with(|next| next.destination.note = Some(note))
            }
            DestinationAction::DropNote => done.with(|next| next.destination.note = None),
            DestinationAction::Send(message) => done.with(|next| {
                if next.is_connected {
                    next.source.inbox.push_back(message);
                }
            }),
            DestinationAction::Load => {
                fails(DestinationEvent::LoadFailed, steps);
                done.with(|next| {
                    let is_there = next.destination.vm.is_there();
                    let event = if is_there {
                        DestinationEvent::Loaded
                    } else {
                        DestinationEvent::LoadFailed
                    };
                    next.destination.events.push_back(event);
                })
            }
            DestinationAction::ResumeGuest => {
                if self.destination.vm == Vm::Paused {
                    fails(DestinationEvent::NeverRan, steps);
                }
                done.with(|next| {
                    if next.destination.vm.is_there() {
                        (next.destination.vm, next.ran_there) = (Vm::Running, true);
                        next.destination.events.push_back(DestinationEvent::Resumed);
                    } else {
                        next.destination
                            .events
                            .retain(|event| *event != DestinationEvent::VmmEnded);
                        next.destination.events.push_back(DestinationEvent::EndedBefore);
                    }
                })
            }
            DestinationAction::EndVmm => done.with(|next| {
                assert!(next.destination.vm != Vm::Running, "a running guest is dropped: {self:?}");
                if next.destination.vm.is_there() {
                    next.destination.vm = Vm::Ended;
                }
            }),
            DestinationAction::Report(_) => done,
        };
        steps.push((Step::Progress, next));
    }

    fn healing(&self, steps: &mut Vec<(Step, World)>) {
        let both_are_up = self.source.machine.is_some() && self.destination.machine.is_some();
        let have_noticed = self.source.events.is_empty() && self.destination.events.is_empty();
        if !self.is_connected && both_are_up && have_noticed {
            steps.push((
                Step::Healing,
                self.with(|next| {
                    next.is_connected = true;
                    next.source.events.push_back(SourceEvent::Connected);
                }),
            ));
        }
    }

    /// True if an operator has taken the destination out of service for good.
    fn is_fenced(&self) -> bool {
        self.is_decided && self.destination.machine.is_none() && !self.destination.vm.is_there()
    }

    fn operators(&self, steps: &mut Vec<(Step, World)>) {
        if self.faults.operator == 0 || self.is_connected {
            return;
        }
        let in_doubt = [Some(SourcePhase::Given), Some(SourcePhase::Withdrawing)];
        let waits = self.source.todo.is_empty() && self.source.events.is_empty();
        if waits && in_doubt.contains(&self.source_phase()) {
            // Power off the destination for certain, then resume here.
            let fenced = self.with(|next| {
                (next.faults.operator, next.is_decided) = (0, true);
                next.destination.machine = None;
                next.destination.todo.clear();
                next.destination.events.clear();
                if next.destination.vm.is_there() {
                    next.destination.vm = Vm::Ended;
                }
            });
            steps.push((Step::Operator, fenced.source_event(SourceEvent::ResumeOrdered)));
        }
        let waits = self.destination.todo.is_empty() && self.destination.events.is_empty();
        let phase = self.destination.machine.map(|machine| machine.phase());
        let is_alone = self.source.vm.is_there() && self.mode == CopyMode::PreCopy;
        if waits && is_alone && phase == Some(DestinationPhase::Ready) {
            // Power off the source for certain, then resume there.
            let fenced = self.with(|next| {
                (next.faults.operator, next.is_decided, next.source_is_off) = (0, true, true);
                next.source.machine = None;
                next.source.todo.clear();
                next.source.events.clear();
                next.source.vm = Vm::Ended;
            });
            steps.push((Step::Operator, fenced.destination_event(DestinationEvent::ResumeOrdered)));
        }
    }

    fn crashes(&self, steps: &mut Vec<(Step, World)>) {
        let mut fault = |change: &dyn Fn(&mut World)| steps.push((Step::Fault, self.with(change)));
        if self.is_connected && self.faults.cuts > 0 {
            fault(&|next| {
                next.faults.cuts -= 1;
                next.cut();
            });
        }
        if self.source.machine.is_some() && self.faults.source_crashes > 0 {
            fault(&|next| {
                next.faults.source_crashes -= 1;
                next.source.machine = None;
                next.source.todo.clear();
                next.source.events.clear();
                next.cut();
            });
        }
        if self.destination.machine.is_some() && self.faults.destination_crashes > 0 {
            fault(&|next| {
                next.faults.destination_crashes -= 1;
                next.destination.machine = None;
                next.destination.todo.clear();
                next.destination.events.clear();
                next.cut();
            });
        }
        if self.faults.kills > 0 && self.destination.vm.is_there() {
            fault(&|next| {
                next.faults.kills -= 1;
                next.destination.vm = Vm::Killed;
                if next.destination.machine.is_some() {
                    next.destination.events.push_back(DestinationEvent::VmmEnded);
                }
            });
        }
        if self.faults.kills > 0 && self.source.vm.is_there() {
            fault(&|next| {
                next.faults.kills -= 1;
                next.source.vm = Vm::Killed;
            });
        }
    }

    /// True if the guest is dead by a fault at the side that owned it, as on any host without migration.
    fn is_lost_to_a_kill(&self) -> bool {
        self.source.vm == Vm::Killed || (self.destination.vm == Vm::Killed && self.ran_there)
    }
}

/// All worlds that can be reached, and the steps between them.
struct Search {
    worlds: Vec<World>,
    steps: Vec<Vec<(Step, usize)>>,
}

impl Search {
    fn run(mode: CopyMode, faults: Faults) -> Self {
        let first = world(mode, faults);
        let mut numbers = HashMap::from([(first.clone(), 0)]);
        let mut search = Self { worlds: vec![first], steps: Vec::new() };
        while let Some(now) = search.worlds.get(search.steps.len()).cloned() {
            assert!(now.running() < 2, "two run: {now:?}");
            let mut out = Vec::new();
            for (step, next) in now.steps() {
                let waiting = next.source.inbox.len() + next.destination.inbox.len();
                assert!(waiting < 12, "messages pile up: {next:?}");
                let number = numbers.len();
                let number = *numbers.entry(next.clone()).or_insert(number);
                if number == search.worlds.len() {
                    search.worlds.push(next);
                }
                out.push((step, number));
            }
            search.steps.push(out);
        }
        search
    }

    /// Returns for each world whether one that runs the guest can be reached by such steps.
    fn can_run(&self, by: &[Step]) -> Vec<bool> {
        let mut before = vec![Vec::new(); self.worlds.len()];
        for (at, steps) in self.steps.iter().enumerate() {
            for (_, next) in steps.iter().filter(|(step, _)| by.contains(step)) {
                before[*next].push(at);
            }
        }
        let mut can: Vec<bool> = self.worlds.iter().map(|world| world.running() == 1).collect();
        let mut open: Vec<usize> = (0..can.len()).filter(|at| can[*at]).collect();
        while let Some(at) = open.pop() {
            for earlier in &before[at] {
                if !std::mem::replace(&mut can[*earlier], true) {
                    open.push(*earlier);
                }
            }
        }
        can
    }

    /// Returns the worlds in which the guest runs nowhere and is not dead, and cannot run by such steps.
    fn stuck(&self, by: &[Step]) -> impl Iterator<Item = &World> {
        let can = self.can_run(by);
        let worlds =
            self.worlds.iter().zip(can).filter(|(world, can)| !can && !world.is_lost_to_a_kill());
        worlds.map(|(world, _)| world)
    }
}

/// Checks what must hold, whatever the faults.
fn check(mode: CopyMode, faults: Faults) {
    let search = Search::run(mode, faults);
    // Faults end, the connection and the daemons come back: the guest runs, or it takes an operator because the
    // destination took it, and its VMM ended at once, unseen.
    for world in search.stuck(&[Step::Progress, Step::Healing]) {
        // The same if what ended it could not note that it never ran.
        let has_note_failed = world.faults.notes < faults.notes;
        let is_unseen_end = world.destination.note == Some(DestinationNote::Took)
            && (world.destination.vm == Vm::Killed
                || (world.destination.vm == Vm::Ended && has_note_failed))
            && !world.ran_there;
        let is_operators = world.is_decided;
        assert!(is_unseen_end || is_operators, "nobody can run it: {world:?}");
    }
    if faults.operator > 0 {
        let everything = [Step::Progress, Step::Healing, Step::Operator];
        let stuck = search
            .stuck(&everything)
            .filter(|world| world.faults.operator > 0 && !world.is_connected);
        assert_eq!(stuck.count(), 0, "an operator cannot help");
    }
    // The destination, or the way to it, is gone for good: the source runs the guest by itself, but in the window.
    let mut window = 0;
    for world in search.stuck(&[Step::Progress]) {
        let gave = world.source.note == Some(SourceNote::Gave)
            || world.source.todo.contains(&SourceAction::Note(SourceNote::Gave));
        let doubts = matches!(
            world.source_phase(),
            None | Some(SourcePhase::Given | SourcePhase::Withdrawing | SourcePhase::Serving)
        );
        // A source whose note could not be written withdraws, whatever is on disk.
        let withdraws = world.source_phase() == Some(SourcePhase::Withdrawing);
        let answered = world.source.todo.contains(&SourceAction::Note(SourceNote::Gone))
            || world.source_phase() == Some(SourcePhase::Gone);
        assert!(
            (gave && doubts) || withdraws || answered || world.is_decided,
            "it should run: {world:?}"
        );
        window += 1;
    }
    let steps: usize = search.steps.iter().map(Vec::len).sum();
    println!("{mode:?}: {} worlds, {steps} steps, {window} in the window", search.worlds.len());
}

const NONE: Faults = Faults {
    cuts: 0,
    source_crashes: 0,
    destination_crashes: 0,
    kills: 0,
    notes: 0,
    failures: 0,
    timeouts: 0,
    operator: 0,
};

#[test]
fn without_faults_the_guest_moves() {
    for mode in [CopyMode::PreCopy, CopyMode::PostCopy] {
        let search = Search::run(mode, NONE);
        let ends = search.steps.iter().zip(&search.worlds).filter(|(steps, _)| steps.is_empty());
        let ends: Vec<_> = ends.map(|(_, world)| world).collect();
        assert!(!ends.is_empty());
        for end in ends {
            assert_eq!((end.source.vm, end.destination.vm), (Vm::Ended, Vm::Running));
            assert_eq!((end.source.note, end.destination.note), (None, None));
        }
    }
}

#[test]
fn cuts_crashes_and_timeouts_leave_one_owner() {
    for mode in [CopyMode::PreCopy, CopyMode::PostCopy] {
        let faults =
            Faults { cuts: 2, source_crashes: 1, destination_crashes: 1, timeouts: 1, ..NONE };
        check(mode, faults);
    }
}

#[test]
fn failing_notes_and_vmms_leave_one_owner() {
    for mode in [CopyMode::PreCopy, CopyMode::PostCopy] {
        check(mode, Faults { cuts: 1, notes: 2, failures: 1, source_crashes: 1, ..NONE });
        check(mode, Faults { cuts: 1, notes: 1, failures: 1, destination_crashes: 1, ..NONE });
        check(
            mode,
            Faults { cuts: 1, kills: 1, destination_crashes: 1, source_crashes: 1, ..NONE },
        );
    }
}

#[test]
fn an_operator_ends_the_doubt() {
    for mode in [CopyMode::PreCopy, CopyMode::PostCopy] {
        let faults = Faults {
            cuts: 1,
            source_crashes: 1,
            destination_crashes: 1,
            operator: 1,
            kills: 1,
            ..NONE
        };
        check(mode, faults);
    }
}
