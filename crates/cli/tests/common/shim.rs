//! Shims made of a thread, which say what a test has them say.

use std::io;
use std::path::Path;

use bindery_sys::socket;
use bindery_wire::channel::{Channel, Received};
use bindery_wire::control::{FromDaemon, FromShim, MAGIC, VERSION};

use crate::common::PATIENCE;

/// Connects to the daemon at `socket` and asks to be the guest `name`.
pub(crate) fn hello(socket: &Path, name: &str) -> Channel<FromShim, FromDaemon> {
    try_hello(socket, name).unwrap()
}

/// Connects to the daemon at `socket`, which may hang up at any moment, and asks to be the guest `name`.
pub(crate) fn try_hello(socket: &Path, name: &str) -> io::Result<Channel<FromShim, FromDaemon>> {
    let stream = socket::connect(socket)?;
    socket::send_all(&stream, &MAGIC, &[], PATIENCE)?;
    let mut channel = Channel::new(stream);
    let hello = FromShim::Hello {
        version: VERSION,
        instance: 1,
        name: Some(name.into()),
        domain: None,
        command: "shim".into(),
        stores: Vec::new(),
    };
    channel.send(&hello, &[], PATIENCE)?;
    Ok(channel)
}

/// The same, and is welcomed.
#[allow(dead_code, reason = "not every test program has guests that stay")]
pub(crate) fn welcomed(socket: &Path, name: &str) -> Channel<FromShim, FromDaemon> {
    let mut channel = hello(socket, name);
    let answer = channel.receive(PATIENCE).unwrap();
    assert!(matches!(answer, Received::Message(FromDaemon::Welcome { .. }, _)), "{answer:?}");
    channel
}
