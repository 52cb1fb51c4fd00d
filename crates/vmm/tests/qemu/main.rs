//! Real guests under unmodified QEMUs.
#![expect(clippy::unwrap_used, reason = "a test: what fails is to be seen where it fails")]

mod fails;
mod layers;
mod moves;
mod overlays;
mod support;
