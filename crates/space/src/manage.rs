//! Taking memory under management.

use std::{
    fs::{self, File},
    io,
    os::{fd::AsFd, unix::fs::MetadataExt},
    sync::{Arc, PoisonError},
    thread,
    time::Duration,
};

use bindery_sys::{mapping, maps, memfd, userfault::mode};
use bindery_units::{HostAddress, PAGE_BYTES, PAGE_SHIFT};

use crate::{
    Core,
    region::Region,
    wire::control::{Backing, Region as Announced},
};

/// Why a range was not taken under management. It is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManageError {
    /// Not made of whole pages.
    #[error("{address} + {bytes} bytes is not made of whole 4 KiB pages")]
    Unaligned {
        /// Where it begins.
        address: HostAddress,
        /// How long it is.
        bytes: usize,
    },
    /// Managed already, in part or all.
    #[error("{address} is managed already")]
    Managed {
        /// Where it begins.
        address: HostAddress,
    },
    /// Neither private anonymous memory nor a memfd that is only used here.
    #[error(
        "{address} is {what}, which cannot be merged: use private memory, or a memfd that no other process uses"
    )]
    Unsuitable {
        /// Where it begins.
        address: HostAddress,
        /// What it is.
        what: String,
    },
    /// Another userfaultfd has it: the VMM's own post-copy or background snapshot.
    #[error(
        "{address} is watched by another userfaultfd (post-copy, or a background snapshot): merging starts when that ends"
    )]
    Watched {
        /// Where it begins.
        address: HostAddress,
    },
    /// The kernel refused.
    #[error("the kernel refused to watch {address}: {source}")]
    Kernel {
        /// Where it begins.
        address: HostAddress,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// [`PAGES_MAX`](crate::wire::control::PAGES_MAX) were used up.
    #[error("this process has had 4 TiB of managed memory, now or earlier, which is the most")]
    PagesExhausted,
}

impl Core {
    pub(crate) fn manage(
        &self,
        address: HostAddress,
        bytes: usize,
    ) -> Result<Arc<Region>, ManageError> {
        let end = address.0.checked_add(bytes).filter(|_| address.is_page_aligned());
        let Some(end) = end.filter(|_| bytes > 0 && bytes.is_multiple_of(PAGE_BYTES)) else {
            return Err(ManageError::Unaligned { address, bytes });
        };
        let _one_at_a_time = self.managing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.regions.overlapping(address, HostAddress(end)).iter().any(|r| r.watched) {
            return Err(ManageError::Managed { address });
        }
        let kernel = |source| ManageError::Kernel { address, source };
        let maps = maps::of_self().map_err(kernel)?;
        let backing = backing_of(&maps, address, bytes)?;
        let file = match &backing {
            Found::Anonymous => None,
            Found::Memfd(memfd) => Some(Arc::new(memfd.open_if_only_ours(&maps, address)?)),
        };
        let advised = maps::advised(address.0).map_err(kernel)?;
        let count = u32::try_from(bytes >> PAGE_SHIFT).map_err(|_| ManageError::PagesExhausted)?;
        let pages = self.regions.number(count).ok_or(ManageError::PagesExhausted)?;
        let (kind, offset) = match &backing {
            Found::Anonymous => (Backing::Anonymous, 0),
            Found::Memfd(memfd) => (Backing::SharedMemfd, memfd.offset_bytes),
        };
        let announced = Announced { pages, address, backing: kind };
        let region = Region::new(announced, file, offset, advised).map_err(kernel)?;
        // Strays of earlier times that are no more: their owner mapped other memory here.
        self.forget(address, HostAddress(end));
        if region.file.is_some() {
            self.take_over(&region, bytes)?;
        } else {
            self.watch(address, bytes)?;
        }
        // Not while the process forks: a child reads the list as it was.
        let _hold = self.hold(address, HostAddress(end));
        // From here on the handlers find it.
        Ok(self.regions.add(region))
    }

    /// Puts memory in place of an empty file that is only mapped here, and has it watched.
    fn take_over(&self, region: &Region, bytes: usize) -> Result<(), ManageError> {
        let address = region.start();
        // While nothing has changed: if another userfaultfd has it, the file stays where it is.
        // SAFETY: absent pages of an empty file are filled with zeros, as of any memory.
        unsafe { self.guest_faults.register(address, bytes, mode::MISSING) }
            .map_err(|source| refused(address, source))?;
        // SAFETY: the file is empty and only mapped here, so fresh memory in its place holds the
        // same zeros; the advice is its owner's.
        let replaced = unsafe { replace_file(region, bytes) };
        let taken = replaced.map_err(|source| refused(address, source));
        taken.and_then(|()| self.watch(address, bytes)).inspect_err(|_| {
            let file = region.file.as_ref().expect("it is the file's memory");
            // SAFETY: as above, the other way round.
            let back = || unsafe {
                let offset_bytes = region.file_offset_bytes;
                mapping::replace_with_shared_file(address, bytes, file.as_fd(), offset_bytes)
            };
            // The owner expects its file there, so there is nothing to do but to try again.
            while back().is_err() {
                thread::sleep(Duration::from_millis(1));
            }
        })
    }

    fn watch(&self, address: HostAddress, bytes: usize) -> Result<(), ManageError> {
        // SAFETY: the advice keeps content; faults are served by the handler, which fills absent
        // pages with zeros, as the kernel does for this memory.
        let watched = unsafe {
            mapping::advise(address, bytes, libc::MADV_NOHUGEPAGE)
                .and_then(|()| self.guest_faults.register(address, bytes, mode::MISSING | mode::WP))
        };
        watched.map_err(|source| refused(address, source))
    }
}

