//! The second phase: what do stable pages hold, and has it been seen before?
//!
//! Zero pages are known at once. Any other content goes into the index under the first 64 bits of
//! its keyed digest: who comes first becomes the candidate; who comes second makes a class of both,
//! by the one compare-and-swap that takes the leaf from candidate to planned; whoever comes after
//! joins the class, or the slot that there is already. Where guests hold long stretches in common,
//! most pages join unread ([`between`](crate::between)). Nothing is merged on a digest: pages are
//! compared byte for byte later, out of everybody's reach.

use std::borrow::Borrow;

use bindery_guest::Lane;
use bindery_index::{Full, Handle, Inserted, pin};
use bindery_units::{PageIndex, Slot};
use bindery_wire::lane::{DigestKind, PageDigest};

use crate::between::{self, ContentPlace, STRIDE};
use crate::domain::{Domain, Found};
use crate::guest::Guest;
use crate::index_entry::IndexEntry;
use crate::links::Link;
use crate::lock::locked;
use crate::plan::{Join, Seed};
use crate::pressure::Shortage;
use crate::runs::Merge;
use crate::stable::BACK_OFF_MAX;

/// Stable pages of one guest that are digested with one request, or two.
pub(crate) struct Batch<'a> {
    pub(crate) domain: &'a Domain,
    pub(crate) guest: &'a Guest,
    pub(crate) pages: &'a [u32],
}

/// Room for answers, used again for every batch.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) digests: Vec<PageDigest>,
    pub(crate) contents: Vec<Content>,
}

/// A page and what it holds.
#[derive(Clone, Copy)]
pub(crate) struct Content {
    pub(crate) page: PageIndex,
    /// The first 64 bits of the digest.
    head: u64,
    /// The others; none if it was not digested, but inferred.
    tail: Option<u64>,
}

impl Content {
    /// Takes what a digested page holds.
    pub(crate) const fn of(page: PageIndex, digest: &PageDigest) -> Self {
        let [head, tail] = digest.digest;
        Self { page, head, tail: Some(tail) }
    }
}

impl Borrow<u64> for Content {
    fn borrow(&self) -> &u64 {
        &self.head
    }
}

/// Outcome of a batch.
#[derive(Default)]
struct Outcome {
    zeros: Vec<u32>,
    merges: Vec<Merge>,
    found: Found,
    /// Places where contents were found, by page.
    places: Vec<(PageIndex, ContentPlace)>,
    inferred: Vec<u32>,
    /// There was no room in the index.
    left_out: Vec<PageIndex>,
    /// Pages whose content another page is being entered in the index for just now.
    postponed: Vec<PageIndex>,
    /// They stand in the index for another content than theirs.
    stale: Vec<u32>,
}

impl Found {
    /// Adds a class that a page makes with the one that its content was seen in first.
    fn add_class(&mut self, class: u32, leaf: Handle, content: &Content, origin: (u32, PageIndex)) {
        let Content { head, tail, .. } = *content;
        self.seeds.push(Seed { class, leaf: leaf.to_bits(), head, tail, origin });
        let (guest, page) = origin;
        self.joins.push(Join { class, guest, page, inferred: false });
    }
}

