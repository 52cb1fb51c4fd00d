//! A queue: who has waited longest is next.
//!
//! A mutex knows no order: a thread that asks for it again and again may keep all others out.

use std::sync::{Condvar, Mutex, MutexGuard};

/// Lets in one thread at a time, in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    tickets: Mutex<Tickets>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct Tickets {
    given: u64,
    /// How many have had their turn.
    done: u64,
}

/// The turn: it is its holder's turn until this is dropped.
pub(crate) struct QueueTurn<'a>(&'a Queue);

impl Queue {
    /// Waits for all who came before, and has the turn. Blocks.
    pub(crate) fn enter(&self) -> QueueTurn<'_> {
        let mut tickets = self.tickets();
        let own = tickets.given;
        tickets.given += 1;
        let is_early = |tickets: &mut Tickets| tickets.done < own;
        drop(self.bell.wait_while(tickets, is_early).expect("no thread panics with it"));
        QueueTurn(self)
    }

    /// Returns true if somebody waits for whoever has the turn.
    pub(crate) fn is_awaited(&self) -> bool {
        let tickets = self.tickets();
        tickets.given - tickets.done > 1
    }

    fn tickets(&self) -> MutexGuard<'_, Tickets> {
        self.tickets.lock().expect("no thread panics with it")
    }
}

impl Drop for QueueTurn<'_> {
    fn drop(&mut self) {
        self.0.tickets().done += 1;
        self.0.bell.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn who_came_first_is_first() {
        let (queue, had) = (Queue::default(), Mutex::new(Vec::new()));
        let first = queue.enter();
        assert!(!queue.is_awaited());
        thread::scope(|scope| {
            for number in 0..8 {
                let (queue, had) = (&queue, &had);
                scope.spawn(move || {
                    let _place = queue.enter();
                    had.lock().unwrap().push(number);
                });
                while queue.tickets().given < 2 + number {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            assert!(queue.is_awaited());
            drop(first);
        });
        assert_eq!(*had.lock().unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
