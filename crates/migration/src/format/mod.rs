//! The stream, byte by byte: `docs/formats/migration.md`. Pure.

mod delta;
mod error;
mod frame;
mod geometry;
mod head;
mod hello;
mod message;
mod offer;
mod write;
mod zero_runs;

pub use delta::{Delta, WORD_BYTES, encode_delta};
pub use error::FormatError;
pub use frame::{Chunk, Frame};
pub use geometry::{CHUNK_PAGES, ChunkAt, Geometry};
pub use head::{
    Codec, DESCRIPTION_BYTES_MAX, FrameHead, FrameKind, HEAD_BYTES, POST_COPY_ROUND,
    STATE_PIECE_BYTES, ZERO_RUNS_MAX, most_bytes,
};
pub use hello::{Features, HELLO_BYTES, Hello, LATEST_VERSION, LEAST_VERSION};
pub use message::{HandOverFrame, Message};
pub use offer::{
    Accepted, DIGEST_SECRET_BYTES, Join, MigrationId, Offer, OfferedBlock, OfferedDisk, OfferedVmm,
    Processor, Refusal, RefusalKind, SECRET_BYTES, Secret,
};
pub use write::{
    CHUNK_HEAD_BYTES, accepted_frame, alive_frame, bitmap_frame, chunk_head, device_state_head,
    hand_over_frame, join_frame, joined_frame, offer_frame, received_frame, refusal_frame,
    round_done_frame, round_end_frame, wanted_frame,
};
pub use zero_runs::ZeroRuns;

pub(crate) use frame::low_bits;
pub(crate) use write::zeros_head;
pub(crate) use zero_runs::{encode_runs, push_run};
