//! Unix sockets that carry descriptors.
//!
//! Two kinds: streams for control connections, `SOCK_SEQPACKET` pairs for lanes. Everything made
//! here is close-on-exec, and no send raises `SIGPIPE`: the shim may not disturb its host's
//! signals. The calls go to the kernel directly (rustix's raw backend), so that they never come
//! back through the symbols that the shim interposes.
//!
//! Calls block unless the socket was made non-blocking or a flag says otherwise; calls interrupted
//! by a signal are repeated.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType, accept_with, bind, connect as connect_to, listen as listen_on, recv, recvmsg,
    sendmsg, socket_with, socketpair,
};

/// The most descriptors that one message may carry, but for those that [`receive_many`] takes.
pub const FDS_MAX: usize = 8;

/// The most descriptors that the kernel lets one message carry: `SCM_MAX_FD` (net/scm.h).
pub const FDS_MAX_OF_KERNEL: usize = 253;

/// The most descriptors that [`wait_any_readable`] takes: it may run where nothing may be
/// allocated.
pub const WAIT_MAX: usize = 8;

/// Interval at which [`connect_within`] looks for room in a listener's backlog.
const BACKLOG_POLL: Duration = Duration::from_millis(2);

/// Who is at the other end of a connection, as the kernel saw it when the connection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its process, in our PID namespace.
    pub pid: i32,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

/// Connects to the stream socket at `path`. Blocks while the listener's backlog is full.
///
/// # Errors
/// The kernel's: `NotFound` and `ConnectionRefused` mean that nobody listens there;
/// `InvalidInput` that the path is longer than a socket's address (107 bytes).
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = stream()?;
    let address = address_of(path)?;
    repeat(|| connect_to(&socket, &address))?;
    Ok(socket)
}

/// Connects to the stream socket at `path` without waiting longer than `patience` for room in the
/// listener's backlog. The socket is non-blocking.
///
/// # Errors
/// As [`connect`]; `TimedOut` if the backlog stayed full, as that of a listener that hangs does.
pub fn connect_within(path: &Path, patience: Duration) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let (address, start) = (address_of(path)?, Instant::now());
    loop {
        // There is nothing to poll for: unix(7) says EAGAIN, and the socket stays unconnected.
        match repeat(|| connect_to(&socket, &address)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let left = patience.saturating_sub(start.elapsed());
                if left.is_zero() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                std::thread::sleep(left.min(BACKLOG_POLL));
            }
            result => return result.map(|()| socket),
        }
    }
}

/// Binds a stream socket to `path` and listens there, with up to `backlog` connections waiting.
///
/// # Errors
/// The kernel's: `AddrInUse` if the path exists (a live listener or one left behind; try
/// [`connect`] to tell them apart).
pub fn listen(path: &Path, backlog: i32) -> io::Result<OwnedFd> {
    let socket = stream()?;
    bind(&socket, &address_of(path)?)?;
    listen_on(&socket, backlog)?;
    Ok(socket)
}

/// Takes the next connection of a listener.
///
/// # Errors
/// The kernel's, and `WouldBlock` for a non-blocking listener without one.
pub fn accept(listener: impl AsFd) -> io::Result<OwnedFd> {
    repeat(|| accept_with(&listener, SocketFlags::CLOEXEC))
}

/// Two connected sockets that keep message boundaries: the two ends of a lane.
///
/// # Errors
/// The kernel's, when descriptors or memory are short.
pub fn seqpacket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Two connected stream sockets: a control connection within one process.
///
/// # Errors
/// The kernel's, when descriptors or memory are short.
pub fn stream_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// Sends one message, or as much of a stream's bytes as the kernel takes at once, and with its
/// first byte the descriptors. Returns the bytes taken.
///
/// # Errors
/// `BrokenPipe` or `ConnectionReset` if the other end is gone; `WouldBlock` on a non-blocking
/// socket that is full; otherwise the kernel's.
///
/// # Panics
/// With more than [`FDS_MAX_OF_KERNEL`] descriptors, or with descriptors and no byte to carry them.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    transmit(socket.as_fd(), bytes, fds, SendFlags::NOSIGNAL)
}

