//! Description of a guest, beside its memory.

use bindery_units::PAGE_BYTES;

use crate::fields::{Fields, put_counted};
use crate::format_error::FormatError;
use crate::name::Name;

const WHAT: &str = "description";

/// Most pages of a memory block: page indices have 32 bits.
pub(crate) const BLOCK_PAGES_MAX: u64 = u32::MAX as u64;

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
        for text in [&self.vmm.kind, &self.vmm.version, &self.vmm.machine] {
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
        let arguments = take_all(fields, 4, |fields| Ok(fields.counted()?.to_vec()))?;
        let blocks = take_all(fields, 12, take_block)?;
        let disks = take_all(fields, 12, take_disk)?;
        let device_state = fields.counted()?.to_vec();
        let vmm = Vmm { kind, version, machine, arguments };
        check_blocks(&blocks)?;
        Ok(Self { guest, name, domain, time_ns, vmm, blocks, disks, device_state })
    }
}

/// Refuses memory blocks that no checkpoint can have.
///
/// # Errors
/// [`FormatError::Impossible`].
pub(crate) fn check_blocks(blocks: &[MemoryBlock]) -> Result<(), FormatError> {
    let is_possible = |block: &MemoryBlock| {
        block.bytes.is_multiple_of(PAGE_BYTES as u64) && block.pages() <= BLOCK_PAGES_MAX
    };
    if !blocks.iter().all(is_possible) {
        let why = "a memory block is no whole number of pages, or has more than 2^32 - 1";
        return Err(FormatError::impossible(WHAT, why));
    }
    if blocks.len() > usize::from(u16::MAX) {
        return Err(FormatError::impossible(WHAT, "it has more than 65,535 memory blocks"));
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
