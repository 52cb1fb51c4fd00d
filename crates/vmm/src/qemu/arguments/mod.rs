//! Command lines of QEMUs that are restored, made of those that were saved.
//!
//! A restored QEMU must have the machine of the saved one, device by device, and nothing that the saved one still
//! has: images that it writes, sockets on which it listens, files that it writes. So the saved command line is read
//! option by option. Those that both can have are kept, in their order; writable disks get overlays; those that two
//! cannot have are refused by name, unless the caller gives others in their place. What is not known here is refused,
//! too, and never guessed. Pure: no file is looked at.

mod disks;
mod endpoints;
mod generation_id;
mod option_table;
mod properties;

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

pub use generation_id::has_one as has_generation_id;
use option_table::QemuOption;
use properties::Properties;

/// Id of the character device of Bindery's own monitor.
pub const MONITOR_ID: &str = "bindery-monitor";

/// Returns the arguments that give a QEMU Bindery's own monitor: QMP on a socket at `path`, on which it listens.
#[must_use]
pub fn monitor_arguments(path: &Path) -> [OsString; 4] {
    let mut chardev = format!("socket,id={MONITOR_ID},server=on,wait=off,path=").into_bytes();
    for byte in path.as_os_str().as_bytes() {
        // QEMU takes two commas for one.
        chardev.extend(std::iter::repeat_n(*byte, if *byte == b',' { 2 } else { 1 }));
    }
    let monitor = format!("chardev={MONITOR_ID},mode=control");
    ["-chardev".into(), OsString::from_vec(chardev), "-mon".into(), monitor.into()]
}

/// Image that takes the place of a writable disk's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskReplacement {
    /// Names of the disk, any of which may be in the command line: the drive's id, nodes, path of the image.
    pub names: Vec<String>,
    /// Path of the image that is used instead.
    pub path: String,
    /// Format of that image, such as `qcow2`.
    pub format: String,
}

/// A QEMU that is to be restored.
#[derive(Clone, Debug, Default)]
pub struct RestoreArguments {
    /// Words of the saved QEMU's command line, the program first (`/proc/PID/cmdline`).
    pub saved: Vec<Vec<u8>>,
    /// Replacements for all writable disks.
    pub disks: Vec<DiskReplacement>,
    /// Words that differ. Each option takes the place of saved ones of its name, and of its id where it has one.
    pub instead: Vec<Vec<u8>>,
    /// Name of the guest, in place of the saved one.
    pub name: Option<String>,
    /// UUID of the machine, in place of the saved one.
    pub uuid: Option<String>,
}

/// Command line of a QEMU that waits for device state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredArguments {
    /// Words of the command line, the program first.
    pub words: Vec<Vec<u8>>,
    /// Options that were left out and that somebody may miss, such as `-daemonize`.
    pub dropped: Vec<String>,
    /// Identities that the restored guest has alike with the saved one: of consequence where both run.
    pub shared: Vec<SharedIdentity>,
}

/// Something that both guests have alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharedIdentity {
    /// Address of a network card.
    Mac(String),
    /// Other end of a network card: a tap device, a port that is forwarded.
    Network(String),
    /// UUID of the machine.
    Uuid(String),
    /// State of random numbers: the machine has no `vmgenid` device that would have the guest draw anew.
    RandomNumbers,
}

/// Reason why no command line can be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArgumentError {
    /// There are no words.
    #[error("the saved QEMU's command line is empty")]
    Empty,
    /// A word is no text.
    #[error("an argument of the saved QEMU is no text: {0}")]
    NotText(String),
    /// QEMU may have it, and nothing is known of it here.
    #[error(
        "option {0} of the saved QEMU is not known here: it cannot be restored by its command line"
    )]
    Unknown(String),
    /// The last option lacks its value.
    #[error("option {0} lacks its value")]
    NoValue(String),
    /// A writable disk has no overlay.
    #[error(
        "the disk of -{option} {value} is writable, and the checkpoint has no image of it: give another \
         -{option} behind --"
    )]
    NoOverlay {
        /// Name of the option.
        option: &'static str,
        /// Value of the option.
        value: String,
    },
    /// A restored QEMU cannot have it.
    #[error("-{option} {value} cannot be restored: {why}; give another -{option} behind --")]
    Refused {
        /// Name of the option.
        option: &'static str,
        /// Value of the option; empty for a flag.
        value: String,
        /// Reason.
        why: &'static str,
    },
    /// The caller gives an option that decides how a QEMU is restored.
    #[error("-{0} cannot be given to a QEMU that is restored: leave it out")]
    NotGiven(&'static str),
}

fn refuse(option: &QemuOption, why: &'static str) -> ArgumentError {
    ArgumentError::Refused { option: option.name, value: option.text().to_owned(), why }
}