/// [`send`], but never blocks: `WouldBlock` if the kernel takes nothing now.
///
/// # Errors
/// Those of [`send`].
///
/// # Panics
/// Those of [`send`].
pub fn send_now(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    transmit(socket.as_fd(), bytes, fds, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

/// Sends all of `bytes` over a stream, with its first byte the descriptors.
///
/// # Errors
/// Those of [`send`]. `TimedOut` if the other end has not taken all of it after `patience`, however
/// steadily it reads. After an error the stream may have been left in the middle of a message and is
/// of no further use.
///
/// # Panics
/// Those of [`send`].
pub fn send_all(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    patience: Duration,
) -> io::Result<()> {
    let (mut rest, mut fds) = (bytes, fds);
    let start = Instant::now();
    while !rest.is_empty() {
        match send_now(&socket, rest, fds) {
            Ok(taken) => {
                rest = &rest[taken..];
                fds = &[];
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let left = patience.saturating_sub(start.elapsed());
                if left.is_zero() || !wait_writable(&socket, left)? {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn transmit(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<usize> {
    const MOST: usize = FDS_MAX_OF_KERNEL;
    assert!(fds.len() <= MOST, "a message carries at most {MOST} descriptors");
    assert!(fds.is_empty() || !bytes.is_empty(), "descriptors travel with a byte");
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    repeat(|| {
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            let pushed = control.push(SendAncillaryMessage::ScmRights(fds));
            assert!(pushed, "the space was measured for {MOST} descriptors");
        }
        sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)
    })
}

/// Receives one message, or what a stream has, into `bytes`; descriptors that came with it are
/// added to `fds`, close-on-exec. Returns the bytes received; 0 is the end of the connection.
///
/// # Errors
/// `InvalidData` if the peer's message was longer than `bytes`, or if descriptors were lost: more
/// than [`FDS_MAX`], or no room in our table of open files (those that did come are closed).
/// `WouldBlock` on a non-blocking socket with nothing to read; otherwise the kernel's.
pub fn receive(socket: impl AsFd, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let (received, arrived) = receive_into(socket.as_fd(), bytes, &mut space)?;
    // The space rounds up to whole words and may hold one descriptor more: count them.
    if arrived.lost_descriptors || received.len() > FDS_MAX {
        return Err(invalid("descriptors were lost: the peer sent too many, or RLIMIT_NOFILE"));
    }
    fds.extend(received);
    Ok(arrived.bytes)
}

/// One message, as [`receive_many`] took it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Number of bytes; 0 is the end of the connection.
    pub bytes: usize,
    /// True if not all descriptors of the message came: there was no room in our table of open files.
    pub lost_descriptors: bool,
}

/// [`receive`], for messages with as many descriptors as the kernel lets them have. What is short in this
/// process is no error of the peer's, so it is no error here.
///
/// # Errors
/// Those of [`receive`], lost descriptors apart.
pub fn receive_many(
    socket: impl AsFd,
    bytes: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<Arrived> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX_OF_KERNEL))];
    let (received, arrived) = receive_into(socket.as_fd(), bytes, &mut space)?;
    fds.extend(received);
    Ok(arrived)
}

fn receive_into(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    space: &mut [MaybeUninit<u8>],
) -> io::Result<(Vec<OwnedFd>, Arrived)> {
    let mut control = RecvAncillaryBuffer::new(space);
    let message = repeat(|| {
        recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut received = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            received.extend(rights);
        }
    }
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Err(invalid("the peer's message is longer than any that is agreed on"));
    }
    let lost_descriptors = message.flags.contains(ReturnFlags::CTRUNC);
    Ok((received, Arrived { bytes: message.bytes, lost_descriptors }))
}

/// What a stream has, into the start of `bytes`, without taking it: bytes and descriptors are still
/// there for [`receive`]. Blocks until there is something; 0 is the end of the connection.
///
/// # Errors
/// Those of [`receive`], descriptors apart.
pub fn peek(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<usize> {
    let (_, count) = repeat(|| recv(&socket, &mut *bytes, RecvFlags::PEEK))?;
    Ok(count)
}

/// Ends a connection for all who hold a descriptor of it: waiting and later receives find its end,
/// sends fail. What was received already can still be read.
///
/// # Errors
/// The kernel's, if `socket` is not a connected socket.
pub fn shutdown(socket: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::shutdown(socket, Shutdown::Both)?)
}

/// Has nobody send descriptors to `socket` any more: a send that carries some fails there (`EPERM`). Those
/// that were sent before still come. False before Linux 6.16, which cannot.
///
/// For those who may not wait for a stranger: whoever is the last to close what one sent may wait for as
/// long as its maker likes, and so may whoever closes a socket in which it was left.
///
/// # Errors
/// The kernel's, if `socket` is not a Unix socket.
pub fn refuse_descriptors(socket: impl AsFd) -> io::Result<bool> {
    // <asm-generic/socket.h>
    const SO_PASSRIGHTS: libc::c_int = 83;
    let no: libc::c_int = 0;
    // SAFETY: the pointer is to a live local of the size that is given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const no).cast(),
            size_of_val(&no) as libc::socklen_t,
        )
    };
    if result == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(false),
        error => Err(error),
    }
}

