//! The asking end of a source, for memory that is another process's.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use bindery_sys::memfd;
use bindery_sys::socket::{receive, send, send_now, wait_readable};
use bindery_units::{PAGE_BYTES, PageIndex, PageRange};
use bindery_wire::source::{
    FromGuest, FromSource, GuestWord, LACKS_GAP_PAGES, SLOT_BYTES, SourceWord, WINDOW_BYTES,
};
use zerocopy::IntoBytes;

use super::missing::Missing;

/// Time in which a source sends its window.
const PATIENCE: Duration = Duration::from_secs(30);

/// A source that pages are asked from.
#[derive(Debug)]
pub(super) struct PageLink {
    socket: OwnedFd,
    window: File,
    /// Frames that the source has not taken yet.
    unsent: VecDeque<FromGuest>,
}

impl PageLink {
    /// Waits for the window, and says what is missing.
    ///
    /// # Errors
    /// The kernel's; `UnexpectedEof` if the source hangs up, `InvalidData` if it sends nonsense.
    pub(super) fn begin(socket: OwnedFd, missing: &Missing) -> io::Result<Self> {
        if !wait_readable(&socket, PATIENCE)? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut descriptors = Vec::new();
        if receive(&socket, &mut [0; 1], &mut descriptors)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let window = descriptors.pop().map(File::from);
        let window = window.filter(|window| memfd::is_fixed(window, WINDOW_BYTES as u64));
        let window = window.ok_or_else(|| nonsense("a source without a window"))?;
        for run in missing.runs(LACKS_GAP_PAGES) {
            send(&socket, FromGuest::about(GuestWord::Lacks, run).as_bytes(), &[])?;
        }
        send(&socket, FromGuest::of(GuestWord::Bound, 0).as_bytes(), &[])?;
        Ok(Self { socket, window, unsent: VecDeque::new() })
    }

    /// Asks for a page that somebody waits for.
    pub(super) fn ask(&mut self, page: PageIndex) {
        let fault = FromGuest::about(GuestWord::Fault, PageRange::new(page, 1));
        self.unsent.push_back(fault);
    }

    /// Says that nothing more is wanted, and hangs up. A source that is behind is not waited for.
    pub(super) fn complete(self) {
        let _ = send_now(&self.socket, FromGuest::of(GuestWord::Complete, 0).as_bytes(), &[]);
    }

    /// Sends what can be sent now. Returns true if that was all.
    ///
    /// # Errors
    /// The kernel's, if the source has gone.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        while let Some(frame) = self.unsent.front() {
            match send_now(&self.socket, frame.as_bytes(), &[]) {
                Ok(_) => drop(self.unsent.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Reads a frame, if there is one, and the pages that it is about, into `content` if they have any.
    ///
    /// # Errors
    /// The kernel's; `UnexpectedEof` if the source hung up, `InvalidData` if it sends nonsense.
    pub(super) fn read(
        &mut self,
        content: &mut Vec<u8>,
    ) -> io::Result<Option<(SourceWord, PageRange)>> {
        if !wait_readable(&self.socket, Duration::ZERO)? {
            return Ok(None);
        }
        let mut bytes = [0; size_of::<FromSource>() + 1];
        let count = receive(&self.socket, &mut bytes, &mut Vec::new())?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let frame = FromSource::read(&bytes[..count]);
        let (frame, pages) = frame.ok_or_else(|| nonsense("a frame that makes no sense"))?;
        if frame.word == SourceWord::Pages {
            content.resize(pages.count as usize * PAGE_BYTES, 0);
            self.window.read_exact_at(content, u64::from(frame.slot) * SLOT_BYTES as u64)?;
            self.unsent.push_back(FromGuest::of(GuestWord::Taken, frame.slot));
        }
        Ok(Some((frame.word, pages)))
    }
}

impl AsFd for PageLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn nonsense(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
