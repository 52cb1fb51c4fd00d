//! A device that is played instead of the one below.

use std::time::Duration;

use bindery_bench::pool::medium::Rates;
use clap::Args;

#[derive(Debug, Args)]
pub(in crate::commands) struct DeviceArgs {
    /// Play a device that answers after so many microseconds, kept in memory, instead of the one below. A
    /// SATA SSD: 80, with 500 MiB and 90000 requests a second
    #[arg(
        long,
        requires = "device_mib_per_s",
        value_parser = clap::value_parser!(u64).range(..=1_000_000),
    )]
    device_latency_us: Option<u64>,
    /// What that device transfers, both ways together, in MiB a second
    #[arg(
        long,
        requires = "device_requests_per_s",
        value_parser = clap::value_parser!(u64).range(1..=1 << 24),
    )]
    device_mib_per_s: Option<u64>,
    /// How many requests it serves a second, if they are small
    #[arg(
        long,
        requires = "device_latency_us",
        value_parser = clap::value_parser!(u64).range(1..=1_000_000_000),
    )]
    device_requests_per_s: Option<u64>,
}

impl DeviceArgs {
    /// What that device can do, if one is to be played.
    pub(super) fn rates(&self) -> Option<Rates> {
        Some(Rates {
            latency: Duration::from_micros(self.device_latency_us?),
            bytes_per_s: self.device_mib_per_s? << 20,
            requests_per_s: self.device_requests_per_s?,
        })
    }
}
