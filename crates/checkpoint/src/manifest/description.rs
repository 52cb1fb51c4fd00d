//! Description of a guest, beside its memory.

use bindery_units::PAGE_BYTES;

use crate::fields::{Fields, put_counted};
use crate::format_error::FormatError;
use crate::name::Name;

const WHAT: &str = "description";
const LONG_LIST: &str = "it has more than 65,535 arguments, memory blocks or disks";

/// Most pages of a memory block: page indices have 32 bits.
pub(crate) const BLOCK_PAGES_MAX: u64 = u32::MAX as u64;

/// Most bytes of a description: an import holds it in memory before anything is verified.
pub(crate) const DESCRIPTION_BYTES_MAX: usize = 64 << 20;

/// Most arguments, memory blocks or disks.
const LIST_MAX: usize = u16::MAX as usize;

/// A memory block of a guest, as its VMM names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryBlock {
    /// Name that the VMM gives it, such as `pc.ram`.
    pub name: String,
    /// Length, in bytes: whole pages.
    pub bytes: u64,
}

impl MemoryBlock {
    /// Returns the number of pages.
    #[must_use]
    pub const fn pages(&self) -> u64 {
        self.bytes / PAGE_BYTES as u64
    }
}

/// A writable disk of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Name that the VMM gives it.
    pub device: String,
    /// Path of the file that holds its content as of the checkpoint, as the kernel has it.
    pub path: Vec<u8>,
    /// Format of the file, such as `qcow2`.
    pub format: String,
}

/// The VMM that ran the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vmm {
    /// Kind of VMM, such as `qemu`.
    pub kind: String,
    /// Version of the VMM, such as `10.0.2`.
    pub version: String,
    /// Type of machine, such as `pc-i440fx-10.0`; empty where the VMM has none.
    pub machine: String,
    /// Kind of device state, such as `xen-save-devices-state`, on which loading depends.
    pub device_state: String,
    /// Arguments that it was started with, as the kernel has them.
    pub arguments: Vec<Vec<u8>>,
}

/// Description of a guest as it was when its checkpoint was made, beside its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Name of the guest.
    pub guest: Name,
    /// Name of the checkpoint among those of the guest.
    pub name: Name,
    /// Name of the domain that the guest belongs to.
    pub domain: Name,
    /// Time of the pause, in nanoseconds since 1970-01-01 UTC.
    pub time_ns: u64,
    /// The VMM that ran the guest.
    pub vmm: Vmm,
    /// Memory blocks, in the order in which the VMM made them.
    pub blocks: Vec<MemoryBlock>,
    /// Writable disks.
    pub disks: Vec<Disk>,
    /// Device state, as the VMM gave it.
    pub device_state: Vec<u8>,
}

impl Description {
    /// Returns the number of pages of all memory blocks.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.blocks.iter().map(MemoryBlock::pages).sum()
    }

    /// Refuses a description that no checkpoint can have, or that could not be imported again.
    ///
    /// # Errors
    /// [`FormatError::Impossible`].
    pub(crate) fn check(&self) -> Result<(), FormatError> {
        check_blocks(&self.blocks)?;
        if self.vmm.arguments.len().max(self.disks.len()) > LIST_MAX {
            return Err(FormatError::impossible(WHAT, LONG_LIST));
        }
        if self.encode().len() > DESCRIPTION_BYTES_MAX {
            let why = "it is longer than 64 MiB, with the device state";
            return Err(FormatError::impossible(WHAT, why));
        }
        Ok(())
    }

    /// Encodes it; `docs/formats/checkpoint.md` says how.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(256 + self.device_state.len());
        self.put(&mut bytes);
        bytes
    }

    /// Reads a description that is all of `bytes`.
    ///
    /// # Errors
    /// See [`FormatError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut fields = Fields::new(WHAT, bytes);
        let description = Self::take(&mut fields)?;
        fields.end()?;
        Ok(description)
    }

    pub(super) fn put(&self, into: &mut Vec<u8>) {
        for name in [&self.guest, &self.name, &self.domain] {
            put_counted(into, name.as_str().as_bytes());
        }
        into.extend_from_slice(&self.time_ns.to_le_bytes());
        let Vmm { kind, version, machine, device_state, .. } = &self.vmm;
        for text in [kind, version, machine, device_state] {
            put_counted(into, text.as_bytes());
        }
        put_count(into, self.vmm.arguments.len());
        self.vmm.arguments.iter().for_each(|argument| put_counted(into, argument));
        put_count(into, self.blocks.len());
        for block in &self.blocks {
            put_counted(into, block.name.as_bytes());
            into.extend_from_slice(&block.bytes.to_le_bytes());
        }
        put_count(into, self.disks.len());
        for disk in &self.disks {
            put_counted(into, disk.device.as_bytes());
            put_counted(into, &disk.path);
            put_counted(into, disk.format.as_bytes());
        }
        put_counted(into, &self.device_state);
    }

    pub(super) fn take(fields: &mut Fields<'_>) -> Result<Self, FormatError> {
        let (guest, name, domain) = (take_name(fields)?, take_name(fields)?, take_name(fields)?);
        let time_ns = fields.u64()?;
        let (kind, version, machine) = (fields.text()?, fields.text()?, fields.text()?);
        let kind_of_state = fields.text()?;
        let arguments = take_all(fields, 4, |fields| Ok(fields.counted()?.to_vec()))?;
        let blocks = take_all(fields, 12, take_block)?;
        let disks = take_all(fields, 12, take_disk)?;
        let vmm = Vmm { kind, version, machine, device_state: kind_of_state, arguments };
        let device_state = fields.counted()?.to_vec();
        check_blocks(&blocks)?;
        Ok(Self { guest, name, domain, time_ns, vmm, blocks, disks, device_state })
    }
}

