//! The memory that an index is made in.

use bindery_index::pin;
use bindery_sys::heap;
use bindery_testkit::machine::back_free_memory;
use bindery_units::ByteCount;

/// Free memory that is touched beforehand, for each key.
const BYTES_A_KEY: u64 = 256;

/// Times that the epoch collector is asked to free what it has: 512 objects at a time, of which a
/// radix tree of ten million keys leaves some millions.
const COLLECTIONS: usize = 1 << 15;

/// Frees what the indexes before have left to be freed later, and joins the pieces of the heap:
/// those who come next would do it while they are timed. Some share an epoch collector, which frees a
/// little at a time, and all of them the heap.
pub(super) fn clear_away() {
    (0..COLLECTIONS).for_each(|_| pin().flush());
    heap::give_back_free();
}

/// The same, and has whoever gives this machine its memory give what `keys` take: he may have taken back
/// what was free for seconds.
pub(super) fn clear_away_and_back(keys: u64) {
    clear_away();
    back_free_memory(ByteCount(keys * BYTES_A_KEY));
}