impl Batch<'_> {
    /// Finds out what the pages hold. If the guest fails, they are put back.
    pub(crate) fn examine(&self, scratch: &mut Scratch) {
        let stretches: Vec<usize> = between::stretches(self.pages).collect();
        if stretches.is_empty() {
            self.digest(self.pages, scratch);
            return;
        }
        let places = self.digest(&without_between(self.pages, &stretches), scratch);
        let left = self.infer(&stretches, &places);
        self.digest(&left, scratch);
    }

    /// Digests pages and looks them up. Returns where what they hold was found, by page.
    fn digest(&self, pages: &[u32], scratch: &mut Scratch) -> Vec<(PageIndex, ContentPlace)> {
        if pages.is_empty() {
            return Vec::new();
        }
        let Some(mut lane) = self.guest.lane() else { return self.put_back(pages) };
        let result = lane.digest(pages, &mut scratch.digests);
        self.guest.note_gauges(&mut lane, &mut self.guest.state().usage);
        drop(lane);
        if let Err(error) = result {
            self.guest.note(&error);
            return self.put_back(pages);
        }
        self.guest.count_digested(pages.len());
        self.take_digests(pages, &scratch.digests, &mut scratch.contents)
    }

    /// Looks digested pages up. Returns where what they hold was found, by page.
    pub(crate) fn take_digests(
        &self,
        pages: &[u32],
        digests: &[PageDigest],
        contents: &mut Vec<Content>,
    ) -> Vec<(PageIndex, ContentPlace)> {
        let mut outcome = Outcome::default();
        contents.clear();
        for (page, digest) in pages.iter().zip(digests) {
            match self.guest.links.get(PageIndex(*page)) {
                Link::None => {}
                // It was written between the readings of its block and the split.
                Link::Candidate(leaf) if !self.is_head(leaf, digest) => {
                    outcome.stale.push(*page);
                    continue;
                }
                // Linked since it was taken: it is known already.
                _ => continue,
            }
            match digest.kind {
                DigestKind::Nothing => {}
                DigestKind::Zeros => outcome.zeros.push(*page),
                DigestKind::Content => contents.push(Content::of(PageIndex(*page), digest)),
            }
        }
        self.look_up(contents, &mut outcome);
        let places = std::mem::take(&mut outcome.places);
        self.record(outcome);
        places
    }

    /// Returns true if a leaf is of what a page holds.
    fn is_head(&self, leaf: u32, digest: &PageDigest) -> bool {
        let head = self.domain.index.head(Handle::from_bits(leaf));
        digest.kind == DigestKind::Content && digest.digest[0] == head
    }

    /// Infers the interior pages of a stretch whose two ends matched adjacent contents. Returns the
    /// others: all of them, if the guest is watched. A page that the guest writes in the instant between
    /// the question whether it was written and its move is merged with what it held before, if it was
    /// digested, and nobody needs to hear of it; with anything, if it was inferred.
    fn infer(&self, stretches: &[usize], places: &[(PageIndex, ContentPlace)]) -> Vec<u32> {
        let (mut outcome, mut left) = (Outcome::default(), Vec::new());
        let watched = self.guest.connection.written().is_watched();
        for at in stretches {
            let base = between::base(self.pages[*at], places).filter(|_| !watched);
            for pages in 1..STRIDE {
                let page = PageIndex(self.pages[*at + pages as usize]);
                let place = base.map(|base| base.plus(pages));
                if place.is_some_and(|place| self.join_at(page, place, &mut outcome)) {
                    outcome.inferred.push(page.0);
                } else {
                    left.push(page.0);
                }
            }
        }
        self.record(outcome);
        left
    }

    /// Joins a page to what is at `place`. False if nothing is known of that, or the page is known itself.
    fn join_at(&self, page: PageIndex, place: ContentPlace, outcome: &mut Outcome) -> bool {
        if self.guest.links.get(page) != Link::None {
            return false;
        }
        match place {
            ContentPlace::Slot(slot) => {
                let taken = self.domain.slots.take_indexed(slot);
                outcome.merges.extend(taken.then_some(Merge { page, slot }));
                taken
            }
            ContentPlace::Page { guest, page: origin } => {
                if !self.domain.is_split(guest, origin) {
                    return false;
                }
                let guests = &self.domain.guests;
                let link = guests.get(&guest).map(|guest| guest.links.get(origin));
                let Some(Link::Candidate(leaf)) = link else { return false };
                let leaf = Handle::from_bits(leaf);
                let index = &self.domain.index;
                let content = Content { page, head: index.head(leaf), tail: None };
                self.join(content, leaf, index.value(leaf), outcome).is_some()
            }
        }
    }

    fn look_up(&self, contents: &[Content], outcome: &mut Outcome) {
        let epoch = pin();
        let guest = self.guest.number;
        let candidate = |content: &Content| {
            let page = content.page;
            IndexEntry::Candidate { guest, page, is_shared: false }
        };
        self.domain.index.insert_many(
            contents,
            &epoch,
            |content| candidate(content).to_bits(),
            |content, inserted| match inserted {
                Ok(Inserted::New(leaf)) => {
                    self.guest.link(content.page, Link::Candidate(leaf.to_bits()));
                }
                Ok(Inserted::Found(leaf, value)) => {
                    if let Some(place) = self.join(*content, leaf, value, outcome) {
                        outcome.places.push((content.page, place));
                    }
                }
                Err(Full { .. }) => outcome.left_out.push(content.page),
            },
        );
    }

    /// Joins a page to what has its content. Returns where that was found; `None` if it was in a whole block,
    /// of which no page is merged.
    fn join(
        &self,
        content: Content,
        leaf: Handle,
        mut value: u64,
        outcome: &mut Outcome,
    ) -> Option<ContentPlace> {
        loop {
            match IndexEntry::from_bits(value) {
                IndexEntry::Canonical { slot } => {
                    return Some(self.join_slot(content.page, slot, outcome));
                }
                IndexEntry::Planned { class } => {
                    return Some(self.join_class(content, class, outcome));
                }
                IndexEntry::Candidate { guest, page, is_shared }
                    if !self.domain.is_split(guest, page) =>
                {
                    // What was only inferred stands for nothing.
                    content.tail?;
                    let Some(other) = self.candidate(guest, page, leaf) else {
                        // It is about to be linked: at another time.
                        outcome.postponed.push(content.page);
                        return None;
                    };
                    match self.stand_in(content.page, leaf, value, (other, page), is_shared) {
                        Ok(()) => return None,
                        Err(now) => value = now,
                    }
                }
                IndexEntry::Candidate { guest, page, .. } => match self.plan_class(leaf, value) {
                    Ok(class) => {
                        outcome.found.add_class(class, leaf, &content, (guest, page));
                        return Some(self.join_class(content, class, outcome));
                    }
                    // Somebody else was second; the number stays unused.
                    Err(now) => value = now,
                },
            }
        }
    }

    /// Returns a guest of which `page` is linked to `leaf`.
    fn candidate(&self, guest: u32, page: PageIndex, leaf: Handle) -> Option<&Guest> {
        let guest = self.domain.guests.get(&guest)?;
        (guest.links.get(page) == Link::Candidate(leaf.to_bits())).then_some(guest)
    }

    /// Puts a page in the index for its content instead of one in a whole block, which counts as gained should
    /// that block be split. Nobody else changes that one's link: whoever exchanges the leaf's value does.
    /// Fails with what the leaf says instead.
    fn stand_in(
        &self,
        page: PageIndex,
        leaf: Handle,
        value: u64,
        (guest, other): (&Guest, PageIndex),
        is_shared: bool,
    ) -> Result<(), u64> {
        let own = IndexEntry::Candidate { guest: self.guest.number, page, is_shared: true };
        self.domain.index.exchange_value(leaf, value, own.to_bits())?;
        if !is_shared {
            guest.gains.add(other);
        }
        guest.link(other, Link::None);
        self.guest.link(page, Link::Candidate(leaf.to_bits()));
        Ok(())
    }

    fn join_slot(&self, page: PageIndex, slot: Slot, outcome: &mut Outcome) -> ContentPlace {
        // Mapped by somebody, or one of its copies is: it cannot go away before the reference is
        // taken.
        self.domain.slots.take(slot);
        outcome.merges.push(Merge { page, slot });
        ContentPlace::Slot(slot)
    }

    fn join_class(&self, content: Content, class: u32, outcome: &mut Outcome) -> ContentPlace {
        let (guest, inferred) = (self.guest.number, content.tail.is_none());
        outcome.found.joins.push(Join { class, guest, page: content.page, inferred });
        let (guest, page) = self.domain.classes.origin(class);
        ContentPlace::Page { guest, page }
    }

    /// Makes a class of the candidate that `value` says, by the one exchange that decides who is
    /// second. Returns its number, or what the leaf says instead.
    fn plan_class(&self, leaf: Handle, value: u64) -> Result<u32, u64> {
        let class = self.domain.classes.number(value);
        let planned = IndexEntry::Planned { class }.to_bits();
        self.domain.index.exchange_value(leaf, value, planned).map(|()| class)
    }

    fn record(&self, outcome: Outcome) {
        let Outcome { zeros, merges, found, inferred, left_out, postponed, stale, places: _ } =
            outcome;
        if !found.joins.is_empty() {
            let mut all = locked(&self.domain.found);
            all.seeds.extend(found.seeds);
            all.joins.extend(found.joins);
        }
        if !left_out.is_empty() {
            self.domain.note_shortage(Shortage::Index);
        }
        let mut state = self.guest.state();
        state.round.add(&zeros, &merges, &inferred);
        for page in left_out {
            state.tracking.put_back(page, BACK_OFF_MAX);
        }
        for page in postponed {
            state.tracking.put_back(page, 0);
        }
        state.stale.extend(stale);
    }

    /// Puts pages back of which nothing was found: they are looked at when their guest is well.
    fn put_back(&self, pages: &[u32]) -> Vec<(PageIndex, ContentPlace)> {
        let mut state = self.guest.state();
        for page in pages {
            state.tracking.put_back(PageIndex(*page), 0);
        }
        Vec::new()
    }

    /// Puts the batch back: it has to wait.
    pub(crate) fn postpone(&self) {
        self.put_back(self.pages);
    }
}

/// `pages` without those that are between ends.
fn without_between(pages: &[u32], stretches: &[usize]) -> Vec<u32> {
    let mut rest = Vec::with_capacity(pages.len());
    let mut at = 0;
    for first in stretches {
        rest.extend_from_slice(&pages[at..=*first]);
        at = first + STRIDE as usize;
    }
    rest.extend_from_slice(&pages[at..]);
    rest
}
