//! Free memory, by whichever limit binds first.

use bindery_sys::cgroup;
use bindery_sys::memory::{self, MachineMemory};
use bindery_units::PAGE_BYTES;

use super::law::{Marks, WHOLE, memory_percent_of};
use super::reaper_settings::ReaperSettings;

/// Memory of the machine and of the cgroups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Bytes that can be had without swapping (`MemAvailable`: mpool took `MemFree`, to which all caches
    /// are pressure). None if the machine does not say.
    pub available_bytes: Option<u64>,
    /// Bytes that the limits of our cgroups leave, caches of files counted as left. None without a limit.
    pub group_left_bytes: Option<u64>,
    /// Bytes of the former that nothing is in. None where that is not known.
    pub group_unused_bytes: Option<u64>,
    /// Part of the last ten seconds in which some task waited for memory, in hundredths of a percent.
    pub stall: u32,
    /// Part of the last ten seconds in which tasks waited for processors, in hundredths of a percent.
    pub processor_stall: u32,
}

impl Memory {
    /// Asks. Costs some 100 µs.
    #[must_use]
    pub fn read() -> Self {
        let part = |part: Option<u64>| part.map_or(0, |part| u32::try_from(part).unwrap_or(WHOLE));
        let group = cgroup::memory_left(std::process::id().cast_signed());
        Self {
            available_bytes: MachineMemory::read().ok().map(|memory| memory.available_bytes),
            group_left_bytes: group.map(|left| left.bytes),
            group_unused_bytes: group.map(|left| left.unused_bytes),
            stall: part(memory::stall()),
            processor_stall: part(memory::processor_stall()),
        }
    }
}

/// Part of a group's memory up to which caches of others count as used: programs, and files that are read besides. They
/// would make room, but whoever wants it would have to wait. Beyond, somebody reads much more than he needs to keep, and
/// maps do not yield to him.
const OTHERS_PARTS: u64 = 8;

/// Memory that the maps hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// In all.
    pub(super) bytes: u64,
    /// Of these, in caches of files, which the machine counts as available.
    pub(super) cached_bytes: u64,
}

impl Held {
    /// Returns what caches of files and other memory are together.
    pub(super) const fn of(cached_pages: u64, allocated_bytes: u64) -> Self {
        let cached_bytes = cached_pages * PAGE_BYTES as u64;
        Self { bytes: allocated_bytes + cached_bytes, cached_bytes }
    }
}

/// Limits of the memory of maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The reaper's own.
    Budget,
    /// A cgroup of this process.
    Group,
    /// The machine.
    Machine,
}

/// Free memory, by one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) limit: Limit,
    /// The part that is free, in hundredths of a percent.
    pub(super) free: u32,
    pub(super) marks: Marks,
    /// Bytes that are limited.
    pub(super) whole_bytes: u64,
    /// Bytes held beyond the limit: a budget may be less than what was there before it.
    pub(super) excess_bytes: u64,
}

impl Room {
    fn new(limit: Limit, free_bytes: u64, whole_bytes: u64, marks: Marks) -> Self {
        let free = u128::from(free_bytes) * u128::from(WHOLE);
        let free = free.checked_div(u128::from(whole_bytes)).unwrap_or(WHOLE.into());
        let free = free.min(WHOLE.into()) as u32;
        Self { limit, free, marks, whole_bytes, excess_bytes: 0 }
    }

    /// The room by the limit that binds first: of which the least is free, as a part of its mark.
    pub(super) fn of(settings: &ReaperSettings, memory: &Memory, held: Held) -> Option<Self> {
        let law = &settings.law;
        let budget = settings.budget_bytes.map(|budget| {
            let marks = law.marks(settings.budget_percent);
            let free = budget.saturating_sub(held.bytes);
            let excess_bytes = held.bytes.saturating_sub(budget);
            Self { excess_bytes, ..Self::new(Limit::Budget, free, budget, marks) }
        });
        let shared = |limit, left: Option<u64>, unused: Option<u64>| {
            let left = left?;
            let others = left.saturating_sub(held.cached_bytes + unused.unwrap_or(left));
            let others = others.min(left / OTHERS_PARTS);
            let free = left.saturating_sub(held.cached_bytes + others);
            let whole = free + held.bytes;
            let percent = settings.memory_percent.unwrap_or_else(|| memory_percent_of(whole));
            Some(Self::new(limit, free, whole, law.marks(percent)))
        };
        let group = shared(Limit::Group, memory.group_left_bytes, memory.group_unused_bytes);
        let machine = shared(Limit::Machine, memory.available_bytes, None)
            .map(|room| room.warned(memory.stall >= settings.stall_mark));
        let rooms = [budget, group, machine].into_iter().flatten();
        rooms.min_by_key(|room| u64::from(room.free) * 10_000 / u64::from(room.marks.high.max(1)))
    }

