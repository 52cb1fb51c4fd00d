//! What goes wrong for longer, and is logged once: when it begins, for each other reason, and when it
//! is over.
//!
//! A period is retried every second, a connection several times a second: a line for each failure would
//! bury the log. So whoever logs a failure that may repeat asks here first whether it is news.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long nothing may go wrong until a trouble is over: longer than a guest that was turned away
/// waits before it comes again.
const QUIET: Duration = Duration::from_secs(60);

/// Most subjects that are known to be in trouble. Beyond, those that were quiet for longest are forgotten.
const SUBJECTS_MAX: usize = 1024;

/// Most reasons remembered of one subject. Further ones are not news.
const REASONS_MAX: usize = 16;

/// Troubles that stand, each of a subject: a guest, the daemon's connections.
#[derive(Debug, Default)]
pub struct Troubles {
    standing: Mutex<BTreeMap<String, Trouble>>,
}

/// The subject that a guest's process is: a guest that loses its connection and comes back stays the same.
#[must_use]
pub fn guest_of(pid: i32) -> impl Display {
    std::fmt::from_fn(move |f| write!(f, "guest of process {pid}"))
}

#[derive(Debug)]
struct Trouble {
    reasons: BTreeSet<String>,
    last: Instant,
}

impl Troubles {
    /// Takes in that something is wrong with `subject`. Returns true if that is news: nothing was wrong
    /// with it before, or for another reason.
    pub fn note(&self, subject: impl Display, reason: impl Display) -> bool {
        self.note_at(subject.to_string(), reason.to_string(), Instant::now())
    }

    /// Takes in that all is well with `subject`. Returns true if that is news: something was wrong with
    /// it, though not within the last minute.
    pub fn is_over(&self, subject: impl Display) -> bool {
        self.is_over_at(subject, Instant::now())
    }

    /// Returns true if something is wrong with `subject`, or was within the last minute.
    pub fn stands(&self, subject: impl Display) -> bool {
        let standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        !standing.is_empty() && standing.contains_key(&subject.to_string())
    }

    fn note_at(&self, subject: String, reason: String, now: Instant) -> bool {
        let mut standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        if standing.len() >= SUBJECTS_MAX && !standing.contains_key(&subject) {
            let quietest = standing.iter().min_by_key(|(_, trouble)| trouble.last);
            let quietest = quietest.map(|(subject, _)| subject.clone());
            quietest.map(|subject| standing.remove(&subject));
        }
        let trouble = standing
            .entry(subject)
            .or_insert_with(|| Trouble { reasons: BTreeSet::new(), last: now });
        trouble.last = now;
        trouble.reasons.len() < REASONS_MAX && trouble.reasons.insert(reason)
    }

    fn is_over_at(&self, subject: impl Display, now: Instant) -> bool {
        let mut standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        // As nearly always: not worth a string.
        if standing.is_empty() {
            return false;
        }
        let subject = subject.to_string();
        let is_quiet = |trouble: &Trouble| now.saturating_duration_since(trouble.last) >= QUIET;
        let is_over = standing.get(&subject).is_some_and(is_quiet);
        if is_over {
            standing.remove(&subject);
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trouble_is_news_once_for_each_reason() {
        let (troubles, start) = (Troubles::default(), Instant::now());
        let mut said = Vec::new();
        for second in 0..600 {
            let reason = if second % 7 == 3 { "no answer" } else { "no memory" };
            let now = start + Duration::from_secs(second);
            if troubles.note_at("one".into(), reason.into(), now) {
                said.push((second, reason));
            }
            assert!(!troubles.is_over_at("one", now), "it failed just now");
        }
        assert_eq!(said, [(0, "no memory"), (3, "no answer")]);
        assert!(troubles.note("two", "no memory"), "another subject is another trouble");
    }

    #[test]
    fn a_trouble_is_over_once_and_may_come_again() {
        let (troubles, start) = (Troubles::default(), Instant::now());
        let note = |second| {
            troubles.note_at("one".into(), "busy".into(), start + Duration::from_secs(second))
        };
        let is_over = |second| troubles.is_over_at("one", start + Duration::from_secs(second));
        assert!(!is_over(0), "there was none");
        assert!(note(1) && troubles.stands("one"));
        assert_eq!([30, 61, 62].map(is_over), [false, true, false]);
        assert!(!troubles.stands("one"));
        assert!(note(63));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let troubles = Troubles::default();
        for number in 0..2 * SUBJECTS_MAX {
            assert!(troubles.note(number, "gone"));
        }
        let news = (0..100).filter(|number| troubles.note("one", number)).count();
        assert_eq!(news, REASONS_MAX);
        assert!(troubles.standing.lock().unwrap().len() <= SUBJECTS_MAX);
    }
}
