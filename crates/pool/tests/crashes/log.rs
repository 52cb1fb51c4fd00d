//! Lives of logs.

use bindery_pool::log::{Log, LogCopy, OpenError, Reader, WriteError};
use bindery_pool::{BLOCK_BYTES, LogIdentity, ObjectId};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::simulated::{Fault, Machine, places};
use super::{Stopped, is_left_of, lives, record};

const IDENTITY: LogIdentity = LogIdentity { pool: 0xb1d, log: ObjectId(7) };
const BLOCKS: u64 = 24;

struct Life {
    machine: Machine,
    places: Vec<LogCopy>,
    random: StdRng,
    session: u64,
    /// None while it is closed.
    log: Option<Log>,
    /// What was appended since the last erase.
    records: Vec<Vec<u8>>,
    /// How many of them must be there, whatever happens.
    synced: usize,
    /// An erase was begun and not ended: none need be there, then.
    erasing: bool,
    appended: u64,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Append,
    Sync,
    Erase,
    /// The writer ends in order, and another one comes.
    Reopen,
    /// The writer's process dies, and another one comes, in the same opening or the next.
    Die,
}

impl Life {
    fn new(copies: u16, seed: u64) -> Self {
        let mut machine = Machine::new();
        let places = places(&mut machine, copies, BLOCKS);
        let log = Log::create(IDENTITY, places.clone(), 1).unwrap();
        Self {
            machine,
            places,
            random: StdRng::seed_from_u64(seed),
            session: 1,
            log: Some(log),
            records: Vec::new(),
            synced: 0,
            erasing: false,
            appended: 0,
        }
    }

    fn act(&mut self, action: Action) -> Result<(), Stopped> {
        match action {
            Action::Append => self.append(),
            Action::Sync => {
                self.log().sync().map_err(stopped)?;
                self.synced = self.records.len();
                Ok(())
            }
            Action::Erase => self.erase(),
            Action::Reopen => {
                let log = self.log.take().expect("it is open");
                log.close().map_err(stopped)?;
                self.synced = self.records.len();
                self.open()
            }
            Action::Die => {
                self.session += self.random.random_range(0..2);
                self.open()
            }
        }
    }

    const fn log(&mut self) -> &mut Log {
        self.log.as_mut().expect("it is open")
    }

    fn append(&mut self) -> Result<(), Stopped> {
        self.appended += 1;
        let record = record(self.appended, &mut self.random);
        self.records.push(record.clone());
        match self.log().append(&record) {
            Err(WriteError::Full { .. }) => {
                self.records.pop();
                self.erase()
            }
            other => other.map_err(stopped),
        }
    }

    fn erase(&mut self) -> Result<(), Stopped> {
        self.erasing = true;
        self.log().erase().map_err(stopped)?;
        (self.records, self.synced, self.erasing) = (Vec::new(), 0, false);
        Ok(())
    }

    fn stopped_opening(&self, error: &OpenError) -> Stopped {
        assert!(matches!(error, OpenError::Device(_)) || self.machine.is_off(), "{error}");
        Stopped
    }

    /// Opens the log anew, and looks whether what must be there is, and nothing else.
    fn open(&mut self) -> Result<(), Stopped> {
        for place in &self.places {
            self.look_at_copy(place)?;
        }
        let reader = Reader::open(IDENTITY, self.places.clone());
        let reader = reader.map_err(|error| self.stopped_opening(&error))?;
        let seen: Vec<Vec<u8>> = reader.records().collect::<Result<_, _>>().unwrap();
        let log = Log::open(IDENTITY, self.places.clone(), self.session);
        let log = log.map_err(|error| self.stopped_opening(&error))?;
        self.adopt(log);
        assert_eq!(seen, self.records, "who reads and who writes see the same");
        for device in self.machine.devices() {
            let content = device.content();
            // The pool, the log, and the generation (docs/formats/pool.md).
            let mut heads = content.chunks_exact(BLOCK_BYTES).skip(1).map(|it| &it[16..48]);
            assert_eq!(heads.next(), heads.next());
        }
        let copies_differ = self.log().scrub().unwrap();
        assert!(copies_differ.is_empty(), "{copies_differ:?}");
        Ok(())
    }

    /// Each copy alone has what was synced.
    fn look_at_copy(&self, place: &LogCopy) -> Result<(), Stopped> {
        let reader = Reader::open(IDENTITY, vec![place.clone()]);
        let reader = reader.map_err(|error| self.stopped_opening(&error))?;
        let there: Vec<Vec<u8>> = reader.records().collect::<Result<_, _>>().unwrap();
        let left = is_left_of(&there, &self.records, self.synced);
        assert!(left || (self.erasing && there.is_empty()), "{} are there", there.len());
        Ok(())
    }

    fn adopt(&mut self, log: Log) {
        let there: Vec<Vec<u8>> = log.records().collect::<Result<_, _>>().unwrap();
        let left = is_left_of(&there, &self.records, self.synced);
        assert!(left || (self.erasing && there.is_empty()), "{} are there", there.len());
        (self.synced, self.records, self.erasing) = (there.len(), there, false);
        self.log = Some(log);
    }

