//! A pool that does everything there is to do, is perhaps damaged, and is opened again.

use std::collections::BTreeMap;

use bindery_pool::format::superblock::{SUPERBLOCK_OFFSETS, Superblock};
use bindery_pool::mblock::Committed;
use bindery_pool::object::Object;
use bindery_pool::{BLOCK_BYTES, MediaClass, ObjectId, Pool};
use bindery_sys::direct::Buffer;
use libfuzzer_sys::arbitrary::{self, Arbitrary};

use crate::crashes::reopen;
use crate::damage::Change;
use crate::life::{self, Step};
use crate::model::{Model, Written};
use crate::rig::Rig;

/// Acts of one life: more of them learn nothing new and take long.
const ACTS: usize = 48;

const DEVICE_BYTES: u64 = 768 << 10;

/// What happens to a pool.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Act {
    Commit {
        is_staging: bool,
        seed: u8,
        length: u16,
        spare: u16,
    },
    Abort {
        is_staging: bool,
        length: u16,
    },
    Delete {
        which: u8,
    },
    Reclaim,
    Rename {
        number: u8,
    },
    Grow {
        blocks: u8,
    },
    AddDevice,
    Append {
        number: u8,
    },
    Compact,
    /// It is closed and opened.
    Reopen,
    /// The power fails that many operations later.
    Crash {
        after: u8,
        seed: u8,
    },
}

/// A life, and what then becomes of the devices.
#[derive(Arbitrary, Debug)]
pub struct Script {
    acts: Vec<Act>,
    changes: [Vec<Change>; 3],
}

impl Act {
    /// What it is to the pool's own tests; none if it is not done to an open pool.
    fn step(self) -> Option<Step> {
        let class =
            |is_staging| [MediaClass::Capacity, MediaClass::Staging][usize::from(is_staging)];
        let written = |seed: u8, length: u16| Written {
            seed: seed.into(),
            length: usize::from(length) * 3 / 2 + 1,
        };
        Some(match self {
            Self::Commit { is_staging, seed, length, spare } => {
                let written = written(seed, length);
                let capacity = written.length as u64 + u64::from(spare);
                Step::Commit { class: class(is_staging), written, capacity }
            }
            Self::Abort { is_staging, length } => {
                Step::Abort { class: class(is_staging), written: written(1, length) }
            }
            Self::Delete { which } => Step::Delete { which: which.into() },
            Self::Reclaim => Step::Reclaim,
            Self::Rename { number } => Step::Rename { number: number.into() },
            Self::Grow { blocks } => {
                Step::Grow { bytes: DEVICE_BYTES + u64::from(blocks) * BLOCK_BYTES as u64 }
            }
            Self::AddDevice => Step::AddDevice,
            Self::Append { number } => Step::Append { number: number.into() },
            Self::Compact => Step::Compact,
            Self::Reopen | Self::Crash { .. } => return None,
        })
    }
}

/// Every object that a pool ever had: ids are not given twice, so that an id has one content for ever.
type Ever = BTreeMap<ObjectId, Written>;

/// A pool after its life, closed.
struct Lived {
    rig: Rig,
    model: Model,
    ever: Ever,
}

/// Lives, with a look at everything after each end and each crash.
///
/// # Panics
/// If the pool is not what the model says.
pub fn live(acts: &[Act]) {
    let _ = lived(acts);
}

fn lived(acts: &[Act]) -> Lived {
    let sizes = [(MediaClass::Capacity, DEVICE_BYTES), (MediaClass::Staging, 640 << 10)];
    let (mut rig, mut model, mut ever) = (Rig::new(&sizes), Model::default(), Ever::new());
    // One to be added.
    rig.machine.device(640 << 10);
    let mut pool = rig.create();
    let mut restarts_as = 0;
    for &act in acts.iter().take(ACTS) {
        if let Act::Crash { after, seed } = act {
            restarts_as = seed.into();
            rig.machine.fail_power_after(after.into());
        }
        if let Some(step) = act.step() {
            // What fails while the power is on has no room; the model says whether anything was lost.
            let _ = life::go(&mut rig, &pool, &mut model, step);
            ever.extend(
                model.sure.iter().chain(&model.unsure).map(|(&id, &written)| (id, written)),
            );
        }
        if rig.machine.is_off() || matches!(act, Act::Reopen) {
            pool = reopened(&mut rig, &mut model, pool, restarts_as);
        }
    }
    pool = reopened(&mut rig, &mut model, pool, restarts_as);
    drop(pool);
    Lived { rig, model, ever }
}

/// The pool after its end or a crash; all of it is compared.
fn reopened(rig: &mut Rig, model: &mut Model, pool: Pool, seed: u64) -> Pool {
    drop(pool);
    if rig.machine.is_off() {
        rig.machine.restart(seed);
    }
    rig.machine.keep_power();
    let pool = reopen(rig, model);
    // One that was not added to the end is to be added again.
    rig.classes.truncate(pool.devices().len());
    pool
}

