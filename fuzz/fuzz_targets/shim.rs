//! What shims and the daemon send each other over the control connection: frames, in pieces.
#![no_main]

use std::fmt::Debug;
use std::fs::File;
use std::os::fd::OwnedFd;

use bindery_wire::control::{FromDaemon, FromShim};
use bindery_wire::frame::{Decoder, Message, encode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|sent: (u8, u8, &[u8])| {
    let (piece, descriptors, bytes) = sent;
    let piece = usize::from(piece).max(1);
    let descriptors = usize::from(descriptors % 10);
    receive::<FromShim>(bytes, piece, descriptors);
    receive::<FromDaemon>(bytes, piece, descriptors);
});

/// Takes the bytes in pieces, with descriptors that come with the first.
fn receive<M: Message + PartialEq + Debug>(bytes: &[u8], piece: usize, descriptors: usize) {
    let mut decoder = Decoder::default();
    let mut came = descriptors;
    let mut fds: Vec<OwnedFd> = (0..descriptors).map(|_| null()).collect();
    let mut taken = 0;
    for piece in bytes.chunks(piece) {
        if decoder.push(piece, fds.drain(..)).is_err() {
            return;
        }
        loop {
            let (message, fds) = match decoder.pop::<M>() {
                Ok(Some(received)) => received,
                Ok(None) => break,
                Err(_) => return,
            };
            assert_eq!(fds.len(), message.descriptors());
            came -= fds.len();
            taken += check(&message);
        }
    }
    assert!(taken <= bytes.len(), "messages are no longer than what was sent");
    assert!(came <= descriptors);
}

/// A message comes back as it went, in a frame of its own. Returns how long that is, in bytes.
fn check<M: Message + PartialEq + Debug>(message: &M) -> usize {
    let encoded = encode(message);
    let mut decoder = Decoder::default();
    let fds: Vec<OwnedFd> = (0..message.descriptors()).map(|_| null()).collect();
    decoder.push(&encoded, fds).expect("no more descriptors than a message has");
    let (again, _) = decoder.pop::<M>().expect("a message").expect("a whole one");
    assert_eq!(again, *message);
    encoded.len()
}

fn null() -> OwnedFd {
    File::open("/dev/null").expect("/dev/null is there").into()
}
