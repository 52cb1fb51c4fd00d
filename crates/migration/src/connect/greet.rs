//! Connections from the socket to the first request.

use std::io::Read;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection};

use super::error::ConnectError;
use super::identity::Policy;
use super::link::{Link, StreamReader, StreamWriter};
use super::socket::{Socket, TimedSocket};
use super::tls::TlsLink;
use crate::encode::Outlet;
use crate::format::{
    Accepted, Features, Frame, Geometry, HELLO_BYTES, Hello, Join, Offer, Refusal, accepted_frame,
    join_frame, joined_frame, offer_frame, refusal_frame,
};
use crate::receive::FrameReader;

/// Limits of time of a connection.
#[derive(Clone, Copy, Debug)]
pub struct TimeLimits {
    /// Longest time to connect, to authenticate and to say what is wanted, all together.
    pub greeting: Duration,
    /// Longest time to answer an offer: a VMM may have to be started.
    pub answer: Duration,
    /// Longest time without a byte after that. Both sides send a sign of life more often.
    pub silence: Duration,
}

impl Default for TimeLimits {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { greeting: seconds(10), answer: seconds(60), silence: seconds(15) }
    }
}

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Another daemon of this machine.
    Local,
    /// A daemon whose certificate has this name.
    Named(String),
}

/// Connection whose two sides know each other.
pub struct Greeted {
    link: Link,
    /// Reading end.
    pub reader: StreamReader,
    /// Writing end.
    pub writer: StreamWriter,
    /// The other side.
    pub peer: Peer,
    /// Version of the protocol.
    pub version: u16,
    /// Features that both have.
    pub features: Features,
    limits: TimeLimits,
}

impl std::fmt::Debug for Greeted {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = formatter.debug_struct("Greeted");
        shown.field("peer", &self.peer).field("version", &self.version).finish_non_exhaustive()
    }
}

/// First request of a connection.
#[derive(Debug)]
pub enum FirstRequest {
    /// A guest is offered.
    Offer(Box<Offer>),
    /// Another stream of a session.
    Join(Join),
}

const GREETING: &str = "greeting";

/// Connects to a destination. `host` is also the name that its certificate must have.
///
/// Blocks for [`TimeLimits::greeting`] at most.
///
/// # Errors
/// [`ConnectError`]; [`ConnectError::NotLocal`] for another machine without a policy.
pub fn dial(
    host: &str,
    port: u16,
    policy: Option<&Policy>,
    limits: &TimeLimits,
) -> Result<Greeted, ConnectError> {
    let peer = format!("{host}:{port}");
    let unreachable = |error| ConnectError::Unreachable { peer: peer.clone(), error };
    let mut failure = std::io::Error::from(std::io::ErrorKind::NotFound);
    for address in (host, port).to_socket_addrs().map_err(unreachable)? {
        if policy.is_none() && !address.ip().to_canonical().is_loopback() {
            return Err(ConnectError::NotLocal(peer));
        }
        match TcpStream::connect_timeout(&address, limits.greeting) {
            Ok(tcp) => return greet(Socket::Tcp(tcp), Side::Source(host), policy, limits),
            Err(error) => failure = error,
        }
    }
    Err(unreachable(failure))
}

/// Greets a destination of this machine over a Unix socket.
///
/// # Errors
/// [`ConnectError`].
pub fn dial_local(unix: UnixStream, limits: &TimeLimits) -> Result<Greeted, ConnectError> {
    greet(Socket::Unix(unix), Side::Source(""), None, limits)
}

/// Greets a source that has connected by TCP. Without a policy, only this machine is accepted.
///
/// # Errors
/// [`ConnectError`]. The peer hears of it where the protocol allows.
pub fn accept(
    tcp: TcpStream,
    policy: Option<&Policy>,
    limits: &TimeLimits,
) -> Result<Greeted, ConnectError> {
    let address = tcp.peer_addr().map_err(|error| ConnectError::Io { doing: GREETING, error })?;
    if policy.is_none() && !address.ip().to_canonical().is_loopback() {
        return Err(ConnectError::NotLocal(address.to_string()));
    }
    greet(Socket::Tcp(tcp), Side::Destination, policy, limits)
}

