//! `bindery-bench pool vma`.

use std::path::PathBuf;

use bindery_bench::pool::vma;
use clap::Args;

#[derive(Debug, Args)]
pub(in crate::commands) struct PoolVmaArgs {
    /// Numbers of objects
    #[arg(long, value_delimiter = ',', default_value = "1000,10000,60000")]
    objects: Vec<usize>,
    /// Objects of one map
    #[arg(long, default_value_t = 100)]
    collection: usize,
    /// Where files are made; they are removed at the end
    #[arg(long, default_value = ".")]
    directory: PathBuf,
    /// Interleaved rounds; medians are shown
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

impl PoolVmaArgs {
    pub(super) fn options(&self) -> vma::Options {
        vma::Options {
            objects: self.objects.clone(),
            collection: self.collection,
            directory: self.directory.clone(),
            rounds: self.rounds,
        }
    }
}
