//! Devices that rot, lose blocks and vanish under a log.
#![expect(clippy::unwrap_used, reason = "a test")]

mod simulated;

use std::sync::Arc;

use bindery_pool::log::{Damage, Log, LogCopy, OpenError, Reader};
use bindery_pool::mdc::{Half, Mdc, MdcReader};
use bindery_pool::{BLOCK_BYTES, DeviceIndex, LogIdentity, ObjectId};
use simulated::{Fault, Machine, Simulated, places};

const IDENTITY: LogIdentity = LogIdentity { pool: 0xb1d, log: ObjectId(7) };
const BLOCKS: u64 = 12;
/// Two heads, five blocks of records, a mark.
const USED: u64 = 8;

fn records() -> Vec<Vec<u8>> {
    [10, 5000, 300, 4000].into_iter().map(|length| vec![length as u8; length]).collect()
}

/// A log that was erased, written with four syncs, and closed.
fn written(copies: u16) -> (Machine, Vec<LogCopy>) {
    let mut machine = Machine::new();
    let places = places(&mut machine, copies, BLOCKS);
    let mut log = Log::create(IDENTITY, places.clone(), 1).unwrap();
    for _ in 0..3 {
        log.append(&[9; 9000]).unwrap();
        log.sync().unwrap();
        log.erase().unwrap();
    }
    for record in records() {
        log.append(&record).unwrap();
        log.sync().unwrap();
    }
    assert_eq!(log.used_bytes(), (USED - 3) * BLOCK_BYTES as u64);
    log.close().unwrap();
    (machine, places)
}

fn read(reader: &Reader) -> Vec<Vec<u8>> {
    reader.records().collect::<Result<_, _>>().unwrap()
}

fn is_at(damage: &Damage, copy: usize, block: u64) -> bool {
    let (log, device) = (ObjectId(7), DeviceIndex(copy as u16));
    let offset_bytes = (1 + block) * BLOCK_BYTES as u64;
    (damage.log, damage.copy, damage.block, damage.device, damage.offset_bytes)
        == (log, copy, block, device, offset_bytes)
}

/// All bits of the header, some of the rest; of each block. That the checksum finds every one is
/// tested beside the encoder.
fn bits() -> impl Iterator<Item = u64> {
    (0..8 * 84).chain((8 * 84..8 * BLOCK_BYTES as u64).step_by(331))
}

fn flip(device: &Simulated, block: u64, bit: u64) {
    device.flip((1 + block) * BLOCK_BYTES as u64 + bit / 8, (bit % 8) as u32);
}

#[test]
fn any_flipped_bit_is_read_around_with_two_copies() {
    let (machine, places) = written(2);
    for (copy, device) in machine.devices().iter().enumerate() {
        for block in 0..USED {
            for bit in bits() {
                flip(device, block, bit);
                let reader = Reader::open(IDENTITY, places.clone()).unwrap();
                assert_eq!(read(&reader), records());
                let [damage] = reader.damaged() else { panic!("{:?}", reader.damaged()) };
                assert!(is_at(damage, copy, block), "{damage}");
                flip(device, block, bit);
            }
            // And it is mended, by whoever opens the log for writing.
            flip(device, block, 3);
            let log = Log::open(IDENTITY, places.clone(), 2).unwrap();
            assert!(is_at(&log.healed()[0], copy, block) && log.healed().len() == 1);
            assert!(Reader::open(IDENTITY, places.clone()).unwrap().damaged().is_empty());
        }
    }
}

#[test]
fn any_flipped_bit_is_named_with_one_copy() {
    let (machine, places) = written(1);
    let device = &machine.devices()[0];
    for block in 0..USED {
        for bit in bits() {
            flip(device, block, bit);
            let opened = Reader::open(IDENTITY, places.clone());
            match block {
                // The other head says the same.
                0 | 1 => {
                    let reader = opened.unwrap();
                    assert!(is_at(&reader.damaged()[0], 0, block) && reader.damaged().len() == 1);
                    assert_eq!(read(&reader), records());
                }
                2..7 => {
                    let Err(OpenError::Damaged(damage)) = opened else { panic!("{opened:?}") };
                    assert!(is_at(&damage, 0, block), "{damage}");
                    Log::open(IDENTITY, places.clone(), 2).unwrap_err();
                }
                // The mark, behind which there is nothing.
                _ => {
                    let reader = opened.unwrap();
                    assert!(is_at(reader.torn().unwrap(), 0, block));
                    assert_eq!(read(&reader), records());
                }
            }
            flip(device, block, bit);
        }
    }
}

