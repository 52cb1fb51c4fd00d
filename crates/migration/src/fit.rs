//! Comparison of an offered guest with what a destination can run. Pure.

use thiserror::Error;

use crate::format::{Offer, Processor, RefusalKind};

/// Host at the destination, as far as a guest depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Architecture, accelerator, vendor and processor features that it has.
    pub processor: Processor,
    /// Kind of VMM that is to be started, such as `qemu`.
    pub vmm_kind: String,
    /// Version of that VMM.
    pub vmm_version: (u32, u32, u32),
    /// Types of machine that the VMM has.
    pub machines: Vec<String>,
    /// Kinds of device state that can be loaded.
    pub device_states: Vec<String>,
    /// Bytes of memory that can be taken without reclaim.
    pub available_bytes: u64,
    /// Names of guests that are there.
    pub guests: Vec<String>,
}

/// File of a disk, as the destination finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskHere {
    /// Nothing is there.
    Absent,
    /// File or device of both hosts, seen through shared storage.
    Shared,
    /// A file of that name that is another one.
    Other,
}

/// Reason why a guest cannot run at the destination, with the remedy.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Misfit {
    /// Another architecture or accelerator.
    #[error("the guest runs on {source_side}, and this host has {here}: use a host with the same")]
    Machine {
        /// Architecture and accelerator of the source.
        source_side: String,
        /// Architecture and accelerator of this host.
        here: String,
    },
    /// Another vendor's processor.
    #[error(
        "the guest runs on a processor of {there}, and this one is of {here}: use a host of the same vendor"
    )]
    Vendor {
        /// Vendor at the source.
        there: String,
        /// Vendor here.
        here: String,
    },
    /// Features of the processor are missing.
    #[error(
        "this host's processor lacks {0}: start the guest with a CPU model that all hosts have, instead of -cpu host"
    )]
    Features(String),
    /// Another VMM.
    #[error("the guest runs in {there}, and this host has {here}")]
    Vmm {
        /// VMM at the source.
        there: String,
        /// VMM here.
        here: String,
    },
    /// An older VMM.
    #[error(
        "the guest runs in version {there} of its VMM, and this host has {here}: install {there} or later here"
    )]
    Version {
        /// Version at the source.
        there: String,
        /// Version here.
        here: String,
    },
    /// The type of machine is unknown here.
    #[error(
        "the VMM of this host has no machine {0}: install the version of the source, or start the guest with an older machine type"
    )]
    MachineType(String),
    /// The device state cannot be loaded here.
    #[error(
        "device state of kind {0} cannot be loaded here: update the VMM or Bindery on this host"
    )]
    DeviceState(String),
    /// Memory is lacking.
    #[error(
        "the guest uses {needs_mib} MiB, and {has_mib} MiB are available here: make room, or choose another host"
    )]
    Memory {
        /// Memory that the guest uses.
        needs_mib: u64,
        /// Memory that is available.
        has_mib: u64,
    },
    /// The name is taken.
    #[error("a guest {0} is here already: end or rename it, or migrate with another name")]
    NameTaken(String),
    /// A disk is missing.
    #[error(
        "disk {device} ({path}) is not here: put it on storage that both hosts have, or migrate with --copy-storage"
    )]
    DiskMissing {
        /// Name of the disk.
        device: String,
        /// Path at the source.
        path: String,
    },
    /// Another file is where the disk should be.
    #[error(
        "disk {device}: {path} here is another file than at the source: move it away, or mount the shared storage"
    )]
    DiskOther {
        /// Name of the disk.
        device: String,
        /// Path at the source.
        path: String,
    },
}

impl Misfit {
    /// Returns the kind for programs.
    #[must_use]
    pub const fn kind(&self) -> RefusalKind {
        match self {
            Self::Memory { .. } => RefusalKind::Memory,
            Self::NameTaken(_) => RefusalKind::NameTaken,
            Self::DiskMissing { .. } | Self::DiskOther { .. } => RefusalKind::Disk,
            _ => RefusalKind::Incompatible,
        }
    }
}

/// Returns all reasons why the offered guest cannot run on `host`. `disks` are its disks as they are found there, in
/// the order of the offer; those that are missing from it count as absent.
#[must_use]
pub fn misfits(offer: &Offer, host: &Host, disks: &[DiskHere]) -> Vec<Misfit> {
    let mut found = processor_misfits(&offer.processor, &host.processor);
    found.extend(vmm_misfits(offer, host));
    if offer.used_bytes > host.available_bytes {
        let (needs_mib, has_mib) = (offer.used_bytes >> 20, host.available_bytes >> 20);
        found.push(Misfit::Memory { needs_mib, has_mib });
    }
    if host.guests.contains(&offer.guest) {
        found.push(Misfit::NameTaken(offer.guest.clone()));
    }
    let here = disks.iter().copied().chain(std::iter::repeat(DiskHere::Absent));
    for (disk, here) in offer.disks.iter().zip(here) {
        let (device, path) =
            (disk.device.clone(), String::from_utf8_lossy(&disk.path).into_owned());
        match (here, disk.is_copied) {
            (DiskHere::Shared, false) | (DiskHere::Absent, true) => {}
            (DiskHere::Absent, false) => found.push(Misfit::DiskMissing { device, path }),
            (DiskHere::Other, _) | (DiskHere::Shared, true) => {
                found.push(Misfit::DiskOther { device, path })
            }
        }
    }
    found
}

