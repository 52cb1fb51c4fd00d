//! Frames off a connection.

use std::io::{self, Read};

use crate::format::{FormatError, Frame, FrameHead, Geometry, HEAD_BYTES};

/// Failure to receive a frame.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// The peer ended the connection between two frames.
    #[error("the peer has hung up")]
    Ended,
    /// The peer sent something impossible.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The guest's memory at the destination failed.
    #[error("received memory cannot be written: {0}")]
    Target(io::Error),
}

/// Reads frames, one after the other, into a buffer that is used again.
#[derive(Debug, Default)]
pub struct FrameReader {
    body: Vec<u8>,
    received: u64,
}

impl FrameReader {
    /// Waits for the next frame. Takes no more memory than a frame of its kind can have.
    ///
    /// # Errors
    /// [`ReceiveError`], [`ReceiveError::Ended`] at an end between frames.
    pub fn next<'a>(
        &'a mut self,
        from: &mut dyn Read,
        geometry: &Geometry,
    ) -> Result<Frame<'a>, ReceiveError> {
        let mut bytes = [0; HEAD_BYTES];
        read_head(from, &mut bytes)?;
        let head = FrameHead::decode(&bytes)?;
        let length = head.bytes.get() as usize;
        if self.body.len() < length {
            self.body.resize(length, 0);
        }
        from.read_exact(&mut self.body[..length])?;
        self.received += (HEAD_BYTES + length) as u64;
        Ok(Frame::decode(&head, &self.body[..length], geometry)?)
    }

    /// Returns the bytes of all frames that were read.
    #[must_use]
    pub const fn received(&self) -> u64 {
        self.received
    }
}

fn read_head(from: &mut dyn Read, into: &mut [u8; HEAD_BYTES]) -> Result<(), ReceiveError> {
    let first = loop {
        match from.read(into) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => break read?,
        }
    };
    match first {
        0 => Err(ReceiveError::Ended),
        first => Ok(from.read_exact(&mut into[first..])?),
    }
}
