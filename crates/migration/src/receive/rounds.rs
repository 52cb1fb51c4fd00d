//! Rounds across streams: no stream's next round is applied before all have ended the one before.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::format::FormatError;

/// Rounds that streams have ended. Pure.
#[derive(Clone, Debug)]
pub struct Rounds {
    /// Round that each stream is in.
    current: Vec<u32>,
}

impl Rounds {
    /// Begins round 0 on so many streams.
    #[must_use]
    pub fn new(streams: usize) -> Self {
        Self { current: vec![0; streams] }
    }

    /// Checks the round of a frame, and returns true if it may be applied now.
    ///
    /// # Errors
    /// [`FormatError::Impossible`] if the stream is in another round.
    pub fn may_apply(&self, stream: usize, round: u32) -> Result<bool, FormatError> {
        if self.current[stream] != round {
            return Err(FormatError::impossible("frame", "it is of another round than its stream"));
        }
        Ok(self.done() >= round)
    }

    /// Ends a stream's round. Returns the round if it was the last stream to end it.
    ///
    /// # Errors
    /// [`FormatError::Impossible`] if the stream is in another round.
    pub fn end(&mut self, stream: usize, round: u32) -> Result<Option<u32>, FormatError> {
        let next = round.checked_add(1).filter(|_| self.current[stream] == round);
        let wrong =
            FormatError::impossible("end of a round", "it is of another round than its stream");
        let done = self.done();
        self.current[stream] = next.ok_or(wrong)?;
        Ok((self.done() > done).then_some(round))
    }

    /// Returns the number of rounds that all streams have ended.
    #[must_use]
    pub fn done(&self) -> u32 {
        self.current.iter().copied().min().unwrap_or(0)
    }
}

/// [`Rounds`] that threads wait for, one for each stream.
#[derive(Debug)]
pub struct RoundBarrier {
    rounds: Mutex<Rounds>,
    changed: Condvar,
}

impl RoundBarrier {
    /// Begins round 0 on so many streams.
    #[must_use]
    pub fn new(streams: usize) -> Self {
        Self { rounds: Mutex::new(Rounds::new(streams)), changed: Condvar::new() }
    }

    /// Waits until a frame of that round may be applied. Returns false if that took longer than `limit`.
    ///
    /// # Errors
    /// See [`Rounds::may_apply`].
    pub fn wait(&self, stream: usize, round: u32, limit: Duration) -> Result<bool, FormatError> {
        let until = Instant::now() + limit;
        let mut rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        while !rounds.may_apply(stream, round)? {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            rounds =
                self.changed.wait_timeout(rounds, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(true)
    }

    /// Ends a stream's round; see [`Rounds::end`].
    ///
    /// # Errors
    /// See [`Rounds::end`].
    pub fn end(&self, stream: usize, round: u32) -> Result<Option<u32>, FormatError> {
        let ended = self.rounds.lock().unwrap_or_else(PoisonError::into_inner).end(stream, round);
        self.changed.notify_all();
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_done_when_all_streams_ended_it() {
        let mut rounds = Rounds::new(2);
        assert_eq!(rounds.end(0, 0), Ok(None));
        assert_eq!(rounds.may_apply(0, 1), Ok(false));
        assert_eq!(rounds.may_apply(1, 0), Ok(true));
        assert_eq!(rounds.end(1, 0), Ok(Some(0)));
        assert_eq!(rounds.may_apply(0, 1), Ok(true));
        assert!(rounds.may_apply(0, 0).is_err() && rounds.end(0, 2).is_err());
    }

    #[test]
    fn a_stream_that_is_ahead_waits() {
        let barrier = RoundBarrier::new(2);
        barrier.end(0, 0).unwrap();
        assert_eq!(barrier.wait(0, 1, Duration::from_millis(1)), Ok(false));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| barrier.wait(0, 1, Duration::from_secs(60)));
            assert_eq!(barrier.end(1, 0), Ok(Some(0)));
            assert_eq!(waiting.join().unwrap(), Ok(true));
        });
    }
}
