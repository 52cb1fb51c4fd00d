//! Huge pages: when a block of 2 MiB is worth splitting, and when it is to be whole again. Pure.
//!
//! Splitting a huge page gains its pages that are zero or that others have, and costs every access to the
//! others a longer way through the page tables. How much is lost depends on how often the block is used,
//! which nobody sees but by writes: so a block in which much is written is kept, and of the others those
//! are split in which most is gained. The shorter memory is, the less has to be gained.

use bindery_wire::lane::BLOCK_PAGES;
use serde::{Deserialize, Serialize};

/// Treatment of huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HugeMode {
    /// Huge pages are never split.
    Keep,
    /// Huge pages are split where enough is gained: pages that are zero or that others have, less one for each run of
    /// the latter while there is plenty of memory, and half of one while it is low.
    #[default]
    Auto,
    /// Huge pages are split for one page that is gained, as KSM does.
    Break,
}

impl HugeMode {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Keep, Self::Auto, Self::Break];

    /// Returns the mode's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Auto => "auto",
            Self::Break => "break",
        }
    }
}

/// Memory that the machine has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryLevel {
    /// Enough for everybody.
    #[default]
    Plenty,
    /// Less than the mark at which memory counts as plentiful again.
    Low,
    /// Less than the mark at which memory is short, or tasks wait for it.
    Short,
}

/// Settings of huge pages. Pages are those of one block, of 512.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugeSettings {
    /// Treatment of huge pages.
    pub mode: HugeMode,
    /// Pages to be gained by a split while there is plenty of memory, while it is low, and while it is short. Runs of
    /// shared pages count against them: see [`HugeMode::Auto`].
    pub gain_pages: [u32; 3],
    /// Pages written in a period, at most, of a block that is split while memory is not short.
    pub hot_pages: u32,
    /// Pages merged, at least, of a block that is split and stays so.
    pub thin_pages: u32,
    /// Periods in a row for which a split block is thin, or by which it was more often hot than not, before it is made
    /// whole.
    pub patience: u8,
}

impl HugeSettings {
    /// The defaults: see docs/decisions/0021-what-a-huge-page-is-split-for.md.
    pub const DEFAULT: Self = Self {
        mode: HugeMode::Auto,
        gain_pages: [48, 16, 1],
        hot_pages: 32,
        thin_pages: 16,
        patience: 8,
    };
}

impl Default for HugeSettings {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Price of a run of shared pages, in half pages, while there is plenty of memory, while it is low, and while it is
/// short. A run takes two mappings, some 0.4 KiB, of which a process may have no more than `vm.max_map_count`, and who
/// merges it or writes to it pays for it whole.
const RUN_HALF_PAGES: [u32; 3] = [2, 1, 0];

/// Gain of splitting a block, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gain {
    /// Pages that others have, too.
    pub(crate) shared: u32,
    /// Runs that these come in.
    pub(crate) runs: u32,
    pub(crate) zeros: u32,
}

/// Policy of a period: the settings, and how much memory is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HugePolicy {
    pub(crate) settings: HugeSettings,
    pub(crate) memory: MemoryLevel,
}

impl HugePolicy {
    /// Returns true if a block may be split at all.
    pub(crate) fn splits(&self) -> bool {
        self.settings.mode != HugeMode::Keep
    }

    /// Returns true if so much is worth splitting a block.
    pub(crate) fn is_worth(&self, gain: Gain) -> bool {
        let (pages, memory) = (gain.shared + gain.zeros, self.memory as usize);
        match self.settings.mode {
            HugeMode::Keep => false,
            HugeMode::Auto => {
                let price = gain.runs * RUN_HALF_PAGES[memory] / 2;
                pages.saturating_sub(price) >= self.settings.gain_pages[memory].max(1)
            }
            HugeMode::Break => pages >= 1,
        }
    }

    /// Returns true if a block in which so many pages were written in a period is to be kept.
    pub(crate) fn is_hot(&self, written: u32) -> bool {
        match self.settings.mode {
            HugeMode::Keep => true,
            HugeMode::Auto => written > self.settings.hot_pages && self.memory < MemoryLevel::Short,
            HugeMode::Break => false,
        }
    }

    /// Returns true if so many merged pages are too few for their block to stay split.
    pub(crate) fn is_thin(&self, merged: u32) -> bool {
        let least = match self.settings.mode {
            HugeMode::Keep => BLOCK_PAGES + 1,
            HugeMode::Auto => self.settings.thin_pages,
            HugeMode::Break => 1,
        };
        // A huge page takes memory for pages that are not there.
        merged < least && self.memory < MemoryLevel::Short
    }

    /// Returns true if blocks are sampled before they are read as a whole.
    pub(crate) fn samples_first(&self) -> bool {
        self.settings.mode == HugeMode::Auto
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(mode: HugeMode, memory: MemoryLevel) -> HugePolicy {
        HugePolicy { settings: HugeSettings { mode, ..HugeSettings::default() }, memory }
    }

    /// Returns the fewest pages in one run that are worth a split.
    fn least(policy: &HugePolicy) -> Option<u32> {
        let gain = |shared| Gain { shared, runs: 1, zeros: 0 };
        (1..=BLOCK_PAGES).find(|shared| policy.is_worth(gain(*shared)))
    }

    #[test]
    fn the_less_memory_there_is_the_less_has_to_be_gained() {
        let of = |mode, memory| least(&policy(mode, memory));
        let levels = [MemoryLevel::Plenty, MemoryLevel::Low, MemoryLevel::Short];
        let auto = levels.map(|memory| of(HugeMode::Auto, memory).unwrap());
        assert_eq!(auto, [49, 16, 1]);
        for memory in levels {
            assert_eq!((of(HugeMode::Keep, memory), of(HugeMode::Break, memory)), (None, Some(1)));
        }
    }

    #[test]
    fn scattered_pages_are_worth_a_split_only_when_memory_is_short() {
        let scattered = Gain { shared: 200, runs: 200, zeros: 0 };
        let is_worth = |memory| policy(HugeMode::Auto, memory).is_worth(scattered);
        assert!(!is_worth(MemoryLevel::Plenty) && is_worth(MemoryLevel::Short));
        let zeros = Gain { zeros: 60, ..scattered };
        assert!(policy(HugeMode::Auto, MemoryLevel::Plenty).is_worth(zeros));
        let nothing = Gain::default();
        assert!(
            HugeMode::ALL.iter().all(|mode| !policy(*mode, MemoryLevel::Short).is_worth(nothing))
        );
    }

    #[test]
    fn hot_blocks_are_kept_until_memory_is_short() {
        let is_hot = |mode, memory| policy(mode, memory).is_hot(512);
        assert!(
            is_hot(HugeMode::Auto, MemoryLevel::Low) && is_hot(HugeMode::Keep, MemoryLevel::Short)
        );
        assert!(!is_hot(HugeMode::Auto, MemoryLevel::Short));
        assert!(!is_hot(HugeMode::Break, MemoryLevel::Plenty));
    }

    #[test]
    fn what_is_split_stays_so_for_less_than_a_split_has_to_gain() {
        for mode in [HugeMode::Auto, HugeMode::Break] {
            for memory in [MemoryLevel::Plenty, MemoryLevel::Low, MemoryLevel::Short] {
                let policy = policy(mode, memory);
                assert!(!policy.is_thin(least(&policy).unwrap()), "{mode:?} {memory:?}");
                assert_eq!(policy.is_thin(0), memory < MemoryLevel::Short);
            }
        }
    }
}
