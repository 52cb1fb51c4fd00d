//! Runs of zero pages, and their encoding: first page and number of pages, 4 bytes each.

use bindery_units::{PageIndex, PageRange};

use super::error::FormatError;
use super::head::ZERO_RUNS_MAX;

/// Length of a run, in bytes.
pub(crate) const RUN_BYTES: usize = 8;

const WRONG: FormatError =
    FormatError::impossible("list of zeros", "its runs do not ascend within the block");

/// Runs of pages of one block, ascending and apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZeroRuns<'a>(&'a [u8]);

impl<'a> ZeroRuns<'a> {
    pub(crate) fn parse(bytes: &'a [u8], pages: u32) -> Result<Self, FormatError> {
        let (runs, rest) = bytes.as_chunks::<RUN_BYTES>();
        if runs.is_empty() || runs.len() > ZERO_RUNS_MAX || !rest.is_empty() {
            return Err(FormatError::impossible(
                "list of zeros",
                "its length is none that it can have",
            ));
        }
        let mut least = 0;
        for run in Self(bytes).runs() {
            let end = u64::from(run.first.0) + u64::from(run.count);
            if run.first.0 < least || run.count == 0 || end > u64::from(pages) {
                return Err(WRONG);
            }
            // Runs that touch are one.
            least = (end as u32).saturating_add(1);
        }
        Ok(Self(bytes))
    }

    /// Returns the runs.
    pub fn runs(self) -> impl Iterator<Item = PageRange> + 'a {
        self.0.as_chunks::<RUN_BYTES>().0.iter().map(|run| {
            let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| run[at + byte]));
            PageRange { first: PageIndex(number(0)), count: number(4) }
        })
    }
}

/// Appends pages to `runs`, of which they are behind the last: joined to it if they touch.
pub(crate) fn push_run(runs: &mut Vec<PageRange>, pages: PageRange) {
    match runs.last_mut() {
        Some(last) if last.first.0 + last.count == pages.first.0 => last.count += pages.count,
        _ => runs.push(pages),
    }
}

/// Encodes runs.
pub(crate) fn encode_runs(runs: &[PageRange]) -> Vec<u8> {
    runs.iter()
        .flat_map(|run| [run.first.0.to_le_bytes(), run.count.to_le_bytes()])
        .flatten()
        .collect()
}
