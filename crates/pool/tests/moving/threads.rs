//! Everything at once.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bindery_pool::MediaClass::{Capacity, Staging};
use bindery_pool::object::Object as _;
use bindery_pool::{DeleteError, FindError, MoveError, ObjectId, Pool};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::life::{Place, commit};
use crate::model::{Model, Written, read};

type Objects = Mutex<BTreeMap<ObjectId, Written>>;

fn pick(objects: &Objects, random: &mut StdRng) -> Option<(ObjectId, Written)> {
    let objects = objects.lock().unwrap();
    let at = random.random_range(0..objects.len().max(1));
    objects.iter().nth(at).map(|(&id, &written)| (id, written))
}

fn step(pool: &Pool, objects: &Objects, random: &mut StdRng) {
    let choice = random.random_range(0..12);
    if choice < 2 && objects.lock().unwrap().len() < 40 {
        let written = Written { seed: random.random(), length: random.random_range(1..40_000) };
        let id = commit(pool, Capacity, written).id();
        objects.lock().unwrap().insert(id, written);
        return;
    }
    let Some((id, written)) = pick(objects, random) else { return };
    let outcome = match choice {
        2..5 => pool.move_to_archive(id),
        5..8 => pool.bring_back(id, if random.random() { Staging } else { Capacity }),
        8 => {
            match pool.delete(id) {
                Ok(()) => drop(objects.lock().unwrap().remove(&id)),
                Err(DeleteError::Moving(_) | DeleteError::Find(FindError::NotFound(_))) => {}
                Err(error) => panic!("{error}"),
            }
            return;
        }
        _ => match pool.get(id) {
            Ok(object) => Ok(object),
            Err(FindError::NotFound(_)) => return,
            Err(error) => panic!("{error}"),
        },
    };
    match outcome {
        // Once somebody has it, it stays readable there, whatever others do.
        Ok(object) => assert_eq!(read(&object), written.bytes()),
        Err(
            MoveError::Busy(_) | MoveError::There { .. } | MoveError::Find(FindError::NotFound(_)),
        ) => {}
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn threads_that_move_read_delete_and_sweep_lose_nothing() {
    let place = Place::new();
    let pool = place.create();
    let (objects, over) = (Objects::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4_u64)
            .map(|seed| {
                let (pool, objects) = (&pool, &objects);
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(seed);
                    (0..1000).for_each(|_| step(pool, objects, &mut random));
                })
            })
            .collect();
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                pool.sweep_archive(Duration::ZERO).unwrap();
                pool.archive_idle(Duration::ZERO, Staging).unwrap();
                pool.reclaim();
            }
        });
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        over.store(true, Ordering::SeqCst);
        ended.into_iter().for_each(|ended| ended.unwrap());
    });
    pool.reclaim();
    let mut model = Model { sure: objects.into_inner().unwrap(), ..Model::default() };
    model.check(&pool);
    drop(pool);
    let pool = place.reopen();
    model.check(&pool);
    model.sure.keys().for_each(|&id| pool.delete(id).unwrap());
    pool.sweep_archive(Duration::ZERO).unwrap();
    assert_eq!(place.keys(&pool), 0);
}
