//! Frames of the control connection: bytes and descriptors in, messages out.
//!
//! Pure: what a peer sent is decoded here and nowhere else, and nothing it can send makes this
//! panic or hold more than one frame and [`FDS_MAX`] descriptors.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use bindery_sys::socket::FDS_MAX;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::control::{FRAME_BYTES_MAX, FromDaemon, FromShim};

/// The length in front of each frame, in bytes.
const HEADER_BYTES: usize = 4;

/// A message of the control connection.
pub trait Message: Serialize + DeserializeOwned {
    /// How many descriptors travel with this message.
    fn descriptors(&self) -> usize;
}

impl Message for FromShim {
    fn descriptors(&self) -> usize {
        match self {
            Self::Hello { .. }
            | Self::RegionAdded(_)
            | Self::RegionRemoved(_)
            | Self::Offered(_)
            | Self::Withdrawn { .. }
            | Self::SourceLost { .. }
            | Self::Released => 0,
        }
    }
}

impl Message for FromDaemon {
    fn descriptors(&self) -> usize {
        match self {
            Self::OpenLane | Self::Bind { .. } | Self::Rebind { .. } => 2,
            Self::Welcome { .. } | Self::Refused { .. } | Self::Release => 0,
        }
    }
}

/// Why a peer's bytes are no message. The connection is of no further use.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length in front is above the limit, or zero.
    #[error(
        "a frame of {bytes} bytes: 1 to {FRAME_BYTES_MAX} are allowed; is the peer a shim or daemon of this version?"
    )]
    Length {
        /// The length that the peer gave.
        bytes: u32,
    },
    /// The frame is not a message, or more than one.
    #[error("a frame that is no message; is the peer a shim or daemon of this version?")]
    Malformed,
    /// The message came without the descriptors that it needs.
    #[error("a message that needs {needed} descriptors came with {came}")]
    Descriptors {
        /// How many the message needs.
        needed: usize,
        /// How many came.
        came: usize,
    },
    /// Descriptors came that no message asked for.
    #[error("more than {FDS_MAX} descriptors that belong to no message")]
    TooManyDescriptors,
}

/// The bytes of `message`'s frame.
///
/// # Panics
/// If the message is longer than a frame may be: the caller bounds every string that it sends.
#[must_use]
pub fn encode(message: &impl Message) -> Vec<u8> {
    let bytes = postcard::to_extend(message, vec![0; HEADER_BYTES])
        .expect("a message of integers, strings and lists always has a postcard form");
    let length = bytes.len() - HEADER_BYTES;
    assert!(length <= FRAME_BYTES_MAX as usize, "a frame of {length} bytes");
    let mut bytes = bytes;
    bytes[..HEADER_BYTES].copy_from_slice(&(length as u32).to_le_bytes());
    bytes
}

/// Puts a peer's bytes together to messages.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    /// How many of `bytes` were given out as messages.
    used: usize,
    fds: VecDeque<OwnedFd>,
}

impl Decoder {
    /// Takes what one receive gave.
    ///
    /// # Errors
    /// [`FrameError::TooManyDescriptors`].
    pub fn push(
        &mut self,
        bytes: &[u8],
        fds: impl IntoIterator<Item = OwnedFd>,
    ) -> Result<(), FrameError> {
        self.bytes.drain(..std::mem::take(&mut self.used));
        self.bytes.extend_from_slice(bytes);
        self.fds.extend(fds);
        if self.fds.len() > FDS_MAX {
            self.fds.clear();
            return Err(FrameError::TooManyDescriptors);
        }
        Ok(())
    }

    /// Whether there are descriptors of a message that has not come whole, or of none.
    #[must_use]
    pub fn holds_descriptors(&self) -> bool {
        !self.fds.is_empty()
    }

