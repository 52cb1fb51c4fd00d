//! Compression of chunks, where it pays.

use std::io;

/// Level of zstd: decision 0026 has the measurements.
const LEVEL: i32 = 1;

/// Chunks that are not tried after one that did not pay, at most.
const LONGEST_REST: u32 = 64;

/// Compresses chunks one after the other, and leaves out some behind those that did not pay.
pub(crate) struct Compressor {
    zstd: zstd::bulk::Compressor<'static>,
    compressed: Vec<u8>,
    /// Chunks that are left out after the next one that does not pay.
    rest: u32,
    left_out: u32,
}

impl Compressor {
    pub(crate) fn new() -> io::Result<Self> {
        let zstd = zstd::bulk::Compressor::new(LEVEL)?;
        Ok(Self { zstd, compressed: Vec::new(), rest: 1, left_out: 0 })
    }

    /// Returns `plain` compressed, if that saves at least an eighth.
    pub(crate) fn compress(&mut self, plain: &[u8]) -> Option<&[u8]> {
        if self.left_out > 0 {
            self.left_out -= 1;
            return None;
        }
        let most = plain.len() - plain.len() / 8;
        self.compressed.resize(most, 0);
        // What does not fit is an error of zstd's.
        match self.zstd.compress_to_buffer(plain, &mut self.compressed[..]) {
            Ok(bytes) => {
                self.rest = 1;
                Some(&self.compressed[..bytes])
            }
            Err(_) => {
                self.left_out = self.rest;
                self.rest = (self.rest * 2).min(LONGEST_REST);
                None
            }
        }
    }
}

impl std::fmt::Debug for Compressor {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Compressor")
            .field("left_out", &self.left_out)
            .finish_non_exhaustive()
    }
}
