//! What a crash makes of writes that were not synced.

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

/// What a disk writes at once or not at all.
const SECTOR_BYTES: usize = 512;

/// A write that was not synced.
#[derive(Clone, Debug)]
pub(super) struct Unsynced {
    pub(super) at: usize,
    pub(super) bytes: Vec<u8>,
}

impl Unsynced {
    pub(super) fn apply(&self, content: &mut [u8]) {
        content[self.at..self.at + self.bytes.len()].copy_from_slice(&self.bytes);
    }

    /// Up to any byte, or each sector with a chance of its own.
    fn apply_torn(&self, content: &mut [u8], random: &mut StdRng) {
        if random.random_range(0..4) == 0 {
            let done = random.random_range(0..self.bytes.len());
            return content[self.at..self.at + done].copy_from_slice(&self.bytes[..done]);
        }
        for (number, sector) in self.bytes.chunks(SECTOR_BYTES).enumerate() {
            if random.random() {
                let at = self.at + number * SECTOR_BYTES;
                content[at..at + sector.len()].copy_from_slice(sector);
            }
        }
    }
}

/// Applies writes as a crash would: in order and all, or some, or in any order, some twice, some in
/// part.
pub(super) fn wreck(content: &mut [u8], unsynced: &[Unsynced], random: &mut StdRng) {
    match random.random_range(0..6) {
        0 => return,
        1 => return unsynced.iter().for_each(|write| write.apply(content)),
        _ => {}
    }
    let mut order: Vec<&Unsynced> = unsynced.iter().collect();
    // What was written earlier comes once more, over what was written later.
    for _ in 0..random.random_range(0..3) {
        if let Some(again) = unsynced.get(random.random_range(0..unsynced.len().max(1))) {
            order.push(again);
        }
    }
    if random.random() {
        order.shuffle(random);
    } else {
        order.truncate(random.random_range(0..=order.len()));
    }
    for write in order {
        match random.random_range(0..4) {
            0 => {}
            1 => write.apply_torn(content, random),
            _ => write.apply(content),
        }
    }
}