    /// The next whole message, with its descriptors; `None` until more bytes come.
    ///
    /// # Errors
    /// A [`FrameError`] if the bytes cannot become a message.
    pub fn pop<M: Message>(&mut self) -> Result<Option<(M, Vec<OwnedFd>)>, FrameError> {
        let Some((header, rest)) = self.bytes[self.used..].split_first_chunk::<HEADER_BYTES>()
        else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*header);
        if length == 0 || length > FRAME_BYTES_MAX {
            return Err(FrameError::Length { bytes: length });
        }
        let Some(frame) = rest.get(..length as usize) else {
            return Ok(None);
        };
        let (message, left) =
            postcard::take_from_bytes::<M>(frame).map_err(|_| FrameError::Malformed)?;
        if !left.is_empty() {
            return Err(FrameError::Malformed);
        }
        let (needed, came) = (message.descriptors(), self.fds.len());
        if came < needed {
            return Err(FrameError::Descriptors { needed, came });
        }
        self.used += HEADER_BYTES + length as usize;
        Ok(Some((message, self.fds.drain(..needed).collect())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{Region, StoreId, VERSION};
    use bindery_units::{HostAddress, PageIndex, PageRange};
    use proptest::prelude::*;

    fn pipe_ends(count: usize) -> Vec<OwnedFd> {
        (0..count).map(|_| std::io::pipe().unwrap().0.into()).collect()
    }

    fn range() -> impl Strategy<Value = PageRange> {
        (any::<u32>(), any::<u32>())
            .prop_map(|(first, count)| PageRange { first: PageIndex(first), count })
    }

    fn message() -> impl Strategy<Value = FromShim> {
        let hello =
            (
                any::<u64>(),
                any::<Option<String>>(),
                any::<Option<String>>(),
                any::<String>(),
                prop::collection::vec(any::<u8>().prop_map(StoreId), 0..=8),
            )
                .prop_map(|(instance, name, domain, command, stores)| {
                    FromShim::Hello { version: VERSION, instance, name, domain, command, stores }
                });
        let added = (range(), any::<usize>()).prop_map(|(pages, address)| {
            let address = HostAddress(address);
            FromShim::RegionAdded(Region { pages, address })
        });
        prop_oneof![
            hello,
            added,
            range().prop_map(FromShim::RegionRemoved),
            any::<u32>().prop_map(|number| FromShim::Withdrawn { number }),
            (prop::collection::vec(any::<u8>(), 0..9), any::<u64>())
                .prop_map(|(token, missing_pages)| FromShim::SourceLost { token, missing_pages }),
            Just(FromShim::Released)
        ]
    }

    proptest! {
        /// However a stream is cut, the messages that come out are those that went in.
        #[test]
        fn messages_survive_any_cut(
            messages in prop::collection::vec(message(), 1..6),
            cuts in prop::collection::vec(1usize..40, 1..64),
        ) {
            let mut decoder = Decoder::default();
            let (mut decoded, mut cuts) = (Vec::new(), cuts.into_iter().cycle());
            for message in &messages {
                let bytes = encode(message);
                let (mut rest, mut fds) = (&bytes[..], pipe_ends(message.descriptors()));
                while !rest.is_empty() {
                    let cut = cuts.next().unwrap().min(rest.len());
                    decoder.push(&rest[..cut], fds.drain(..)).unwrap();
                    rest = &rest[cut..];
                    while let Some((got, fds)) = decoder.pop::<FromShim>().unwrap() {
                        prop_assert_eq!(fds.len(), got.descriptors());
                        decoded.push(got);
                    }
                }
            }
            prop_assert_eq!(decoded, messages);
        }

        /// Nonsense ends in an error or in waiting for more, never in a panic.
        #[test]
        fn nonsense_never_panics(
            bytes in prop::collection::vec(any::<u8>(), 0..512),
            fds in 0usize..12,
        ) {
            let mut decoder = Decoder::default();
            if decoder.push(&bytes, pipe_ends(fds)).is_ok() {
                while let Ok(Some(_)) = decoder.pop::<FromDaemon>() {}
                while let Ok(Some(_)) = decoder.pop::<FromShim>() {}
            } else {
                prop_assert!(fds > FDS_MAX);
            }
        }

        /// So do frames of the right length with anything inside, and messages with a byte changed.
        #[test]
        fn damaged_messages_never_panic(message in message(), at in any::<usize>(), to: u8) {
            let mut bytes = encode(&message);
            let at = HEADER_BYTES + at % (bytes.len() - HEADER_BYTES);
            bytes[at] = to;
            let mut decoder = Decoder::default();
            decoder.push(&bytes, pipe_ends(FDS_MAX)).unwrap();
            let _ = decoder.pop::<FromShim>();
        }
    }

    #[test]
    fn wrong_lengths_and_descriptors_are_named() {
        let mut decoder = Decoder::default();
        decoder.push(&(FRAME_BYTES_MAX + 1).to_le_bytes(), []).unwrap();
        let expected = FrameError::Length { bytes: FRAME_BYTES_MAX + 1 };
        assert_eq!(decoder.pop::<FromShim>().unwrap_err(), expected);

        let mut decoder = Decoder::default();
        decoder.push(&encode(&FromDaemon::OpenLane), pipe_ends(1)).unwrap();
        let expected = FrameError::Descriptors { needed: 2, came: 1 };
        assert_eq!(decoder.pop::<FromDaemon>().unwrap_err(), expected);

        let mut decoder = Decoder::default();
        let mut bytes = encode(&FromDaemon::Release);
        bytes[0] += 1;
        bytes.push(0);
        decoder.push(&bytes, []).unwrap();
        assert_eq!(decoder.pop::<FromDaemon>().unwrap_err(), FrameError::Malformed);
    }
}
