//! Guests are captured while they run and are merged: images are their memory in the pause, byte for byte.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod daemon;
mod huge;
mod image;
mod process;
mod qemu;
