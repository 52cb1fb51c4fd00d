//! What a write takes its bytes from.

use std::ops::Deref;
use std::sync::Arc;

use super::Buffer;

/// Memory that nobody changes while it is written.
#[derive(Debug)]
pub enum Source {
    /// The writer's alone, which can be filled again afterwards.
    Owned(Buffer),
    /// Somebody else has it too, and can at most read it.
    Shared(Arc<Buffer>),
}

impl Deref for Source {
    type Target = Buffer;

    fn deref(&self) -> &Buffer {
        match self {
            Self::Owned(buffer) => buffer,
            Self::Shared(buffer) => buffer,
        }
    }
}

impl From<Buffer> for Source {
    fn from(buffer: Buffer) -> Self {
        Self::Owned(buffer)
    }
}

impl From<Arc<Buffer>> for Source {
    fn from(buffer: Arc<Buffer>) -> Self {
        Self::Shared(buffer)
    }
}