/// Greets a source of this machine over a Unix socket. Who may connect is up to the socket's mode.
///
/// # Errors
/// [`ConnectError`].
pub fn accept_local(unix: UnixStream, limits: &TimeLimits) -> Result<Greeted, ConnectError> {
    greet(Socket::Unix(unix), Side::Destination, None, limits)
}

#[derive(Clone, Copy)]
enum Side<'a> {
    /// Name of the destination.
    Source(&'a str),
    Destination,
}

fn greet(
    socket: Socket,
    side: Side<'_>,
    policy: Option<&Policy>,
    limits: &TimeLimits,
) -> Result<Greeted, ConnectError> {
    let of_io = |error| ConnectError::of_io(GREETING, limits.greeting.as_secs(), error);
    let socket = TimedSocket::new(socket, limits.silence).map_err(of_io)?;
    socket.set_deadline(Some(limits.greeting)).map_err(of_io)?;
    let (link, peer) = match policy {
        None => (Link::Plain(socket), Peer::Local),
        Some(policy) => authenticate(socket, side, policy, limits)?,
    };
    let (mut reader, mut writer) = (link.reader(), link.writer());
    let own = Hello::default();
    writer.send(&[&own.encode()]).map_err(of_io)?;
    let mut bytes = [0; HELLO_BYTES];
    reader.read_exact(&mut bytes).map_err(of_io)?;
    let (version, features) = own.agree(&Hello::decode(&bytes)?)?;
    Ok(Greeted { link, reader, writer, peer, version, features, limits: *limits })
}

/// Shakes hands by TLS, and looks at who the peer is.
fn authenticate(
    socket: TimedSocket,
    side: Side<'_>,
    policy: &Policy,
    limits: &TimeLimits,
) -> Result<(Link, Peer), ConnectError> {
    let session = match side {
        Side::Source(host) => {
            let name = ServerName::try_from(host.to_owned()).map_err(|_| {
                ConnectError::PeerCertificate(format!(
                    "{host} is no name that a certificate can have"
                ))
            })?;
            ClientConnection::new(policy.client(), name).map(Into::into)
        }
        Side::Destination => ServerConnection::new(policy.server()).map(Into::into),
    };
    let session = session.map_err(ConnectError::of_tls)?;
    let of_io = |error| ConnectError::of_io("authenticating", limits.greeting.as_secs(), error);
    let tls = TlsLink::shake_hands(session, socket.clone()).map_err(of_io)?;
    let peer = match side {
        Side::Source(host) => Peer::Named(host.to_owned()),
        Side::Destination => {
            let certificate =
                tls.peer_certificate().ok_or(ConnectError::Unexpected("a certificate"))?;
            match policy.admit(&certificate) {
                Ok(name) => Peer::Named(name),
                Err(error) => {
                    refuse(&Link::Tls(tls, socket), &error);
                    return Err(error);
                }
            }
        }
    };
    Ok((Link::Tls(tls, socket), peer))
}

/// Says why a peer that has a good certificate is refused.
fn refuse(link: &Link, error: &ConnectError) {
    let reason =
        "this host's migrate_from has no name of your certificate; its log has details".into();
    let refusal = Refusal { kind: crate::format::RefusalKind::Policy, reason };
    let frame = refusal_frame(&refusal);
    // The error is reported anyway.
    _ = link.writer().send(&[&Hello::default().encode(), &frame]);
    debug_assert!(matches!(error, ConnectError::NotAllowed { .. }), "others are TLS's");
}

impl Greeted {
    /// Offers a guest, and waits for the answer.
    ///
    /// # Errors
    /// [`ConnectError`], [`ConnectError::Refused`] with the destination's reasons.
    pub fn offer(&mut self, offer: &Offer) -> Result<Accepted, ConnectError> {
        let frame = offer_frame(offer)?;
        self.within(self.limits.answer)?;
        match self.ask(&frame, "offering the guest")? {
            Answer::Accepted(accepted) if (1..=offer.streams).contains(&accepted.streams) => {
                self.within_silence()?;
                Ok(accepted)
            }
            _ => Err(ConnectError::Unexpected("an answer to the offer")),
        }
    }

