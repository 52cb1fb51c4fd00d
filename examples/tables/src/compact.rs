//! Merging the root tables into the shelves, one shelf after the other.

use std::iter::{self, Peekable};
use std::sync::Arc;

use bindery_pool::Pool;
use bindery_pool::map::Temperature;

use crate::block;
use crate::error::StoreError;
use crate::merge::{Entry, Merge};
use crate::options::Options;
use crate::shelf::{Mapper, Shelf};
use crate::table::Table;

/// Is told what a shelf becomes; no shelf: what the root has makes the first.
pub(crate) type Replace<'a> =
    dyn FnMut(Option<&Arc<Shelf>>, Vec<Arc<Shelf>>) -> Result<(), StoreError> + 'a;

/// Is called with the number of bytes that were written.
pub(crate) type Wrote<'a> = dyn Fn(u64) + 'a;

type Source<'a> = Box<dyn Iterator<Item = Result<Entry, StoreError>> + 'a>;

/// Writes entries to tables and puts these on shelves.
pub(crate) fn shelve(
    pool: &Pool,
    mapper: &dyn Mapper,
    options: &Options,
    entries: &mut Peekable<impl Iterator<Item = Result<Entry, StoreError>>>,
    wrote: &Wrote<'_>,
) -> Result<Vec<Arc<Shelf>>, StoreError> {
    let mut shelves = Vec::new();
    loop {
        let write =
            || Table::write(pool, options.class, options.table_bytes, entries, wrote).transpose();
        let tables: Vec<Table> =
            iter::from_fn(write).take(options.shelf_tables).collect::<Result<_, _>>()?;
        if tables.is_empty() {
            return Ok(shelves);
        }
        shelves.push(Arc::new(Shelf::of(mapper, tables, options.temperature)?));
    }
}

/// A table of the newest entries, on a shelf of its own; none if there are none.
pub(crate) fn root_table(
    pool: &Pool,
    mapper: &dyn Mapper,
    options: &Options,
    entries: Vec<Entry>,
) -> Result<Option<Arc<Shelf>>, StoreError> {
    let sizes = entries.iter().map(|(key, value)| block::entry_bytes(key, value.as_deref()));
    let bytes = block::blocks_max(sizes.sum()) * block::BLOCK_BYTES;
    let mut entries = entries.into_iter().map(Ok).peekable();
    let table = Table::write(pool, options.class, bytes as u64, &mut entries, &|_| ())?;
    assert!(entries.next().is_none(), "one table holds all: what it lacks is in no log any more");
    let shelf = |table| Shelf::of(mapper, vec![table], Temperature::Pinned).map(Arc::new);
    table.map(shelf).transpose()
}

/// Merges the entries of root tables into shelves. `replace` is told what each shelf becomes, in order; `wrote`
/// may take its time.
pub(crate) fn compact(
    pool: &Pool,
    mapper: &dyn Mapper,
    options: &Options,
    (root, shelves): (&[Arc<Shelf>], &[Arc<Shelf>]),
    replace: &mut Replace<'_>,
    wrote: &Wrote<'_>,
) -> Result<(), StoreError> {
    let entries_of = |shelf: &Arc<Shelf>| {
        let tables: Vec<_> = shelf.tables.iter().map(Table::entries).collect();
        tables.into_iter().flatten()
    };
    let mut newer = Merge::new(root.iter().map(entries_of)).peekable();
    // Where there is no shelf yet, what the root has makes the first.
    let places = shelves.iter().map(Some).chain(shelves.is_empty().then_some(None));
    for (at, shelf) in places.enumerate() {
        let next = shelves.get(at + 1);
        let is_here = |entry: &Result<Entry, StoreError>| match (entry, next) {
            (Ok((key, _)), Some(next)) => key.as_slice() < next.first_key(),
            _ => true,
        };
        let newer: Source<'_> = Box::new(iter::from_fn(|| newer.next_if(is_here)));
        let older: Source<'_> = Box::new(shelf.into_iter().flat_map(entries_of));
        // Nothing is below the shelves that a tombstone could hide.
        let is_value = |entry: &Result<Entry, StoreError>| !matches!(entry, Ok((_, None)));
        let mut entries = Merge::new([newer, older]).filter(is_value).peekable();
        let new = shelve(pool, mapper, options, &mut entries, wrote)?;
        drop(entries);
        replace(shelf, new)?;
    }
    Ok(())
}
