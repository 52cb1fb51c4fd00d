//! Writes of one caller that go on while it prepares the next ones.

use std::fmt;

use bindery_sys::direct::{Buffer, Source};
use bindery_sys::uring::Queue;

/// Number of writes that are begun before the first is waited for: enough to have a device busy while its
/// caller computes checksums.
pub(super) const MOST: usize = 4;

/// Memory that was given to [`Device::begin_write`], and buffers that can be filled again. Made by
/// [`Device::under_way`].
///
/// Whoever drops it before [`Device::end_writes`] must not care what becomes of the writes, but may
/// write to the same place afterwards: none is under way then.
///
/// [`Device::under_way`]: super::Device::under_way
/// [`Device::begin_write`]: super::Device::begin_write
/// [`Device::end_writes`]: super::Device::end_writes
#[derive(Default)]
pub struct UnderWay {
    /// Queue of the kernel, if the kernel does the writes.
    pub(super) queue: Option<Queue>,
    /// Writes that wait for [`MOST`] to come together, where the kernel has no queue.
    gathered: Vec<(u64, Source)>,
    spare: Vec<Buffer>,
}

impl UnderWay {
    /// A buffer of such a length. What it holds is anything.
    #[must_use]
    pub fn buffer(&mut self, bytes: usize) -> Buffer {
        let spare = self.spare.iter().position(|buffer| buffer.len() == bytes);
        spare.map_or_else(|| Buffer::zeroed(bytes), |spare| self.spare.swap_remove(spare))
    }

    /// Takes back what was written; what is nobody else's is to be filled again.
    pub(super) fn give_back(&mut self, source: Source) {
        let Source::Owned(buffer) = source else { return };
        self.spare.push(buffer);
        // One is filled while the others are written. The longest are dearest to make.
        if self.spare.len() > MOST + 1 {
            self.spare.sort_by_key(|buffer| std::cmp::Reverse(buffer.len()));
            self.spare.pop();
        }
    }

    /// Keeps a write that the kernel does not do by itself. Returns true if enough have come together to be
    /// written at once.
    pub(super) fn gather(&mut self, offset_bytes: u64, from: Source) -> bool {
        self.gathered.push((offset_bytes, from));
        self.gathered.len() >= MOST
    }

    /// Takes out the writes that were kept, as places and contents.
    pub(super) fn take_gathered(&mut self) -> Vec<(u64, Source)> {
        std::mem::take(&mut self.gathered)
    }
}

impl fmt::Debug for UnderWay {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue, gathered, spare } = self;
        let (gathered, spare) = (gathered.len(), spare.len());
        write!(formatter, "UnderWay({queue:?}, {gathered} gathered, {spare} spare)")
    }
}
