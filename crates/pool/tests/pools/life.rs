//! What happens to a pool, step by step, with a model beside it.

use bindery_pool::device::Device as _;
use bindery_pool::write::CommitError;
use bindery_pool::{AllocateError, DeviceIndex, MediaClass, NewDevice, ObjectId, Pool};
use rand::Rng;
use rand::rngs::StdRng;

use crate::model::{Model, Written};
use crate::rig::{Rig, attached};

/// The machine stopped, or a device did, in the middle of something.
#[derive(Debug)]
#[expect(dead_code, reason = "a test that fails shows it")]
pub(crate) struct Stopped(String);

fn stopped(error: impl std::fmt::Display) -> Stopped {
    Stopped(error.to_string())
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// Writes an object and commits it.
    Commit {
        class: MediaClass,
        written: Written,
        capacity: u64,
    },
    /// Writes an object and drops it.
    Abort {
        class: MediaClass,
        written: Written,
    },
    /// Deletes the object with this place among those that there are.
    Delete {
        which: usize,
    },
    /// Discards what was deleted.
    Reclaim,
    Rename {
        number: u64,
    },
    /// Makes the first device longer.
    Grow {
        bytes: u64,
    },
    /// Adds a device that is there and not part of the pool yet.
    AddDevice,
    /// Appends to the root MDC, which is made if there is none.
    Append {
        number: u64,
    },
    /// Compacts the root MDC to its last record.
    Compact,
}

/// A life that does everything there is to do.
pub(crate) fn script() -> Vec<Step> {
    use MediaClass::{Capacity, Staging};
    let commit = |class, seed: u64, length: usize, capacity| Step::Commit {
        class,
        written: Written { seed, length },
        capacity,
    };
    let mut steps = vec![
        commit(Capacity, 1, 100, 100),
        commit(Staging, 2, 50_000, 65_536),
        Step::Abort { class: Capacity, written: Written { seed: 3, length: 9000 } },
        Step::Append { number: 1 },
        commit(Capacity, 4, 4096, 4096),
        Step::Delete { which: 0 },
        Step::Reclaim,
        commit(Capacity, 5, 700_000, 900_000),
        Step::Rename { number: 7 },
        Step::AddDevice,
        commit(Capacity, 6, 300_000, 300_000),
        Step::Grow { bytes: 5 << 20 },
        Step::Append { number: 2 },
        Step::Compact,
        Step::Delete { which: 1 },
    ];
    // The catalogue's log takes few of these, so that it is compacted on the way.
    steps.extend((10..16).map(|seed| commit(Staging, seed, 5000, 5000)));
    steps.push(Step::Reclaim);
    steps.push(commit(Capacity, 20, 10_000, 20_000));
    steps
}

/// A step that chance chose.
pub(crate) fn any(random: &mut StdRng) -> Step {
    let class = if random.random() { MediaClass::Capacity } else { MediaClass::Staging };
    let length = match random.random_range(0..4) {
        0 => random.random_range(1..300_000),
        1 => 4096 * random.random_range(1..40),
        _ => random.random_range(1..20_000),
    };
    let written = Written { seed: random.random(), length };
    let number = random.random_range(0..1000);
    match random.random_range(0..20) {
        0..8 => {
            let capacity =
                length as u64 + random.random_range(0..2) * random.random_range(0..90_000);
            Step::Commit { class, written, capacity }
        }
        8..9 => Step::Abort { class, written },
        9..14 => Step::Delete { which: random.random_range(0..100) },
        14 => Step::Reclaim,
        15 => Step::Rename { number },
        16 => Step::Grow { bytes: 4096 * random.random_range(1024..1400) },
        17 => Step::AddDevice,
        18 => Step::Append { number },
        _ => Step::Compact,
    }
}

