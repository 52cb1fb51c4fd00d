//! A log beside a `Vec` of records.
#![expect(clippy::unwrap_used, reason = "a test")]

mod simulated;

use bindery_pool::log::{Log, Reader, WriteError};
use bindery_pool::{BLOCK_BYTES, LogIdentity, ObjectId};
use proptest::prelude::*;
use simulated::{Machine, places};

const IDENTITY: LogIdentity = LogIdentity { pool: 0xb1d, log: ObjectId(7) };

fn read(log: &Log) -> Vec<Vec<u8>> {
    log.records().collect::<Result<_, _>>().unwrap()
}

#[derive(Clone, Debug)]
enum Action {
    Append(usize),
    Sync,
    Erase,
    Close,
    Reopen,
}

fn action() -> impl Strategy<Value = Action> {
    let length = prop_oneof![
        0..20_usize,
        3990..4030_usize,
        8000..8100_usize,
        0..20_000_usize,
        300_000..400_000_usize
    ];
    prop_oneof![
        12 => length.prop_map(Action::Append),
        5 => Just(Action::Sync),
        1 => Just(Action::Erase),
        1 => Just(Action::Close),
        2 => Just(Action::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]
    #[test]
    fn a_log_is_a_vec_of_records(
        copies in 1..3_u16, blocks in 4..400_u64, life in proptest::collection::vec(action(), 0..60),
    ) {
        let mut machine = Machine::new();
        let places = places(&mut machine, copies, blocks);
        let mut session = 1;
        let mut log = Log::create(IDENTITY, places.clone(), session).unwrap();
        let (mut appended, mut synced) = (Vec::new(), 0);
        for (number, action) in life.into_iter().enumerate() {
            match action {
                Action::Append(length) => {
                    let record = vec![number as u8; length];
                    let used = log.used_bytes();
                    match log.append(&record) {
                        Ok(()) => appended.push(record),
                        Err(WriteError::Full { needed, left, .. }) => {
                            prop_assert!(needed > left);
                            prop_assert_eq!(log.used_bytes(), used);
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                Action::Sync => {
                    log.sync().unwrap();
                    synced = appended.len();
                }
                Action::Erase => {
                    log.erase().unwrap();
                    (appended, synced) = (Vec::new(), 0);
                }
                Action::Close => {
                    log.close().unwrap();
                    synced = appended.len();
                    log = Log::open(IDENTITY, places.clone(), session).unwrap();
                }
                Action::Reopen => {
                    // Without a crash, what was written is there, synced or not.
                    drop(log);
                    session += 1;
                    log = Log::open(IDENTITY, places.clone(), session).unwrap();
                    let there = read(&log);
                    prop_assert!(there.len() >= synced && there.len() <= appended.len());
                    appended.truncate(there.len());
                    synced = there.len();
                }
            }
            prop_assert!(log.used_bytes() <= log.capacity_bytes() + BLOCK_BYTES as u64);
            prop_assert_eq!(&read(&log)[..], &appended[..synced]);
            prop_assert!(log.healed().is_empty() && log.torn().is_none());
        }
        prop_assert!(log.scrub().unwrap().is_empty());
        log.sync().unwrap();
        let reader = Reader::open(IDENTITY, places).unwrap();
        prop_assert!(reader.damaged().is_empty() && reader.torn().is_none());
        let there: Vec<Vec<u8>> = reader.records().collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(there, appended);
    }
}
