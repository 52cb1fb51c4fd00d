//! Transparent huge pages: whether the kernel makes any. See Documentation/admin-guide/mm/transhuge.rst.

use std::fs;
use std::io;

/// Policy for memory that may have huge pages, of `enabled` in `/sys/kernel/mm/transparent_hugepage`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Huge pages wherever they fit, unless advised otherwise.
    Always,
    /// Huge pages where they are advised.
    Madvise,
    /// No huge pages.
    Never,
}

/// Advice about huge pages that memory keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Advice {
    /// Nothing was advised.
    #[default]
    None,
    /// `MADV_HUGEPAGE`.
    Wanted,
    /// `MADV_NOHUGEPAGE`.
    Unwanted,
}

const DIRECTORY: &str = "/sys/kernel/mm/transparent_hugepage";

impl Policy {
    /// Reads the policy of this machine for huge pages of 2 MiB. Two system calls or five.
    ///
    /// # Errors
    /// As open(2): `NotFound` where the kernel was built without huge pages.
    pub fn of_machine() -> io::Result<Self> {
        // Since Linux 6.8 each size may have a policy of its own.
        let own = fs::read_to_string(format!("{DIRECTORY}/hugepages-2048kB/enabled"));
        if let Some(policy) = own.ok().as_deref().and_then(Self::parse) {
            return Ok(policy);
        }
        let text = fs::read_to_string(format!("{DIRECTORY}/enabled"))?;
        Self::parse(&text).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    }

    /// Returns the policy that is chosen in `text`, as the kernel writes it: `always [madvise] never`.
    /// `None` for one that is none of these (`inherit`).
    fn parse(text: &str) -> Option<Self> {
        let chosen = text.split_ascii_whitespace().find_map(|word| word.strip_prefix('['))?;
        match chosen.strip_suffix(']')? {
            "always" => Some(Self::Always),
            "madvise" => Some(Self::Madvise),
            "never" => Some(Self::Never),
            _ => None,
        }
    }

    /// Returns true if memory that is advised so may have huge pages.
    #[must_use]
    pub const fn allows(self, advice: Advice) -> bool {
        match (self, advice) {
            (Self::Never, _) | (_, Advice::Unwanted) => false,
            (Self::Always, _) => true,
            (Self::Madvise, advice) => matches!(advice, Advice::Wanted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_policy_is_the_one_in_brackets() {
        assert_eq!(Policy::parse("always [madvise] never\n"), Some(Policy::Madvise));
        assert_eq!(Policy::parse("[always] inherit madvise never\n"), Some(Policy::Always));
        assert_eq!(Policy::parse("always [inherit] madvise never\n"), None);
        assert_eq!(Policy::parse("always madvise [never]"), Some(Policy::Never));
        assert_eq!(Policy::parse(""), None);
    }

    #[test]
    fn the_owners_advice_counts_unless_there_are_none_at_all() {
        let allowed = |policy: Policy| {
            [Advice::None, Advice::Wanted, Advice::Unwanted].map(|advice| policy.allows(advice))
        };
        assert_eq!(allowed(Policy::Always), [true, true, false]);
        assert_eq!(allowed(Policy::Madvise), [false, true, false]);
        assert_eq!(allowed(Policy::Never), [false; 3]);
    }
}
