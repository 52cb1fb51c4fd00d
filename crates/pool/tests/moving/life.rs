//! What a pool with an archive does, step by step.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bindery_pool::archive::{Archive, ArchiveOptions};
use bindery_pool::mblock::Committed;
use bindery_pool::{MediaClass, MoveError, ObjectId, Pool};
use rand::Rng;
use rand::rngs::StdRng;
use tempfile::TempDir;

use crate::model::{Model, Written};
use crate::rig::Rig;

use MediaClass::{Capacity, Staging};

/// A machine with a pool, and a directory that is its archive, which no power failure hurts.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) rig: Rig,
    directory: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        // In memory where that can be had: an archive syncs every file.
        let memory = Path::new("/dev/shm");
        let directory =
            if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() }.unwrap();
        Self { rig: Rig::two(), directory }
    }

    pub(crate) fn options() -> ArchiveOptions {
        ArchiveOptions { part_bytes: 16 << 10, writer: "one".into(), ..ArchiveOptions::default() }
    }

    pub(crate) fn url(&self) -> String {
        format!("file://{}", self.directory.path().display())
    }

    pub(crate) fn archive(&self) -> Archive {
        Archive::open(&self.url(), Self::options()).unwrap()
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A new pool, with its archive.
    pub(crate) fn create(&self) -> Pool {
        let pool = self.rig.create();
        pool.set_archive(self.archive()).unwrap();
        pool
    }

    /// The pool after a crash, with its archive if it had one.
    pub(crate) fn reopen(&self) -> Pool {
        let pool = self.rig.open().unwrap();
        pool.connect_archive(Self::options()).unwrap();
        pool
    }

    /// How many keys the archive has, of all objects.
    pub(crate) fn keys(&self, pool: &Pool) -> usize {
        let directory = self.directory.path().join(uuid::Uuid::from_u128(pool.id()).to_string());
        std::fs::read_dir(directory).map_or(0, Iterator::count)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Commit {
        class: MediaClass,
        written: Written,
    },
    /// To the archive, the object of that number among those that there are.
    Archive {
        which: usize,
    },
    Back {
        which: usize,
        class: MediaClass,
    },
    Delete {
        which: usize,
    },
    Sweep,
    Reclaim,
}

/// The power has failed, or something else.
#[derive(Debug)]
pub(crate) struct Stopped;

pub(crate) fn commit(pool: &Pool, class: MediaClass, written: Written) -> Arc<Committed> {
    let mut writer = pool.allocate_mblock(class, written.length as u64).unwrap();
    writer.append(&written.bytes()).unwrap();
    writer.commit().unwrap()
}

/// A life with every move there is.
pub(crate) fn script() -> Vec<Step> {
    let new = |class, seed: u64, length| Step::Commit { class, written: Written { seed, length } };
    vec![
        new(Capacity, 1, 40_000),
        new(Staging, 2, 5000),
        new(Capacity, 3, 16_384),
        Step::Archive { which: 0 },
        Step::Archive { which: 1 },
        Step::Reclaim,
        Step::Back { which: 0, class: Staging },
        Step::Delete { which: 1 },
        new(Capacity, 4, 1),
        Step::Archive { which: 0 },
        Step::Archive { which: 2 },
        Step::Sweep,
        Step::Back { which: 2, class: Capacity },
        Step::Delete { which: 0 },
        Step::Delete { which: 1 },
        Step::Sweep,
        new(Staging, 5, 70_000),
        Step::Archive { which: 0 },
    ]
}

pub(crate) fn any(random: &mut StdRng) -> Step {
    let class = if random.random() { Capacity } else { Staging };
    let which = random.random_range(0..100);
    match random.random_range(0..16) {
        0..5 => {
            let length = random.random_range(1..60_000);
            Step::Commit { class, written: Written { seed: random.random(), length } }
        }
        5..9 => Step::Archive { which },
        9..12 => Step::Back { which, class },
        12..14 => Step::Delete { which },
        14 => Step::Sweep,
        _ => Step::Reclaim,
    }
}

/// Does a step, and notes in the model what is sure and what is not.
pub(crate) fn go(pool: &Pool, model: &mut Model, step: Step) -> Result<(), Stopped> {
    let chosen = |which: usize| model.sure.keys().copied().nth(which % model.sure.len().max(1));
    match step {
        Step::Commit { class, written } => {
            let Ok(mut writer) = pool.allocate_mblock(class, written.length as u64) else {
                return Err(Stopped);
            };
            let id = writer.id();
            model.unsure.insert(id, written);
            writer.append(&written.bytes()).map_err(|_| Stopped)?;
            writer.commit().map_err(|_| Stopped)?;
            model.unsure.remove(&id);
            model.sure.insert(id, written);
            Ok(())
        }
        Step::Archive { which } => {
            chosen(which).map_or(Ok(()), |id| moved(pool.move_to_archive(id)))
        }
        Step::Back { which, class } => {
            chosen(which).map_or(Ok(()), |id| moved(pool.bring_back(id, class)))
        }
        Step::Delete { which } => chosen(which).map_or(Ok(()), |id| delete(pool, model, id)),
        Step::Sweep => {
            pool.sweep_archive(Duration::ZERO).unwrap();
            Ok(())
        }
        Step::Reclaim => {
            pool.reclaim();
            Ok(())
        }
    }
}

fn moved(outcome: Result<Arc<Committed>, MoveError>) -> Result<(), Stopped> {
    match outcome {
        Ok(_) | Err(MoveError::There { .. }) => Ok(()),
        Err(_) => Err(Stopped),
    }
}

fn delete(pool: &Pool, model: &mut Model, id: ObjectId) -> Result<(), Stopped> {
    let written = model.sure[&id];
    model.unsure.insert(id, written);
    pool.delete(id).map_err(|_| Stopped)?;
    model.sure.remove(&id);
    model.unsure.remove(&id);
    Ok(())
}
