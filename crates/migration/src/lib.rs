//! Live migration between hosts.
#![forbid(unsafe_code)]

pub mod connect;
pub mod encode;
pub mod format;
pub mod hand_over;
pub mod receive;
