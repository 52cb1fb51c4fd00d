//! Names of what a pool consists of.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// An object of a pool: an mblock or an mlog. Never given twice in the life of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub u64);

impl fmt::Display for ObjectId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:#x}", self.0)
    }
}

/// The pool and the id of a log. Every block of the log holds both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogIdentity {
    /// Id of the pool.
    pub pool: u128,
    /// Id of the log in the pool.
    pub log: ObjectId,
}

/// A device of a pool, in the order in which devices were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceIndex(pub u16);

impl fmt::Display for DeviceIndex {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Media class of an object, chosen when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MediaClass {
    /// The bulk of all objects; every pool has it.
    Capacity,
    /// Objects that must be written and read fast.
    Staging,
    /// An S3-compatible store; nothing is made there, objects are moved there and back.
    Archive,
}

impl MediaClass {
    /// All of them, in the order of their numbers in the format.
    pub const ALL: [Self; 3] = [Self::Capacity, Self::Staging, Self::Archive];

    /// Returns the name of the class.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Capacity => "capacity",
            Self::Staging => "staging",
            Self::Archive => "archive",
        }
    }
}

impl fmt::Display for MediaClass {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// A media class that there is not.
#[derive(Debug, Error)]
#[error("{0:?} is no media class: they are capacity, staging and archive")]
pub struct UnknownClass(pub String);

impl FromStr for MediaClass {
    type Err = UnknownClass;

    fn from_str(name: &str) -> Result<Self, UnknownClass> {
        let found = Self::ALL.into_iter().find(|class| class.name() == name);
        found.ok_or_else(|| UnknownClass(name.into()))
    }
}