/// Who is at the other end of a connected Unix socket.
///
/// # Errors
/// The kernel's, if `socket` is not a Unix socket.
pub fn peer(socket: impl AsFd) -> io::Result<Peer> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // Not rustix: its type has no room for pid 0, which is what the kernel answers for a peer in a
    // PID namespace that we cannot see.
    // SAFETY: both pointers are to live locals, and `bytes` is the first one's size.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut bytes,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Peer { pid: credentials.pid, uid: credentials.uid, gid: credentials.gid })
}

/// The supplementary groups of whoever is at the other end of a connected Unix socket, as the kernel
/// saw them when the connection was made. Its effective group ([`Peer::gid`]) need not be among them.
///
/// # Errors
/// The kernel's: `ENOPROTOOPT` before Linux 4.13; if `socket` is not a Unix socket.
pub fn peer_groups(socket: impl AsFd) -> io::Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut bytes = size_of_val(groups.as_slice()) as libc::socklen_t;
        // SAFETY: the kernel writes at most `bytes` bytes to the vector, which has as many, and to
        // `bytes` itself; any bytes are group numbers.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let count = bytes as usize / size_of::<libc::gid_t>();
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // Too small: the kernel says how much it takes (sk_getsockopt, 28b5ba2aa0f5).
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

/// Waits until one of `fds` has something to read or is in error, for at most `patience` (`None`:
/// for ever). Sets `ready[i]` for `fds[i]` and returns how many are ready: 0 after `patience`.
///
/// # Errors
/// The kernel's, when memory is short.
///
/// # Panics
/// If the slices differ in length or have more than [`WAIT_MAX`] elements.
pub fn wait_any_readable(
    fds: &[BorrowedFd<'_>],
    ready: &mut [bool],
    patience: Option<Duration>,
) -> io::Result<usize> {
    assert_eq!(fds.len(), ready.len(), "one answer for each descriptor");
    assert!(!fds.is_empty() && fds.len() <= WAIT_MAX, "1..={WAIT_MAX} descriptors");
    let mut polled: [_; WAIT_MAX] =
        std::array::from_fn(|i| PollFd::from_borrowed_fd(fds[i.min(fds.len() - 1)], PollFlags::IN));
    let polled = &mut polled[..fds.len()];
    let count = wait(polled, patience)?;
    for (ready, polled) in ready.iter_mut().zip(polled) {
        *ready = !polled.revents().is_empty();
    }
    Ok(count)
}

/// Waits until `socket` has something to read, its end included, for at most `patience`. Returns
/// false after `patience`.
///
/// # Errors
/// The kernel's, when memory is short.
pub fn wait_readable(socket: impl AsFd, patience: Duration) -> io::Result<bool> {
    let polled = PollFd::new(&socket, PollFlags::IN);
    Ok(wait(&mut [polled], Some(patience))? > 0)
}

/// Waits until `socket` takes bytes or is in error, for at most `patience`. Returns false after
/// `patience`.
///
/// # Errors
/// The kernel's, when memory is short.
pub fn wait_writable(socket: impl AsFd, patience: Duration) -> io::Result<bool> {
    let polled = PollFd::new(&socket, PollFlags::OUT);
    Ok(wait(&mut [polled], Some(patience))? > 0)
}

fn wait(polled: &mut [PollFd<'_>], patience: Option<Duration>) -> io::Result<usize> {
    let deadline = patience.and_then(|patience| Instant::now().checked_add(patience));
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| Timespec {
            tv_sec: left.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        match poll(polled, timeout.as_ref()) {
            Err(Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}

fn stream() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

fn address_of(path: &Path) -> io::Result<SocketAddrUnix> {
    SocketAddrUnix::new(path).map_err(|error| match error {
        Errno::NAMETOOLONG => io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{} is too long for a socket's address: 107 bytes at most", path.display()),
        ),
        error => error.into(),
    })
}

fn repeat<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests;
