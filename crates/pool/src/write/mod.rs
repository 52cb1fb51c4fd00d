//! Writing mblocks: appended to, made durable, and committed one by one or behind the writer.

mod commit;
mod committer;
mod writer;

pub use commit::CommitError;
pub use committer::Committer;
pub use writer::{AppendError, Writer};
