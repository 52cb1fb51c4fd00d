//! Bindery's index: by digest one page at a time, by digest a group at a time, and by content.

use std::sync::atomic::{AtomicU32, Ordering};

use bindery_index::{Handle, Heads, Index, Inserted, Keys, pin};
use bindery_page::{PAGE_BYTES, digest};

use super::contender::{Contender, GROUP_PAGES, Group, Setting};
use super::pages::{Page, Pages, scramble};

/// Handles of the pages that are in the index, by id: the four bytes a page that its user keeps.
struct Handles(Box<[AtomicU32]>);

impl Handles {
    fn new(ids: u64) -> Self {
        Self((0..ids).map(|_| AtomicU32::new(0)).collect())
    }

    // Relaxed, here and below: a page is deleted by the thread that inserted it, or in a later
    // phase.
    fn keep(&self, id: u64, handle: Handle) {
        self.0[id as usize].store(handle.to_bits(), Ordering::Relaxed);
    }

    fn of(&self, id: u64) -> Handle {
        Handle::from_bits(self.0[id as usize].load(Ordering::Relaxed))
    }
}

/// Ids that were deleted and wait for the epochs: some hundreds of each thread, several times.
const IN_LIMBO: u64 = 1 << 16;

/// An index in the shape that suits the keys that it will hold; others are told how many, too.
fn index<K: Keys>(setting: &Setting<'_>, keys: K) -> Index<K> {
    let capacity = u32::try_from(setting.keys * 2 + IN_LIMBO).unwrap_or(u32::MAX).min(1 << 29);
    let mut index = Index::with_capacity(0, capacity, keys);
    index.reshape(index.root_bits_for(setting.keys)).expect(ROOM);
    index
}

const ROOM: &str = "the index is made for more keys than there are, and there is memory";

/// The tree over digests, as the merge engine uses it.
pub(super) struct ByDigest<'a> {
    setting: Setting<'a>,
    index: Index<Heads>,
    handles: Handles,
}

impl<'a> ByDigest<'a> {
    pub(super) fn new(setting: Setting<'a>) -> Self {
        Self { setting, index: index(&setting, Heads), handles: Handles::new(setting.ids) }
    }

    fn head(&self, page: &Page) -> u64 {
        digest(&page.0, self.setting.key).to_words()[0]
    }

    fn heads(&self, group: &Group<'_>) -> [u64; GROUP_PAGES] {
        group.pages.map(|page| self.head(page))
    }

    /// 1 if the page was new.
    fn settle(&self, page: &Page, id: u64, inserted: Inserted) -> u64 {
        match inserted {
            Inserted::New(handle) => {
                self.handles.keep(id, handle);
                1
            }
            Inserted::Found(_, found) => {
                assert!(self.setting.pages.is_stored(page, found), "a digest collided");
                0
            }
        }
    }

    /// The id found plus one, once it is verified.
    fn verified(&self, page: &Page, found: Option<(Handle, u64)>) -> u64 {
        let Some((_, id)) = found else { return 0 };
        assert!(self.setting.pages.is_stored(page, id), "a digest collided");
        id + 1
    }
}

impl Contender for ByDigest<'_> {
    fn insert(&self, group: &Group<'_>) -> u64 {
        let guard = pin();
        let pages = group.pages.iter().zip(group.ids);
        let new = pages.map(|(page, id)| {
            let inserted = self.index.insert(&self.head(page), id, &guard);
            self.settle(page, id, inserted.expect(ROOM))
        });
        new.sum()
    }

    fn query(&self, group: &Group<'_>) -> u64 {
        let guard = pin();
        let found = group.pages.iter().map(|page| {
            let found = self.index.query(&self.head(page), &guard);
            self.verified(page, found)
        });
        found.sum()
    }

    fn delete(&self, ids: &[u64; GROUP_PAGES]) -> u64 {
        let guard = pin();
        let deleted = ids.iter().filter(|id| self.index.delete(self.handles.of(**id), &guard));
        deleted.count() as u64
    }
}

