//! Any sequence of operations against a `BTreeMap`, on keys that are hard on a trie.

#![cfg(not(loom))]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bindery_index::{Full, Handle, Heads, Index, Inserted, Keys, first_difference, pin};
use proptest::prelude::*;

const OPERATIONS: usize = if cfg!(miri) { 40 } else { 400 };
const PAGE_BYTES: usize = 64;

type Page = [u8; PAGE_BYTES];

#[derive(Clone, Copy, Debug)]
enum Operation {
    Insert(u16),
    Query(u16),
    /// Deletes the n-th of the present keys, if there are so many.
    Delete(u16),
    Exchange(u16),
    Reshape(u8),
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        8 => any::<u16>().prop_map(Operation::Insert),
        4 => any::<u16>().prop_map(Operation::Query),
        5 => any::<u16>().prop_map(Operation::Delete),
        1 => any::<u16>().prop_map(Operation::Exchange),
        1 => (0..9_u8).prop_map(Operation::Reshape),
    ];
    prop::collection::vec(operation, 1..OPERATIONS)
}

/// How 16 random bits become a key: few bits set far apart, so that keys collide, share long
/// prefixes, and part at every depth.
trait Universe {
    type Keys: Keys;

    fn keys() -> Self::Keys;
    fn with<R>(bits: u16, use_key: impl FnOnce(&<Self::Keys as Keys>::Key) -> R) -> R;
    /// A value of the key that the n-th exchange gives it.
    fn value(bits: u16, version: u64) -> u64;
    /// What decides equality.
    fn identity(bits: u16) -> Vec<u8>;
}

/// Heads alone, of 9 bits: three at the top, three in the middle, three at the end.
struct SparseHeads;

impl Universe for SparseHeads {
    type Keys = Heads;

    fn keys() -> Heads {
        Heads
    }

    fn with<R>(bits: u16, use_key: impl FnOnce(&u64) -> R) -> R {
        let bits = u64::from(bits);
        use_key(&((bits & 7) << 61 | (bits >> 3 & 7) << 29 | bits >> 6 & 7))
    }

    fn value(bits: u16, version: u64) -> u64 {
        version << 16 | u64::from(bits)
    }

    fn identity(bits: u16) -> Vec<u8> {
        (bits & 511).to_be_bytes().to_vec()
    }
}

/// Content alone: the head is the first word of a page, and pages differ at the start, in the
/// middle and in the last byte. The value names the page by the bits that it is made of.
struct Contents;

fn page_of(bits: u16) -> Page {
    let mut page = [0; PAGE_BYTES];
    page[0] = (bits & 3) as u8;
    page[8] = (bits >> 2 & 3) as u8;
    page[33] = (bits >> 4 & 7) as u8 * 16;
    page[PAGE_BYTES - 1] = (bits >> 7 & 3) as u8;
    page
}

fn word(page: &Page, index: usize) -> u64 {
    let bytes = page.as_chunks::<8>().0[index];
    u64::from_be_bytes(bytes)
}

struct PagesByContent;

impl Keys for PagesByContent {
    type Key = Page;

    fn head(&self, key: &Page) -> u64 {
        word(key, 0)
    }

    fn tail_word(&self, key: &Page, index: u32) -> u64 {
        word(key, 1 + index as usize)
    }

    fn stored_tail_word(&self, value: u64, index: u32) -> u64 {
        word(&page_of(value as u16), 1 + index as usize)
    }

    fn tail_difference(&self, key: &Page, value: u64) -> Option<u32> {
        first_difference(&key[8..], &page_of(value as u16)[8..])
    }
}

impl Universe for Contents {
    type Keys = PagesByContent;

    fn keys() -> PagesByContent {
        PagesByContent
    }

    fn with<R>(bits: u16, use_key: impl FnOnce(&Page) -> R) -> R {
        use_key(&page_of(bits))
    }

    fn value(bits: u16, version: u64) -> u64 {
        version << 16 | u64::from(bits)
    }

    fn identity(bits: u16) -> Vec<u8> {
        page_of(bits).to_vec()
    }
}

struct Run<U: Universe> {
    index: Index<U::Keys>,
    oracle: BTreeMap<Vec<u8>, (Handle, u64, u16)>,
    version: u64,
}

impl<U: Universe> Run<U> {
    fn nth(&self, n: u16) -> Option<(Handle, u64, u16)> {
        let n = usize::from(n) % (self.oracle.len() * 5 / 4 + 1);
        self.oracle.values().nth(n).copied()
    }

    fn apply(&mut self, operation: Operation) -> Result<(), TestCaseError> {
        let guard = pin();
        match operation {
            Operation::Insert(bits) => {
                self.version += 1;
                let value = U::value(bits, self.version);
                let inserted = U::with(bits, |key| self.index.insert(key, value, &guard));
                match (inserted, self.oracle.get(&U::identity(bits))) {
                    (Ok(Inserted::New(handle)), None) => {
                        self.oracle.insert(U::identity(bits), (handle, value, bits));
                    }
                    (Ok(Inserted::Found(handle, value)), Some(&(known, known_value, _))) => {
                        prop_assert_eq!((handle, value), (known, known_value));
                    }
                    (inserted, known) => prop_assert!(false, "{:?} for {:?}", inserted, known),
                }
            }
            Operation::Query(bits) => {
                let found = U::with(bits, |key| self.index.query(key, &guard));
                let known = self.oracle.get(&U::identity(bits));
                prop_assert_eq!(found, known.map(|(handle, value, _)| (*handle, *value)));
            }
            Operation::Delete(n) => {
                let Some((handle, _, bits)) = self.nth(n) else { return Ok(()) };
                prop_assert!(self.index.delete(handle, &guard));
                prop_assert!(!self.index.delete(handle, &guard));
                self.oracle.remove(&U::identity(bits));
            }
            Operation::Exchange(n) => {
                let Some((handle, value, bits)) = self.nth(n) else { return Ok(()) };
                self.version += 1;
                let new = U::value(bits, self.version);
                prop_assert_eq!(self.index.exchange_value(handle, !value, new), Err(value));
                prop_assert_eq!(self.index.exchange_value(handle, value, new), Ok(()));
                prop_assert_eq!(self.index.value(handle), new);
                let head = U::with(bits, |key| self.index.keys().head(key));
                prop_assert_eq!(self.index.head(handle), head);
                self.oracle.insert(U::identity(bits), (handle, new, bits));
            }
            Operation::Reshape(root_bits) => {
                drop(guard);
                prop_assert_eq!(self.index.reshape(u32::from(root_bits)), Ok(()));
            }
        }
        prop_assert_eq!(self.index.len(), self.oracle.len() as u64);
        Ok(())
    }
}

