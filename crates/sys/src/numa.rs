//! Nodes of memory: from which of them the pages of a mapping or a file come, which there are, and on which a
//! process's memory lies. See mbind(2) and numa(7).

mod machine;
mod process;

use std::io;
use std::os::fd::BorrowedFd;

use bindery_units::{HostAddress, NumaNode};

use crate::mapping::Mapping;

pub use self::machine::{cpus_of, nodes_with_memory};
pub use self::process::{Allowed, anonymous_bytes};

/// Nodes that a policy may name: as many as any kernel has.
const NODES_MAX: usize = 1024;

/// Bits that the calls are told of: they leave the last one out.
const MASK_BITS: libc::c_ulong = NODES_MAX as libc::c_ulong + 1;

/// `MPOL_F_ADDR`, which libc does not name: the policy of an address, and not of a thread.
const MPOL_F_ADDR: libc::c_ulong = 1 << 1;

/// Memory policy of a mapping, as mbind(2) takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// `MPOL_*`, with its flags.
    mode: libc::c_int,
    nodes: [libc::c_ulong; NODES_MAX / libc::c_ulong::BITS as usize],
}

impl Default for Policy {
    /// Returns the policy of memory for which none was set: that of the thread that touches it first.
    fn default() -> Self {
        Self { mode: libc::MPOL_DEFAULT, nodes: [0; _] }
    }
}

impl Policy {
    /// Returns the policy of memory that comes from `node` while that has any, and from others otherwise
    /// (`MPOL_PREFERRED`).
    ///
    /// # Errors
    /// `InvalidInput` for a number that no kernel has.
    pub fn preferring(node: NumaNode) -> io::Result<Self> {
        let (at, bit) = (node.0 / libc::c_ulong::BITS, node.0 % libc::c_ulong::BITS);
        let mut policy = Self { mode: libc::MPOL_PREFERRED, ..Self::default() };
        let word = policy.nodes.get_mut(at as usize).ok_or(io::ErrorKind::InvalidInput)?;
        *word = 1 << bit;
        Ok(policy)
    }

    /// Reads the policy of the mapping that `address` lies in. The default one where the kernel knows no nodes.
    ///
    /// # Errors
    /// As get_mempolicy(2): `EFAULT` where nothing is mapped.
    pub fn of(address: HostAddress) -> io::Result<Self> {
        let mut policy = Self::default();
        let (mode, nodes) = (&raw mut policy.mode, policy.nodes.as_mut_ptr());
        // SAFETY: both are ours, and there is room for as many bits as the call is told of, less one.
        let result = unsafe {
            crate::syscall!(libc::SYS_get_mempolicy, mode, nodes, MASK_BITS, address.0, MPOL_F_ADDR)
        };
        match answer(result) {
            Ok(()) => Ok(policy),
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    /// Sets the policy of whole pages: those that come are of its nodes, and those that are there stay where they
    /// are. May cut mappings.
    ///
    /// # Errors
    /// As mbind(2): `EINVAL` where the process may use none of the nodes, `ENOMEM` without a mapping.
    ///
    /// # Safety
    /// The caller owns the memory.
    pub unsafe fn set(&self, start: HostAddress, bytes: usize) -> io::Result<()> {
        let nodes = self.nodes.as_ptr();
        // SAFETY: the caller owns the memory, and the mask has as many bits as the call is told of, less one.
        let result = unsafe {
            crate::syscall!(libc::SYS_mbind, start.0, bytes, self.mode, nodes, MASK_BITS, 0)
        };
        answer(result)
    }
}

/// Makes the memory that the first `bytes` of a file of memory get from now on come from `node` while that has any,
/// whoever writes or touches it. The kernel keeps the policy with the file. Takes three system calls.
///
/// # Errors
/// As mmap(2) and mbind(2): `EINVAL` where there is no such node, or this process may use no memory of it.
pub fn prefer(file: BorrowedFd<'_>, bytes: usize, node: NumaNode) -> io::Result<()> {
    let policy = Policy::preferring(node)?;
    let view = Mapping::hidden(file, bytes)?;
    // SAFETY: needs memory of the caller's own: the mapping was just made, and nobody else knows of it.
    unsafe { policy.set(view.address(), bytes) }
}

fn answer(result: libc::c_long) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::FileExt as _;

    use bindery_units::PAGE_BYTES;

    use super::*;
    use crate::memfd;

    #[test]
    fn a_policy_that_was_set_is_read_again_where_it_was_set() {
        let memory = Mapping::anonymous(2 * PAGE_BYTES).expect("memory");
        let (first, second) = (memory.address(), memory.address().plus(PAGE_BYTES));
        assert_eq!(Policy::of(first).expect("a policy"), Policy::default());
        let mut nodes = Policy::default().nodes;
        nodes[0] = 1;
        for mode in [libc::MPOL_BIND, libc::MPOL_INTERLEAVE | libc::MPOL_F_STATIC_NODES] {
            let policy = Policy { mode, nodes };
            // SAFETY: the memory is ours.
            unsafe { policy.set(first, PAGE_BYTES) }.expect("the first node");
            assert_eq!(Policy::of(first).expect("a policy"), policy);
            assert_eq!(Policy::of(second).expect("a policy"), Policy::default());
        }
        // SAFETY: the memory is ours.
        unsafe { Policy::default().set(first, PAGE_BYTES) }.expect("none");
        assert_eq!(Policy::of(first).expect("a policy"), Policy::default());
        let nowhere = Policy::of(HostAddress(0)).expect_err("nothing is mapped there");
        assert_eq!(nowhere.raw_os_error(), Some(libc::EFAULT));
    }

    #[test]
    fn a_file_keeps_the_node_that_it_prefers() {
        const BYTES: usize = 16 * PAGE_BYTES;
        let file = memfd::create("test", 2 * BYTES as u64).expect("a memfd");
        prefer(file.as_fd(), BYTES, NumaNode(0)).expect("the first node");
        file.write_all_at(&[7; PAGE_BYTES], 0).expect("memory");
        // Any mapping of the file shows the policy, in this process or in another.
        let view = Mapping::shared(file.as_fd(), 2 * BYTES, false).expect("a view");
        let preferred = Policy::preferring(NumaNode(0)).expect("a policy");
        assert_eq!(Policy::of(view.address()).expect("a policy"), preferred);
        let behind = Policy::of(view.address().plus(BYTES)).expect("a policy");
        assert_eq!(behind, Policy::default());
    }

    #[test]
    fn nodes_that_there_are_not_are_refused() {
        let file = memfd::create("test", PAGE_BYTES as u64).expect("a memfd");
        for node in [NODES_MAX as u32 - 1, NODES_MAX as u32, u32::MAX] {
            assert!(prefer(file.as_fd(), PAGE_BYTES, NumaNode(node)).is_err(), "{node}");
        }
    }
}