/// The same, with the calls that take many keys at a time.
pub(super) struct ByDigestMany<'a>(pub(super) ByDigest<'a>);

impl Contender for ByDigestMany<'_> {
    fn insert(&self, group: &Group<'_>) -> u64 {
        let Self(one) = self;
        let (mut at, mut new) = (0, 0);
        let mut ids = group.ids.into_iter();
        let next_id = |_: &u64| ids.next().unwrap_or(u64::MAX);
        one.index.insert_many(&one.heads(group), &pin(), next_id, |_, inserted| {
            new += one.settle(group.pages[at], group.ids[at], inserted.expect(ROOM));
            at += 1;
        });
        new
    }

    fn query(&self, group: &Group<'_>) -> u64 {
        let Self(one) = self;
        let (mut at, mut sum) = (0, 0);
        one.index.query_many(&one.heads(group), &pin(), |_, found| {
            sum += one.verified(group.pages[at], found);
            at += 1;
        });
        sum
    }

    fn delete(&self, ids: &[u64; GROUP_PAGES]) -> u64 {
        let Self(one) = self;
        one.index.delete_many(&ids.map(|id| one.handles.of(id)), &pin())
    }
}

/// Pages by content, PageONE's own case: nothing is digested. The head is made of the word after
/// the first run of zeroes, the length of that run, and the last word; whatever pages have in
/// common there, the tree below tells apart by their bytes.
struct Contents<'a>(&'a Pages);

fn word_at(page: &Page, offset: usize) -> u64 {
    u64::from_ne_bytes(*page.0[offset..].first_chunk().expect("a word lies within the page"))
}

impl Keys for Contents<'_> {
    type Key = Page;

    fn head(&self, page: &Page) -> u64 {
        let words = page.0.as_chunks::<8>().0;
        let start = words.iter().position(|word| *word != [0; 8]).unwrap_or(0) * 8;
        let in_word = u64::from_le_bytes(words[start / 8]).trailing_zeros() as usize / 8 % 8;
        let start = (start + in_word).min(PAGE_BYTES - 8);
        let first = word_at(page, start) ^ start as u64;
        scramble(first ^ scramble(word_at(page, PAGE_BYTES - 8)))
    }

    fn tail_word(&self, page: &Page, index: u32) -> u64 {
        u64::from_be_bytes(page.0.as_chunks().0[index as usize])
    }

    fn stored_tail_word(&self, id: u64, index: u32) -> u64 {
        self.0.stored_word(id, index as usize)
    }

    fn tail_difference(&self, page: &Page, id: u64) -> Option<u32> {
        self.0.difference(page, id)
    }
}

/// The tree over contents.
pub(super) struct ByContent<'a> {
    index: Index<Contents<'a>>,
    handles: Handles,
}

impl<'a> ByContent<'a> {
    pub(super) fn new(setting: Setting<'a>) -> Self {
        let index = index(&setting, Contents(setting.pages));
        Self { index, handles: Handles::new(setting.ids) }
    }
}

impl Contender for ByContent<'_> {
    fn insert(&self, group: &Group<'_>) -> u64 {
        let (mut at, mut new) = (0, 0);
        let mut ids = group.ids.into_iter();
        let next_id = |_: &&Page| ids.next().unwrap_or(u64::MAX);
        self.index.insert_many(&group.pages, &pin(), next_id, |_, inserted| {
            if let Inserted::New(handle) = inserted.expect(ROOM) {
                self.handles.keep(group.ids[at], handle);
                new += 1;
            }
            at += 1;
        });
        new
    }

    fn query(&self, group: &Group<'_>) -> u64 {
        let mut sum = 0;
        // Found means equal: the tree has compared all bytes.
        self.index.query_many(&group.pages, &pin(), |_, found| {
            sum += found.map_or(0, |(_, id)| id + 1);
        });
        sum
    }

    fn delete(&self, ids: &[u64; GROUP_PAGES]) -> u64 {
        self.index.delete_many(&ids.map(|id| self.handles.of(id)), &pin())
    }
}
