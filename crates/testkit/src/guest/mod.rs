//! Boots unmodified QEMU guests under TCG and speaks to them.
//!
//! ```no_run
//! use std::time::Duration;
//! use bindery_testkit::guest::{GuestImage, ImageKind, Kit, Qemu, QemuGuest};
//!
//! # fn main() -> Result<(), bindery_testkit::guest::GuestError> {
//! let kit = Kit::locate()?;
//! let image = GuestImage::of_kit(&kit, ImageKind::Server)?;
//! let mut guest = QemuGuest::builder(&kit, &image).qemu(Qemu::V7).memory_mib(256).spawn()?;
//! guest.wait_ready(Duration::from_secs(60))?;
//! assert_eq!(guest.run("echo hello")?.stdout, "hello\n");
//! # Ok(())
//! # }
//! ```
//!
//! Concurrency: a [`QemuGuest`] is used by one thread at a time; any number of guests may run
//! beside each other. Dropping one ends its QEMU, and that process alone.

mod agent;
mod builder;
mod channel;
mod cpio;
mod custom;
mod elsewhere;
mod error;
mod image;
mod kit;
mod process;
mod qmp;

pub use builder::{AioMode, CacheMode, Drive, GuestBuilder, MemoryBackend};
pub use channel::Output;
pub use custom::CustomImage;
pub use elsewhere::{is_elsewhere, run_test};
pub use error::GuestError;
pub use image::{GuestImage, ImageKind};
pub use kit::{
    BROWSER, COMPLETE_MARK, KIT_VARIABLE, Kernel, Kit, MOTO, PROMTOOL, PYTHON_PACKAGES, Qemu,
    SYSTEMD,
};
pub use process::QemuGuest;
pub use qmp::{Qmp, QmpError};
