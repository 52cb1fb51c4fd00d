//! A monitor of Bindery's own in each QEMU that `bindery run` starts.
//!
//! A program counts as QEMU by its file's name, or that of the file it links to: `qemu`, `qemu-kvm`, `kvm`, or
//! with `qemu-system-` in it. Arguments say nothing: a program of another name that passes some on to QEMU may take
//! others for its own.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bindery_host::monitors::Monitors;
use bindery_sys::process::effective_user;
use bindery_vmm::qemu::arguments::monitor_arguments;

/// Returns the arguments that give a QEMU its monitor; nothing for other programs. Says on stderr why a QEMU gets
/// none: its guest can be merged all the same.
pub(super) fn arguments(program: &Path, given: &[OsString], socket: &Path) -> Vec<OsString> {
    if !is_qemu(program) {
        return Vec::new();
    }
    let without = |why: &str| {
        eprintln!("bindery: this QEMU has no monitor for checkpoints: {why}");
        Vec::new()
    };
    if given.iter().any(|word| matches!(word.as_bytes(), b"-daemonize" | b"--daemonize")) {
        return without("with -daemonize its process id is not known before it is started");
    }
    // The process id stays: QEMU takes this process's place.
    let room = Monitors::of_daemon(socket).make_room(effective_user(), std::process::id());
    match room {
        Ok(path) => monitor_arguments(&path).into(),
        Err(error) => without(&format!("{error}; or leave it out with --no-monitor")),
    }
}

fn is_qemu(program: &Path) -> bool {
    let target = program.canonicalize().unwrap_or_else(|_| PathBuf::from(program));
    [program.file_name(), target.file_name()].into_iter().flatten().any(is_qemus_name)
}

fn is_qemus_name(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    matches!(&*name, "qemu" | "qemu-kvm" | "kvm") || name.contains("qemu-system-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qemu_is_told_by_its_name_and_what_it_links_to() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for (name, is) in [
            ("qemu-system-x86_64", true),
            ("my-qemu-system-aarch64.real", true),
            ("kvm", true),
            ("qemu-img", false),
            ("kvmtool", false),
            ("cloud-hypervisor", false),
        ] {
            std::fs::write(at(name), "").unwrap();
            assert_eq!(is_qemu(&at(name)), is, "{name}");
        }
        std::os::unix::fs::symlink("qemu-system-x86_64", at("vmm")).unwrap();
        assert!(is_qemu(&at("vmm")));
    }
}
