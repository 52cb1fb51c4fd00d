//! Options of QEMU 7.2 to 10, and the words of a command line as options.

use super::ArgumentError;

/// Options with a value.
const WITH_VALUE: &[&str] = &[
    "D",
    "L",
    "accel",
    "acpitable",
    "action",
    "add-fd",
    "append",
    "audio",
    "audiodev",
    "bios",
    "blockdev",
    "boot",
    "cdrom",
    "chardev",
    "chroot",
    "compat",
    "cpu",
    "d",
    "debugcon",
    "device",
    "dfilter",
    "display",
    "drive",
    "dtb",
    "dump-vmstate",
    "echr",
    "fda",
    "fdb",
    "fsdev",
    "fw_cfg",
    "g",
    "gdb",
    "global",
    "hda",
    "hdb",
    "hdc",
    "hdd",
    "icount",
    "incoming",
    "initrd",
    "iscsi",
    "k",
    "kernel",
    "loadvm",
    "m",
    "M",
    "machine",
    "mem-path",
    "mon",
    "monitor",
    "msg",
    "mtdblock",
    "name",
    "net",
    "netdev",
    "nic",
    "numa",
    "object",
    "option-rom",
    "overcommit",
    "parallel",
    "pflash",
    "pidfile",
    "plugin",
    "qmp",
    "qmp-pretty",
    "readconfig",
    "rtc",
    "run-with",
    "runas",
    "sandbox",
    "sd",
    "seed",
    "serial",
    "set",
    "shim",
    "smbios",
    "smp",
    "spice",
    "tb-size",
    "tpmdev",
    "trace",
    "usbdevice",
    "uuid",
    "vga",
    "virtfs",
    "vnc",
    "watchdog",
    "watchdog-action",
    "xen-domid",
];

/// Options without one.
const FLAGS: &[&str] = &[
    "S",
    "async-teardown",
    "daemonize",
    "enable-kvm",
    "enable-sync-profile",
    "full-screen",
    "jitdump",
    "mem-prealloc",
    "no-acpi",
    "no-fd-bootchk",
    "no-hpet",
    "no-reboot",
    "no-shutdown",
    "no-user-config",
    "nodefaults",
    "nographic",
    "only-migratable",
    "perfmap",
    "preconfig",
    "s",
    "singlestep",
    "snapshot",
    "usb",
    "win2k-hack",
];

/// One option of a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct QemuOption {
    /// Name without dashes.
    pub(super) name: &'static str,
    pub(super) value: Option<String>,
}

impl QemuOption {
    pub(super) fn new(name: &'static str, value: impl Into<String>) -> Self {
        Self { name, value: Some(value.into()) }
    }

    /// Returns the value; empty for a flag.
    pub(super) fn text(&self) -> &str {
        self.value.as_deref().unwrap_or_default()
    }

    /// Appends the words that QEMU reads it from.
    pub(super) fn put(self, words: &mut Vec<Vec<u8>>) {
        words.push(format!("-{}", self.name).into_bytes());
        words.extend(self.value.map(String::into_bytes));
    }
}

/// Reads words, the program not among them. A word that is no option is the image of the first disk.
///
/// # Errors
/// [`ArgumentError::Unknown`], [`ArgumentError::NoValue`], [`ArgumentError::NotText`].
pub(super) fn read(words: &[Vec<u8>]) -> Result<Vec<QemuOption>, ArgumentError> {
    let mut texts = words.iter().map(|word| {
        let text = String::from_utf8(word.clone());
        text.map_err(|_| ArgumentError::NotText(String::from_utf8_lossy(word).into_owned()))
    });
    let mut options = Vec::new();
    while let Some(word) = texts.next().transpose()? {
        let Some(name) = word.strip_prefix('-').filter(|name| !name.is_empty()) else {
            options.push(QemuOption::new("hda", word));
            continue;
        };
        // One dash and two are the same.
        let name = name.strip_prefix('-').unwrap_or(name);
        let known = |names: &[&'static str]| names.iter().find(|known| **known == name).copied();
        if let Some(name) = known(FLAGS) {
            options.push(QemuOption { name, value: None });
        } else if let Some(name) = known(WITH_VALUE) {
            let value = texts.next().transpose()?;
            let value = value.ok_or_else(|| ArgumentError::NoValue(word.clone()))?;
            options.push(QemuOption::new(name, value));
        } else {
            return Err(ArgumentError::Unknown(word));
        }
    }
    Ok(options)
}
