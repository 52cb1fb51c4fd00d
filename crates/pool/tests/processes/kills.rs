//! Processes that are killed while they write (`SIGKILL`): what they said was committed is there.

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bindery_pool::{CreateOptions, DevicePath, MediaClass, ObjectId, Pool};
use bindery_testkit::skipped;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::child::{Other, open};
use crate::machine::Loop;
use crate::model::{Model, Written};

fn kills() -> u64 {
    let asked = std::env::var("BINDERY_POOL_KILLS").ok();
    asked.map_or(8, |number| number.parse().unwrap())
}

/// Two devices, of which the second is a block device if there are any here.
fn devices(below: &Path) -> (Vec<DevicePath>, Option<Loop>) {
    let image = below.join("image");
    std::fs::File::create(&image).unwrap().set_len(6 << 20).unwrap();
    let block = Loop::of(&image);
    let staging = match &block {
        Ok(block) => block.path().to_owned(),
        Err(error) => {
            skipped!("a file takes the place of a block device: {error}");
            image
        }
    };
    let device = |path: PathBuf, class| DevicePath { path, class, bytes: Some(8 << 20) };
    let devices =
        vec![device(below.into(), MediaClass::Capacity), device(staging, MediaClass::Staging)];
    (devices, block.ok())
}

/// What a child says until so many objects are committed, or until it has ended. Returns how many are.
fn listen(child: &mut Other, model: &mut Model, most: usize) -> usize {
    let mut committed = 0;
    for line in (&mut child.lines).lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        match words[0] {
            "commit" if words.len() == 4 => {
                let written = Written { seed: number(2), length: number(3) as usize };
                assert!(model.unsure.insert(ObjectId(number(1)), written).is_none());
            }
            "committed" => {
                let id = ObjectId(number(1));
                let written = model.unsure.remove(&id).unwrap();
                model.sure.insert(id, written);
                committed += 1;
                if committed == most {
                    break;
                }
            }
            "delete" => {
                let id = ObjectId(number(1));
                let written = model.sure.remove(&id).unwrap();
                model.unsure.insert(id, written);
            }
            "deleted" => {
                model.unsure.remove(&ObjectId(number(1))).unwrap();
            }
            _ => {}
        }
    }
    committed
}

#[test]
fn what_a_killed_process_committed_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let (devices, _block) = devices(directory.path());
    let paths: Vec<PathBuf> = devices.iter().map(|device| device.path.clone()).collect();
    let options = CreateOptions { force: false, catalogue_bytes: Some(128 << 10) };
    let name = "killed".parse().unwrap();
    drop(Pool::create(&name, &devices, &options).unwrap());
    let (mut model, mut committed) = (Model::default(), 0);
    for round in 0..kills() {
        let mut random = StdRng::seed_from_u64(round);
        let mut child = Other::spawn("live", &paths, round);
        if round % 4 > 0 {
            child.wait_for("opened");
        }
        // However busy the machine is.
        if round % 4 == 3 {
            committed += listen(&mut child, &mut model, 1);
        }
        // While it opens the pool, or writes.
        std::thread::sleep(Duration::from_micros(random.random_range(0..40_000)));
        child.kill();
        committed += listen(&mut child, &mut model, usize::MAX);
        let pool = open(&paths);
        model.check(&pool);
    }
    assert!(committed > 0, "nothing was ever committed");
}