    /// The machine comes back, perhaps more than once before the log is open.
    fn recover(&mut self, seed: u64) {
        for attempt in 0.. {
            self.machine.restart(seed ^ (attempt << 32));
            self.session += 1;
            if attempt < 3 && self.random.random_range(0..3) == 0 {
                self.machine.fail_power_after(self.random.random_range(0..12));
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
    match random.random_range(0..24) {
        0 => Action::Erase,
        1 => Action::Die,
        2 => Action::Reopen,
        3..10 => Action::Sync,
        _ => Action::Append,
    }
}

/// A life of every kind of action, always the same.
fn scripted(life: &mut Life) -> Result<(), Stopped> {
    use Action::{Append, Die, Erase, Reopen, Sync};
    let script = [
        Append, Sync, Append, Append, Append, Sync, Append, Die, Append, Sync, Sync, Append,
        Append, Reopen, Append, Append, Append, Append, Sync, Erase, Append, Append, Sync, Append,
        Append, Append, Reopen, Erase, Die, Append, Sync, Append,
    ];
    script.into_iter().try_for_each(|action| life.act(action))
}

#[test]
fn a_log_survives_a_crash_at_every_operation() {
    for copies in [1, 2] {
        let mut whole = Life::new(copies, 1);
        let before = whole.machine.operations();
        scripted(&mut whole).unwrap();
        let operations = whole.machine.operations() - before;
        assert!(operations > 30, "{operations}");
        for at in 0..operations {
            for seed in 0..16 {
                let mut life = Life::new(copies, 1);
                life.machine.fail_power_after(at);
                scripted(&mut life).unwrap_err();
                life.recover(at << 8 | seed);
                life.act(Action::Append).unwrap();
                life.act(Action::Sync).unwrap();
                life.recover(seed);
            }
        }
    }
}

#[test]
fn a_log_survives_any_life() {
    for seed in 0..lives() {
        let mut life = Life::new(1 + (seed % 2) as u16, seed);
        for crash in 0..6 {
            let more = life.random.random_range(0..60);
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

/// A log that was being made when the machine stopped is no log, or an empty one, and can be made
/// again.
#[test]
fn making_a_log_is_survived_at_every_operation() {
    for copies in [1, 2] {
        for seed in 0..200 {
            let mut machine = Machine::new();
            let places = places(&mut machine, copies, BLOCKS);
            machine.fail_power_after(seed % 8);
            let made = Log::create(IDENTITY, places.clone(), 1).is_ok();
            machine.restart(seed);
            match Log::open(IDENTITY, places.clone(), 2) {
                Ok(log) => assert_eq!(log.records().count(), 0),
                Err(OpenError::NoLog(_) | OpenError::Damaged(_)) => assert!(!made),
                Err(error) => panic!("{error}"),
            }
            let mut log = Log::create(IDENTITY, places.clone(), 3).unwrap();
            log.append(b"a record").unwrap();
            log.sync().unwrap();
            machine.restart(seed);
            let log = Log::open(IDENTITY, places, 4).unwrap();
            assert_eq!(log.records().count(), 1);
        }
    }
}

/// Devices that fail an operation, for once or for good, and go on as if nothing had been.
#[test]
fn a_log_survives_every_operation_that_fails() {
    for (copies, fault, lasting) in [
        (1, Fault::Error, 1),
        (1, Fault::Short, 1),
        (1, Fault::Full, 1),
        (2, Fault::Error, 1),
        (2, Fault::Short, u64::MAX),
    ] {
        for failing in 0..copies {
            for at in 0..60 {
                let mut life = Life::new(copies, 1);
                let device = life.machine.devices()[usize::from(failing)].clone();
                device.fail(at..at.saturating_add(lasting), fault);
                while life.act(Action::Append).is_ok() && life.act(Action::Sync).is_ok() {
                    if life.records.len() == 7 && life.act(Action::Erase).is_err() {
                        break;
                    }
                }
                // It takes nothing more, and says so.
                assert!(matches!(life.log().append(b""), Err(WriteError::Failed(_))));
                assert!(matches!(life.log().sync(), Err(WriteError::Failed(_))));
                assert!(matches!(life.log().erase(), Err(WriteError::Failed(_))));
                device.mend();
                // In the same opening first: what it finds then must be there ever after.
                life.open().unwrap();
                life.act(Action::Append).unwrap();
                life.act(Action::Sync).unwrap();
                life.recover(at);
            }
        }
    }
}

/// A log without room for a mark keeps what it has, though the last sync failed.
#[test]
fn a_full_log_survives_every_operation_that_fails() {
    for copies in [1, 2] {
        for at in 0..60 {
            let mut life = Life::new(copies, 1);
            let device = life.machine.devices()[0].clone();
            device.fail(at..at + 1, Fault::Error);
            let mut fill = || {
                for number in 0..BLOCKS {
                    let record = vec![number as u8; 4000];
                    match life.log().append(&record) {
                        Err(WriteError::Full { .. }) => break,
                        other => other.map_err(stopped)?,
                    }
                    life.records.push(record);
                    life.act(Action::Sync)?;
                }
                life.act(Action::Reopen)
            };
            let filled: Result<(), Stopped> = fill();
            if filled.is_ok() {
                continue;
            }
            device.mend();
            for seed in 0..8 {
                life.open().unwrap();
                life.machine.restart(seed);
            }
        }
    }
}
