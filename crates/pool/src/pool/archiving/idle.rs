//! Archiving what nobody uses.

use std::time::Duration;

use super::error::MoveError;
use crate::format::record::ObjectEntry;
use crate::object::Object;
use crate::pool::handle::Pool;
use crate::session::{FindError, ObjectAmount};
use crate::{MediaClass, ObjectId};

/// Objects that were archived because nobody used them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdleArchived {
    /// Objects that were moved.
    pub moved: ObjectAmount,
    /// Objects that are left, because somebody uses them or has used them since.
    pub used: u64,
}

/// An object that could be archived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Candidate {
    id: ObjectId,
    /// None while somebody has it.
    idle_for: Option<Duration>,
}

/// Returns the objects that were idle for at least `older_than`, the longest first.
fn choose(candidates: &[Candidate], older_than: Duration) -> Vec<ObjectId> {
    let idle = candidates.iter().filter_map(|candidate| Some((candidate.idle_for?, candidate.id)));
    let mut idle: Vec<_> = idle.filter(|(idle_for, _)| *idle_for >= older_than).collect();
    idle.sort_by_key(|&(idle_for, id)| (std::cmp::Reverse(idle_for), id));
    idle.into_iter().map(|(_, id)| id).collect()
}

impl Pool {
    /// Moves to the archive the mblocks of a class that nobody has, and that nobody has had for
    /// `older_than`, the longest idle first. What was not used since the pool was opened counts from
    /// then; so does what other processes read. Blocks as
    /// [`move_to_archive`](Self::move_to_archive) does for each.
    ///
    /// # Errors
    /// See [`MoveError`], of the first that could not be moved; others were, and are in the
    /// [`statistics`](Self::statistics).
    pub fn archive_idle(
        &self,
        older_than: Duration,
        class: MediaClass,
    ) -> Result<IdleArchived, MoveError> {
        self.session.check_here().map_err(FindError::from)?;
        let candidates = self.candidates(class);
        let chosen = choose(&candidates, older_than);
        let mut archived = IdleArchived {
            used: (candidates.len() - chosen.len()) as u64,
            ..IdleArchived::default()
        };
        for id in chosen {
            if self.idle_for(id).is_none_or(|idle_for| idle_for < older_than) {
                archived.used += 1;
                continue;
            }
            match self.move_to_archive(id) {
                Ok(object) => {
                    archived.moved.objects += 1;
                    archived.moved.bytes += object.length_bytes();
                }
                // Somebody moved or deleted it.
                Err(
                    MoveError::Busy(_)
                    | MoveError::There { .. }
                    | MoveError::Find(FindError::NotFound(_)),
                ) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(archived)
    }

    fn candidates(&self, class: MediaClass) -> Vec<Candidate> {
        let entries = self.list().into_iter().filter_map(|entry| match entry {
            ObjectEntry::Mblock(entry) => Some(entry),
            _ => None,
        });
        let of_class =
            entries.filter(|entry| self.session.pool_device(entry.data.device).class == class);
        of_class
            .map(|entry| Candidate { id: entry.id, idle_for: self.idle_for(entry.id) })
            .collect()
    }

    /// Returns the time for which nobody has had an object; none if somebody has it.
    fn idle_for(&self, id: ObjectId) -> Option<Duration> {
        let is_held = self.session.handles().is_held(id);
        (!is_held).then(|| self.session.uses.idle_for(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_idle_go_first_and_the_used_stay() {
        let candidate = |id: u64, seconds: Option<u64>| Candidate {
            id: ObjectId(id),
            idle_for: seconds.map(Duration::from_secs),
        };
        let all = [
            candidate(16, Some(60)),
            candidate(17, None),
            candidate(18, Some(59)),
            candidate(20, Some(61)),
            candidate(19, Some(61)),
        ];
        let chosen = choose(&all, Duration::from_secs(60));
        assert_eq!(chosen, [19, 20, 16].map(ObjectId));
        assert_eq!(choose(&all, Duration::from_secs(62)), []);
    }
}