/// Lives, has the devices damaged, and reads what is left.
///
/// # Panics
/// If anything is read that was never written, or an error names nothing, or something is missed of
/// which one good copy is left.
pub fn damage(script: &Script) {
    let Lived { rig, model, ever } = lived(&script.acts);
    let listed = rig.open().expect("it was open a moment ago").list();
    let is_forged = script.changes.iter().flatten().any(|change| change.is_forged());
    let is_confined = !is_forged && is_confined(&rig, &script.changes);
    for (device, changes) in rig.machine.devices().iter().zip(&script.changes) {
        let mut content = device.content();
        changes.iter().for_each(|change| change.apply(&mut content));
        device.replace(content);
    }
    let known = (!is_forged).then_some(&ever);
    match rig.read() {
        Ok(reader) => {
            let list = reader.list();
            assert!(!is_confined || list == listed, "one copy is good, and something is missed");
            for entry in list {
                match reader.get(entry.id()) {
                    Ok(object) => check(&object, known),
                    Err(error) => names_something(&error),
                }
            }
        }
        Err(error) => refused(&error, is_confined),
    }
    let pool = match rig.open() {
        Ok(pool) => pool,
        Err(error) => return refused(&error, is_confined),
    };
    pool.verify().findings.iter().for_each(|finding| names_something(finding));
    assert!(!is_confined || pool.list() == listed, "one copy is good, and something is missed");
    for entry in pool.list() {
        if let Ok(object) = pool.get(entry.id()) {
            check(&object, known);
        }
    }
    if !is_forged {
        go_on(rig, pool, model);
    }
}

/// A pool with damage in it takes new objects, which are there when it is opened again.
fn go_on(mut rig: Rig, pool: Pool, mut model: Model) {
    // No act has this seed.
    let written = Written { seed: 1000, length: 5000 };
    let step = Step::Commit { class: MediaClass::Capacity, written, capacity: 5000 };
    // Ids that a lost record gave may be given again, where every copy of it was damaged.
    model.highest_id = 0;
    if life::go(&mut rig, &pool, &mut model, step).is_err() {
        return;
    }
    let Some((&id, _)) = model.sure.iter().find(|(_, found)| **found == written) else { return };
    drop(pool);
    let pool = rig.open().expect("what was open can be opened again");
    let object = pool.get(id).expect("what was committed is there");
    check(&object, Some(&model.sure));
}

/// Whether of everything that has two copies one is left as it was: the second superblocks, and the
/// second copies of the catalogue.
fn is_confined(rig: &Rig, changes: &[Vec<Change>; 3]) -> bool {
    let device = rig.device(0).content();
    let superblock =
        Superblock::decode(0, &device[..BLOCK_BYTES]).expect("it was written just now");
    let mut devices = rig.machine.devices().iter().zip(changes).enumerate();
    devices.all(|(index, (device, changes))| {
        let blocks = device.content().len() as u64 / BLOCK_BYTES as u64;
        let mut changed = changes.iter().filter_map(|change| change.block(blocks));
        changed.all(|block| {
            let at = block * BLOCK_BYTES as u64;
            let is_in_second = superblock.catalogue.iter().any(|copies| {
                usize::from(copies[1].device.0) == index
                    && (copies[1].offset_bytes..copies[1].offset_bytes + copies[1].bytes)
                        .contains(&at)
            });
            at != SUPERBLOCK_OFFSETS[1] && !is_in_second
        })
    })
}

/// Reads all of an object: an error that says which it is, or what was written under its id.
fn check(object: &Committed, ever: Option<&Ever>) {
    let (id, length) = (object.id(), object.length_bytes() as usize);
    // A forged length: devices here have less than a MiB.
    let mut buffer = Buffer::zeroed(length.min(2 << 20).next_multiple_of(BLOCK_BYTES));
    match object.read(0, &mut buffer) {
        Err(error) => assert!(error.to_string().contains(&format!("object {id}")), "{error}"),
        Ok(()) => {
            let Some(ever) = ever else { return };
            let written = ever.get(&id).expect("no object is there that never was");
            assert!(buffer[..length] == written.bytes(), "object {id} is another");
        }
    }
}

fn refused(error: &bindery_pool::OpenError, is_confined: bool) {
    assert!(!is_confined, "one copy is good, and yet: {error}");
    names_something(error);
}

fn names_something(error: &dyn std::fmt::Display) {
    let text = error.to_string();
    let names = ["disk", "device ", "log 0x", "object 0x", "catalogue", "guests"];
    assert!(names.iter().any(|name| text.contains(name)), "{text:?} names nothing");
}
