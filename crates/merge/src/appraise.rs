//! Appraising whole blocks: what would be gained by splitting them, found by reading their pages in place.
//!
//! A whole block's pages are digested and looked up like others, but none is merged: a page that is zero, or
//! that the index knows, counts as gained; one that is new stands in the index for others to find, and counts
//! once somebody has. A second reading, a period later, finds what changed meanwhile. If the block is still
//! worth it, it is split there and then, and what was just read is looked up once more, to be merged.

use bindery_guest::{GuestError, Lane};
use bindery_index::{Full, Handle, Inserted, pin};
use bindery_units::PageIndex;
use bindery_wire::lane::{BLOCK_PAGES, BlockOutcome, DigestKind, PageDigest};

use crate::domain::Domain;
use crate::examine::{Batch, Content, Scratch};
use crate::guest::{Guest, Reading};
use crate::index_entry::IndexEntry;
use crate::links::Link;
use crate::patience::TimedLane;
use crate::pressure::Shortage;

/// Pages of whole blocks of one guest, each block in one piece, that are digested with one request.
pub(crate) struct Appraisal<'a> {
    pub(crate) domain: &'a Domain,
    pub(crate) guest: &'a Guest,
    pub(crate) pages: &'a [u32],
}

/// Pages of one block, and what they hold.
struct Read<'a> {
    pages: &'a [u32],
    digests: &'a [PageDigest],
}

type Fingerprints = Box<[u16; BLOCK_PAGES as usize]>;

impl Read<'_> {
    fn first(&self) -> PageIndex {
        PageIndex(self.pages[0] - self.pages[0] % BLOCK_PAGES)
    }

    fn each(&self) -> impl Iterator<Item = (PageIndex, &PageDigest)> {
        self.pages.iter().map(|page| PageIndex(*page)).zip(self.digests)
    }

    fn fingerprints(&self) -> Fingerprints {
        let mut fingerprints = Box::new([0; BLOCK_PAGES as usize]);
        for (page, digest) in self.each() {
            fingerprints[(page.0 % BLOCK_PAGES) as usize] = fingerprint(digest);
        }
        fingerprints
    }

    /// Returns the pages that are as they were, with what they hold.
    fn unchanged(&self, before: &Fingerprints) -> (Vec<u32>, Vec<PageDigest>) {
        let same = self.each().filter(|(page, digest)| {
            before[(page.0 % BLOCK_PAGES) as usize] == fingerprint(digest)
        });
        same.map(|(page, digest)| (page.0, *digest)).unzip()
    }
}

/// Returns a short digest of what a page holds: 0 for zeros.
const fn fingerprint(digest: &PageDigest) -> u16 {
    match digest.kind {
        DigestKind::Nothing | DigestKind::Zeros => 0,
        DigestKind::Content => digest.digest[1] as u16 | 1,
    }
}

