//! QEMU's own ways to save a guest that goes on.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bindery_testkit::guest::Qmp;
use serde_json::json;

use super::monitor::{await_migration, insist, set_capabilities};
use super::stage::bytes_on_disk;

/// A way of QEMU 10.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnWay {
    /// `mapped-ram` with two channels of multifd and direct I/O. The guest stands still.
    MappedRam,
    /// `background-snapshot` to a file. The guest runs while its memory is written.
    BackgroundSnapshot,
    /// `savevm` into a qcow2 disk. The guest stands still.
    Savevm,
}

impl OwnWay {
    pub(super) const ALL: [Self; 3] = [Self::MappedRam, Self::BackgroundSnapshot, Self::Savevm];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::MappedRam => "QEMU mapped-ram, multifd, direct-io",
            Self::BackgroundSnapshot => "QEMU background-snapshot",
            Self::Savevm => "QEMU savevm",
        }
    }

    /// Saves a running guest, which runs afterwards; `file` is there only meanwhile. Returns the time until all is
    /// durable, and the bytes that the file system keeps, where a file is the guest's alone.
    pub(super) fn save(self, qmp: &mut Qmp, file: &Path) -> Result<(Duration, Option<u64>)> {
        if self == Self::Savevm {
            set_capabilities(qmp, &[])?;
            let start = Instant::now();
            qmp.savevm("bench")?;
            let took = start.elapsed();
            qmp.human("delvm bench")?;
            return Ok((took, None));
        }
        let took = self.save_to(qmp, file)?;
        let bytes = bytes_on_disk(file)?;
        fs::remove_file(file).with_context(|| format!("removing {}", file.display()))?;
        Ok((took, Some(bytes)))
    }

    fn save_to(self, qmp: &mut Qmp, file: &Path) -> Result<Duration> {
        let stops = self == Self::MappedRam;
        let wanted: &[&str] =
            if stops { &["mapped-ram", "multifd"] } else { &["background-snapshot"] };
        set_capabilities(qmp, wanted)?;
        let start = Instant::now();
        if stops {
            qmp.execute("stop", &json!({}))?;
        }
        migrate_to(qmp, file)?;
        if stops {
            insist(qmp, "cont", &json!({}))?;
        }
        File::open(file).and_then(|file| file.sync_all()).context("syncing what QEMU saved")?;
        Ok(start.elapsed())
    }
}

/// Saves a guest into a file, and waits until that is written.
pub(super) fn migrate_to(qmp: &mut Qmp, file: &Path) -> Result<()> {
    insist(qmp, "migrate", &json!({ "uri": format!("file:{}", file.display()) }))?;
    await_migration(qmp)
}