/// Refuses memory blocks that no checkpoint can have.
fn check_blocks(blocks: &[MemoryBlock]) -> Result<(), FormatError> {
    let is_possible = |block: &MemoryBlock| {
        block.bytes.is_multiple_of(PAGE_BYTES as u64) && block.pages() <= BLOCK_PAGES_MAX
    };
    if !blocks.iter().all(is_possible) {
        let why = "a memory block is no whole number of pages, or has more than 2^32 - 1";
        return Err(FormatError::impossible(WHAT, why));
    }
    if blocks.len() > LIST_MAX {
        return Err(FormatError::impossible(WHAT, LONG_LIST));
    }
    let mut names: Vec<&str> = blocks.iter().map(|block| &*block.name).collect();
    names.sort_unstable();
    if names.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(FormatError::impossible(WHAT, "two memory blocks have one name"));
    }
    Ok(())
}

fn put_count(into: &mut Vec<u8>, count: usize) {
    into.extend_from_slice(&(count as u32).to_le_bytes());
}

fn take_all<T>(
    fields: &mut Fields<'_>,
    least_bytes: usize,
    mut take: impl FnMut(&mut Fields<'_>) -> Result<T, FormatError>,
) -> Result<Vec<T>, FormatError> {
    let count = fields.count(least_bytes)?;
    if count > LIST_MAX {
        return Err(FormatError::impossible(WHAT, LONG_LIST));
    }
    (0..count).map(|_| take(fields)).collect()
}

pub(crate) fn take_name(fields: &mut Fields<'_>) -> Result<Name, FormatError> {
    fields.text()?.parse().map_err(|_| FormatError::impossible(WHAT, "a name is none"))
}

fn take_block(fields: &mut Fields<'_>) -> Result<MemoryBlock, FormatError> {
    Ok(MemoryBlock { name: fields.text()?, bytes: fields.u64()? })
}

fn take_disk(fields: &mut Fields<'_>) -> Result<Disk, FormatError> {
    Ok(Disk { device: fields.text()?, path: fields.counted()?.to_vec(), format: fields.text()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description() -> Description {
        let name = |text: &str| text.parse().unwrap();
        Description {
            guest: name("one"),
            name: name("a"),
            domain: name("web"),
            time_ns: 7,
            vmm: Vmm::default(),
            blocks: Vec::new(),
            disks: Vec::new(),
            device_state: Vec::new(),
        }
    }

    #[test]
    fn what_could_not_be_imported_is_refused() {
        let mut largest = description();
        let rest = largest.encode().len();
        largest.device_state = vec![1; DESCRIPTION_BYTES_MAX - rest];
        largest.check().unwrap();
        largest.device_state.push(1);
        largest.check().unwrap_err();

        let mut listed = description();
        listed.vmm.arguments = vec![Vec::new(); LIST_MAX];
        listed.check().unwrap();
        assert_eq!(Description::decode(&listed.encode()), Ok(listed.clone()));
        listed.vmm.arguments.push(Vec::new());
        listed.check().unwrap_err();
        Description::decode(&listed.encode()).unwrap_err();
    }
}