impl Appraisal<'_> {
    /// Reads the pages, and splits the blocks that have proved worth it. If the guest fails, they are put
    /// back.
    pub(crate) fn appraise(&self, scratch: &mut Scratch) {
        let Some(mut lane) = self.guest.lane() else { return self.postpone() };
        let mut digests = std::mem::take(&mut scratch.digests);
        let read = lane.digest(self.pages, &mut digests);
        let taken = read.and_then(|()| {
            self.guest.count_digested(self.pages.len());
            self.take(&mut lane, &digests, scratch)
        });
        scratch.digests = digests;
        self.guest.note_gauges(&mut lane, &mut self.guest.state().usage);
        if let Err(error) = taken {
            self.guest.note(&error);
            self.postpone();
        }
    }

    fn take(
        &self,
        lane: &mut TimedLane<'_>,
        digests: &[PageDigest],
        scratch: &mut Scratch,
    ) -> Result<(), GuestError> {
        let mut at = 0;
        for pages in self.pages.chunk_by(|a, b| a / BLOCK_PAGES == b / BLOCK_PAGES) {
            let read = Read { pages, digests: &digests[at..at + pages.len()] };
            at += pages.len();
            let reading = self.guest.state().blocks.reading(read.first());
            match reading {
                Reading::First => self.take_first(&read, scratch),
                Reading::Second => self.take_second(lane, &read, scratch)?,
                Reading::Void => {}
            }
        }
        Ok(())
    }

    /// Takes in what the pages of a block hold, for others to find and to be counted.
    fn take_first(&self, read: &Read<'_>, scratch: &mut Scratch) {
        let gains = &self.guest.gains;
        let mut gained = 0;
        scratch.contents.clear();
        for (page, digest) in read.each() {
            match (digest.kind, self.guest.links.get(page)) {
                (DigestKind::Nothing, _) => {}
                (DigestKind::Zeros, _) => gained += 1,
                (DigestKind::Content, Link::Candidate(leaf)) => {
                    gained += u16::from(self.is_shared(Handle::from_bits(leaf)));
                }
                (DigestKind::Content, _) => scratch.contents.push(Content::of(page, digest)),
            }
        }
        gains.add(read.first(), gained + self.look_up(&scratch.contents));
        self.guest.state().blocks.note_examined(read.first(), read.fingerprints());
    }

    fn is_shared(&self, leaf: Handle) -> bool {
        let value = IndexEntry::from_bits(self.domain.index.value(leaf));
        matches!(value, IndexEntry::Candidate { is_shared: true, .. })
    }

    /// Looks contents up. Returns how many are known; the others are from now on.
    fn look_up(&self, contents: &[Content]) -> u16 {
        let (epoch, guest) = (pin(), self.guest.number);
        let candidate = |page| IndexEntry::Candidate { guest, page, is_shared: false }.to_bits();
        let mut known = 0;
        self.domain.index.insert_many(
            contents,
            &epoch,
            |content| candidate(content.page),
            |content, inserted| match inserted {
                Ok(Inserted::New(leaf)) => {
                    self.guest.link(content.page, Link::Candidate(leaf.to_bits()));
                }
                Ok(Inserted::Found(leaf, value)) => {
                    known += 1;
                    self.note_shared(leaf, value);
                }
                Err(Full { .. }) => self.domain.note_shortage(Shortage::Index),
            },
        );
        known
    }

    /// Counts a page that stands in the index for its content, once another has it.
    fn note_shared(&self, leaf: Handle, mut value: u64) {
        while let IndexEntry::Candidate { guest, page, is_shared: false } =
            IndexEntry::from_bits(value)
        {
            let shared = IndexEntry::Candidate { guest, page, is_shared: true }.to_bits();
            match self.domain.index.exchange_value(leaf, value, shared) {
                Ok(()) => return self.domain.add_gain(guest, page),
                Err(now) => value = now,
            }
        }
    }

    /// Splits a block if it is still worth it, and has its unchanged pages merged.
    fn take_second(
        &self,
        lane: &mut TimedLane<'_>,
        read: &Read<'_>,
        scratch: &mut Scratch,
    ) -> Result<(), GuestError> {
        let first = read.first();
        let before = self.guest.state().blocks.take_fingerprints(first);
        let (pages, digests) = before.map(|before| read.unchanged(&before)).unwrap_or_default();
        let changed = (read.pages.len() - pages.len()) as u32;
        if self.domain.huge.is_hot(changed) || pages.is_empty() {
            let mut state = self.guest.state();
            state.blocks.note_kept(first);
            state.counts.huge_kept_hot += 1;
            return Ok(());
        }
        let mut outcomes = Vec::new();
        lane.split(&[first.0], &mut outcomes)?;
        let mut state = self.guest.state();
        if outcomes != [BlockOutcome::Split] {
            state.blocks.note_kept(first);
            return Ok(());
        }
        self.guest.gains.set_split(first, true);
        state.blocks.note_split(first);
        state.tracking.note_split(bindery_units::PageRange::new(first, BLOCK_PAGES));
        state.counts.huge_splits += 1;
        drop(state);
        let batch = Batch { domain: self.domain, guest: self.guest, pages: &pages };
        batch.take_digests(&pages, &digests, &mut scratch.contents);
        Ok(())
    }

    /// Puts the pages back: they have to wait.
    pub(crate) fn postpone(&self) {
        let mut state = self.guest.state();
        for page in self.pages {
            state.tracking.put_back(PageIndex(*page), 0);
        }
    }
}
