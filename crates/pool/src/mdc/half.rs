//! A half of an MDC: one of its two logs.

use super::error::MdcError;
use crate::LogIdentity;
use crate::format::mdc_record::{self, Entry};
use crate::id::ObjectId;
use crate::log::{LogCopy, Records};

/// Identity of one of the two logs, and its copies.
#[derive(Clone, Debug)]
pub struct Half {
    /// Pool and id of the log.
    pub identity: LogIdentity,
    /// Copies of the log.
    pub places: Vec<LogCopy>,
}

/// State of a log's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No record.
    Empty,
    /// A compaction that did not end.
    Incomplete,
    /// All that counted at the compaction of this number, and what came after.
    Complete(u64),
}

/// Reads a log's records, gives those that are the client's, and says what it holds.
///
/// # Errors
/// If the log cannot be read, or is no MDC's.
pub(super) fn read(
    log: ObjectId,
    records: Records<'_>,
    mut each: impl FnMut(&[u8]),
) -> Result<State, MdcError> {
    let (mut begun, mut state) = (None, State::Empty);
    for record in records {
        let record = record?;
        let entry = mdc_record::decode(&record).map_err(|tag| MdcError::Foreign { log, tag })?;
        state = match (entry, begun, state) {
            (Entry::Begin(number), None, State::Empty) => {
                begun = Some(number);
                State::Incomplete
            }
            (Entry::End(number), Some(same), State::Incomplete) if number == same => {
                State::Complete(number)
            }
            (Entry::Client(bytes), Some(_), state) => {
                each(bytes);
                state
            }
            _ => {
                let tag = record.first().copied();
                return Err(MdcError::Foreign { log, tag });
            }
        };
    }
    Ok(state)
}

/// Returns the log that counts, and its number.
///
/// # Errors
/// If that cannot be said.
pub(super) fn which(logs: [ObjectId; 2], states: [State; 2]) -> Result<(usize, u64), MdcError> {
    match states {
        [State::Complete(first), State::Complete(second)] if first == second => {
            Err(MdcError::Both(logs[0], logs[1], first))
        }
        [State::Complete(first), State::Complete(second)] if first < second => Ok((1, second)),
        [State::Complete(number), _] => Ok((0, number)),
        [_, State::Complete(number)] => Ok((1, number)),
        _ => Err(MdcError::Neither(logs[0], logs[1])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_complete_log_of_the_highest_number_counts() {
        use State::{Complete, Empty, Incomplete};
        let logs = [ObjectId(1), ObjectId(2)];
        for (states, counts) in [
            ([Complete(4), Complete(5)], (1, 5)),
            ([Complete(6), Complete(5)], (0, 6)),
            ([Complete(4), Incomplete], (0, 4)),
            ([Empty, Complete(5)], (1, 5)),
        ] {
            assert_eq!(which(logs, states).unwrap(), counts);
        }
        assert!(matches!(which(logs, [Complete(4); 2]), Err(MdcError::Both(..))));
        assert!(matches!(which(logs, [Empty, Incomplete]), Err(MdcError::Neither(..))));
    }
}
