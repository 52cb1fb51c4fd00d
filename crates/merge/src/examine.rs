//! The second phase: what do stable pages hold, and has it been seen before?
//!
//! Zero pages are known at once. Any other content goes into the index under the first 64 bits of
//! its keyed digest: who comes first becomes the candidate; who comes second makes a class of both,
//! by the one compare-and-swap that takes the leaf from candidate to planned; whoever comes after
//! joins the class, or the slot that there is already. Nothing is merged on a digest: pages are
//! compared byte for byte later, out of everybody's reach.

use std::borrow::Borrow;

use bindery_index::{Full, Handle, Inserted, pin};
use bindery_space::wire::lane::PageDigest;
use bindery_units::PageIndex;

use crate::domain::{Domain, Found, locked};
use crate::entry::Entry;
use crate::links::Link;
use crate::member::Member;
use crate::plan::{Join, Seed};
use crate::pressure::Shortage;
use crate::runs::Merge;
use crate::stable::BACK_OFF_MAX;

/// Stable pages of one guest that are digested with one request.
pub(crate) struct Batch<'a> {
    pub(crate) domain: &'a Domain,
    pub(crate) member: &'a Member,
    pub(crate) pages: &'a [u32],
}

/// Room for answers, used again for every batch.
#[derive(Default)]
pub(crate) struct Scratch {
    digests: Vec<PageDigest>,
    contents: Vec<Content>,
}

/// A page and what it holds.
#[derive(Clone, Copy)]
struct Content {
    page: PageIndex,
    digest: [u64; 2],
}

impl Borrow<u64> for Content {
    fn borrow(&self) -> &u64 {
        &self.digest[0]
    }
}

/// What a batch leads to.
#[derive(Default)]
struct Outcome {
    zeros: Vec<u32>,
    merges: Vec<Merge>,
    found: Found,
    /// There was no room in the index.
    left_out: Vec<PageIndex>,
}

impl Batch<'_> {
    /// Digests the pages and looks them up. If the guest fails, they are told again.
    pub(crate) fn examine(&self, scratch: &mut Scratch) {
        let Some(mut lane) = self.member.lane() else { return self.put_back() };
        let result = lane.digest(self.pages, &mut scratch.digests);
        let mut state = self.member.state();
        self.member.take_gauges(&mut lane, &mut state);
        drop((lane, state));
        if let Err(error) = result {
            self.member.note(&error);
            return self.put_back();
        }
        self.member.count_digested(self.pages.len());
        let mut outcome = Outcome::default();
        scratch.contents.clear();
        for (page, digest) in self.pages.iter().zip(&scratch.digests) {
            // Linked since it was told: it is known already.
            if self.member.links.get(PageIndex(*page)) != Link::None {
                continue;
            }
            match digest.kind {
                0 => {}
                1 => outcome.zeros.push(*page),
                _ => {
                    let (page, digest) = (PageIndex(*page), digest.digest);
                    scratch.contents.push(Content { page, digest });
                }
            }
        }
        self.look_up(&scratch.contents, &mut outcome);
        self.record(outcome);
    }

    fn look_up(&self, contents: &[Content], outcome: &mut Outcome) {
        let guard = pin();
        let member = self.member.number;
        let candidate = |content: &Content| Entry::Candidate { member, page: content.page };
        self.domain.index.insert_many(
            contents,
            &guard,
            |content| candidate(content).to_bits(),
            |content, inserted| match inserted {
                Ok(Inserted::New(leaf)) => {
                    self.member.link(content.page, Link::Candidate(leaf.to_bits()));
                }
                Ok(Inserted::Found(leaf, value)) => {
                    self.join(*content, leaf, value, outcome);
                }
                Err(Full { .. }) => outcome.left_out.push(content.page),
            },
        );
    }

    /// Joins a page to what has its content.
    fn join(&self, content: Content, leaf: Handle, mut value: u64, outcome: &mut Outcome) {
        let Content { page, digest } = content;
        let class = loop {
            match Entry::from_bits(value) {
                Entry::Canonical { slot } => {
                    // Mapped by somebody, or one of its copies is: it cannot go away before the
                    // reference is taken.
                    self.domain.slots.take(slot);
                    return outcome.merges.push(Merge { page, slot });
                }
                Entry::Planned { class } => break class,
                Entry::Candidate { member, page } => {
                    let class = self.domain.next_class();
                    let planned = Entry::Planned { class }.to_bits();
                    match self.domain.index.exchange_value(leaf, value, planned) {
                        Ok(()) => {
                            let leaf = leaf.to_bits();
                            outcome.found.seeds.push(Seed { class, leaf, digest });
                            outcome.found.joins.push(Join { class, member, page });
                            break class;
                        }
                        // Somebody else was second; the number stays unused.
                        Err(now) => value = now,
                    }
                }
            }
        };
        outcome.found.joins.push(Join { class, member: self.member.number, page });
    }

    fn record(&self, outcome: Outcome) {
        let Outcome { zeros, merges, found, left_out } = outcome;
        if !found.joins.is_empty() {
            let mut all = locked(&self.domain.found);
            all.seeds.extend(found.seeds);
            all.joins.extend(found.joins);
        }
        if !left_out.is_empty() {
            self.domain.note_shortage(Shortage::Index);
        }
        let mut state = self.member.state();
        state.zeros.extend(zeros);
        state.merges.extend(merges);
        for page in left_out {
            state.stable.tell_again(page, BACK_OFF_MAX);
        }
    }

    /// The pages are told again when their guest is well.
    pub(crate) fn put_back(&self) {
        let mut state = self.member.state();
        for page in self.pages {
            state.stable.tell_again(PageIndex(*page), 0);
        }
    }
}
