//! Appraising whole blocks: what would be gained by splitting them, found by reading their pages in place.
//!
//! A whole block's pages are digested twice, a period apart. Those that changed count for nothing, and where
//! many did nothing of the block is looked up: it is hot. The others are looked up like pages that are to be
//! merged, but none is: a page that is zero, or that the index knows, counts as gained; one that is new stands
//! in the index for others to find, and counts once somebody has.

use bindery_guest::Lane;
use bindery_index::{Full, Handle, Inserted, pin};
use bindery_units::PageIndex;
use bindery_wire::lane::{BLOCK_PAGES, DigestKind, PageDigest};

use crate::domain::Domain;
use crate::examine::{Content, Scratch};
use crate::guest::{Fingerprints, Guest, Reading};
use crate::index_entry::IndexEntry;
use crate::links::Link;
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

    /// Returns the pages that are there and as they were, with what they hold.
    fn unchanged(&self, before: &Fingerprints) -> impl Iterator<Item = (PageIndex, &PageDigest)> {
        self.each().filter(|(page, digest)| {
            let same = before[(page.0 % BLOCK_PAGES) as usize] == fingerprint(digest);
            same && digest.kind != DigestKind::Nothing
        })
    }

    /// Returns how many pages are not as they were.
    fn changed(&self, before: &Fingerprints) -> u32 {
        let at = |page: PageIndex| before[(page.0 % BLOCK_PAGES) as usize];
        self.each().filter(|(page, digest)| at(*page) != fingerprint(digest)).count() as u32
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
    /// Reads the pages. If the guest fails, they are put back.
    pub(crate) fn appraise(&self, scratch: &mut Scratch) {
        let Some(mut lane) = self.guest.lane() else { return self.postpone() };
        let read = lane.digest(self.pages, &mut scratch.digests);
        self.guest.note_gauges(&mut lane, &mut self.guest.state().usage);
        drop(lane);
        if let Err(error) = read {
            self.guest.note(&error);
            return self.postpone();
        }
        self.guest.count_digested(self.pages.len());
        let mut at = 0;
        for pages in self.pages.chunk_by(|a, b| a / BLOCK_PAGES == b / BLOCK_PAGES) {
            let read = Read { pages, digests: &scratch.digests[at..at + pages.len()] };
            at += pages.len();
            let reading = self.guest.state().blocks.reading(read.first());
            match reading {
                Reading::First => {
                    self.guest.state().blocks.note_first(read.first(), read.fingerprints());
                }
                Reading::Second => self.take_second(&read, &mut scratch.contents),
                Reading::Void => {}
            }
        }
    }

    /// Takes in what a split of the block would gain, unless it is hot.
    fn take_second(&self, read: &Read<'_>, contents: &mut Vec<Content>) {
        let first = read.first();
        let before = self.guest.state().blocks.take_fingerprints(first);
        let (before, periods) = before.expect("a block is read a first time before a second one");
        if self.domain.huge.is_hot(read.changed(&before) / periods) {
            let mut state = self.guest.state();
            state.blocks.note_hot(first);
            state.counts.huge_kept_hot += 1;
            return;
        }
        let (gains, mut zeros) = (&self.guest.gains, 0);
        // What others found meanwhile is found again.
        gains.set_split(first, false);
        contents.clear();
        for (page, digest) in read.unchanged(&before) {
            match (digest.kind, self.guest.links.get(page)) {
                (DigestKind::Content, Link::Candidate(leaf))
                    if self.is_shared(Handle::from_bits(leaf)) =>
                {
                    gains.add(page);
                }
                (DigestKind::Content, Link::None) => contents.push(Content::of(page, digest)),
                (DigestKind::Zeros, Link::None) => zeros += 1,
                // Its guest has said that the block is whole, and not that it lost the page.
                _ => {}
            }
        }
        gains.add_zeros(first, zeros);
        self.look_up(contents);
        self.guest.state().blocks.note_second(first);
    }

    fn is_shared(&self, leaf: Handle) -> bool {
        let value = IndexEntry::from_bits(self.domain.index.value(leaf));
        matches!(value, IndexEntry::Candidate { is_shared: true, .. })
    }

    /// Looks contents up. Those that are known count as gained; the others are known from now on.
    fn look_up(&self, contents: &[Content]) {
        let (epoch, guest) = (pin(), self.guest.number);
        let candidate = |page| IndexEntry::Candidate { guest, page, is_shared: false }.to_bits();
        self.domain.index.insert_many(
            contents,
            &epoch,
            |content| candidate(content.page),
            |content, inserted| match inserted {
                Ok(Inserted::New(leaf)) => {
                    self.guest.link(content.page, Link::Candidate(leaf.to_bits()));
                }
                Ok(Inserted::Found(leaf, value)) => {
                    self.guest.gains.add(content.page);
                    self.note_shared(leaf, value);
                }
                Err(Full { .. }) => self.domain.note_shortage(Shortage::Index),
            },
        );
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

    /// Puts the pages back: they have to wait.
    pub(crate) fn postpone(&self) {
        let mut state = self.guest.state();
        for page in self.pages {
            state.tracking.put_back(PageIndex(*page), 0);
        }
    }
}
