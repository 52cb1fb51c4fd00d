//! What logs refuse, and what a log is after its copies went different ways.
#![expect(clippy::unwrap_used, reason = "a test")]

mod simulated;

use bindery_pool::log::{Log, LogCopy, OpenError, Reader};
use bindery_pool::{BLOCK_BYTES, LogIdentity, ObjectId};
use simulated::{Machine, Simulated, place, places};

const IDENTITY: LogIdentity = LogIdentity { pool: 0xb1d, log: ObjectId(7) };
const BLOCKS: u64 = 12;

fn log(copies: u16) -> (Machine, Vec<LogCopy>, Log) {
    let mut machine = Machine::new();
    let places = places(&mut machine, copies, BLOCKS);
    let log = Log::create(IDENTITY, places.clone(), 1).unwrap();
    (machine, places, log)
}

fn put(log: &mut Log, record: &[u8]) {
    log.append(record).unwrap();
    log.sync().unwrap();
}

fn read(places: &[LogCopy]) -> Vec<Vec<u8>> {
    let reader = Reader::open(IDENTITY, places.to_vec()).unwrap();
    reader.records().collect::<Result<_, _>>().unwrap()
}

#[test]
fn places_that_no_log_can_lie_in_are_refused() {
    let mut machine = Machine::new();
    let device = machine.device(16 * BLOCK_BYTES as u64);
    let create = |places| Log::create(IDENTITY, places, 1);
    for refused in [
        vec![],
        vec![place(&device, 0, 0, 3)],
        vec![place(&device, 0, 10, 7)],
        vec![place(&device, 0, 0, 4), place(&device, 0, 4, 5)],
    ] {
        let error = create(refused).unwrap_err();
        assert!(matches!(error, OpenError::Size { .. }), "{error}");
    }
    create(vec![place(&device, 0, 0, 8), place(&device, 0, 8, 8)]).unwrap();
    let shorter = Reader::open(IDENTITY, vec![place(&device, 0, 0, 7)]).unwrap_err();
    assert!(shorter.to_string().contains("made for 8"), "{shorter}");
}

#[test]
fn the_least_log_takes_a_record() {
    let mut machine = Machine::new();
    let places = places(&mut machine, 1, 4);
    let mut log = Log::create(IDENTITY, places.clone(), 1).unwrap();
    put(&mut log, &[7; 4000]);
    log.append(b"no more").unwrap_err();
    log.close().unwrap();
    assert_eq!(read(&places), [[7; 4000]]);
}

/// Changes bytes of a block of the log, and makes its checksum right again.
fn forge(device: &Simulated, block: usize, at: usize, bytes: &[u8]) {
    let mut content = device.content();
    let block = &mut content[(1 + block) * BLOCK_BYTES..][..BLOCK_BYTES];
    block[at..at + bytes.len()].copy_from_slice(bytes);
    let checksum = crc_fast::crc32_iscsi(&[&block[..12], &block[16..]].concat());
    block[12..16].copy_from_slice(&checksum.to_le_bytes());
    device.replace(content);
}

/// Whoever can write checksums can lie, but costs nobody more than an error.
#[test]
fn forged_fields_cost_no_more_than_an_error() {
    let (machine, places, mut log) = log(1);
    put(&mut log, &[1; 9000]);
    log.close().unwrap();
    let device = &machine.devices()[0];
    let good = device.content();
    // Heads, blocks of records, the mark, and what lies behind it; every field, and the first piece.
    for block in 0..7 {
        for at in (0..88).step_by(2) {
            for value in [0, 1, 2, 3, 0xff00, 0xffff_u64, u64::from(u32::MAX), u64::MAX, 1 << 63] {
                for length in [2, 4, 8] {
                    forge(device, block, at, &value.to_le_bytes()[..length]);
                    if let Ok(reader) = Reader::open(IDENTITY, places.clone()) {
                        reader.records().for_each(drop);
                    }
                    if let Ok(mut log) = Log::open(IDENTITY, places.clone(), 2) {
                        let _ = log.append(&[2; 9000]).and_then(|()| log.sync());
                        let _ = log.erase();
                    }
                    let _ = Log::create(IDENTITY, places.clone(), 2);
                    device.replace(good.clone());
                }
            }
        }
    }
}

#[test]
fn formats_to_come_are_named() {
    let (machine, places, _) = log(1);
    for head in [0, 1] {
        forge(&machine.devices()[0], head, 8, &[2]);
    }
    let opened = Reader::open(IDENTITY, places);
    assert!(matches!(opened, Err(OpenError::Version { found: 2, known: 1, .. })), "{opened:?}");
}

