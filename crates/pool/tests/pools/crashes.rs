//! Power that fails, at every operation of a life, and at random in many.

use bindery_pool::{OpenError, Pool};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::life::{self, Step, Stopped};
use crate::model::Model;
use crate::rig::{MIB, Rig};

pub(crate) fn rig() -> Rig {
    let mut rig = Rig::two();
    // One to be added.
    rig.machine.device(MIB);
    rig
}

fn live(rig: &mut Rig, pool: &Pool, model: &mut Model, steps: &[Step]) -> Result<(), Stopped> {
    steps.iter().try_for_each(|&step| life::go(rig, pool, model, step))
}

/// Reads a pool after a crash, for reading and for writing, and compares.
pub(crate) fn reopen(rig: &mut Rig, model: &mut Model) -> Pool {
    let reader = match rig.read() {
        // It was being added, and is not part of the pool: or opening would miss it now.
        Err(OpenError::NoPool { device } | OpenError::Superblocks { device }) => {
            assert_eq!(device, "disk2");
            rig.classes.pop();
            rig.read().unwrap()
        }
        reader => reader.unwrap(),
    };
    let listed = reader.list();
    drop(reader);
    let pool = rig.open().unwrap();
    assert_eq!(pool.list(), listed, "a reader saw something else");
    if let Some(id) = pool.root() {
        model.root.get_or_insert((id, Vec::new()));
    }
    model.check(&pool);
    pool
}

#[test]
fn a_crash_at_any_operation_of_a_life_loses_nothing() {
    let steps = life::script();
    let mut whole = rig();
    let pool = whole.create();
    let before = whole.machine.operations();
    live(&mut whole, &pool, &mut Model::default(), &steps).unwrap();
    let operations = whole.machine.operations() - before;
    assert!(pool.statistics().catalogue.compactions > 0, "the catalogue was never compacted");
    assert!(operations > 100);
    for at in 0..operations {
        let (mut rig, mut model) = (rig(), Model::default());
        let pool = rig.create();
        rig.machine.fail_power_after(at);
        live(&mut rig, &pool, &mut model, &steps).unwrap_err();
        drop(pool);
        rig.machine.restart(at);
        let pool = reopen(&mut rig, &mut model);
        // And it is as good as new.
        live(&mut rig, &pool, &mut model, &steps[..3]).unwrap();
        pool.reclaim();
        model.check(&pool);
    }
}

#[test]
fn a_crash_at_any_operation_of_opening_changes_nothing() {
    let (mut first, mut model) = (rig(), Model::default());
    let pool = first.create();
    live(&mut first, &pool, &mut model, &life::script()[..9]).unwrap();
    drop(pool);
    let before = first.machine.operations();
    let opened = first.open().unwrap();
    let operations = first.machine.operations() - before;
    drop(opened);
    for at in 0..operations {
        // Twice in one place, and then somewhere else.
        for (seed, more) in [(1, at), (2, at), (3, at / 2)] {
            first.machine.fail_power_after(more);
            assert!(matches!(first.open(), Err(OpenError::Write { .. } | OpenError::Catalogue(_))));
            first.machine.restart(at * 8 + seed);
        }
        drop(reopen(&mut first, &mut model));
    }
}

#[test]
fn a_crash_at_any_operation_of_creation_leaves_a_pool_or_none() {
    let whole = Rig::two();
    let created = whole.create();
    let operations = whole.machine.operations();
    drop(created);
    for at in 0..operations {
        let rig = Rig::two();
        rig.machine.fail_power_after(at);
        rig.try_create(false).unwrap_err();
        rig.machine.restart(at);
        match rig.open() {
            Ok(pool) => Model::default().check(&pool),
            Err(
                OpenError::NoPool { .. }
                | OpenError::Superblocks { .. }
                | OpenError::Unfinished { .. }
                | OpenError::Missing { .. },
            ) => {
                let pool = rig.try_create(true).unwrap();
                Model::default().check(&pool);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn random_lives_lose_nothing() {
    let asked = std::env::var("BINDERY_POOL_LIVES").ok();
    let lives = asked.map_or(150, |number| number.parse().unwrap());
    for seed in 0..lives {
        let mut random = StdRng::seed_from_u64(seed);
        let (mut rig, mut model) = (rig(), Model::default());
        let mut pool = rig.create();
        for _ in 0..random.random_range(1..5) {
            rig.machine.fail_power_after(random.random_range(0..250));
            let mut steps = 0;
            while !rig.machine.is_off() && steps < 60 {
                // Steps that notice nothing of the power go on; the next one does.
                let _ = life::go(&mut rig, &pool, &mut model, life::any(&mut random));
                steps += 1;
            }
            drop(pool);
            rig.machine.restart(random.random());
            pool = reopen(&mut rig, &mut model);
            // One that was not added to the end is to be added again.
            rig.classes.truncate(pool.devices().len());
        }
    }
}
