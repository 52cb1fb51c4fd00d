//! A client for what the daemon serves over HTTP, which can also misbehave.

#![allow(dead_code, reason = "each test program uses its own part of this module")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use serde_json::Value;

use crate::common::{PATIENCE, TestDaemon};

/// The daemon's server.
#[derive(Clone, Copy)]
pub(crate) struct Http(pub(crate) SocketAddr);

/// What came back.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl Reply {
    /// The body, as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

impl Http {
    /// Where a daemon says that it is to be looked at.
    pub(crate) fn of(daemon: &TestDaemon) -> Self {
        let status = daemon.ask(&["status", "--json"]).json();
        Self(status["http"].as_str().unwrap().parse().unwrap())
    }

    /// A connection that gives up after a while.
    pub(crate) fn connect(self) -> TcpStream {
        let stream = TcpStream::connect_timeout(&self.0, PATIENCE).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends these bytes, says no more, and returns all that comes back.
    pub(crate) fn send(self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        // It may hang up before it has taken everything.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard);
        heard
    }

    pub(crate) fn get(self, path: &str) -> Reply {
        self.get_with(path, "")
    }

    /// Asks with more header lines, each with its end.
    pub(crate) fn get_with(self, path: &str, headers: &str) -> Reply {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: {}\r\n{headers}", self.0))
    }

    /// Asks with these lines.
    pub(crate) fn ask(self, lines: &str) -> Reply {
        let heard = self.send(format!("{lines}Connection: close\r\n\r\n").as_bytes());
        parse(&String::from_utf8(heard).unwrap()).unwrap_or_else(|| panic!("no answer: {lines}"))
    }

    /// What a path has, as JSON.
    pub(crate) fn json(self, path: &str) -> Value {
        let reply = self.get(path);
        assert_eq!(reply.status, 200, "{path}: {}", reply.body);
        reply.json()
    }
}

/// An answer and its body.
fn parse(text: &str) -> Option<Reply> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.1 ")?.split(' ').next()?.parse().ok()?;
    let headers = lines.filter_map(|line| {
        let (name, value) = line.split_once(": ")?;
        Some((name.to_ascii_lowercase(), value.to_owned()))
    });
    Some(Reply { status, headers: headers.collect(), body: body.to_owned() })
}