    /// A machine whose tasks wait for memory is short of it, whatever else it says.
    fn warned(self, stalled: bool) -> Self {
        let free =
            if stalled { self.free.min(self.marks.low.saturating_sub(1)) } else { self.free };
        Self { free, ..self }
    }

    /// Returns the bytes that are kept free below the limit.
    pub(super) fn kept_bytes(&self) -> u64 {
        let kept = u128::from(self.whole_bytes) * u128::from(self.marks.low);
        (kept / u128::from(WHOLE)) as u64
    }

    /// Returns the bytes that must go until the high mark is reached.
    pub(super) fn missing_bytes(&self) -> u64 {
        let missing = self.marks.high.saturating_sub(self.free);
        let missing = u128::from(self.whole_bytes) * u128::from(missing);
        missing.div_ceil(WHOLE.into()) as u64 + self.excess_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn room(settings: &ReaperSettings, memory: Memory, held: Held) -> Option<(Limit, u32)> {
        let room = Room::of(settings, &memory, held);
        room.map(|room| (room.limit, room.free))
    }

    #[test]
    fn the_limit_that_binds_first_counts() {
        let held = Held { bytes: 4 * GIB, cached_bytes: 4 * GIB };
        let settings = ReaperSettings { memory_percent: Some(50), ..ReaperSettings::default() };
        assert_eq!(room(&settings, Memory::default(), held), None);
        let memory = Memory { available_bytes: Some(16 * GIB), ..Memory::default() };
        // Of 16 GiB that could be had, four are the maps' own caches.
        assert_eq!(room(&settings, memory, held), Some((Limit::Machine, 7500)));
        let memory = Memory { group_left_bytes: Some(5 * GIB), ..memory };
        assert_eq!(room(&settings, memory, held), Some((Limit::Group, 2000)));
        // Memory that no cache holds is not counted as available.
        let own = Held { bytes: 4 * GIB, cached_bytes: 0 };
        assert_eq!(room(&settings, memory, own), Some((Limit::Group, 5555)));
        let settings = ReaperSettings { budget_bytes: Some(4 * GIB), ..settings };
        assert_eq!(room(&settings, memory, held), Some((Limit::Budget, 0)));
    }

    #[test]
    fn caches_of_others_count_as_used_up_to_a_part() {
        let held = Held { bytes: 4 * GIB, cached_bytes: 4 * GIB };
        let settings = ReaperSettings { memory_percent: Some(50), ..ReaperSettings::default() };
        let free = |unused, left| {
            let (group_unused_bytes, group_left_bytes) = (Some(unused), Some(left));
            let memory = Memory { group_left_bytes, group_unused_bytes, ..Memory::default() };
            Room::of(&settings, &memory, held).unwrap().free
        };
        // All caches are the maps' own, then half a GiB is others', then two.
        assert_eq!(free(4 * GIB, 8 * GIB), 5_000);
        assert_eq!(free(4 * GIB - GIB / 2, 8 * GIB), 3_500 * 10_000 / 7_500);
        assert_eq!(free(2 * GIB, 8 * GIB), 3 * 10_000 / 7);
    }

    #[test]
    fn tasks_that_wait_are_a_warning() {
        let settings = ReaperSettings { memory_percent: Some(50), ..ReaperSettings::default() };
        let held = Held { bytes: GIB, cached_bytes: 0 };
        let memory = Memory { available_bytes: Some(16 * GIB), stall: 2000, ..Memory::default() };
        assert_eq!(room(&settings, memory, held), Some((Limit::Machine, 4999)));
    }

    #[test]
    fn what_is_missing_is_what_leads_to_the_high_mark() {
        let marks = Marks { low: 2000, high: 2060 };
        let room = Room::new(Limit::Budget, GIB, 10 * GIB, marks);
        assert_eq!(room.free, 1000);
        assert_eq!(room.missing_bytes(), (10 * GIB * 1060).div_ceil(10_000));
        assert_eq!(Room { free: 3000, ..room }.missing_bytes(), 0);
        let settings = ReaperSettings { budget_bytes: Some(GIB), ..ReaperSettings::default() };
        let held = Held { bytes: 3 * GIB, cached_bytes: 0 };
        let room = Room::of(&settings, &Memory::default(), held).unwrap();
        // From three times the budget to 5.15% below it.
        assert_eq!(room.missing_bytes(), 2 * GIB + (GIB * 515).div_ceil(10_000));
        assert!(Memory::read().available_bytes.is_some());
    }
}
