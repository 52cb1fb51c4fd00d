//! Memory of checkpoints that operators ask for page by page, in the place of guests without the library.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use bindery_guest::SourceLink;
use bindery_sys::thread::spawn_without_signals;
use bindery_vmm::firecracker;

use super::catalogue::Visible;
use super::content::Content;
use super::sources::Sources;
use super::{Lease, failed};
use crate::protocol::{Failure, FailureKind};

/// Memory that an operator wants to ask for.
pub(crate) struct Serve {
    pub(crate) checkpoint: Visible,
    /// End of the pair of sockets that it is asked over.
    pub(crate) socket: OwnedFd,
    /// True if pages are sent when they are asked for alone.
    pub(crate) is_lazy: bool,
    /// User of the operator.
    pub(crate) uid: u32,
}

/// Begins to send memory, on a thread of its own. Returns the length of all of it, in bytes.
///
/// # Errors
/// `Refused` if the checkpoint is of no Firecracker, `Damaged` if its manifest cannot be read, `Busy` if too much is
/// sent already, `Failed`.
pub(crate) fn serve(lease: Lease, sources: &Arc<Sources>, serve: Serve) -> Result<u64, Failure> {
    let Serve { checkpoint, socket, is_lazy, uid } = serve;
    let content = Content::open(lease, checkpoint.summary.id)?;
    let description = &content.image.reader().manifest().description;
    let [memory] = description.blocks.as_slice() else {
        return Err(refused(&description.vmm.kind));
    };
    if description.vmm.kind != firecracker::KIND {
        return Err(refused(&description.vmm.kind));
    }
    let memory_bytes = memory.bytes;
    let mark = sources.mark_asked(&content, uid)?;
    let name = checkpoint.name().to_string();
    let started = spawn_without_signals("source", move || match SourceLink::over(socket) {
        Ok(link) => {
            mark.set_handle(link.handle());
            content.serve_asked(link, &name, is_lazy);
        }
        Err(error) => tracing::warn!(checkpoint = name, "an operator asks for no memory: {error}"),
    });
    let message = "cannot start the thread that sends memory";
    started.map_err(|error| failed(format!("{message}: {error}")))?;
    Ok(memory_bytes)
}

fn refused(kind: &str) -> Failure {
    let kind = bindery_guest::printable(kind);
    let message = format!(
        "the checkpoint is of a {kind:?}, not of a Firecracker: `bindery checkpoint import-memory` makes one of its \
         snapshots, and `bindery restore` is for QEMU"
    );
    Failure::new(FailureKind::Refused, message)
}
