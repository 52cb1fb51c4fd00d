//! QEMU's options that a guest from elsewhere may have. All others are refused.

/// Kind of an option's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueKind {
    /// No value follows.
    None,
    /// A value without files: `key=value` pairs, or a name. No part may look like a path.
    Plain,
    /// One path.
    Path,
    /// `key=value` pairs or a JSON object; each path in it must be allowed.
    Properties,
    /// As [`Properties`](Self::Properties), the first word being a kind that must be in the list.
    Backend(&'static [&'static str]),
}

/// Backends of character devices that name nothing outside QEMU, or only sockets that are checked as paths.
const CHARACTER_DEVICES: &[&str] = &["null", "ringbuf", "socket", "stdio", "file"];

/// Backends of networks that start no program. A tap must have its scripts off.
const NETWORKS: &[&str] = &["user", "tap", "hubport", "stream", "dgram"];

/// Objects that start nothing and load nothing.
const OBJECTS: &[&str] = &[
    "memory-backend-ram",
    "memory-backend-memfd",
    "memory-backend-file",
    "iothread",
    "rng-random",
    "rng-builtin",
    "thread-context",
    "throttle-group",
];

const OPTIONS: &[(&str, ValueKind)] = &[
    ("name", ValueKind::Plain),
    ("uuid", ValueKind::Plain),
    ("machine", ValueKind::Properties),
    ("M", ValueKind::Properties),
    ("accel", ValueKind::Plain),
    ("enable-kvm", ValueKind::None),
    ("cpu", ValueKind::Plain),
    ("smp", ValueKind::Plain),
    ("m", ValueKind::Plain),
    ("mem-path", ValueKind::Path),
    ("mem-prealloc", ValueKind::None),
    ("numa", ValueKind::Plain),
    ("overcommit", ValueKind::Plain),
    ("boot", ValueKind::Properties),
    ("bios", ValueKind::Path),
    ("pflash", ValueKind::Path),
    ("kernel", ValueKind::Path),
    ("initrd", ValueKind::Path),
    ("dtb", ValueKind::Path),
    // The guest's own; it is read by nobody else.
    ("append", ValueKind::Plain),
    ("drive", ValueKind::Properties),
    ("blockdev", ValueKind::Properties),
    ("hda", ValueKind::Path),
    ("hdb", ValueKind::Path),
    ("cdrom", ValueKind::Path),
    ("device", ValueKind::Properties),
    ("global", ValueKind::Properties),
    ("object", ValueKind::Backend(OBJECTS)),
    ("netdev", ValueKind::Backend(NETWORKS)),
    ("nic", ValueKind::Backend(&["none", "user"])),
    ("net", ValueKind::Backend(&["none"])),
    ("chardev", ValueKind::Backend(CHARACTER_DEVICES)),
    ("serial", ValueKind::Backend(&["none", "null", "stdio", "chardev:"])),
    ("parallel", ValueKind::Backend(&["none", "null"])),
    ("monitor", ValueKind::Backend(&["none", "null"])),
    ("vga", ValueKind::Plain),
    ("display", ValueKind::Backend(&["none"])),
    ("nographic", ValueKind::None),
    ("nodefaults", ValueKind::None),
    ("no-user-config", ValueKind::None),
    ("no-reboot", ValueKind::None),
    ("no-shutdown", ValueKind::None),
    ("no-acpi", ValueKind::None),
    ("no-hpet", ValueKind::None),
    ("rtc", ValueKind::Plain),
    ("k", ValueKind::Plain),
    ("usb", ValueKind::None),
    ("watchdog-action", ValueKind::Plain),
    ("smbios", ValueKind::Properties),
    ("msg", ValueKind::Plain),
    ("sandbox", ValueKind::Plain),
    ("S", ValueKind::None),
];

/// Returns the kind of an option's value, if the option is allowed. `name` is without dashes.
pub(crate) fn value_kind(name: &str) -> Option<ValueKind> {
    OPTIONS.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
}

/// Keys that have QEMU start a program, load code, or use a descriptor or host that is not the guest's.
const FORBIDDEN_KEYS: &[&str] = &[
    "script",
    "downscript",
    "helper",
    "br",
    "smb",
    "smbserver",
    "tftp",
    "bootfile",
    "guestfwd",
    "hostfwd",
    "fd",
    "fds",
    "vhostfd",
    "vhostfds",
    "fd-set",
    "exec",
    "command",
    "plugin",
    "filename-prefix",
    "server",
    "host",
    "port",
    "to",
    "url",
    "proxy-url",
    "authz",
    "tls-creds",
    "logfile",
    "x-vfio",
    "sysfsdev",
    "socket_id",
];

/// Returns true if a property may be set to that value.
pub(crate) fn is_allowed_property(key: &str, value: &str) -> bool {
    let is_of_key = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    if !key.chars().all(is_of_key) {
        return false;
    }
    match (key, value) {
        // Off, or a socket that QEMU itself listens on at an allowed path.
        ("script" | "downscript", "no") | ("server", "on" | "off") => true,
        (key, _) => key.split('.').all(|part| !FORBIDDEN_KEYS.contains(&part)),
    }
}
