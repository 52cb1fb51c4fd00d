//! User at the other end of a connection within this machine.
//!
//! The kernel lists its TCP sockets with their owners in `/proc/net/tcp` and `tcp6` (proc_net_tcp.rst). A client on this
//! machine has its socket there, with the addresses of the connection the other way round.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Addresses of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
}

impl Ends {
    /// Returns the user whose process is connected; none if that is on another machine, or the kernel does not say.
    pub(super) fn user(self) -> Option<u32> {
        if !self.peer.ip().is_loopback() {
            return None;
        }
        let path = if self.peer.is_ipv4() { "/proc/net/tcp" } else { "/proc/net/tcp6" };
        let table = std::fs::read_to_string(path).ok()?;
        table.lines().skip(1).find_map(|line| self.owner(line))
    }

    /// Returns the owner in a line of the table, if it is about the client's socket.
    fn owner(self, line: &str) -> Option<u32> {
        let mut fields = line.split_ascii_whitespace();
        let (local, remote) = (parse(fields.nth(1)?)?, parse(fields.next()?)?);
        let is_it = (local, remote) == (plain(self.peer), plain(self.local));
        // Behind state, queues, timer and retransmissions.
        fields.nth(4).filter(|_| is_it)?.parse().ok()
    }
}

fn plain(address: SocketAddr) -> (IpAddr, u16) {
    (address.ip(), address.port())
}

/// Reads an address: words of 32 bits in the machine's byte order, and the port, in hexadecimal digits.
fn parse(field: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = field.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| -> Option<[u8; 4]> {
        u32::from_str_radix(address.get(at * 8..at * 8 + 8)?, 16).ok().map(u32::to_ne_bytes)
    };
    match address.len() {
        8 => Some((Ipv4Addr::from(word(0)?).into(), port)),
        32 => {
            let words: Option<Vec<[u8; 4]>> = (0..4).map(word).collect();
            let bytes: [u8; 16] = words?.concat().try_into().ok()?;
            Some((Ipv6Addr::from(bytes).into(), port))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_client_on_this_machine_is_known_by_its_user() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // A machine may be without IPv6.
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (_server, peer) = listener.accept().unwrap();
            let ends = Ends { local: listener.local_addr().unwrap(), peer };
            assert_eq!(ends.user(), Some(bindery_sys::process::effective_user()), "{address}");
            let other = Ends { peer: client.peer_addr().unwrap(), ..ends };
            assert_eq!(other.user(), None, "nobody is connected from there");
        }
        let far = "192.0.2.1:5".parse().unwrap();
        assert_eq!(Ends { local: far, peer: far }.user(), None);
    }

    #[test]
    fn lines_that_are_none_are_nobodys() {
        let local: SocketAddr = "127.0.0.1:80".parse().unwrap();
        let ends = Ends { local, peer: local };
        for line in ["", "x", "0: 0100007F 0100007F:0050 01", "0: 010000éF:0050 0:0", "0: ::::"] {
            assert_eq!(ends.owner(line), None, "{line}");
        }
    }
}
