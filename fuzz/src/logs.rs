//! A log that is written, perhaps damaged, and read.

use bindery_pool::log::{Log, LogCopy, OpenError, Reader, WriteError};
use bindery_pool::{BLOCK_BYTES, LogIdentity, ObjectId};
use libfuzzer_sys::arbitrary::{self, Arbitrary};

use crate::damage::Change;
use crate::memory::bounded;
use crate::simulated::{Machine, places};

const IDENTITY: LogIdentity = LogIdentity { pool: 0xb1d, log: ObjectId(7) };
const BLOCKS: u64 = 16;

/// What is done to a log.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Act {
    Append { length: u16, byte: u8 },
    Sync,
    Erase,
    Reopen,
}

/// The life of a log, and what then becomes of its copies.
#[derive(Arbitrary, Debug)]
pub struct Script {
    has_two_copies: bool,
    acts: Vec<Act>,
    changes: [Vec<Change>; 2],
}

/// Lives through a script.
///
/// # Panics
/// If anything is read that was not written, or is missed that one good copy has.
pub fn live(script: &Script) {
    let mut machine = Machine::new();
    let places = places(&mut machine, if script.has_two_copies { 2 } else { 1 }, BLOCKS);
    let records = write(&places, &script.acts);
    for (device, changes) in machine.devices().iter().zip(&script.changes) {
        let mut content = device.content();
        changes.iter().for_each(|change| change.apply(&mut content));
        device.replace(content);
    }
    let changes = &script.changes[..places.len()];
    let is_forged = changes.iter().flatten().any(|change| change.is_forged());
    let is_whole = changes.iter().any(Vec::is_empty);
    let given = places.len() * (BLOCKS as usize + 2) * BLOCK_BYTES;
    let read = bounded(given, || read(&places));
    if !is_forged {
        check(&read, &records, is_whole);
    }
    // Whoever writes it sees the same, and goes on.
    let Ok(mut log) = bounded(given, || Log::open(IDENTITY, places.clone(), 9)) else {
        return assert!(!is_whole || is_forged, "a whole copy was not found");
    };
    let there: Vec<Vec<u8>> = log.records().map_while(Result::ok).collect();
    if !is_forged && let Ok(read) = read {
        assert_eq!(there, read, "who reads and who writes see other records");
    }
    let appended = log.append(b"one more").and_then(|()| log.sync());
    drop(log);
    if appended.is_ok() && !is_forged {
        let log = Log::open(IDENTITY, places, 9).expect("what was opened and synced can be opened");
        let again: Vec<Vec<u8>> =
            log.records().collect::<Result<_, _>>().expect("nothing is damaged");
        assert_eq!(again.split_last(), Some((&b"one more".to_vec(), &*there)));
    }
}

/// Does what the script says, closes the log, and returns its records.
fn write(places: &[LogCopy], acts: &[Act]) -> Vec<Vec<u8>> {
    let mut log = Log::create(IDENTITY, places.to_vec(), 1).expect("the places are good");
    let mut records = Vec::new();
    for act in acts.iter().take(64) {
        match *act {
            Act::Append { length, byte } => {
                let record = vec![byte; usize::from(length) % 9000];
                match log.append(&record) {
                    Ok(()) => records.push(record),
                    Err(WriteError::Full { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            Act::Sync => log.sync().expect("nothing fails"),
            Act::Erase => {
                log.erase().expect("nothing fails");
                records.clear();
            }
            Act::Reopen => {
                log.close().expect("nothing fails");
                log = Log::open(IDENTITY, places.to_vec(), 1).expect("nothing was changed");
            }
        }
    }
    log.close().expect("nothing fails");
    records
}

fn read(places: &[LogCopy]) -> Result<Vec<Vec<u8>>, OpenError> {
    Reader::open(IDENTITY, places.to_vec())?.records().collect()
}

/// What was read is what was written, from its beginning on; all of it where a copy is whole.
fn check(read: &Result<Vec<Vec<u8>>, OpenError>, records: &[Vec<u8>], is_whole: bool) {
    match read {
        Ok(there) => {
            assert!(records.starts_with(there), "{} other records are there", there.len());
            assert!(!is_whole || there.len() == records.len(), "only {} are there", there.len());
        }
        Err(error) => {
            assert!(!is_whole, "a copy is whole, and yet: {error}");
            assert!(error.to_string().contains("log 0x7"), "{error}");
        }
    }
}
