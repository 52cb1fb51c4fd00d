//! Pages read by several lanes at once.

use std::sync::{Mutex, PoisonError};
use std::thread;

use bindery_guest::{Fetched, Lane, LaneLease};
use bindery_units::{PAGE_BYTES, PageRange};
use bindery_wire::lane::FETCH_PAGES_MAX;

use crate::memory::MemoryError;
use crate::pieces::Piece;
use crate::process::Process;

/// Pages to read, and the place for them.
pub(crate) struct Job<'b> {
    /// Pieces, or parts of such, all managed or one that is not.
    pub(crate) pieces: Vec<Piece>,
    /// False if absent pages may have a content.
    pub(crate) absent_is_zero: bool,
    pub(crate) into: &'b mut [u8],
}

/// Cuts consecutive pieces into jobs of about one request each. `into` has room for all.
pub(crate) fn jobs<'b>(pieces: &[(Piece, bool)], into: &'b mut [u8]) -> Vec<Job<'b>> {
    let mut cut: Vec<(Vec<Piece>, bool, usize)> = Vec::new();
    for (piece, absent_is_zero) in pieces {
        let mut rest = piece.of.pages;
        while !rest.is_empty() {
            let room = match cut.last() {
                Some((last, _, pages)) if can_join(last, piece) => FETCH_PAGES_MAX - pages,
                _ => 0,
            };
            if room == 0 {
                cut.push((Vec::new(), *absent_is_zero, 0));
                continue_with(&mut cut, piece, &mut rest, FETCH_PAGES_MAX);
            } else {
                continue_with(&mut cut, piece, &mut rest, room);
            }
        }
    }
    let mut left = into;
    let each = cut.into_iter().map(|(pieces, absent_is_zero, pages)| {
        let (into, behind) = std::mem::take(&mut left).split_at_mut(pages * PAGE_BYTES);
        left = behind;
        Job { pieces, absent_is_zero, into }
    });
    each.collect()
}

fn can_join(last: &[Piece], piece: &Piece) -> bool {
    piece.managed.is_some() && last.iter().all(|last| last.managed.is_some())
}

/// Adds at most `room` pages of `rest`, which are the piece's, to the last job.
fn continue_with(
    cut: &mut [(Vec<Piece>, bool, usize)],
    piece: &Piece,
    rest: &mut PageRange,
    room: usize,
) {
    let (pieces, _, pages) = cut.last_mut().expect("one was begun");
    let now = PageRange::new(rest.first, rest.count.min(room as u32));
    let of = crate::BlockPages { block: piece.of.block, pages: now };
    pieces.extend(piece.part(of));
    *pages += now.count as usize;
    *rest = PageRange::new(now.end(), rest.count - now.count);
}

/// Does all jobs, on as many threads as there are lanes, or here if there is one of either.
pub(crate) fn read_all(
    lanes: &mut [LaneLease<'_>],
    process: &Process<'_>,
    jobs: Vec<Job<'_>>,
) -> Result<(), MemoryError> {
    let threads = lanes.len().min(jobs.len());
    let queue = Mutex::new(jobs.into_iter());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = |lane: &mut LaneLease<'_>| {
        let mut room = (Vec::new(), Fetched::default());
        while let Some(job) = next() {
            read(&mut **lane, process, job, &mut room)?;
        }
        Ok(())
    };
    let Some((first, others)) = lanes[..threads].split_first_mut() else { return Ok(()) };
    thread::scope(|scope| {
        let others: Vec<_> =
            others.iter_mut().map(|lane| scope.spawn(move || work(lane))).collect();
        let read = work(first);
        let each = others
            .into_iter()
            .map(|other| other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        each.fold(read, Result::and)
    })
}

fn read(
    lane: &mut dyn Lane,
    process: &Process<'_>,
    job: Job<'_>,
    (pages, fetched): &mut (Vec<u32>, Fetched),
) -> Result<(), MemoryError> {
    let Job { pieces, absent_is_zero, into } = job;
    if let [piece] = &pieces[..]
        && piece.managed.is_none()
    {
        return process.read(piece, absent_is_zero, into);
    }
    pages.clear();
    let guest_pages = pieces.iter().filter_map(Piece::guest_pages);
    pages.extend(guest_pages.flat_map(PageRange::pages).map(|page| page.0));
    lane.fetch(pages, fetched)?;
    let mut at = 0;
    for piece in &pieces {
        let end = at + piece.of.pages.count as usize;
        take(fetched, at..end, piece, process, &mut into[at * PAGE_BYTES..end * PAGE_BYTES])?;
        at = end;
    }
    Ok(())
}

/// Takes the pages of a piece out of what was fetched. Those that did not come are absent, not managed any more,
/// or cannot be read: the process is asked.
fn take(
    fetched: &Fetched,
    at: std::ops::Range<usize>,
    piece: &Piece,
    process: &Process<'_>,
    into: &mut [u8],
) -> Result<(), MemoryError> {
    into.copy_from_slice(fetched.bytes(at.start, at.len()));
    for (number, page) in piece.of.pages.pages().enumerate() {
        if fetched.page(at.start + number).is_some() {
            continue;
        }
        let of = crate::BlockPages { block: piece.of.block, pages: PageRange::new(page, 1) };
        let part = piece.part(of).expect("a page of the piece");
        process.read(&part, true, &mut into[number * PAGE_BYTES..(number + 1) * PAGE_BYTES])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BlockPages;
    use bindery_units::{HostAddress, PageIndex};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn jobs_have_all_pages_in_order(
            runs in prop::collection::vec((1_u32..500, any::<bool>()), 0..12),
        ) {
            let mut first = 0;
            let pieces: Vec<(Piece, bool)> = runs.iter().map(|(count, is_managed)| {
                let pages = PageRange::new(PageIndex(first), *count);
                let address = HostAddress(1 << 40).plus_pages(first);
                let managed = is_managed.then_some(PageIndex(7000 + first));
                first += count + 3;
                (Piece { of: BlockPages { block: 2, pages }, address, managed }, true)
            }).collect();
            let pages: u32 = runs.iter().map(|(count, _)| count).sum();
            let mut into = vec![0; pages as usize * PAGE_BYTES];
            let jobs = jobs(&pieces, &mut into);
            let all = |pieces: &mut dyn Iterator<Item = Piece>| -> Vec<_> {
                let pages = |piece: Piece| {
                    let each = piece.of.pages.pages().enumerate();
                    each.map(|(at, page)| {
                        let managed = piece.managed.map(|first| first.plus(at as u32));
                        (page, piece.address.plus_pages(at as u32), managed)
                    }).collect::<Vec<_>>()
                };
                pieces.flat_map(pages).collect()
            };
            let expected = all(&mut pieces.iter().map(|(piece, _)| *piece));
            prop_assert_eq!(all(&mut jobs.iter().flat_map(|job| job.pieces.clone())), expected);
            for job in &jobs {
                let pages: u32 = job.pieces.iter().map(|piece| piece.of.pages.count).sum();
                prop_assert_eq!(job.into.len(), pages as usize * PAGE_BYTES);
                prop_assert!(pages as usize <= FETCH_PAGES_MAX);
                let is_managed = job.pieces.iter().all(|piece| piece.managed.is_some());
                prop_assert!(is_managed || job.pieces.len() == 1);
            }
        }
    }
}
