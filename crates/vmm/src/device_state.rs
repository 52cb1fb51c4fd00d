//! The saved state of a guest's devices.

use std::fmt;
use std::str::FromStr;

/// A way of saving device state without guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SaveMethod {
    /// QEMU's `xen-save-devices-state`: devices alone, whatever memory the guest has.
    XenSaveDevicesState,
    /// QEMU's `migrate` with the capability `x-ignore-shared`: all memory of the guest is in files.
    IgnoreShared,
    /// A VMM's own.
    Callback,
}

impl SaveMethod {
    /// Returns the name that [`FromStr`] reads.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::XenSaveDevicesState => "xen-save-devices-state",
            Self::IgnoreShared => "x-ignore-shared",
            Self::Callback => "callback",
        }
    }
}

impl fmt::Display for SaveMethod {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl FromStr for SaveMethod {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let all = [Self::XenSaveDevicesState, Self::IgnoreShared, Self::Callback];
        let found = all.into_iter().find(|method| method.as_str() == name);
        found.ok_or_else(|| format!("{name:?} is no way of saving device state that is known here"))
    }
}

/// Device state, ready to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceState {
    /// Type of machine that it can be loaded into.
    pub machine: String,
    /// Version of the VMM that saved it.
    pub version: String,
    /// Way in which it was saved, which loading depends on.
    pub method: SaveMethod,
    /// The VMM's own stream; for QEMU, one that `migrate-incoming` takes.
    pub bytes: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_read_by_their_names() {
        for method in
            [SaveMethod::XenSaveDevicesState, SaveMethod::IgnoreShared, SaveMethod::Callback]
        {
            assert_eq!(method.as_str().parse(), Ok(method));
        }
        assert!("savevm".parse::<SaveMethod>().is_err());
    }
}
