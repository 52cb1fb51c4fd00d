//! Memory policies: from which nodes the pages of a mapping come. See mbind(2) and numa(7).

use std::io;

use bindery_units::HostAddress;

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

fn answer(result: libc::c_long) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use bindery_units::PAGE_BYTES;

    use super::*;
    use crate::mapping::Mapping;

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
}
