//! Names of PageONE's data sets on the command line.

use bindery_bench::merge::dataset::Content;
use clap::ValueEnum;

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum ContentName {
    Easy,
    ZeroPrefix,
}

impl From<ContentName> for Content {
    fn from(name: ContentName) -> Self {
        match name {
            ContentName::Easy => Self::Easy,
            ContentName::ZeroPrefix => Self::ZeroPrefix,
        }
    }
}
