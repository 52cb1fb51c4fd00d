//! Lives of MDCs.

use bindery_pool::log::{OpenError, WriteError};
use bindery_pool::mdc::{Half, Mdc, MdcError, MdcReader};
use bindery_pool::{LogIdentity, ObjectId};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::simulated::{Fault, Machine, places};
use super::{Stopped, is_left_of, lives, record};

const BLOCKS: u64 = 24;

struct Life {
    machine: Machine,
    halves: [Half; 2],
    random: StdRng,
    session: u64,
    /// None while it is closed.
    mdc: Option<Mdc>,
    records: Vec<Vec<u8>>,
    /// How many of them must be there, whatever happens.
    synced: usize,
    /// What a compaction that was begun and did not return was to leave.
    compacted: Option<Vec<Vec<u8>>>,
    appended: u64,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Append,
    Sync,
    /// Keeps the last so many.
    Compact(usize),
    /// Begins, and then does not want to.
    GiveUp,
    Reopen,
    Die,
}

/// Why a compaction ends.
#[derive(Debug)]
enum Ends {
    Write(WriteError),
    Unwanted,
}

impl From<WriteError> for Ends {
    fn from(error: WriteError) -> Self {
        Self::Write(error)
    }
}

fn half(machine: &mut Machine, copies: u16, log: u64) -> Half {
    let identity = LogIdentity { pool: 0xb1d, log: ObjectId(log) };
    Half { identity, places: places(machine, copies, BLOCKS) }
}

impl Life {
    fn new(copies: u16, seed: u64) -> Self {
        let mut machine = Machine::new();
        let halves = [half(&mut machine, copies, 1), half(&mut machine, copies, 2)];
        let mdc = Mdc::create(halves.clone(), 1).unwrap();
        Self {
            machine,
            halves,
            random: StdRng::seed_from_u64(seed),
            session: 1,
            mdc: Some(mdc),
            records: Vec::new(),
            synced: 0,
            compacted: None,
            appended: 0,
        }
    }

    const fn mdc(&mut self) -> &mut Mdc {
        self.mdc.as_mut().expect("it is open")
    }

    fn act(&mut self, action: Action) -> Result<(), Stopped> {
        match action {
            Action::Append => self.append(),
            Action::Sync => {
                self.mdc().sync().map_err(stopped)?;
                self.synced = self.records.len();
                Ok(())
            }
            Action::Compact(keep) => self.compact(keep),
            Action::GiveUp => self.give_up(),
            Action::Reopen => {
                let mdc = self.mdc.take().expect("it is open");
                mdc.close().map_err(stopped)?;
                self.synced = self.records.len();
                self.open()
            }
            Action::Die => {
                self.session += self.random.random_range(0..2);
                self.open()
            }
        }
    }

    fn append(&mut self) -> Result<(), Stopped> {
        self.appended += 1;
        let record = record(self.appended, &mut self.random);
        self.records.push(record.clone());
        match self.mdc().append(&record) {
            Err(WriteError::Full { .. }) => {
                self.records.pop();
                self.compact(2)
            }
            other => other.map_err(stopped),
        }
    }

    fn compact(&mut self, keep: usize) -> Result<(), Stopped> {
        let kept = self.records[self.records.len().saturating_sub(keep)..].to_vec();
        self.compacted = Some(kept.clone());
        let compacted = self.mdc().compact::<WriteError>(|compaction| {
            kept.iter().try_for_each(|record| compaction.append(record))
        });
        match compacted {
            Ok(()) => {
                (self.synced, self.records, self.compacted) = (kept.len(), kept, None);
                Ok(())
            }
            // Then the old ones still count.
            Err(WriteError::Full { .. }) => self.compact(0),
            Err(error) => Err(stopped(error)),
        }
    }

    fn give_up(&mut self) -> Result<(), Stopped> {
        let ended = self.mdc().compact::<Ends>(|compaction| {
            compaction.append(&[1; 9000])?;
            Err(Ends::Unwanted)
        });
        match ended.unwrap_err() {
            Ends::Unwanted => Ok(()),
            Ends::Write(error) => Err(stopped(error)),
        }
    }

    fn stopped_opening(&self, error: &MdcError) -> Stopped {
        let device = matches!(
            error,
            MdcError::Log(OpenError::Device(_)) | MdcError::Write(WriteError::Device(_))
        );
        assert!(device || self.machine.is_off(), "{error}");
        Stopped
    }

    /// Opens the MDC anew, and looks whether what must be there is, and nothing else.
    fn open(&mut self) -> Result<(), Stopped> {
        let reader = MdcReader::open(&self.halves);
        let reader = reader.map_err(|error| self.stopped_opening(&error))?;
        let mdc = Mdc::open(self.halves.clone(), self.session);
        let mdc = mdc.map_err(|error| self.stopped_opening(&error))?;
        let there: Vec<Vec<u8>> = mdc.records().collect::<Result<_, _>>().unwrap();
        assert!(reader.records().eq(there.iter()), "who reads and who writes see the same");
        let left = is_left_of(&there, &self.records, self.synced);
        assert!(left || self.compacted.as_ref() == Some(&there), "{} are there", there.len());
        let copies_differ = mdc.scrub().unwrap();
        assert!(copies_differ.is_empty(), "{copies_differ:?}");
        (self.synced, self.records, self.compacted) = (there.len(), there, None);
        self.mdc = Some(mdc);
        Ok(())
    }

