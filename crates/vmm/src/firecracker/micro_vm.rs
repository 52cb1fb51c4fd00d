//! Arrival of a microVM: who connected, its userfaultfd and its memory.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use bindery_sys::pidfd::PeerProcess;
use bindery_sys::socket::{self, Peer};
use bindery_sys::userfault::PeerUserfault;

use super::filling::{Served, ServingError};
use super::regions::{GuestRegion, MESSAGE_BYTES_MAX, RegionError, decode_regions};
use super::serving::{Step, serve};

/// Time in which a message must have come.
const PATIENCE: Duration = Duration::from_secs(5);

/// Error of a microVM that connected. It is left alone, and waits for its memory until it is ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The peer is of another user than the socket is for.
    #[error("process {pid} is of user {uid}, and the socket is for user {allowed}")]
    OtherUser {
        /// Process that connected.
        pid: i32,
        /// User of it.
        uid: u32,
        /// User that may connect.
        allowed: u32,
    },
    /// The message did not come in time, or not all of it.
    #[error("no whole message came within {} s", PATIENCE.as_secs())]
    Silent,
    /// The connection ended before all of the message had come.
    #[error("the connection ended before a message had come")]
    HungUp,
    /// The message came with no descriptor, or with several.
    #[error("the message came with {0} descriptors: one is wanted, the userfaultfd")]
    Descriptors(usize),
    /// The descriptor is something else.
    #[error("the descriptor that came is no userfaultfd")]
    NoUserfault,
    /// The message is longer than any that makes sense.
    #[error("the message is longer than {MESSAGE_BYTES_MAX} bytes")]
    TooLong,
    /// The message makes no sense, or is about the memory of another snapshot.
    #[error(transparent)]
    Regions(#[from] RegionError),
    /// A call to the kernel failed.
    #[error("receiving its message: {0}")]
    Kernel(#[from] io::Error),
}

/// A microVM whose faults are to be served.
#[derive(Debug)]
pub struct MicroVm {
    pub(super) peer: Peer,
    /// The process; none where the kernel cannot name it: then the end of the connection counts.
    pub(super) process: Option<PeerProcess>,
    pub(super) socket: OwnedFd,
    pub(super) faults: PeerUserfault,
    pub(super) regions: Vec<GuestRegion>,
}

impl MicroVm {
    /// Takes in the message of a microVM that has connected, whose memory file has `memory_bytes` bytes. Waits for
    /// five seconds at most.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub fn receive(
        connection: OwnedFd,
        memory_bytes: u64,
        allowed: u32,
    ) -> Result<Self, HandshakeError> {
        let peer = socket::peer(&connection)?;
        let Peer { pid, uid, .. } = peer;
        if uid != allowed {
            return Err(HandshakeError::OtherUser { pid, uid, allowed });
        }
        // Before Linux 6.5 by its number, which is its own as long as it is connected.
        let process = PeerProcess::of(&connection).or_else(|_| PeerProcess::of_pid(pid)).ok();
        let (regions, descriptor) = read_message(&connection, memory_bytes)?;
        let faults = PeerUserfault::new(descriptor)?.ok_or(HandshakeError::NoUserfault)?;
        Ok(Self { peer, process, socket: connection, faults, regions })
    }

    /// Returns the process, as this one knows it; 0 if that is not known.
    #[must_use]
    pub const fn pid(&self) -> i32 {
        self.peer.pid
    }

    /// Returns the length of its memory, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.regions.iter().map(|region| region.bytes).sum()
    }

    /// Serves its faults until its process has ended. `open` opens a source of the pages of its memory file, and
    /// returns the socket that it is asked over, or why there is none; called again if a source is lost. `report`
    /// hears what happens. Blocks.
    ///
    /// # Errors
    /// [`ServingError`]; the microVM waits for memory that does not come then.
    pub fn serve(
        self,
        open: &mut dyn FnMut() -> Result<OwnedFd, String>,
        report: &mut dyn FnMut(Step),
    ) -> Result<Served, ServingError> {
        serve(self, open, report)
    }
}

/// Reads the one message of a stream, and what came with it.
fn read_message(
    connection: &OwnedFd,
    memory_bytes: u64,
) -> Result<(Vec<GuestRegion>, OwnedFd), HandshakeError> {
    let begun = Instant::now();
    let (mut message, mut descriptors) = (Vec::new(), Vec::new());
    let mut piece = vec![0; MESSAGE_BYTES_MAX];
    loop {
        let left = PATIENCE.saturating_sub(begun.elapsed());
        if !socket::wait_readable(connection, left)? {
            return Err(HandshakeError::Silent);
        }
        let count = socket::receive(connection, &mut piece, &mut descriptors)?;
        if count == 0 {
            return Err(HandshakeError::HungUp);
        }
        message.extend_from_slice(&piece[..count]);
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(HandshakeError::TooLong);
        }
        let regions = match decode_regions(&message, memory_bytes) {
            Err(error) if error.is_cut_off() => continue,
            regions => regions?,
        };
        let (descriptor, others) = (descriptors.pop(), descriptors.len());
        return match descriptor {
            Some(descriptor) if others == 0 => Ok((regions, descriptor)),
            descriptor => {
                Err(HandshakeError::Descriptors(others + usize::from(descriptor.is_some())))
            }
        };
    }
}