impl RestoreArguments {
    /// Makes the command line of a QEMU that waits for device state, with Bindery's monitor at `monitor`.
    ///
    /// # Errors
    /// See [`ArgumentError`].
    pub fn rewrite(&self, monitor: &Path) -> Result<RestoredArguments, ArgumentError> {
        let (program, saved) = self.saved.split_first().ok_or(ArgumentError::Empty)?;
        let mut options = option_table::read(saved)?;
        let given = option_table::read(&self.instead)?;
        if let Some(option) = given.iter().find(|option| decides_restore(option)) {
            return Err(ArgumentError::NotGiven(option.name));
        }
        options.retain(|option| {
            !endpoints::is_own_monitor(option) && !given.iter().any(|new| takes_place(new, option))
        });
        disks::of_blockdevs(&mut options, &self.disks)?;
        let mut restored = RestoredArguments {
            words: vec![program.clone()],
            dropped: Vec::new(),
            shared: Vec::new(),
        };
        for option in options {
            if let Some(option) = self.keep(option, &mut restored)? {
                option.put(&mut restored.words);
            }
        }
        given.into_iter().for_each(|option| option.put(&mut restored.words));
        for (name, key, value) in [("name", "guest=", &self.name), ("uuid", "", &self.uuid)] {
            let is_there = restored.words.contains(&format!("-{name}").into_bytes());
            if let Some(value) = value.as_ref().filter(|_| !is_there) {
                let value = format!("{key}{}", value.replace(',', ",,"));
                QemuOption::new(name, value).put(&mut restored.words);
            }
        }
        if !generation_id::has_one(&restored.words) {
            restored.shared.push(SharedIdentity::RandomNumbers);
        }
        restored.words.extend(["-incoming", "defer", "-S"].map(|word| word.as_bytes().to_vec()));
        restored.words.extend(monitor_arguments(monitor).map(OsString::into_vec));
        Ok(restored)
    }

    /// Returns what becomes of one option.
    fn keep(
        &self,
        mut option: QemuOption,
        restored: &mut RestoredArguments,
    ) -> Result<Option<QemuOption>, ArgumentError> {
        match option.name {
            "incoming" | "loadvm" | "S" => return Ok(None),
            "daemonize" | "pidfile" => {
                let dropped = format!("-{} {}", option.name, option.text());
                restored.dropped.push(dropped.trim_end().to_owned());
                return Ok(None);
            }
            "snapshot" => Err(refuse(&option, "writes are thrown away, and cannot be kept")),
            "add-fd" => Err(refuse(&option, "it is a descriptor that the saved QEMU was given")),
            "readconfig" => Err(refuse(&option, "what the file says is not looked at")),
            "D" | "dump-vmstate" => Err(refuse(&option, "it writes where the saved QEMU does")),
            "preconfig" => Err(refuse(&option, "what it was told in that state is not known")),
            "s" | "tpmdev" | "xen-domid" | "iscsi" => {
                Err(refuse(&option, "two QEMUs cannot have it at once"))
            }
            "set"
                if ["drive.", "chardev.", "netdev."]
                    .iter()
                    .any(|of| option.text().starts_with(of)) =>
            {
                Err(refuse(&option, "it changes what another option says"))
            }
            "icount" if option.text().contains("rr=") => {
                Err(refuse(&option, "a recording cannot be restored"))
            }
            "trace" if option.text().contains("file=") => {
                Err(refuse(&option, "it writes where the saved QEMU does"))
            }
            "chardev" => endpoints::check_chardev(&option),
            "serial" | "parallel" | "monitor" | "debugcon" | "qmp" | "qmp-pretty" | "gdb" => {
                endpoints::check_device(&option)
            }
            "vnc" | "spice" | "display" => endpoints::check_display(&option),
            "netdev" | "nic" | "net" => endpoints::check_network(&option, &mut restored.shared),
            "object" => endpoints::check_object(&option),
            "device" => {
                endpoints::note_device(&option, &mut restored.shared);
                generation_id::renew(&mut option);
                Ok(())
            }
            "name" => {
                self.rename(&mut option);
                Ok(())
            }
            "uuid" => {
                match &self.uuid {
                    Some(uuid) => option.value = Some(uuid.clone()),
                    None => restored.shared.push(SharedIdentity::Uuid(option.text().to_owned())),
                }
                Ok(())
            }
            name if disks::is_disk(name) => return disks::of_drive(option, &self.disks).map(Some),
            _ => Ok(()),
        }?;
        Ok(Some(option))
    }

    /// Changes the guest's name, and nothing else of the option.
    fn rename(&self, option: &mut QemuOption) {
        if let (Some(name), Some(mut read)) = (&self.name, Properties::read(option.text(), "guest"))
        {
            read.set("guest", name);
            option.value = Some(read.write());
        }
    }
}

fn decides_restore(option: &QemuOption) -> bool {
    ["incoming", "loadvm", "S", "snapshot", "daemonize", "pidfile"].contains(&option.name)
}

/// Returns true if a new option takes the place of an old one: of the same name and, where either has an id, of
/// the same id. All ways to name the type of machine are one.
fn takes_place(new: &QemuOption, old: &QemuOption) -> bool {
    let name = |option: &QemuOption| if option.name == "M" { "machine" } else { option.name };
    name(new) == name(old) && id(new) == id(old)
}

fn id(option: &QemuOption) -> Option<String> {
    let (implied, key) = match option.name {
        "chardev" => ("backend", "id"),
        "netdev" => ("type", "id"),
        "device" => ("driver", "id"),
        "object" => ("qom-type", "id"),
        "drive" => ("", "id"),
        "blockdev" => ("driver", "node-name"),
        "mon" => ("chardev", "chardev"),
        _ => return None,
    };
    Properties::read(option.text(), implied)?.get(key)
}

#[cfg(test)]
mod tests;
