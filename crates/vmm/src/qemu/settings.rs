//! Limits and choices for one QEMU.

use std::path::PathBuf;
use std::time::Duration;

use crate::SaveMethod;

/// Limits and choices for driving one QEMU.
#[derive(Clone, Debug)]
pub struct QemuSettings {
    /// Longest that QEMU may take for an ordinary answer.
    pub answer_limit: Duration,
    /// Longest that stopping the guest, which waits for its disk I/O, saving device state, and making
    /// overlays may take each.
    pub save_limit: Duration,
    /// Longest that loading device state may take.
    pub load_limit: Duration,
    /// Most bytes of device state. More means that guest memory is among them.
    pub state_bytes_max: u64,
    /// QEMU's process; `None` for whoever listens on its socket. A socket that another process made, as libvirt
    /// does, names that one, and QEMU would not be looked at: say QEMU's here.
    pub pid: Option<i32>,
    /// Ways of saving device state, the first that works is used.
    pub methods: Vec<SaveMethod>,
    /// Place for device state on its way out of QEMU. `None` for memory that QEMU is passed a descriptor of;
    /// a directory that QEMU can write to where descriptors cannot be passed.
    pub state_directory: Option<PathBuf>,
}

impl Default for QemuSettings {
    fn default() -> Self {
        Self {
            answer_limit: Duration::from_secs(10),
            save_limit: Duration::from_secs(30),
            load_limit: Duration::from_secs(60),
            state_bytes_max: 1 << 30,
            pid: None,
            methods: vec![SaveMethod::XenSaveDevicesState, SaveMethod::IgnoreShared],
            state_directory: None,
        }
    }
}
