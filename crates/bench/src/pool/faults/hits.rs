//! Touches of what is in memory.

use anyhow::Result;
use bindery_sys::mapped::View;

use super::scene::Scene;
use crate::harness::{Contender, Measured, SampleSet, interleave};

/// Goes through so many bytes of objects in each contender's memory.
pub(super) fn run(
    scene: &Scene,
    touches: usize,
    bytes: u64,
    rounds: usize,
) -> Result<Vec<SampleSet>> {
    let [by_file, by_memory] = scene.resident(bytes)?;
    let anonymous: Vec<u8> = by_file.iter().flat_map(|view| view.to_vec()).collect();
    let walk = Walk { touches, objects: by_file.len(), object_bytes: scene.object_bytes as usize };
    let seen = |views: &[View<'_>]| walk.measure(|object, at| views[object].byte(at));
    let mut anonymous = || walk.measure(|object, at| anonymous[object * walk.object_bytes + at]);
    let (mut file, mut memory) = (|| seen(&by_file), || seen(&by_memory));
    let mut find_in_file = || walk.measure(|object, at| scene.find(true, object, at));
    let mut find_in_memory = || walk.measure(|object, at| scene.find(false, object, at));
    let mut contenders = [
        Contender::new("anonymous memory", &mut anonymous),
        Contender::new("map, file", &mut file),
        Contender::new("map, memfd", &mut memory),
        Contender::new("map, file, found each time", &mut find_in_file),
        Contender::new("map, memfd, found each time", &mut find_in_memory),
    ];
    interleave("touches of what is there", rounds, &mut contenders)
}

/// A way through memory in which each byte decides where the next one is.
struct Walk {
    touches: usize,
    objects: usize,
    object_bytes: usize,
}

impl Walk {
    fn measure(&self, byte: impl Fn(usize, usize) -> u8) -> Measured {
        Measured::time_per_item("ns/touch", self.touches as u64, || self.go(byte))
    }

    /// Where it ends: the same for all that hold the same bytes.
    fn go(&self, byte: impl Fn(usize, usize) -> u8) -> u64 {
        let mut state = 1u64;
        for _ in 0..self.touches {
            let (object, at) =
                (scaled(state >> 32, self.objects), scaled(state, self.object_bytes));
            // Knuth's generator (MMIX), which the byte disturbs.
            let addend = 1_442_695_040_888_963_407 ^ u64::from(byte(object, at));
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(addend);
        }
        state
    }
}

/// The low half of `random` as a number below `limit`.
fn scaled(random: u64, limit: usize) -> usize {
    (((random & u64::from(u32::MAX)) * limit as u64) >> 32) as usize
}
