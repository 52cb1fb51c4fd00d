//! Contenders: nobody, KSM at two paces, and Bindery in each of its ways with huge pages.

use std::fmt;

use bindery_testkit::machine::KsmSettings;
use clap::ValueEnum;
use serde::Serialize;

use super::Options;
use crate::{
    choice,
    engine::{Engine, KsmPace},
};

/// Ways of a daemon with huge pages (`bindery set huge_pages=`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// No huge page is broken.
    Keep,
    /// Huge pages are broken in which merging gains more than they do.
    Auto,
    /// Huge pages are broken in which anything can be merged.
    Break,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&choice::name(self))
    }
}

/// Name of the contender that merges nothing, which all others are compared with.
pub(super) const NOBODY: &str = "nobody";

/// Name of KSM at full speed.
pub(super) const KSM: &str = "KSM";

/// One contender.
#[derive(Clone, Debug)]
pub(super) struct Contender {
    pub(super) name: String,
    pub(super) engine: Engine,
}

impl Contender {
    pub(super) fn nobody() -> Self {
        Self { name: NOBODY.into(), engine: Engine::Neither }
    }

    /// KSM as fast as it goes.
    pub(super) fn ksm() -> Self {
        Self { name: KSM.into(), engine: ksm(KsmPace::FullSpeed) }
    }

    /// KSM that looks at all of `pages` pages once in each of Bindery's periods.
    pub(super) fn eager_ksm(pages: u64, options: &Options) -> Self {
        let pace = KsmPace::EveryPeriod { pages, period: options.period };
        Self { name: Engine::Ksm(pace).to_string(), engine: ksm(pace) }
    }

    pub(super) fn bindery(mode: Mode, options: &Options) -> Self {
        let engine = Engine::HugePages {
            workers: options.workers,
            period: options.period,
            mode,
            program: options.program.clone(),
        };
        Self { name: mode.to_string(), engine }
    }

    /// Returns nobody, both paces of KSM and the modes that take part. The eager KSM looks at `pages`
    /// pages.
    pub(super) fn all(pages: u64, options: &Options) -> Vec<Self> {
        let mut all = vec![Self::nobody(), Self::ksm(), Self::eager_ksm(pages, options)];
        all.extend(options.modes.iter().map(|&mode| Self::bindery(mode, options)));
        all
    }

    /// Returns nobody, KSM at full speed and the modes that take part.
    pub(super) fn with_one_ksm(options: &Options) -> Vec<Self> {
        let mut all = vec![Self::nobody(), Self::ksm()];
        all.extend(options.modes.iter().map(|&mode| Self::bindery(mode, options)));
        all
    }

    /// Returns true if it never merges.
    pub(super) const fn is_nobody(&self) -> bool {
        matches!(self.engine, Engine::Neither)
    }
}

/// KSM at its best, whatever the machine is set to: pages that did not merge are passed over.
fn ksm(pace: KsmPace) -> Engine {
    let settings = KsmSettings { smart_scan: Some(true), ..pace.settings() };
    Engine::Ksm(KsmPace::Set(settings))
}

/// Names of contenders.
pub(super) fn names(contenders: &[Contender]) -> Vec<String> {
    contenders.iter().map(|contender| contender.name.clone()).collect()
}