/// The pool's superblocks were put back from before.
#[test]
fn openings_that_were_before_are_refused() {
    let (_machine, places, _) = log(1);
    let mut log = Log::open(IDENTITY, places.clone(), 5).unwrap();
    put(&mut log, b"a record");
    drop(log);
    let opened = Log::open(IDENTITY, places, 4);
    assert!(matches!(opened, Err(OpenError::Session { found: 5, given: 4, .. })), "{opened:?}");
}

/// Whoever was making it may not have lived to remember it.
#[test]
fn a_log_that_is_made_again_is_empty() {
    let (machine, places, mut log) = log(1);
    put(&mut log, b"forgotten");
    put(&mut log, b"too");
    let mut log = Log::create(IDENTITY, places.clone(), 1).unwrap();
    assert!(read(&places).is_empty());
    put(&mut log, b"new");
    machine.restart(1);
    assert_eq!(read(&places), [b"new"]);
}

/// Blocks of a batch of which the first never arrived, and a writer who goes on in the same opening.
#[test]
fn what_a_failed_batch_has_left_is_not_taken_for_what_comes_next() {
    let (machine, places, mut log) = log(1);
    put(&mut log, b"first");
    let device = &machine.devices()[0];
    let before = device.content();
    log.append(&[1; 4000]).unwrap();
    log.append(b"left behind").unwrap();
    put(&mut log, &[2; 4000]);
    let mut after = device.content();
    let first_of_batch = 4 * BLOCK_BYTES..5 * BLOCK_BYTES;
    after[first_of_batch.clone()].copy_from_slice(&before[first_of_batch]);
    device.replace(after);
    let mut log = Log::open(IDENTITY, places.clone(), 1).unwrap();
    assert_eq!(log.records().count(), 1);
    put(&mut log, b"next");
    assert_eq!(read(&places), [&b"first"[..], b"next"]);
}

/// One copy was away while the other went on: what that one has counts, and both have it afterwards.
#[test]
fn a_copy_that_was_away_is_brought_up_to_date() {
    let (machine, places, mut log) = log(2);
    put(&mut log, b"both");
    let before = machine.devices().iter().map(|device| device.content()).collect::<Vec<_>>();
    put(&mut log, b"only the one that goes away");
    for (stays, device) in machine.devices().iter().enumerate() {
        let there = device.content();
        device.replace(before[stays].clone());
        let mut log = Log::open(IDENTITY, vec![places[stays].clone()], 2).unwrap();
        put(&mut log, b"only the one that stays");
        drop(log);
        let log = Log::open(IDENTITY, places.clone(), 3).unwrap();
        assert!(log.healed().iter().all(|damage| damage.copy == 1 - stays));
        for place in &places {
            let there = read(std::slice::from_ref(place));
            assert_eq!(there, [&b"both"[..], b"only the one that stays"]);
        }
        // As it was, for the other one.
        device.replace(there.clone());
        machine.devices()[1 - stays].replace(there);
    }
}

/// Heads that are older than what lies behind them.
#[test]
fn heads_that_were_put_back_are_found() {
    let (machine, places, mut log) = log(1);
    let device = &machine.devices()[0];
    let old = device.content();
    put(&mut log, b"old");
    log.erase().unwrap();
    put(&mut log, b"new");
    let mut content = device.content();
    let heads = BLOCK_BYTES..3 * BLOCK_BYTES;
    content[heads.clone()].copy_from_slice(&old[heads]);
    device.replace(content);
    let opened = Reader::open(IDENTITY, places);
    let Err(OpenError::Damaged(damage)) = opened else { panic!("{opened:?}") };
    assert!(damage.what.contains("generation 1, and block 2 of generation 2"), "{damage}");
}

/// A block that was not there yet when it was read, and more behind it when that was read.
#[test]
fn a_reader_who_is_overtaken_sees_no_damage() {
    let (machine, places, mut log) = log(1);
    put(&mut log, b"before");
    let device = &machine.devices()[0];
    let writer = move || {
        put(&mut log, b"one");
        put(&mut log, b"two");
    };
    // The first read is of the heads; the second is of all blocks, the third looks behind the end.
    let again = std::sync::Arc::clone(device);
    device.meanwhile(move || again.meanwhile(writer));
    assert_eq!(read(&places), [&b"before"[..], b"one", b"two"]);
}
