//! A server without a daemon, on a connection without a network, for tests and the fuzz target.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::access::Access;
use super::serve::attend;
use super::site::Site;
use super::{Memory, Pulse, Source, Viewer};
use crate::keeper::board::{KeptFigures, KeptGuest};
use crate::protocol::checkpoint::CheckpointInfo;
use crate::protocol::job::JobStatus;
use crate::status::{AdvisorStatus, DaemonSettings, GuestStatus, HostStatus, State};

/// A daemon without guests.
pub(super) fn host() -> HostStatus {
    HostStatus {
        pid: 1,
        uid: 0,
        program_version: "1.2.3 \"\\\n".into(),
        uptime_s: 7,
        settings: DaemonSettings::with_workers(2),
        advisor: AdvisorStatus { scan_time_us: 2500, ..AdvisorStatus::default() },
        phases: Vec::new(),
        merge_cpu_us: 700,
        cpu_ms: 1500,
        resident_bytes: 4096,
        http: None,
        state: State { name: "running".into(), advice: None },
        domains: Vec::new(),
    }
}

struct Alone;

impl Source for Alone {
    fn status(&self) -> HostStatus {
        host()
    }

    fn guests(&self) -> Vec<GuestStatus> {
        Vec::new()
    }

    fn memory(&self, _: &str) -> Option<Memory> {
        None
    }

    fn checkpoints(&self, _: Viewer, _: usize) -> Vec<CheckpointInfo> {
        Vec::new()
    }

    fn jobs(&self, _: Viewer) -> Vec<JobStatus> {
        Vec::new()
    }

    fn kept(&self) -> BTreeMap<KeptGuest, KeptFigures> {
        BTreeMap::new()
    }

    fn pulse(&self) -> Pulse {
        Pulse { full_scans: 3, period_time_us: 2500 }
    }
}

pub(super) fn site(token: Option<&str>) -> Arc<Site> {
    Arc::new(Site::new(Arc::new(Alone), Access::of_token(token), Instant::now()))
}

/// A runtime whose time goes on at once where everybody waits for it.
pub(super) fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().expect("a runtime without I/O needs nothing")
}

/// Serves a connection whose seat is wanted as often as `wanted` is told.
pub(super) fn serve(
    stream: DuplexStream,
    site: &Arc<Site>,
    wanted: &Arc<Notify>,
) -> JoinHandle<()> {
    let (site, wanted) = (Arc::clone(site), Arc::clone(wanted));
    tokio::spawn(async move { attend(stream, site, &wanted, None).await })
}

/// Sends `sent` over a connection of its own, ends it if it `is_ended`, and returns all that came back
/// until the server ended it.
///
/// # Panics
/// If serving panics.
pub(super) fn talk(site: &Arc<Site>, sent: &[u8], is_ended: bool) -> Vec<u8> {
    runtime().block_on(async {
        let (ours, theirs) = duplex(64 * 1024);
        let (mut reader, mut writer) = tokio::io::split(ours);
        let served = serve(theirs, site, &Arc::default());
        let sent = sent.to_vec();
        let sending = tokio::spawn(async move {
            // The server may have hung up before it took all of it.
            let _ = writer.write_all(&sent).await;
            if is_ended {
                let _ = writer.shutdown().await;
            }
            writer
        });
        let mut heard = Vec::new();
        reader.read_to_end(&mut heard).await.expect("a connection in memory does not fail");
        served.await.expect("serving does not panic");
        drop(sending.await);
        heard
    })
}

/// Sends `sent` to a server of its own, which wants `token` if there is one; ends the connection if it
/// `is_ended`, and returns all that came back until the server ended it. Time is not waited for.
///
/// # Panics
/// If serving panics.
#[cfg(feature = "fuzzing")]
#[must_use]
pub fn converse(token: Option<&str>, sent: &[u8], is_ended: bool) -> Vec<u8> {
    talk(&site(token), sent, is_ended)
}
