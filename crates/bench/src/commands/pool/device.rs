//! The device that is measured: the one below, or one that is played.

use std::time::Duration;

use bindery_bench::pool::medium::Rates;
use clap::Args;

/// Speed of a device, and whether it is played. Without a latency, a rate is for the device
/// below.
#[derive(Debug, Args)]
pub(super) struct DeviceArgs {
    /// Play a device that answers after so many microseconds, kept in memory, instead of the one below. A
    /// SATA SSD: 80, with 500 MiB and 90000 requests a second
    #[arg(
        long,
        requires = "device_mib_per_s",
        value_parser = clap::value_parser!(u64).range(..=1_000_000),
    )]
    device_latency_us: Option<u64>,
    /// Rate of the device, in MiB a second: both ways together if it is played
    #[arg(
        long,
        requires = "device_requests_per_s",
        value_parser = clap::value_parser!(u64).range(1..=1 << 24),
    )]
    device_mib_per_s: Option<u64>,
    /// How many requests the device serves a second, if they are small
    #[arg(
        long,
        requires = "device_mib_per_s",
        value_parser = clap::value_parser!(u64).range(1..=1_000_000_000),
    )]
    device_requests_per_s: Option<u64>,
}

impl DeviceArgs {
    /// Rate of the device: MiB and requests a second.
    pub(super) fn rate(&self) -> Option<(u64, u64)> {
        self.device_mib_per_s.zip(self.device_requests_per_s)
    }

    /// Latency of the device, if it is played.
    pub(super) fn latency(&self) -> Option<Duration> {
        self.device_latency_us.map(Duration::from_micros)
    }
}

/// Speed of a played device, where the device below is never held to a rate.
#[derive(Debug, Args)]
#[command(mut_arg("device_requests_per_s", |requests| requests.requires("device_latency_us")))]
pub(super) struct PlayedDeviceArgs {
    #[command(flatten)]
    device: DeviceArgs,
}

impl PlayedDeviceArgs {
    /// Rates of the played device, if there is one.
    pub(super) fn rates(&self) -> Option<Rates> {
        Rates::of(self.device.rate(), self.device.latency())
    }
}