fn run<U: Universe>(root_bits: u32, operations: &[Operation]) -> Result<(), TestCaseError> {
    let index = Index::with_capacity(root_bits, 2000, U::keys());
    let mut run = Run::<U> { index, oracle: BTreeMap::new(), version: 0 };
    for operation in operations {
        run.apply(*operation)?;
    }
    let guard = pin();
    for bits in 0..512 {
        let found = U::with(bits, |key| run.index.query(key, &guard));
        let known = run.oracle.get(&U::identity(bits));
        prop_assert_eq!(found, known.map(|(handle, value, _)| (*handle, *value)));
    }
    let audit = run.index.audit();
    prop_assert_eq!(audit.leaves, run.oracle.len());
    prop_assert!(audit.nodes <= audit.leaves);
    for (handle, _, _) in run.oracle.values() {
        prop_assert!(run.index.delete(*handle, &guard));
    }
    prop_assert!(run.index.is_empty());
    let audit = run.index.audit();
    prop_assert_eq!((audit.leaves, audit.nodes), (0, 0));
    Ok(())
}

fn cases() -> u32 {
    if cfg!(miri) { 6 } else { 2 * ProptestConfig::default().cases }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn heads_behave_as_in_an_ordered_map(root_bits in 0..7_u32, operations in operations()) {
        run::<SparseHeads>(root_bits, &operations)?;
    }

    #[test]
    fn contents_behave_as_in_an_ordered_map(root_bits in 0..7_u32, operations in operations()) {
        run::<Contents>(root_bits, &operations)?;
    }

    #[test]
    fn many_at_a_time_is_the_same_as_one_by_one(
        heads in prop::collection::vec(0..200_u64, 1..100),
        root_bits in 0..4_u32,
    ) {
        let spread: Vec<u64> = heads.iter().map(|head| head << 55 | head >> 4).collect();
        let (one, many) = (Index::new(root_bits, Heads), Index::new(root_bits, Heads));
        let guard = pin();
        let expected: Vec<_> = spread.iter().map(|key| one.insert(key, !key, &guard)).collect();
        let mut inserted = Vec::new();
        many.insert_many(&spread, &guard, |key| !key, |_, outcome| inserted.push(outcome));
        prop_assert_eq!(&inserted, &expected);
        let probes: Vec<u64> = (0..200).map(|head| head << 55 | head >> 4).collect();
        let mut found = Vec::new();
        many.query_many(&probes, &guard, |key, outcome| found.push((*key, outcome)));
        let expected: Vec<_> = probes.iter().map(|key| (*key, one.query(key, &guard))).collect();
        prop_assert_eq!(&found, &expected);
        let handles: Vec<Handle> = expected.iter().filter_map(|(_, hit)| Some(hit.as_ref()?.0)).collect();
        prop_assert_eq!(many.delete_many(&handles, &guard), handles.len() as u64);
        prop_assert_eq!(many.delete_many(&handles, &guard), 0);
        prop_assert!(many.is_empty());
    }
}

#[test]
fn a_full_index_says_so_and_stays_usable() {
    let index = Index::with_capacity(2, 100, Heads);
    let guard = pin();
    let handles: Vec<Handle> = (0..100_u64)
        .map(|key| match index.insert(&(key << 40), key, &guard) {
            Ok(Inserted::New(handle)) => handle,
            other => panic!("{other:?}"),
        })
        .collect();
    let full = Full { keys: 100, capacity: 100 };
    assert_eq!(index.insert(&u64::MAX, 0, &guard), Err(full));
    // What is there is still found, by insert too.
    assert_eq!(index.insert(&(7 << 40), 0, &guard), Ok(Inserted::Found(handles[7], 7)));
    assert!(index.delete(handles[7], &guard));
    drop(guard);
    // The deleted key's room comes back once nobody is pinned.
    let mut guard = pin();
    // Tests beside this one pin too, and may be kept from the CPU meanwhile.
    let deadline = Instant::now() + Duration::from_secs(20);
    while index.insert(&u64::MAX, 1, &guard).is_err() {
        assert!(Instant::now() < deadline, "the room never comes back");
        guard.flush();
        guard.repin();
        std::thread::yield_now();
    }
}

#[test]
fn handles_that_no_insert_gave_delete_nothing() {
    let index = Index::with_capacity(4, 1000, Heads);
    let guard = pin();
    index.insert(&0, 1, &guard).unwrap();
    for bits in [0, 2, 500, 1 << 20, u32::MAX] {
        assert!(!index.delete(Handle::from_bits(bits), &guard));
    }
    assert_eq!(index.len(), 1);
}