/// Puts fresh anonymous memory in place of a region's file, advised as the file's mapping was.
///
/// # Safety
/// The region is its owner's to replace, and holds only zeros.
unsafe fn replace_file(region: &Region, bytes: usize) -> io::Result<()> {
    // SAFETY: the caller's contract.
    unsafe {
        mapping::replace_with_anonymous(region.start(), bytes)?;
        region.advise_mapping(region.start(), bytes)
    }
}

fn refused(address: HostAddress, source: io::Error) -> ManageError {
    match source.raw_os_error() {
        Some(libc::EBUSY) => ManageError::Watched { address },
        _ => ManageError::Kernel { address, source },
    }
}

/// What a range is mapped from.
enum Found {
    Anonymous,
    Memfd(Memfd),
}

struct Memfd {
    inode: u64,
    offset_bytes: u64,
}

fn backing_of(maps: &str, address: HostAddress, bytes: usize) -> Result<Found, ManageError> {
    let unsuitable = |what: String| ManageError::Unsuitable { address, what };
    let end = address.0 + bytes;
    let mut at = address.0;
    let mut found = None;
    for line in maps::lines(maps).filter(|l| l.start < end && l.end > address.0) {
        if line.start > at {
            break;
        }
        at = line.end;
        if !line.permissions.starts_with("rw") {
            return Err(unsuitable(format!("mapped {}", line.permissions)));
        }
        let memfd = line.permissions.ends_with('s') && line.name.starts_with("/memfd:");
        if memfd && found.is_none() && line.start <= address.0 && line.end >= end {
            let into = (address.0 - line.start) as u64;
            let offset_bytes = line.offset_bytes + into;
            found = Some(Found::Memfd(Memfd { inode: line.inode, offset_bytes }));
        } else if line.inode == 0
            && line.permissions.ends_with('p')
            // Memory that our own threads allocate from could be in transit when they touch it.
            && !["[heap]", "[stack]"].contains(&line.name)
            && !matches!(found, Some(Found::Memfd(_)))
        {
            found = Some(Found::Anonymous);
        } else {
            return Err(unsuitable(format!("mapped as {}", line.name)));
        }
    }
    match found {
        Some(found) if at >= end => Ok(found),
        _ => Err(unsuitable("not mapped".to_owned())),
    }
}

impl Memfd {
    /// A descriptor of the file, if it is empty and no other process and no other mapping uses it.
    fn open_if_only_ours(&self, maps: &str, address: HostAddress) -> Result<File, ManageError> {
        let unsuitable = |what: &str| ManageError::Unsuitable { address, what: what.to_owned() };
        let mapped = maps::lines(maps).filter(|l| l.inode == self.inode).count();
        if mapped != 1 {
            return Err(unsuitable("a memfd that is mapped more than once"));
        }
        let own = descriptor_of("self", self.inode)
            .ok_or_else(|| unsuitable("a memfd whose descriptor was closed"))?;
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&own)
            .map_err(|source| ManageError::Kernel { address, source })?;
        let length = file.metadata().map_err(|source| ManageError::Kernel { address, source })?;
        let is_huge = memfd::is_hugetlb(&file);
        if is_huge.map_err(|source| ManageError::Kernel { address, source })? {
            return Err(unsuitable("a memfd of huge pages"));
        }
        if length.blocks() != 0 {
            return Err(unsuitable("a memfd that holds data already"));
        }
        let own_pid = std::process::id().to_string();
        let processes =
            fs::read_dir("/proc").map_err(|source| ManageError::Kernel { address, source })?;
        for process in processes.flatten() {
            let name = process.file_name();
            let pid = name.to_string_lossy();
            let other = pid.bytes().all(|digit| digit.is_ascii_digit()) && *pid != own_pid;
            if other && descriptor_of(&pid, self.inode).is_some() {
                return Err(unsuitable("a memfd that another process has open"));
            }
        }
        Ok(file)
    }
}

/// The path of a process's descriptor for a memfd, if it has one that we may see.
fn descriptor_of(pid: &str, inode: u64) -> Option<std::path::PathBuf> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    descriptors.flatten().map(|entry| entry.path()).find(|path| {
        fs::read_link(path).is_ok_and(|link| link.to_string_lossy().starts_with("/memfd:"))
            && fs::metadata(path).is_ok_and(|file| file.ino() == inode)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
        7f0000000000-7f0000010000 rw-p 00000000 00:00 0 \n\
        7f0000010000-7f0000020000 rw-p 00000000 00:00 0          [anon: ram]\n\
        7f0000030000-7f0000040000 rw-s 00001000 00:01 4242       /memfd:ram (deleted)\n\
        7f0000050000-7f0000060000 r-xp 00000000 08:01 99         /usr/lib/x.so\n\
        7f0000080000-7f0000090000 rw-p 00000000 00:00 0          [heap]\n";

    fn found(start: usize, bytes: usize) -> Result<Found, ManageError> {
        backing_of(MAPS, HostAddress(start), bytes)
    }

    #[test]
    fn anonymous_memory_may_lie_in_several_mappings() {
        assert!(matches!(found(0x7f00_0000_8000, 0x10000), Ok(Found::Anonymous)));
    }

    #[test]
    fn a_hole_or_a_file_is_unsuitable() {
        assert!(found(0x7f00_0001_8000, 0x10000).is_err());
        assert!(found(0x7f00_0005_0000, 0x1000).is_err());
        assert!(found(0x7f00_0007_0000, 0x1000).is_err());
        assert!(found(0x7f00_0008_0000, 0x1000).is_err());
    }

    #[test]
    fn a_shared_memfd_is_found_with_its_offset() {
        let Ok(Found::Memfd(memfd)) = found(0x7f00_0003_2000, 0x4000) else { panic!("memfd") };
        assert_eq!((memfd.inode, memfd.offset_bytes), (4242, 0x3000));
    }
}
