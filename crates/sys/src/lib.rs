//! The only crate that speaks to Linux directly: system calls in, plain values and owned
//! descriptors out.
//!
//! One module for each thing that the kernel offers. Functions that change memory which the caller
//! does not own through Rust's rules are `unsafe` and say what the caller must hold; everything
//! else is safe. No policy lives here, and no logging. Nothing is tried again but what a signal
//! interrupted.

pub mod birth;
pub mod block;
pub mod cache;
pub mod call;
pub mod cgroup;
pub mod direct;
pub mod event;
pub mod group;
pub mod handover;
pub mod heap;
pub mod huge;
pub mod idle_time;
pub mod ksm;
pub mod kvm;
pub mod lock;
pub mod mapped;
pub mod mapping;
pub mod maps;
pub mod memfd;
pub mod memory;
pub mod numa;
pub mod pagemap;
pub mod pidfd;
pub mod process;
pub mod socket;
pub mod stderr;
pub mod table;
pub mod thread;
pub mod tmpfs;
pub mod uring;
pub mod userfault;
pub mod watch;