/// An erase is not undone by damage of what says that it happened.
#[test]
fn what_was_erased_stays_so_whatever_rots() {
    let mut machine = Machine::new();
    let places = places(&mut machine, 1, BLOCKS);
    let mut log = Log::create(IDENTITY, places.clone(), 1).unwrap();
    log.append(b"erased").unwrap();
    log.sync().unwrap();
    log.erase().unwrap();
    for head in 0..2 {
        flip(&machine.devices()[0], head, 333);
        let reader = Reader::open(IDENTITY, places.clone()).unwrap();
        assert_eq!((read(&reader).len(), reader.generation()), (0, 2));
        flip(&machine.devices()[0], head, 333);
    }
    flip(&machine.devices()[0], 0, 333);
    flip(&machine.devices()[0], 1, 333);
    let opened = Reader::open(IDENTITY, places);
    assert!(matches!(opened, Err(OpenError::Damaged(_))), "{opened:?}");
}

/// A block that was written somewhere else, or where another log's was to be, or an old one.
#[test]
fn blocks_of_others_are_found() {
    let (machine, places) = written(2);
    let device = &machine.devices()[0];
    let good = device.content();
    let at = |block: u64| (1 + block) as usize * BLOCK_BYTES;
    for (from, to) in [(3, 4), (4, 3), (0, 5), (7, 2), (2, 0)] {
        let mut bad = good.clone();
        bad.copy_within(at(from)..at(from + 1), at(to));
        device.replace(bad);
        let reader = Reader::open(IDENTITY, places.clone()).unwrap();
        assert_eq!(read(&reader), records());
        assert!(is_at(&reader.damaged()[0], 0, to) && reader.damaged().len() == 1);
        device.replace(good.clone());
    }
    for other in [LogIdentity { pool: 1, ..IDENTITY }, LogIdentity { log: ObjectId(8), ..IDENTITY }]
    {
        let opened = Reader::open(other, places.clone());
        assert!(matches!(opened, Err(OpenError::NoLog(_))), "{opened:?}");
    }
}

#[test]
fn blocks_that_cannot_be_read_are_read_from_the_other_copy() {
    let (machine, places) = written(2);
    for (copy, device) in machine.devices().iter().enumerate() {
        for block in 0..BLOCKS {
            device.spoil((1 + block) * BLOCK_BYTES as u64);
            let reader = Reader::open(IDENTITY, places.clone()).unwrap();
            assert_eq!(read(&reader), records());
            match reader.damaged() {
                [damage] => assert!(is_at(damage, copy, block) && block < USED),
                other => assert!(other.is_empty() && block >= USED),
            }
            device.mend();
        }
        // With nothing of a copy left, the other does; but nothing is written to one alone.
        device.vanish();
        let reader = Reader::open(IDENTITY, places.clone()).unwrap();
        assert_eq!((read(&reader), reader.damaged().len()), (records(), USED as usize));
        let opened = Log::open(IDENTITY, places.clone(), 2);
        assert!(matches!(opened, Err(OpenError::Device(_))), "{opened:?}");
        let other = vec![places[1 - copy].clone()];
        assert_eq!(read(&Reader::open(IDENTITY, other).unwrap()), records());
        device.mend();
    }
}

/// With one copy, a block that cannot be read is not taken for the end.
#[test]
fn blocks_that_cannot_be_read_are_no_end() {
    let (machine, places) = written(1);
    for block in 2..=USED {
        machine.devices()[0].spoil((1 + block) * BLOCK_BYTES as u64);
        let opened = Reader::open(IDENTITY, places.clone());
        let Err(OpenError::Damaged(damage)) = opened else { panic!("{opened:?}") };
        assert!(is_at(&damage, 0, block) && damage.what.contains("cannot be read"), "{damage}");
        machine.devices()[0].mend();
    }
}