/// Does a step, and notes in the model what is sure and what is not.
pub(crate) fn go(rig: &mut Rig, pool: &Pool, model: &mut Model, step: Step) -> Result<(), Stopped> {
    match step {
        Step::Commit { class, written, capacity } => commit(pool, model, class, written, capacity),
        Step::Abort { class, written } => {
            let writer = pool.allocate_mblock(class, written.length as u64);
            match writer {
                Err(AllocateError::NoSpace { .. }) => return Ok(()),
                writer => writer.map_err(stopped)?.append(&written.bytes()).map_err(stopped)?,
            }
            Ok(())
        }
        Step::Delete { which } => {
            let Some(id) = model.sure.keys().copied().nth(which % model.sure.len().max(1)) else {
                return Ok(());
            };
            delete(pool, model, id)
        }
        Step::Reclaim => {
            pool.reclaim();
            Ok(())
        }
        Step::Rename { number } => {
            pool.rename(format!("guests-{number}").parse().unwrap()).map_err(stopped)
        }
        Step::Grow { bytes } if bytes > rig.device(0).bytes() => {
            pool.grow_device(DeviceIndex(0), bytes).map(drop).map_err(stopped)
        }
        Step::AddDevice if rig.classes.len() < rig.machine.devices().len() => add_device(rig, pool),
        Step::Grow { .. } | Step::AddDevice => Ok(()),
        Step::Append { number } => append(pool, model, number),
        Step::Compact => compact(pool, model),
    }
}

fn commit(
    pool: &Pool,
    model: &mut Model,
    class: MediaClass,
    written: Written,
    capacity: u64,
) -> Result<(), Stopped> {
    let mut writer = match pool.allocate_mblock(class, capacity) {
        Err(AllocateError::NoSpace { .. }) => return Ok(()),
        writer => writer.map_err(stopped)?,
    };
    let id = writer.id();
    assert!(id.0 > model.highest_id, "an id was given twice");
    model.highest_id = id.0;
    for part in written.bytes().chunks(7777) {
        writer.append(part).map_err(stopped)?;
    }
    match writer.commit() {
        Ok(object) => assert_eq!(object.entry().id(), id),
        Err(error) => {
            if matches!(error, CommitError::Catalogue { .. }) {
                model.unsure.insert(id, written);
            }
            return Err(stopped(error));
        }
    }
    model.sure.insert(id, written);
    Ok(())
}

fn delete(pool: &Pool, model: &mut Model, id: ObjectId) -> Result<(), Stopped> {
    let outcome = pool.delete(id);
    let written = model.sure.remove(&id).unwrap();
    outcome.map_err(|error| {
        model.unsure.insert(id, written);
        stopped(error)
    })
}

fn add_device(rig: &mut Rig, pool: &Pool) -> Result<(), Stopped> {
    let index = rig.classes.len();
    let device = attached(index, rig.device(index));
    // Part of it or not: whoever opens the pool is given the device.
    rig.classes.push(MediaClass::Capacity);
    let new = NewDevice { attached: device, class: MediaClass::Capacity };
    pool.add_device(new, true).map(drop).map_err(stopped)
}

fn append(pool: &Pool, model: &mut Model, number: u64) -> Result<(), Stopped> {
    if model.root.is_none() && pool.root().is_none() {
        let root = pool.create_root(MediaClass::Capacity, 64 << 10, 2).map_err(stopped)?;
        model.root = Some((root.id(), Vec::new()));
    }
    // A crash may have made it after all.
    let id = pool.root().unwrap();
    let (_, records) = model.root.get_or_insert((id, Vec::new()));
    let mut root = pool.open_mdc(id).map_err(stopped)?;
    let record = format!("record {number}").into_bytes();
    model.unsure_record = Some(record.clone());
    root.append(&record).map_err(stopped)?;
    root.sync().map_err(stopped)?;
    records.push(record);
    model.unsure_record = None;
    Ok(())
}

fn compact(pool: &Pool, model: &mut Model) -> Result<(), Stopped> {
    let Some((id, records)) = &mut model.root else { return Ok(()) };
    let mut root = pool.open_mdc(*id).map_err(stopped)?;
    // All of them again: the model need not know whether it came to an end.
    root.compact(|log| records.iter().try_for_each(|record| log.append(record)))
        .map_err(|error: bindery_pool::log::WriteError| stopped(error))
}
