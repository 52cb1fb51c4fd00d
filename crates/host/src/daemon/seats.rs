//! Room for operators: bounded, and never all of it for the members of the group.

use std::sync::{Mutex, PoisonError};

use crate::access::Rights;

/// Most members of the group that are served at once.
const MEMBERS_MAX: usize = 48;

/// Most operators that are served at once, so that 16 seats are left to the daemon's user and root.
const OPERATORS_MAX: usize = 64;

/// Counts of the operators that are served. An operator that is refused is in none of them.
#[derive(Debug, Default)]
pub(super) struct Seats(Mutex<Taken>);

#[derive(Debug, Default)]
struct Taken {
    operators: usize,
    members: usize,
}

/// One operator's seat, given back when dropped.
#[derive(Debug)]
pub(super) struct Seat<'a> {
    seats: &'a Seats,
    is_member: bool,
}

impl Seats {
    /// Takes a seat for an operator with these rights.
    ///
    /// # Errors
    /// The number of operators of its kind that are served, if there is no room for one more.
    pub(super) fn take(&self, rights: Rights) -> Result<Seat<'_>, usize> {
        let is_member = matches!(rights, Rights::Member { .. });
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if is_member && taken.members >= MEMBERS_MAX {
            return Err(MEMBERS_MAX);
        }
        if taken.operators >= OPERATORS_MAX {
            return Err(OPERATORS_MAX);
        }
        taken.operators += 1;
        taken.members += usize::from(is_member);
        Ok(Seat { seats: self, is_member })
    }

    /// Returns true if no operator is served.
    pub(super) fn are_free(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).operators == 0
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut taken = self.seats.0.lock().unwrap_or_else(PoisonError::into_inner);
        taken.operators -= 1;
        taken.members -= usize::from(self.is_member);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMBER: Rights = Rights::Member { uid: 1 };

    #[test]
    fn refused_members_take_no_room_from_owners() {
        let seats = Seats::default();
        let members: Vec<_> = (0..MEMBERS_MAX).map(|_| seats.take(MEMBER).unwrap()).collect();
        // However many are being refused at the moment.
        let refused: Vec<_> = (0..1000).map(|_| seats.take(MEMBER)).collect();
        assert!(refused.iter().all(|refused| matches!(refused, Err(MEMBERS_MAX))));
        let left = OPERATORS_MAX - MEMBERS_MAX;
        let owners: Vec<_> = (0..left).map(|_| seats.take(Rights::Owner).unwrap()).collect();
        assert!(matches!(seats.take(Rights::Owner), Err(OPERATORS_MAX)));
        drop((members, owners));
        assert!(seats.are_free());
    }
}
