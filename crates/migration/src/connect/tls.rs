//! TLS over a socket that one thread reads and another writes.
//!
//! The session is locked while records are made or opened, never while the socket blocks. Writers hold a lock of their
//! own from the making of records until they are sent, so that records go in order.

use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::Connection;

use super::socket::TimedSocket;

/// Most ciphertext that is read at once.
const READ_BYTES: usize = 64 << 10;

/// Plain text that is made into records before these are sent.
const WRITE_BYTES: usize = 256 << 10;

/// TLS session on a socket.
#[derive(Clone)]
pub(crate) struct TlsLink {
    session: Arc<Mutex<Connection>>,
    /// Records that are to be sent.
    outgoing: Arc<Mutex<Vec<u8>>>,
    socket: TimedSocket,
}

impl TlsLink {
    /// Completes the handshake.
    pub(crate) fn shake_hands(
        mut session: Connection,
        mut socket: TimedSocket,
    ) -> io::Result<Self> {
        while session.is_handshaking() {
            if let Err(error) = session.complete_io(&mut socket) {
                // The peer is to know why.
                _ = session.write_tls(&mut socket);
                return Err(error);
            }
        }
        session.set_buffer_limit(None);
        Ok(Self { session: Arc::new(Mutex::new(session)), outgoing: Arc::default(), socket })
    }

    /// Returns the peer's certificate.
    pub(crate) fn peer_certificate(&self) -> Option<rustls::pki_types::CertificateDer<'static>> {
        let session = lock(&self.session);
        session
            .peer_certificates()
            .and_then(|chain| chain.first())
            .map(|it| it.clone().into_owned())
    }

    /// Opens the next of `bytes`, and returns how many of them. None at all is the end of the connection.
    fn take_records(&self, mut bytes: &[u8]) -> io::Result<usize> {
        let mut session = lock(&self.session);
        let taken = session.read_tls(&mut bytes)?;
        if let Err(error) = session.process_new_packets() {
            drop(session);
            // An alert, so that the peer knows why.
            _ = self.send_records(&[]);
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        Ok(taken)
    }

    /// Sends plain text, and whatever the session has to say itself.
    fn send_records(&self, plain: &[u8]) -> io::Result<()> {
        let mut outgoing = lock(&self.outgoing);
        let mut session = lock(&self.session);
        session.writer().write_all(plain)?;
        outgoing.clear();
        while session.wants_write() {
            session.write_tls(&mut *outgoing)?;
        }
        drop(session);
        self.socket.clone().write_all(&outgoing)
    }

    /// Sends parts as one.
    pub(crate) fn send(&self, parts: &[&[u8]]) -> io::Result<()> {
        for part in parts {
            part.chunks(WRITE_BYTES).try_for_each(|plain| self.send_records(plain))?;
        }
        Ok(())
    }
}

/// Reading end of a session.
pub(crate) struct TlsReader {
    link: TlsLink,
    /// Records that were received; those before `opened` were opened.
    records: Vec<u8>,
    opened: usize,
}

impl TlsReader {
    pub(crate) const fn new(link: TlsLink) -> Self {
        Self { link, records: Vec::new(), opened: 0 }
    }

    fn receive(&mut self) -> io::Result<()> {
        self.records.resize(READ_BYTES, 0);
        let count = self.link.socket.read(&mut self.records)?;
        self.records.truncate(count);
        self.opened = 0;
        Ok(())
    }
}

impl Read for TlsReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match lock(&self.link.session).reader().read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            if self.opened == self.records.len() {
                self.receive()?;
            }
            self.opened += self.link.take_records(&self.records[self.opened..])?;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
