//! Character devices, displays and networks: what two QEMUs cannot share is refused, the rest is reported.

use super::option_table::QemuOption;
use super::properties::Properties;
use super::{ArgumentError, MONITOR_ID, SharedIdentity, refuse};

const SERVER: &str = "it listens where the saved QEMU does";
const FILE: &str = "it writes where the saved QEMU does";
const DESCRIPTOR: &str = "it is a descriptor that the saved QEMU was given";
const HARDWARE: &str = "the saved QEMU has that device";
const SHAPE: &str = "it has a shape that is not known here";

/// Backends that each QEMU has for itself.
const OWN_BACKENDS: [&str; 16] = [
    "null",
    "vc",
    "ringbuf",
    "memory",
    "msmouse",
    "wctablet",
    "testdev",
    "stdio",
    "mux",
    "hub",
    "spicevmc",
    "spiceport",
    "braille",
    "console",
    "qemu-vdagent",
    "dbus",
];

/// Returns true if an option is Bindery's own monitor.
pub(super) fn is_own_monitor(option: &QemuOption) -> bool {
    let (implied, key) = match option.name {
        "chardev" => ("backend", "id"),
        "mon" => ("chardev", "chardev"),
        _ => return false,
    };
    let read = Properties::read(option.text(), implied);
    read.and_then(|read| read.get(key)).is_some_and(|id| id == MONITOR_ID)
}

/// Checks a `-chardev`.
pub(super) fn check_chardev(option: &QemuOption) -> Result<(), ArgumentError> {
    let read = Properties::read(option.text(), "backend");
    let read = read.filter(|read| matches!(read, Properties::Pairs(_)));
    let read = read.ok_or_else(|| refuse(option, SHAPE))?;
    let is_null = |key| read.get(key).is_none_or(|path| path == "/dev/null");
    if !is_null("logfile") {
        return Err(refuse(option, FILE));
    }
    match &*read.get("backend").unwrap_or_default() {
        "socket" if read.has("fd") => Err(refuse(option, DESCRIPTOR)),
        "socket" if read.is_on("server") => Err(refuse(option, SERVER)),
        "socket" => Ok(()),
        "udp" if read.has("localport") => Err(refuse(option, SERVER)),
        "udp" => Ok(()),
        "file" if is_null("path") && is_null("input-path") => Ok(()),
        "pty" if !read.has("path") => Ok(()),
        "file" | "pipe" | "pty" => Err(refuse(option, FILE)),
        "serial" | "parallel" | "tty" | "parport" => Err(refuse(option, HARDWARE)),
        backend if OWN_BACKENDS.contains(&backend) => Ok(()),
        _ => Err(refuse(option, SHAPE)),
    }
}

/// Checks `-serial` and its like, whose value is a character device in one word.
pub(super) fn check_device(option: &QemuOption) -> Result<(), ArgumentError> {
    let text = option.text();
    let text = text.strip_prefix("mon:").unwrap_or(text);
    let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
    let own =
        ["none", "null", "vc", "stdio", "pty", "msmouse", "braille", "con", "chardev", "wctablet"];
    match kind {
        _ if kind.starts_with('/') => Err(refuse(option, HARDWARE)),
        // A debugger's stub listens whatever it says.
        "unix" | "tcp" | "telnet" | "tn3270" | "websocket" if option.name == "gdb" => {
            Err(refuse(option, SERVER))
        }
        "unix" | "tcp" | "telnet" | "tn3270" | "websocket" => {
            let read = Properties::read(rest, "address").ok_or_else(|| refuse(option, SHAPE))?;
            if read.is_on("server") { Err(refuse(option, SERVER)) } else { Ok(()) }
        }
        "udp" if rest.contains('@') => Err(refuse(option, SERVER)),
        "udp" => Ok(()),
        "file" if rest == "/dev/null" => Ok(()),
        "file" | "pipe" => Err(refuse(option, FILE)),
        _ if own.contains(&kind) => Ok(()),
        _ => Err(refuse(option, SHAPE)),
    }
}

/// Checks `-vnc`, `-spice` and `-display`.
pub(super) fn check_display(option: &QemuOption) -> Result<(), ArgumentError> {
    let text = option.text();
    let listens = match option.name {
        "vnc" => text != "none" && !text.starts_with("none,"),
        "spice" => true,
        _ => text.starts_with("vnc") || text.starts_with("spice-app"),
    };
    if listens { Err(refuse(option, SERVER)) } else { Ok(()) }
}

/// Checks `-netdev`, `-nic` and `-net`, and reports what both QEMUs have alike then.
pub(super) fn check_network(
    option: &QemuOption,
    shared: &mut Vec<SharedIdentity>,
) -> Result<(), ArgumentError> {
    let read = Properties::read(option.text(), "type").ok_or_else(|| refuse(option, SHAPE))?;
    if ["fd", "fds", "vhostfd", "vhostfds"].iter().any(|key| read.has(key)) {
        return Err(refuse(option, DESCRIPTOR));
    }
    if read.has("listen") || read.is_on("server") {
        return Err(refuse(option, SERVER));
    }
    if matches!(&*read.get("type").unwrap_or_default(), "none" | "hubport") {
        return Ok(());
    }
    if let Some(mac) = read.get("mac").or_else(|| read.get("macaddr")) {
        shared.push(SharedIdentity::Mac(mac));
    }
    if read.get("type").is_none_or(|kind| kind != "nic") {
        shared.push(SharedIdentity::Network(option.text().to_owned()));
    }
    Ok(())
}

/// Checks `-object`.
pub(super) fn check_object(option: &QemuOption) -> Result<(), ArgumentError> {
    let read = Properties::read(option.text(), "qom-type").ok_or_else(|| refuse(option, SHAPE))?;
    let kind = read.get("qom-type").unwrap_or_default();
    if kind == "memory-backend-file" && read.is_on("share") {
        let why =
            "both QEMUs would have one memory: take memory-backend-ram of the same id and size";
        return Err(refuse(option, why));
    }
    if kind == "filter-dump" || read.has("fd") {
        return Err(refuse(option, if read.has("fd") { DESCRIPTOR } else { FILE }));
    }
    Ok(())
}

/// Reports the address of a `-device`.
pub(super) fn note_device(option: &QemuOption, shared: &mut Vec<SharedIdentity>) {
    let mac = Properties::read(option.text(), "driver").and_then(|read| read.get("mac"));
    shared.extend(mac.map(SharedIdentity::Mac));
}