    /// Makes this connection another stream of a session.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn join(&mut self, join: &Join) -> Result<(), ConnectError> {
        let frame = join_frame(join)?;
        match self.ask(&frame, "joining the session")? {
            Answer::Joined => self.within_silence(),
            Answer::Accepted(_) => Err(ConnectError::Unexpected("an answer to the join")),
        }
    }

    /// Waits for the source's first request, within what is left of the time to greet.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn first_request(&mut self) -> Result<FirstRequest, ConnectError> {
        let (mut frames, limits) = (FrameReader::default(), self.limits);
        let frame = frames.next(&mut self.reader, &Geometry::default()).map_err(|error| {
            ConnectError::of_receive("waiting for an offer", limits.greeting.as_secs(), error)
        })?;
        match frame {
            Frame::Offer(offer) => Ok(FirstRequest::Offer(offer)),
            Frame::Join(join) => Ok(FirstRequest::Join(join)),
            Frame::Refused(refusal) => Err(ConnectError::Refused(printable(refusal))),
            _ => Err(ConnectError::Unexpected("an offer")),
        }
    }

    /// Accepts the offer. From now on only silence is limited.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn accept_offer(&mut self, accepted: &Accepted) -> Result<(), ConnectError> {
        let frame = accepted_frame(accepted)?;
        self.within_silence()?;
        self.answer(&frame)
    }

    /// Accepts a join. From now on only silence is limited.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn accept_join(&mut self) -> Result<(), ConnectError> {
        self.within_silence()?;
        self.answer(&joined_frame())
    }

    /// Refuses, with reasons, and hangs up.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn refuse(mut self, refusal: &Refusal) -> Result<(), ConnectError> {
        self.answer(&refusal_frame(refusal))
    }

    fn answer(&mut self, frame: &[u8]) -> Result<(), ConnectError> {
        let sent = self.writer.send(&[frame]);
        sent.map_err(|error| ConnectError::of_io("answering", self.limits.silence.as_secs(), error))
    }

    fn ask(&mut self, frame: &[u8], doing: &'static str) -> Result<Answer, ConnectError> {
        let seconds = self.limits.answer.as_secs();
        // A peer that has refused already may have hung up: what it said says more.
        let sent = self.writer.send(&[frame]);
        let mut frames = FrameReader::default();
        match frames.next(&mut self.reader, &Geometry::default()) {
            Ok(Frame::Accepted(accepted)) => Ok(Answer::Accepted(accepted)),
            Ok(Frame::Joined) => Ok(Answer::Joined),
            Ok(Frame::Refused(refusal)) => Err(ConnectError::Refused(printable(refusal))),
            Ok(_) => Err(ConnectError::Unexpected("an answer")),
            Err(error) => match (ConnectError::of_receive(doing, seconds, error), sent) {
                (ConnectError::HungUp(_) | ConnectError::Io { .. }, Err(error)) => {
                    Err(ConnectError::of_io(doing, seconds, error))
                }
                (error, _) => Err(error),
            },
        }
    }

    fn within(&self, limit: Duration) -> Result<(), ConnectError> {
        let socket = self.link.socket();
        let set = socket.set_silence(limit).and_then(|()| socket.set_deadline(Some(limit)));
        set.map_err(|error| ConnectError::Io { doing: "setting limits of time", error })
    }

    fn within_silence(&self) -> Result<(), ConnectError> {
        let socket = self.link.socket();
        let set = socket.set_silence(self.limits.silence).and_then(|()| socket.set_deadline(None));
        set.map_err(|error| ConnectError::Io { doing: "setting limits of time", error })
    }
}

enum Answer {
    Accepted(Accepted),
    Joined,
}

/// Returns a refusal whose reason can be shown on a terminal.
fn printable(refusal: Refusal) -> Refusal {
    let is_shown = |letter: &char| !letter.is_control();
    Refusal { reason: refusal.reason.chars().filter(is_shown).take(4000).collect(), ..refusal }
}
