//! Counts of what was sent.

use std::ops::AddAssign;

/// Numbers of pages and bytes that an encoder has handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendTally {
    /// Pages sent as they are or compressed.
    pub pages: u64,
    /// Pages sent as deltas.
    pub deltas: u64,
    /// Pages marked as zero.
    pub zeros: u64,
    /// Zero pages of which nothing was sent, since the destination has zeros there.
    pub silent_zeros: u64,
    /// Pages of which nothing was sent, since they did not change.
    pub unchanged: u64,
    /// Pages that the destination had, by digest.
    pub known: u64,
    /// Bytes of all frames, heads included.
    pub bytes: u64,
    /// Number of frames.
    pub frames: u64,
}

impl AddAssign for SendTally {
    fn add_assign(&mut self, other: Self) {
        self.pages += other.pages;
        self.deltas += other.deltas;
        self.zeros += other.zeros;
        self.silent_zeros += other.silent_zeros;
        self.unchanged += other.unchanged;
        self.known += other.known;
        self.bytes += other.bytes;
        self.frames += other.frames;
    }
}
