//! Writes of one caller that go on while it prepares the next ones.

use std::fmt;
use std::io;

use bindery_sys::direct::{Buffer, Source};
use bindery_sys::uring::Queue;

use super::{Device, Write};

/// How many writes are begun before the first is waited for: enough to have a device busy while its
/// caller computes checksums.
pub(super) const MOST: usize = 4;

/// From [`Device::under_way`]: memory that was given to [`Device::begin_write`], and buffers that can be
/// filled again.
///
/// Whoever drops it before [`Device::end_writes`] must not care what becomes of the writes, but may
/// write to the same place afterwards: none is under way then.
#[derive(Default)]
pub struct UnderWay {
    /// Where the kernel does them.
    pub(super) queue: Option<Queue>,
    /// What was given and not written, where it does not.
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

    /// Keeps a write until enough have come together.
    pub(super) fn gather<D: Device + ?Sized>(
        &mut self,
        device: &D,
        offset_bytes: u64,
        from: Source,
    ) -> io::Result<()> {
        self.gathered.push((offset_bytes, from));
        if self.gathered.len() < MOST { Ok(()) } else { self.write_gathered(device) }
    }

    /// Writes what was kept, at once.
    pub(super) fn write_gathered<D: Device + ?Sized>(&mut self, device: &D) -> io::Result<()> {
        let write = |(offset_bytes, from)| Write { offset_bytes, from };
        let pairs = self.gathered.iter().map(|(offset_bytes, from)| (*offset_bytes, &**from));
        let writes: Vec<Write<'_>> = pairs.map(write).collect();
        let written = device.write_many(&writes);
        for (_, source) in std::mem::take(&mut self.gathered) {
            self.give_back(source);
        }
        written
    }
}

impl fmt::Debug for UnderWay {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue, gathered, spare } = self;
        let (gathered, spare) = (gathered.len(), spare.len());
        write!(formatter, "UnderWay({queue:?}, {gathered} gathered, {spare} spare)")
    }
}
