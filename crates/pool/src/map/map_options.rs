//! Ways to make a map.

use std::fmt;
use std::fs::File;
use std::str::FromStr;

use thiserror::Error;

use crate::ObjectId;

/// Temperature of a map: how long its objects stay in memory when it is short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Temperature {
    /// The reaper's time to live.
    Cold,
    /// Ten times as long.
    #[default]
    Warm,
    /// A hundred times as long.
    Hot,
    /// Objects stay for ever, as far as the reaper is concerned.
    Pinned,
}

impl Temperature {
    /// All of them, from the coldest.
    pub const ALL: [Self; 4] = [Self::Cold, Self::Warm, Self::Hot, Self::Pinned];

    /// Returns the name of the temperature.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Warm => "warm",
            Self::Hot => "hot",
            Self::Pinned => "pinned",
        }
    }

    pub(crate) const fn number(self) -> u8 {
        self as u8
    }

    pub(crate) const fn of_number(number: u8) -> Self {
        Self::ALL[number as usize]
    }
}

impl fmt::Display for Temperature {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// A temperature that there is not.
#[derive(Debug, Error)]
#[error("{0:?} is no temperature: they are cold, warm, hot and pinned")]
pub struct UnknownTemperature(pub String);

impl FromStr for Temperature {
    type Err = UnknownTemperature;

    fn from_str(name: &str) -> Result<Self, UnknownTemperature> {
        let found = Self::ALL.into_iter().find(|temperature| temperature.name() == name);
        found.ok_or_else(|| UnknownTemperature(name.into()))
    }
}

/// Back ends of maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BackEndKind {
    /// The shared mapping of one device's file.
    File,
    /// Memory that is filled when it is touched.
    Memfd,
}

/// Choice of a back end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackEndChoice {
    /// The file where all objects are in one device's file, else the memfd.
    #[default]
    Automatic,
    /// This one.
    Fixed(BackEndKind),
}

/// Order in which the objects will be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MapAccess {
    /// Here and there: a fault reads one page (`MADV_RANDOM`).
    #[default]
    Random,
    /// Mostly forwards: a fault reads some of what follows as well.
    Sequential,
}

/// A page that could not be read when it was touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Object of the page.
    pub object: ObjectId,
    /// Start of the page in the object, in bytes.
    pub offset_bytes: u64,
}

/// Ways to make a map.
#[derive(Debug, Default)]
pub struct MapOptions {
    /// Back end to take.
    pub choice: BackEndChoice,
    /// Order in which the map will be read.
    pub access: MapAccess,
    /// True if each access is reported by a call: a view is read when it was had from [`Map::get`](super::Map::get),
    /// or beside [`Map::touch`](super::Map::touch). A reaper that evicts pages then knows at once, for a nanosecond
    /// or two, what is accessed how often. Otherwise it takes pages that are about to go out of the page tables
    /// first, and sees who comes back.
    pub accesses_are_reported: bool,
    /// Called with a page that cannot be had, before the thread that touched it gets `SIGBUS`. Called in a
    /// signal handler: it may do what signal-safety(7) allows and no more.
    pub on_lost: Option<fn(Lost)>,
    /// The memory of the same map in another process ([`Map::memory`](super::Map::memory)): implies the
    /// memfd back end.
    pub memory: Option<File>,
}