    /// The machine comes back, perhaps more than once before the MDC is open.
    fn recover(&mut self, seed: u64) {
        for attempt in 0.. {
            self.machine.restart(seed ^ (attempt << 32));
            self.session += 1;
            if attempt < 3 && self.random.random_range(0..3) == 0 {
                self.machine.fail_power_after(self.random.random_range(0..20));
            }
            match self.open() {
                Ok(()) => return self.machine.keep_power(),
                Err(Stopped) => assert!(self.machine.is_off(), "nothing else fails"),
            }
        }
    }
}

fn stopped(error: WriteError) -> Stopped {
    match error {
        WriteError::Device(_) | WriteError::Failed(_) => Stopped,
        WriteError::Full { .. } => panic!("{error}"),
    }
}

fn action(random: &mut StdRng) -> Action {
    match random.random_range(0..30) {
        0..3 => Action::Compact(random.random_range(0..20)),
        3 => Action::GiveUp,
        4 => Action::Die,
        5 => Action::Reopen,
        6..14 => Action::Sync,
        _ => Action::Append,
    }
}

/// A life of every kind of action, always the same.
fn scripted(life: &mut Life) -> Result<(), Stopped> {
    use Action::{Append, Compact, Die, GiveUp, Reopen, Sync};
    let script = [
        Append,
        Sync,
        Append,
        Append,
        Compact(2),
        Append,
        Sync,
        Append,
        Die,
        Compact(5),
        Compact(9),
        Append,
        GiveUp,
        Append,
        Sync,
        Reopen,
        Append,
        Compact(0),
        Append,
        Sync,
        Compact(1),
        Append,
    ];
    script.into_iter().try_for_each(|action| life.act(action))
}

#[test]
fn an_mdc_survives_a_crash_at_every_operation() {
    for copies in [1, 2] {
        let mut whole = Life::new(copies, 1);
        let before = whole.machine.operations();
        scripted(&mut whole).unwrap();
        let operations = whole.machine.operations() - before;
        assert!(operations > 40, "{operations}");
        for at in 0..operations {
            for seed in 0..16 {
                let mut life = Life::new(copies, 1);
                life.machine.fail_power_after(at);
                scripted(&mut life).unwrap_err();
                life.recover(at << 8 | seed);
                life.act(Action::Append).unwrap();
                life.act(Action::Compact(3)).unwrap();
                life.recover(seed);
            }
        }
    }
}

#[test]
fn an_mdc_survives_any_life() {
    for seed in 0..lives() {
        let mut life = Life::new(1 + (seed % 2) as u16, seed);
        for crash in 0..6 {
            let more = life.random.random_range(0..80);
            life.machine.fail_power_after(more);
            loop {
                let action = action(&mut life.random);
                if life.act(action).is_err() {
                    break;
                }
            }
            life.recover(seed << 8 | crash);
        }
    }
}

/// An MDC whose making was cut short is none, or an empty one.
#[test]
fn making_an_mdc_is_survived_at_every_operation() {
    for seed in 0..300 {
        let mut machine = Machine::new();
        let halves = [half(&mut machine, 2, 1), half(&mut machine, 2, 2)];
        machine.fail_power_after(seed % 20);
        let made = Mdc::create(halves.clone(), 1).is_ok();
        machine.restart(seed);
        match Mdc::open(halves.clone(), 2) {
            Ok(mdc) => assert_eq!(mdc.records().count(), 0),
            Err(MdcError::Log(_) | MdcError::Neither(..)) => assert!(!made),
            Err(error) => panic!("{error}"),
        }
        let mut mdc = Mdc::create(halves, 3).unwrap();
        mdc.append(b"a record").unwrap();
        mdc.sync().unwrap();
    }
}

/// Every operation of every device fails once, in a life in which all else goes well.
#[test]
fn an_mdc_survives_every_operation_that_fails() {
    for fault in [Fault::Error, Fault::Short] {
        for failing in 0..4 {
            for at in 0..40 {
                let mut life = Life::new(2, 1);
                let device = life.machine.devices()[failing].clone();
                device.fail(at..at + 1, fault);
                if scripted(&mut life).is_ok() {
                    continue;
                }
                device.mend();
                life.open().unwrap();
                life.act(Action::Append).unwrap();
                life.act(Action::Sync).unwrap();
                life.act(Action::Compact(1)).unwrap();
                life.recover(at);
            }
        }
    }
}

/// If only the erasing of the old log fails, what was compacted counts, and what is appended to it.
#[test]
fn a_compaction_whose_old_log_is_not_erased_counts() {
    for at in 0..4 {
        let mut life = Life::new(2, 1);
        life.act(Action::Append).unwrap();
        life.act(Action::Sync).unwrap();
        // The first half's second copy.
        life.machine.devices()[1].fail(at..at + 1, Fault::Error);
        life.act(Action::Compact(0)).unwrap_err();
        life.records.clear();
        life.synced = 0;
        life.compacted = None;
        life.act(Action::Append).unwrap();
        life.act(Action::Sync).unwrap();
        let before = life.mdc().used_bytes();
        life.act(Action::Compact(1)).unwrap_err();
        assert_eq!(life.mdc().used_bytes(), before);
        life.act(Action::Append).unwrap();
        life.act(Action::Sync).unwrap();
        life.recover(at);
        life.act(Action::Compact(1)).unwrap();
        life.recover(at);
    }
}
