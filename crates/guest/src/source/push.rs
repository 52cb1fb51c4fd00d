//! Pushing pages ahead, while faults are answered.

use std::time::{Duration, Instant};

use bindery_units::{PAGE_BYTES, PageIndex, PageRange};
use bindery_wire::control::PAGES_MAX;
use bindery_wire::source::{SLOT_BYTES, SLOT_PAGES};

use super::SourceError;
use super::serve::Serving;

/// Interval at which a pusher looks if its turn has come.
const GLANCE: Duration = Duration::from_millis(50);

/// Pushes what `ahead` names, and then all the rest while `may_push` returns true, unless that is to wait until it is
/// touched. Returns at the end of the serving, too.
pub(super) fn push(
    serving: &Serving<'_>,
    ahead: impl Iterator<Item = PageRange>,
    may_push: &dyn Fn() -> bool,
) -> Result<(), SourceError> {
    let mut pusher =
        Pusher { serving, began: Instant::now(), bytes: 0, buffer: vec![0; SLOT_BYTES] };
    for range in ahead {
        if range.first.0.checked_add(range.count).is_some() && !pusher.push(range, &|| true)? {
            return Ok(());
        }
    }
    if serving.options.is_lazy {
        return Ok(());
    }
    pusher.push(PageRange::new(PageIndex(0), PAGES_MAX), may_push).map(drop)
}

struct Pusher<'a> {
    serving: &'a Serving<'a>,
    began: Instant,
    bytes: u64,
    buffer: Vec<u8>,
}

impl Pusher<'_> {
    /// Pushes what is wanted of a range. Returns false at the end.
    fn push(&mut self, range: PageRange, may_push: &dyn Fn() -> bool) -> Result<bool, SourceError> {
        let mut at = range.first;
        loop {
            while !may_push() {
                if self.serving.pause(GLANCE) {
                    return Ok(false);
                }
            }
            let rest = PageRange::new(at, range.end().0 - at.0);
            let next = {
                let state = self.serving.state();
                if state.is_over {
                    return Ok(false);
                }
                state.wanted.first_in(rest)
            };
            let Some(next) = next else { return Ok(true) };
            // Zeros cost a frame, however many they are.
            let zeros =
                self.serving.image.zero_run(next.first).map(|zeros| zeros.intersection(next));
            let run = match zeros.filter(|zeros| zeros.first == next.first && !zeros.is_empty()) {
                Some(zeros) => zeros,
                None => PageRange::new(next.first, next.count.min(SLOT_PAGES)),
            };
            at = run.end();
            // Others may have sent some meanwhile, or all.
            while let Some(run) = self.serving.take(run) {
                let serving = self.serving;
                serving.send_pages(run, &mut self.buffer, || Ok(serving.wait_slot()))?;
                serving.state().served.pushed_pages += u64::from(run.count);
                if zeros.is_none() && self.wait_turn(run.count) {
                    return Ok(false);
                }
            }
        }
    }

    /// Waits until more may be pushed. Returns true at the end.
    fn wait_turn(&mut self, pages: u32) -> bool {
        let Some(rate) = self.serving.options.ahead_bytes_per_s else { return false };
        self.bytes += u64::from(pages) * PAGE_BYTES as u64;
        let due = Duration::from_secs_f64(self.bytes as f64 / rate.max(1) as f64);
        let early = due.saturating_sub(self.began.elapsed());
        !early.is_zero() && self.serving.pause(early)
    }
}
