//! Power that fails at every operation of a life in which objects are moved, and at random.

use std::time::Duration;

use bindery_pool::{MediaClass, MoveError, Pool};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::life::{self, Place, Step, Stopped};
use crate::model::Model;

fn live(pool: &Pool, model: &mut Model, steps: &[Step]) -> Result<(), Stopped> {
    steps.iter().try_for_each(|&step| life::go(pool, model, step))
}

/// Every object can go there and back, and when all are deleted nothing of them is left anywhere.
fn end(place: &Place, pool: &Pool, model: &mut Model) {
    let classes = [MediaClass::Capacity, MediaClass::Staging];
    for (&id, class) in model.sure.keys().zip(classes.into_iter().cycle()) {
        match pool.move_to_archive(id) {
            Ok(_) | Err(MoveError::There { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        if id.0.is_multiple_of(3) {
            pool.bring_back(id, class).unwrap();
        }
    }
    pool.reclaim();
    model.check(pool);
    let mut count = 0;
    for &id in model.sure.keys() {
        pool.delete(id).unwrap();
        count += 1;
    }
    model.sure.clear();
    pool.reclaim();
    model.check(pool);
    let sweep = pool.sweep_archive(Duration::ZERO).unwrap();
    assert_eq!((sweep.known, sweep.young, sweep.kept.len()), (0, 0, 0), "{count} deleted");
    assert_eq!(place.keys(pool), 0, "something is left in the archive");
}

#[test]
fn a_crash_at_any_operation_leaves_every_object_in_one_place_at_least() {
    let steps = life::script();
    let whole = Place::new();
    let pool = whole.create();
    let before = whole.rig.machine.operations();
    live(&pool, &mut Model::default(), &steps).unwrap();
    let operations = whole.rig.machine.operations() - before;
    assert!(operations > 60, "{operations}");
    assert_eq!(pool.statistics().archived.objects, 5);
    // What was not synced survives in several ways.
    let ways = (0..operations).flat_map(|at| (0..4).map(move |way| (at, at * 4 + way)));
    for (at, seed) in ways {
        let (place, mut model) = (Place::new(), Model::default());
        let pool = place.create();
        place.rig.machine.fail_power_after(at);
        live(&pool, &mut model, &steps).unwrap_err();
        drop(pool);
        place.rig.machine.restart(seed);
        let pool = place.reopen();
        model.check(&pool);
        end(&place, &pool, &mut model);
    }
}

#[test]
fn a_crash_while_the_archive_is_set_leaves_the_pool_with_it_or_without() {
    let whole = Place::new();
    let pool = whole.rig.create();
    let before = whole.rig.machine.operations();
    pool.set_archive(whole.archive()).unwrap();
    let operations = whole.rig.machine.operations() - before;
    for at in 0..operations {
        let place = Place::new();
        let pool = place.rig.create();
        place.rig.machine.fail_power_after(at);
        pool.set_archive(place.archive()).unwrap_err();
        drop(pool);
        place.rig.machine.restart(at);
        let pool = place.rig.open().unwrap();
        assert!(pool.archive_url().is_none_or(|url| url == place.url()));
        pool.set_archive(place.archive()).unwrap();
        Model::default().check(&pool);
    }
}

#[test]
fn random_lives_lose_nothing() {
    let asked = std::env::var("BINDERY_POOL_LIVES").ok();
    let lives: u64 = asked.map_or(40, |number| number.parse().unwrap());
    for seed in 0..lives {
        let mut random = StdRng::seed_from_u64(seed);
        let (place, mut model) = (Place::new(), Model::default());
        let mut pool = place.create();
        for _ in 0..random.random_range(1..4) {
            place.rig.machine.fail_power_after(random.random_range(0..150));
            for _ in 0..60 {
                // Steps that notice nothing of the power go on; the next one does.
                let _ = life::go(&pool, &mut model, life::any(&mut random));
                if place.rig.machine.is_off() {
                    break;
                }
            }
            drop(pool);
            place.rig.machine.restart(random.random());
            pool = place.reopen();
            model.check(&pool);
        }
        end(&place, &pool, &mut model);
    }
}
