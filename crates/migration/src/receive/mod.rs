//! The receiving side of the stream.

mod apply;
mod device_state;
mod frames;
mod rounds;
mod target;

pub use apply::{Applied, Applier};
pub use device_state::{DEVICE_STATE_BYTES_MAX, DeviceStatePieces};
pub use frames::{FrameReader, ReceiveError};
pub use rounds::{RoundBarrier, Rounds};
pub use target::Target;