#[test]
fn a_log_that_is_open_is_scrubbed_and_repaired() {
    let (machine, places) = written(2);
    let mut log = Log::open(IDENTITY, places.clone(), 2).unwrap();
    log.append(b"one more").unwrap();
    log.sync().unwrap();
    log.append(b"not synced").unwrap();
    let damaged = [(0, 0), (0, 3), (1, 4), (1, 8)];
    for (copy, block) in damaged {
        flip(&machine.devices()[copy], block, 9999);
    }
    let mut scrubbed = log.scrub().unwrap();
    scrubbed.sort_by_key(|damage| (damage.copy, damage.block));
    assert_eq!(scrubbed.len(), damaged.len());
    for (damage, (copy, block)) in scrubbed.iter().zip(damaged) {
        assert!(is_at(damage, copy, block), "{damage}");
    }
    assert_eq!(log.repair().unwrap().len(), damaged.len());
    assert!(log.scrub().unwrap().is_empty());
    log.sync().unwrap();
    assert_eq!(log.records().count(), records().len() + 2);
    // What both copies have lost is said, and nothing is written over it.
    flip(&machine.devices()[0], 3, 1);
    flip(&machine.devices()[1], 3, 1);
    let before = machine.devices()[0].content();
    assert!(matches!(log.repair(), Err(OpenError::Damaged(damage)) if damage.block == 3));
    assert_eq!(machine.devices()[0].content(), before);
    // A device that does not take what is repaired says so.
    flip(&machine.devices()[1], 3, 1);
    machine.devices()[0].fail(0..1, Fault::Error);
    assert!(matches!(log.repair(), Err(OpenError::Device(_))));
    assert_eq!(log.repair().unwrap().len(), 1);
}

/// A repair that has returned outlives a crash.
#[test]
fn what_was_repaired_is_durable() {
    for seed in 0..32 {
        let (machine, places) = written(2);
        let mut log = Log::open(IDENTITY, places.clone(), 2).unwrap();
        for (copy, block) in [(0, 3), (1, 4)] {
            flip(&machine.devices()[copy], block, 9999);
        }
        assert_eq!(log.repair().unwrap().len(), 2);
        machine.restart(seed);
        for place in places {
            assert_eq!(read(&Reader::open(IDENTITY, vec![place]).unwrap()), records());
        }
    }
}

/// Bytes of every kind where a log should be cost nobody more than an error.
#[test]
fn nonsense_is_refused() {
    use rand::{Rng, SeedableRng};
    let (machine, places) = written(1);
    let device = &machine.devices()[0];
    let good = device.content();
    let mut random = rand::rngs::StdRng::seed_from_u64(1);
    for _ in 0..2000 {
        let mut bad = good.clone();
        for _ in 0..random.random_range(1..6) {
            let from = random.random_range(0..bad.len());
            let to = random.random_range(0..bad.len());
            let length = random.random_range(0..9000).min(bad.len() - from.max(to));
            bad.copy_within(from..from + length, to);
            bad[to] = random.random();
        }
        device.replace(bad);
        if let Ok(reader) = Reader::open(IDENTITY, places.clone()) {
            assert!(records().starts_with(&read(&reader)));
        }
        if let Ok(log) = Log::open(IDENTITY, places.clone(), 2) {
            drop(log);
            let reader = Reader::open(IDENTITY, places.clone()).unwrap();
            assert!(reader.damaged().is_empty());
        }
    }
}

#[test]
fn an_mdc_reads_around_damage_and_repairs_it() {
    let mut machine = Machine::new();
    let halves = [1, 2].map(|log| Half {
        identity: LogIdentity { pool: 0xb1d, log: ObjectId(log) },
        places: places(&mut machine, 2, BLOCKS),
    });
    let mut mdc = Mdc::create(halves.clone(), 1).unwrap();
    for record in records() {
        mdc.append(&record).unwrap();
    }
    mdc.sync().unwrap();
    let devices: Vec<Arc<Simulated>> = machine.devices().to_vec();
    for (device, block) in devices.iter().flat_map(|it| (0..7).map(move |block| (it, block))) {
        flip(device, block, 9999);
        let reader = MdcReader::open(&halves).unwrap();
        assert!(reader.records().eq(records()));
        let repaired = mdc.repair().unwrap();
        assert_eq!(reader.damaged(), repaired);
    }
    let records: Vec<Vec<u8>> = mdc.records().collect::<Result<_, _>>().unwrap();
    assert_eq!(records, self::records());
}
