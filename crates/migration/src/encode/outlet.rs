//! Streams as the encoder sees them.

use std::io;

/// Stream that frames go out on, in order.
pub trait Outlet: Send {
    /// Writes a frame, given in parts. Blocks until all was written. Returns before the bytes arrive.
    ///
    /// # Errors
    /// The connection's; the stream is of no more use then.
    fn send(&mut self, parts: &[&[u8]]) -> io::Result<()>;
}

impl Outlet for Vec<u8> {
    fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        parts.iter().for_each(|part| self.extend_from_slice(part));
        Ok(())
    }
}
