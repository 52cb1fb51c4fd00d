//! A disk as a file system in user space of one file: what it holds is in memory, and each answer comes when
//! the device would give it.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, UNIX_EPOCH};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyWrite,
    Request, WriteFlags,
};

use super::service::{Rates, Service};

/// What the one file is called.
pub(super) const FILE: &str = "disk";

const DISK: INodeNo = INodeNo(2);

/// The kernel cuts longer requests.
const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// As many requests as the kernel's loop device has at a time.
const REQUESTS_MAX: u16 = 128;

/// Nothing but this changes anything: the kernel may keep what it is told.
const FOR_LONG: Duration = Duration::from_secs(1 << 20);

/// A request that waits, and its answer.
enum Answer {
    Read(ReplyData, Vec<u8>),
    Written(ReplyWrite, u32),
    Done(ReplyEmpty),
}

impl Answer {
    fn bytes(&self) -> u64 {
        match self {
            Self::Read(_, data) => data.len() as u64,
            Self::Written(_, bytes) => u64::from(*bytes),
            Self::Done(_) => 0,
        }
    }

    fn give(self) {
        match self {
            Self::Read(reply, data) => reply.data(&data),
            Self::Written(reply, bytes) => reply.written(bytes),
            Self::Done(reply) => reply.ok(),
        }
    }
}

/// What waits, between those who ask and the thread that answers.
struct Queue {
    began: Instant,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    service: Service<Answer>,
    has_ended: bool,
}

/// The file system.
pub(super) struct Disk {
    content: File,
    bytes: u64,
    is_held: Arc<AtomicBool>,
    queue: Arc<Queue>,
}

impl Disk {
    /// A disk of so many bytes, all zero, and the thread that answers for it until the disk is gone. While
    /// `is_held` is false, it answers at once.
    pub(super) fn new(
        bytes: u64,
        rates: Rates,
        is_held: Arc<AtomicBool>,
    ) -> io::Result<(Self, JoinHandle<()>)> {
        let memory = rustix::fs::memfd_create("bindery-medium", rustix::fs::MemfdFlags::CLOEXEC)?;
        let content = File::from(memory);
        content.set_len(bytes)?;
        let state = Mutex::new(State { service: Service::new(rates), has_ended: false });
        let queue = Arc::new(Queue { began: Instant::now(), state, changed: Condvar::new() });
        let theirs = Arc::clone(&queue);
        let name = thread::Builder::new().name("medium".into());
        let thread = name.spawn(move || theirs.answer())?;
        Ok((Self { content, bytes, is_held, queue }, thread))
    }

    fn answer(&self, came: Instant, answer: Answer) {
        match self.is_held.load(Ordering::Relaxed) {
            true => self.queue.admit(came, answer),
            false => answer.give(),
        }
    }

    fn attributes(&self, node: INodeNo) -> FileAttr {
        let is_disk = node == DISK;
        let (kind, perm, size) = match is_disk {
            true => (FileType::RegularFile, 0o600, self.bytes),
            false => (FileType::Directory, 0o700, 0),
        };
        FileAttr {
            ino: node,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.queue.state().has_ended = true;
        self.queue.changed.notify_one();
    }
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        // It is changed by arithmetic alone.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admit(&self, came: Instant, answer: Answer) {
        let mut state = self.state();
        let before = state.service.next();
        let came = came.saturating_duration_since(self.began);
        state.service.admit(came, answer.bytes(), answer);
        let after = state.service.next();
        drop(state);
        // Else the one who answers is up in time by himself.
        if before.is_none_or(|before| after.is_some_and(|after| after < before)) {
            self.changed.notify_one();
        }
    }

    /// Gives each answer when it is due.
    fn answer(&self) {
        let mut state = self.state();
        while !state.has_ended {
            let answered = state.service.answered(self.began.elapsed());
            if !answered.is_empty() {
                drop(state);
                answered.into_iter().for_each(Answer::give);
                state = self.state();
                continue;
            }
            let next = state.service.next();
            let pause = next.map_or(FOR_LONG, |next| next.saturating_sub(self.began.elapsed()));
            let waited = self.changed.wait_timeout(state, pause);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Filesystem for Disk {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let refused = |_| io::Error::other("the kernel's FUSE cannot do what a disk must");
        config.add_capabilities(InitFlags::FUSE_ASYNC_DIO).map_err(refused)?;
        config.set_max_write(REQUEST_BYTES_MAX).map_err(|_| io::Error::other("max_write"))?;
        config.set_max_background(REQUESTS_MAX).map_err(|_| io::Error::other("max_background"))?;
        Ok(())
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name == FILE {
            true => reply.entry(&FOR_LONG, &self.attributes(DISK), Generation(0)),
            false => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(
        &self,
        _request: &Request,
        node: INodeNo,
        _file: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        reply.attr(&FOR_LONG, &self.attributes(node));
    }

    fn read(
        &self,
        _request: &Request,
        _node: INodeNo,
        _file: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let came = Instant::now();
        let mut data = vec![0; size as usize];
        match self.content.read_exact_at(&mut data, offset) {
            Ok(()) => self.answer(came, Answer::Read(reply, data)),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn write(
        &self,
        _request: &Request,
        _node: INodeNo,
        _file: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let came = Instant::now();
        match self.content.write_all_at(data, offset) {
            Ok(()) => self.answer(came, Answer::Written(reply, data.len() as u32)),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn flush(
        &self,
        _request: &Request,
        _node: INodeNo,
        _file: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    /// Only what was answered before must be durable, and there is nothing that is not.
    fn fsync(
        &self,
        _request: &Request,
        _node: INodeNo,
        _file: FileHandle,
        _only_data: bool,
        reply: ReplyEmpty,
    ) {
        self.answer(Instant::now(), Answer::Done(reply));
    }
}