fn processor_misfits(there: &Processor, here: &Processor) -> Vec<Misfit> {
    let kind = |it: &Processor| format!("{} with {}", it.architecture, it.accelerator);
    if (&there.architecture, &there.accelerator) != (&here.architecture, &here.accelerator) {
        return vec![Misfit::Machine { source_side: kind(there), here: kind(here) }];
    }
    // An emulated processor is the same everywhere.
    if there.accelerator == "tcg" {
        return vec![];
    }
    if there.vendor != here.vendor {
        return vec![Misfit::Vendor { there: there.vendor.clone(), here: here.vendor.clone() }];
    }
    let lacks: Vec<_> =
        there.flags.iter().filter(|flag| !here.flags.contains(flag)).cloned().collect();
    if lacks.is_empty() { vec![] } else { vec![Misfit::Features(lacks.join(", "))] }
}

fn vmm_misfits(offer: &Offer, host: &Host) -> Vec<Misfit> {
    let vmm = &offer.vmm;
    if vmm.kind != host.vmm_kind {
        return vec![Misfit::Vmm { there: vmm.kind.clone(), here: host.vmm_kind.clone() }];
    }
    let mut found = Vec::new();
    // Patches of one version load each other's state; an older version does not load a later one's.
    let minor = |(major, minor, _): (u32, u32, u32)| (major, minor);
    if minor(host.vmm_version) < minor(vmm.version) {
        let shown = |(major, minor, patch): (u32, u32, u32)| format!("{major}.{minor}.{patch}");
        found.push(Misfit::Version { there: shown(vmm.version), here: shown(host.vmm_version) });
    }
    if !vmm.machine.is_empty() && !host.machines.contains(&vmm.machine) {
        found.push(Misfit::MachineType(vmm.machine.clone()));
    }
    if !host.device_states.contains(&vmm.device_state) {
        found.push(Misfit::DeviceState(vmm.device_state.clone()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{MigrationId, OfferedDisk, OfferedVmm, Secret};

    fn processor() -> Processor {
        let flags = vec!["avx2".into(), "sse4_2".into()];
        Processor {
            architecture: "x86_64".into(),
            accelerator: "kvm".into(),
            vendor: "GenuineIntel".into(),
            flags,
        }
    }

    fn offer() -> Offer {
        let disk = |device: &str, is_copied| OfferedDisk {
            device: device.into(),
            path: b"/d".to_vec(),
            format: "raw".into(),
            bytes: 1,
            is_copied,
        };
        Offer {
            id: MigrationId([0; 16]),
            guest: "web".into(),
            uuid: [0; 16],
            domain: "all".into(),
            blocks: vec![],
            used_bytes: 100 << 20,
            vmm: OfferedVmm {
                kind: "qemu".into(),
                version: (10, 0, 2),
                machine: "pc-i440fx-10.0".into(),
                device_state: "xen".into(),
                arguments: vec![],
            },
            processor: processor(),
            disks: vec![disk("a", false), disk("b", true)],
            streams: 1,
            digest_secret: Secret::new(vec![]),
        }
    }

    fn host() -> Host {
        Host {
            processor: processor(),
            vmm_kind: "qemu".into(),
            vmm_version: (10, 0, 1),
            machines: vec!["pc-i440fx-10.0".into()],
            device_states: vec!["xen".into()],
            available_bytes: 100 << 20,
            guests: vec!["db".into()],
        }
    }

    type Change = fn(&mut Host);

    const FOUND: [DiskHere; 2] = [DiskHere::Shared, DiskHere::Absent];

    #[test]
    fn a_host_of_the_same_kind_fits() {
        assert_eq!(misfits(&offer(), &host(), &FOUND), vec![]);
    }

    #[test]
    fn each_misfit_is_named() {
        let changes: [(&str, Change); 10] = [
            ("aarch64", |host| host.processor.architecture = "aarch64".into()),
            ("tcg", |host| host.processor.accelerator = "tcg".into()),
            ("AuthenticAMD", |host| host.processor.vendor = "AuthenticAMD".into()),
            ("lacks sse4_2", |host| _ = host.processor.flags.pop()),
            ("firecracker", |host| host.vmm_kind = "firecracker".into()),
            ("9.2.0", |host| host.vmm_version = (9, 2, 0)),
            ("pc-i440fx-10.0", |host| host.machines.clear()),
            ("of kind xen", |host| host.device_states.clear()),
            ("99 MiB", |host| host.available_bytes -= 1),
            ("a guest web", |host| host.guests.push("web".into())),
        ];
        for (words, change) in changes {
            let mut host = host();
            change(&mut host);
            let found = misfits(&offer(), &host, &FOUND);
            assert!(found.len() == 1 && found[0].to_string().contains(words), "{words}: {found:?}");
        }
        let found = misfits(&offer(), &host(), &[DiskHere::Absent, DiskHere::Other]);
        assert_eq!(found.iter().map(Misfit::kind).collect::<Vec<_>>(), [RefusalKind::Disk; 2]);
        assert_eq!(misfits(&offer(), &host(), &[]).len(), 1);
    }

    #[test]
    fn emulated_processors_are_alike() {
        let (mut offer, mut host) = (offer(), host());
        offer.processor.accelerator = "tcg".into();
        host.processor =
            Processor { vendor: "other".into(), flags: vec![], ..offer.processor.clone() };
        assert_eq!(misfits(&offer, &host, &FOUND), vec![]);
    }
}
