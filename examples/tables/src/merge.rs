//! Several sorted sources as one; of equal keys the first source's entry counts.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::iter::Peekable;

/// An entry that owns its bytes; no value: it was deleted.
pub(crate) type Entry = (Vec<u8>, Option<Vec<u8>>);

/// The entries of all sources in order, each key once.
pub(crate) struct Merge<S: Iterator<Item = Result<Entry, E>>, E> {
    sources: Vec<Peekable<S>>,
    /// The next key of each source that has one, and which source: newer ones first among equals.
    next: BinaryHeap<Reverse<(Vec<u8>, usize)>>,
    failed: Option<E>,
}

impl<S: Iterator<Item = Result<Entry, E>>, E> Merge<S, E> {
    /// `sources` begin with the newest.
    pub(crate) fn new(sources: impl IntoIterator<Item = S>) -> Self {
        let sources: Vec<_> = sources.into_iter().map(Iterator::peekable).collect();
        let mut merge = Self { next: BinaryHeap::new(), failed: None, sources };
        (0..merge.sources.len()).for_each(|source| merge.await_next(source));
        merge
    }

    fn await_next(&mut self, source: usize) {
        match self.sources[source].peek() {
            Some(Ok((key, _))) => self.next.push(Reverse((key.clone(), source))),
            Some(Err(_)) => self.failed = self.sources[source].next().and_then(Result::err),
            None => {}
        }
    }

    fn take(&mut self) -> Option<Entry> {
        let Reverse((_, source)) = self.next.pop()?;
        let entry = self.sources[source].next()?.ok();
        self.await_next(source);
        entry
    }
}

impl<S: Iterator<Item = Result<Entry, E>>, E> Iterator for Merge<S, E> {
    type Item = Result<Entry, E>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.failed.take() {
            self.next.clear();
            return Some(Err(error));
        }
        let entry = self.take()?;
        while self.next.peek().is_some_and(|Reverse((key, _))| *key == entry.0) {
            self.take();
        }
        Some(Ok(entry))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_newest_of_equal_keys_counts(
            sources in prop::collection::vec(
                prop::collection::btree_map(0_u8..40, prop::option::of(any::<u8>()), 0..20), 0..6,
            ),
        ) {
            let mut expected = BTreeMap::new();
            for source in sources.iter().rev() {
                expected.extend(source.clone());
            }
            let entries = |source: &BTreeMap<u8, Option<u8>>| {
                let own = |(key, value): (&u8, &Option<u8>)| (vec![*key], value.map(|value| vec![value]));
                source.iter().map(own).map(Ok::<_, Infallible>).collect::<Vec<_>>().into_iter()
            };
            let merged: Vec<Entry> =
                Merge::new(sources.iter().map(entries)).map(|entry| entry.unwrap()).collect();
            let expected: Vec<Entry> = expected
                .into_iter()
                .map(|(key, value)| (vec![key], value.map(|value| vec![value])))
                .collect();
            prop_assert_eq!(merged, expected);
        }
    }

    #[test]
    fn a_source_that_fails_ends_the_merge() {
        let good = || Ok((vec![1], None));
        let sources = [vec![good(), Err("broken")], vec![Ok((vec![2], None)), Ok((vec![3], None))]];
        let merged: Vec<_> = Merge::new(sources.into_iter().map(Vec::into_iter)).collect();
        assert_eq!(merged, [good(), Err("broken")]);
    }
}
