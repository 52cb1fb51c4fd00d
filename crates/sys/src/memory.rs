//! How much memory the machine has left, and how long tasks wait for it.

use std::fs;
use std::io;
use std::mem::MaybeUninit;

/// The machine's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineMemory {
    /// All that the kernel manages.
    pub total_bytes: u64,
    /// What could be had without swapping (proc_meminfo(5), `MemAvailable`).
    pub available_bytes: u64,
    /// All swap space.
    pub swap_bytes: u64,
}

impl MachineMemory {
    /// Reads `/proc/meminfo`. Costs some 30 µs.
    ///
    /// # Errors
    /// As reading the file; `InvalidData` if it has not the first two figures.
    pub fn read() -> io::Result<Self> {
        Self::parse(&fs::read_to_string("/proc/meminfo")?)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/meminfo is not known"))
    }

    fn parse(text: &str) -> Option<Self> {
        let bytes = |name| parse_bytes(text, name);
        let (total_bytes, available_bytes) = (bytes("MemTotal:")?, bytes("MemAvailable:")?);
        let swap_bytes = bytes("SwapTotal:").unwrap_or(0);
        (total_bytes > 0).then_some(Self { total_bytes, available_bytes, swap_bytes })
    }

    /// What is available, in whole percents of all.
    #[must_use]
    pub fn available_percent(&self) -> u64 {
        (u128::from(self.available_bytes) * 100 / u128::from(self.total_bytes.max(1))) as u64
    }
}

/// How much memory the machine has taken out of use since it started because it had uncorrected errors
/// (proc_meminfo(5), `HardwareCorrupted`). 0 on a kernel that takes none out. Costs some 10 µs.
///
/// # Errors
/// As reading `/proc/meminfo`.
pub fn lost_bytes() -> io::Result<u64> {
    Ok(parse_bytes(&fs::read_to_string("/proc/meminfo")?, "HardwareCorrupted:").unwrap_or(0))
}

/// A figure of `/proc/meminfo`.
fn parse_bytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Whether the machine has any swap that pages can go to. One system call, sysinfo(2).
#[must_use]
pub fn has_swap() -> bool {
    let mut information = MaybeUninit::<libc::sysinfo>::uninit();
    // SAFETY: the structure is writable, and filled where the call succeeds.
    unsafe {
        // It fails for bad addresses alone; what cannot be told is taken for yes.
        libc::sysinfo(information.as_mut_ptr()) != 0 || information.assume_init().totalswap > 0
    }
}

/// For how much of the last ten seconds at least one task waited for memory, in hundredths of a percent
/// (Documentation/accounting/psi.rst, `some avg10`). `None` on a kernel without PSI, or one that was
/// started without it.
#[must_use]
pub fn stall() -> Option<u64> {
    parse_stall(&fs::read_to_string("/proc/pressure/memory").ok()?)
}

/// Returns the part of the last ten seconds in which tasks waited for processors, in hundredths of a percent, as
/// [`stall`] does for memory.
#[must_use]
pub fn processor_stall() -> Option<u64> {
    parse_stall(&fs::read_to_string("/proc/pressure/cpu").ok()?)
}

fn parse_stall(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let average = line.split_ascii_whitespace().find_map(|field| field.strip_prefix("avg10="))?;
    let (whole, hundredths) = average.split_once('.')?;
    let hundredths =
        if hundredths.len() == 2 { hundredths.parse::<u64>().ok()? } else { return None };
    whole.parse::<u64>().ok()?.checked_mul(100)?.checked_add(hundredths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory() {
        let memory = MachineMemory::read().unwrap();
        assert!(memory.available_bytes <= memory.total_bytes);
        assert!(memory.available_percent() <= 100);
        assert!(lost_bytes().unwrap() <= memory.total_bytes);
        assert!([stall(), processor_stall()].into_iter().flatten().all(|stall| stall <= 10_000));
    }

    #[test]
    fn files_are_read_as_the_kernel_writes_them() {
        let text = "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    250 kB\n";
        let memory = MachineMemory::parse(text).unwrap();
        assert_eq!((memory.total_bytes, memory.available_percent()), (1_024_000, 25));
        assert_eq!(memory.swap_bytes, 0);
        let text = format!("{text}SwapTotal:  2 kB\n");
        assert_eq!(MachineMemory::parse(&text).unwrap().swap_bytes, 2048);
        assert_eq!(parse_bytes("HardwareCorrupted:     8 kB\n", "HardwareCorrupted:"), Some(8192));
        assert_eq!(MachineMemory::parse("MemTotal: 0 kB\nMemAvailable: 0 kB\n"), None);
        assert_eq!(MachineMemory::parse("MemTotal: x kB\n"), None);
        let text = "some avg10=12.34 avg60=0.00 avg300=0.00 total=5\nfull avg10=1.00\n";
        assert_eq!(parse_stall(text), Some(1234));
        assert_eq!(parse_stall("full avg10=1.00"), None);
    }
}
