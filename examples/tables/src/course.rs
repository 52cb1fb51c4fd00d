//! The course of a merge: as fast as what is put makes the next one due, and no faster.
//!
//! A merge that goes as fast as it can takes half of the device from those who read, for as long as it lasts, and then
//! there is none for a while. Spread over the time between two merges it takes less of it, always.

use std::cell::Cell;
use std::thread;
use std::time::Duration;

use crate::shelf::Shelf;
use crate::state::State;
use crate::store::Shared;

/// Longest wait after a piece: a merge always goes on, whatever is put.
const WAIT: Duration = Duration::from_millis(20);

/// Parts of a thousand by which a merge may be ahead.
const AHEAD: u64 = 50;

/// Course of one merge.
pub(crate) struct MergeCourse<'s> {
    shared: &'s Shared,
    /// Bytes that are merged, and those of them that were written.
    total_bytes: u64,
    written_bytes: Cell<u64>,
    /// Root tables that are merged: those beside them came later.
    root_tables: usize,
}

impl<'s> MergeCourse<'s> {
    /// Begins the course of a merge of all tables of `state`.
    pub(crate) fn begin(shared: &'s Shared, state: &State) -> Self {
        let bytes = |shelf: &std::sync::Arc<Shelf>| -> u64 {
            shelf.tables.iter().map(|table| table.data.length_bytes()).sum()
        };
        let total_bytes = state.root.iter().chain(&state.shelves).map(bytes).sum();
        let (written_bytes, root_tables) = (Cell::new(0), state.root.len());
        Self { shared, total_bytes, written_bytes, root_tables }
    }

    /// Notes bytes that were written, and waits a little if the merge is ahead.
    pub(crate) fn wrote(&self, bytes: u64) {
        self.written_bytes.set(self.written_bytes.get() + bytes);
        let done = part(self.written_bytes.get(), self.total_bytes);
        if done > self.due() + AHEAD && !self.shared.bell.is_pressing() {
            thread::sleep(WAIT);
        }
    }

    /// Returns how much of the way to the next merge has been put meanwhile, in parts of a thousand.
    fn due(&self) -> u64 {
        let state = self.shared.state();
        let options = &self.shared.options;
        let newer = (state.root.len().saturating_sub(self.root_tables)) as u64;
        let frozen = u64::from(state.frozen.is_some());
        let filled = part(state.memory.log_bytes() as u64, options.memory_table_bytes as u64);
        ((newer + frozen) * 1000 + filled) / options.root_tables_max.max(1) as u64
    }
}

/// Returns what part of `whole` is `done`, in parts of a thousand.
fn part(done: u64, whole: u64) -> u64 {
    done.saturating_mul(1000).checked_div(whole).unwrap_or(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_of_a_thousand() {
        assert_eq!((part(0, 5), part(2, 5), part(5, 5)), (0, 400, 1000));
        assert_eq!((part(7, 0), part(u64::MAX, u64::MAX)), (1000, 1));
    }
}
