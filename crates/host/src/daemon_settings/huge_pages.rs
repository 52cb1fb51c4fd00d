//! Settings of huge pages, by the names that operators know.

use bindery_merge::{HugeMode, HugeSettings};
use serde::{Deserialize, Serialize};

use super::{Refused, within};

/// When huge pages are split, and made again. Pages are those of one huge page, of 512.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugePages {
    /// Treatment of huge pages.
    pub huge_pages: HugeMode,
    /// Pages that splitting a huge page has to gain while there is plenty of memory.
    pub huge_pages_gain: u64,
    /// Pages that it has to gain while less memory is available than `pressure_available_high`.
    pub huge_pages_gain_low: u64,
    /// Pages that it has to gain while memory is short.
    pub huge_pages_gain_short: u64,
    /// A huge page in which more pages than this are written in a period is kept, unless memory is short.
    pub huge_pages_hot: u64,
    /// A huge page is made again when fewer of its pages than this are merged.
    pub huge_pages_thin: u64,
    /// For how many periods in a row it has to be so, or by how many more it has to be hot than not, before it is.
    pub huge_pages_patience: u64,
}

impl HugePages {
    /// The defaults.
    pub(super) const DEFAULT: Self = Self::of(&HugeSettings::DEFAULT);

    const fn of(settings: &HugeSettings) -> Self {
        let [gain, gain_low, gain_short] = settings.gain_pages;
        Self {
            huge_pages: settings.mode,
            huge_pages_gain: gain as u64,
            huge_pages_gain_low: gain_low as u64,
            huge_pages_gain_short: gain_short as u64,
            huge_pages_hot: settings.hot_pages as u64,
            huge_pages_thin: settings.thin_pages as u64,
            huge_pages_patience: settings.patience as u64,
        }
    }

    /// Returns them as merging takes them, once they were [checked](Self::check).
    pub(crate) fn settings(&self) -> HugeSettings {
        let gains = [self.huge_pages_gain, self.huge_pages_gain_low, self.huge_pages_gain_short];
        HugeSettings {
            mode: self.huge_pages,
            gain_pages: gains.map(|pages| pages as u32),
            hot_pages: self.huge_pages_hot as u32,
            thin_pages: self.huge_pages_thin as u32,
            patience: self.huge_pages_patience as u8,
        }
    }

    /// Checks each, and what they mean together.
    pub(super) fn check(&self) -> Result<(), Refused> {
        let gains = [
            ("huge_pages_gain", self.huge_pages_gain),
            ("huge_pages_gain_low", self.huge_pages_gain_low),
            ("huge_pages_gain_short", self.huge_pages_gain_short),
        ];
        gains.into_iter().try_for_each(|(name, value)| within(name, value))?;
        within("huge_pages_hot", self.huge_pages_hot)?;
        within("huge_pages_thin", self.huge_pages_thin)?;
        within("huge_pages_patience", self.huge_pages_patience)?;
        let thin = ("huge_pages_thin", self.huge_pages_thin);
        // What is split for so much would be made again for having so little.
        let wrong = (thin.1 > self.huge_pages_gain).then_some((thin, gains[0]));
        let less = |pair: &&[(&'static str, u64)]| pair[1].1 > pair[0].1;
        let wrong = wrong.or(gains.windows(2).find(less).map(|pair| (pair[1], pair[0])));
        let Some(((name, value), (other, limit))) = wrong else { return Ok(()) };
        let message = format!(
            "{name} ({value}) is above {other} ({limit}): lower the one or raise the other"
        );
        Err(Refused { name, other: Some(other), message })
    }
}
