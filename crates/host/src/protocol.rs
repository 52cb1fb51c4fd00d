//! What operators and the daemon tell each other: one JSON object a line, either way.
//!
//! ```text
//! > {"version":1,"request":"set","workers":2}
//! < {"version":1,"answer":"settings","workers":2,"period_ms":1000,…}
//! > {"version":1,"request":"dance"}
//! < {"version":1,"answer":"error","kind":"unknown-request","message":"…"}
//! ```
//!
//! A line is at most [`LINE_BYTES_MAX`] bytes. Unknown requests and unknown fields get an error
//! answer, never silence: a misspelt field must not look like success. Within a version answers
//! may gain fields; [`VERSION`] grows when anything else changes.

pub mod checkpoint;
pub mod job;

use serde::{Deserialize, Serialize};

use crate::daemon_settings::{
    Change, DaemonSettings, allowed, allowed_numbers, allowed_words, is_truth_value,
};
use crate::status::{GuestStatus, HostStatus};
use checkpoint::{
    CheckpointDetail, CheckpointInfo, CheckpointName, DiskPolicy, ExportKey, Selection,
};
use job::JobStatus;

/// The protocol's version.
pub const VERSION: u32 = 1;

/// The longest line that either side accepts, its end included, in bytes.
pub const LINE_BYTES_MAX: usize = 64 * 1024;

/// The longest answer that a client accepts, in bytes: a status names every guest.
pub const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// What an operator asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The daemon, its domains and what they save.
    Status {},
    /// Every guest.
    Guests {},
    /// Change settings.
    Set(Box<Change>),
    /// Read the configuration file again.
    Reload {},
    /// Make all merged pages of a guest private again, and leave them so.
    Unmerge {
        /// Name or process id of the guest.
        guest: String,
    },
    /// Merge a guest again after `Unmerge`.
    Merge {
        /// Name or process id of the guest.
        guest: String,
    },
    /// Give everything back to the guest's process and forget it: the shim steps aside.
    Unmanage {
        /// Name or process id of the guest.
        guest: String,
    },
    /// Which pages of a guest were written since this connection asked for that guest before. The first
    /// answer has none: it begins.
    Dirty {
        /// Name or process id of the guest.
        guest: String,
    },
    /// Checkpoints of a pool, that is of all guests whose checkpoints the operator may see.
    CheckpointList {
        /// Paths of the pool's devices or their directories; the daemon's own pool without.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pool: Option<Vec<String>>,
        /// Name of the guest to which the list is confined.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        guest: Option<String>,
    },
    /// All about one checkpoint but its pages.
    CheckpointShow {
        /// As for `CheckpointList`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pool: Option<Vec<String>>,
        /// Names of the checkpoint.
        checkpoint: CheckpointName,
    },
    /// Begin a job that makes a checkpoint of a guest that runs.
    CheckpointCreate {
        /// As for `CheckpointList`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pool: Option<Vec<String>>,
        /// Name or process id of the guest.
        guest: String,
        /// Name of the checkpoint; the time in UTC without.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// Disks.
        disks: DiskPolicy,
        /// Path of a QMP socket of the guest's QEMU; the one that `bindery run` made without.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        monitor: Option<String>,
        /// Milliseconds that the pause may take, as far as that can be foreseen.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pause_max_ms: Option<u64>,
        /// True if pages are to be compressed where that saves an eighth.
        #[serde(default)]
        compress: bool,
    },
    /// Begin a job that has a QEMU that waits (`-incoming defer -S`) go on from a checkpoint of the same user.
    CheckpointRestore {
        /// As for `CheckpointList`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pool: Option<Vec<String>>,
        /// Names of the checkpoint.
        checkpoint: CheckpointName,
        /// Name or process id of the guest that waits.
        guest: String,
        /// True if it is not to run yet.
        #[serde(default)]
        paused: bool,
    },
    /// Begin a job that reads all of some checkpoints.
    CheckpointVerify {
        /// As for `CheckpointList`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pool: Option<Vec<String>>,
        /// Checkpoints to read.
        select: Selection,
    },
    /// Begin a job that deletes checkpoints.
    CheckpointDelete {
        /// As for `CheckpointList`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pool: Option<Vec<String>>,
        /// Checkpoints to delete.
        select: Selection,
        /// True to delete also those whose disks restored guests stand on.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        force: bool,
    },
    /// Begin a job that writes a checkpoint into the stream socket that comes with this line
    /// (`SCM_RIGHTS`), and closes it.
    CheckpointExport {
        /// As for `CheckpointList`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pool: Option<Vec<String>>,
        /// Names of the checkpoint.
        checkpoint: CheckpointName,
        /// Key that the stream is to be encrypted with.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<ExportKey>,
    },
    /// Begin a job that reads a checkpoint from the stream socket that comes with this line (`SCM_RIGHTS`),
    /// up to its end.
    CheckpointImport {
        /// As for `CheckpointList`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pool: Option<Vec<String>>,
        /// Name of the guest, in place of that in the stream.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        guest: Option<String>,
        /// Name of the checkpoint, in place of that in the stream.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// Domain of the operator's user that it is to be of; `default` without.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        domain: Option<String>,
        /// Key that the stream was encrypted with.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<ExportKey>,
        /// Length of the stream, where it is known, for the job's progress.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes: Option<u64>,
        /// Checkpoint of which every page counts that the stream lacks: of the operator's user and the same domain,
        /// which is its domain where none is named.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base: Option<CheckpointName>,
    },
    /// Begin a job that writes the device state of a checkpoint into the stream socket that comes with this line
    /// (`SCM_RIGHTS`), and closes it.
    CheckpointDeviceState {
        /// As for `CheckpointList`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pool: Option<Vec<String>>,
        /// Names of the checkpoint.
        checkpoint: CheckpointName,
    },
    /// Send the memory of a checkpoint of a Firecracker, page by page, over the sequenced-packet socket that comes with
    /// this line (`SCM_RIGHTS`), until its other end says that it is complete, or is closed.
    CheckpointServe {
        /// As for `CheckpointList`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pool: Option<Vec<String>>,
        /// Names of the checkpoint.
        checkpoint: CheckpointName,
        /// True if pages are sent when they are asked for, and before that only those that were touched last time.
        #[serde(default)]
        lazy: bool,
    },
    /// Begin a job that makes a checkpoint of a guest that runs in a pool in memory, for children of it. The pool
    /// goes after `ForkRelease`, or when nobody has used it for a minute, once no child lacks pages of it.
    Fork {
        /// Name or process id of the guest.
        guest: String,
        /// Disks.
        disks: DiskPolicy,
        /// Path of a QMP socket of the guest's QEMU; the one that `bindery run` made without.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        monitor: Option<String>,
        /// Milliseconds that the pause may take, as far as that can be foreseen.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pause_max_ms: Option<u64>,
    },
    /// No more children are restored from a pool in memory. Answered with `Done`.
    ForkRelease {
        /// Path of the pool.
        pool: String,
    },
    /// Jobs that the operator may see: those that go on, and those that ended in the last minutes.
    Jobs {},
    /// State of a job.
    Job {
        /// Number of the job.
        job: u64,
        /// Milliseconds, 1000 at most, to wait for its end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wait_ms: Option<u64>,
    },
    /// End a job before it is done. Answered at once; the job ends soon after.
    JobCancel {
        /// Number of the job.
        job: u64,
    },
    /// End the daemon.
    Stop {
        /// Unmerge all guests first. Otherwise they keep their merged pages, for a new daemon.
        unmerge: bool,
    },
}

/// What the daemon answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Answer {
    /// To `Status`.
    Status(Box<HostStatus>),
    /// To `Guests`.
    Guests {
        /// In order of their names.
        guests: Vec<GuestStatus>,
    },
    /// To `Set` and `Reload`: the settings as they are now.
    Settings(Box<DaemonSettings>),
    /// To `Unmerge`, `Merge` and `Unmanage`: done.
    Done {
        /// The guest's name.
        guest: String,
        /// How many pages became private again.
        pages: u64,
    },
    /// To `Dirty`.
    Dirty(Box<Epoch>),
    /// To `CheckpointList`.
    Checkpoints {
        /// In the order in which they were made.
        checkpoints: Vec<CheckpointInfo>,
    },
    /// To `CheckpointShow`.
    Checkpoint(Box<CheckpointDetail>),
    /// To `CheckpointServe`.
    Source {
        /// Length of the memory, in bytes.
        memory_bytes: u64,
        /// Time of the checkpoint, in nanoseconds since 1970-01-01 UTC: distinguishes it from another of its name.
        time_ns: u64,
    },
    /// To requests that begin a job.
    JobStarted {
        /// Number of the job.
        job: u64,
    },
    /// To `Job` and `JobCancel`.
    Job(Box<JobStatus>),
    /// To `Jobs`.
    Jobs {
        /// In the order in which they began.
        jobs: Vec<JobStatus>,
    },
    /// To `Stop`: the daemon ends once this is sent.
    Stopping {},
    /// The request was not done.
    Error(Failure),
}

/// What was written to a guest's memory in one epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Epoch {
    /// The guest's name.
    pub guest: String,
    /// How long the epoch was, in microseconds; zero for the first, and for the first after memory came
    /// or went.
    pub epoch_us: u64,
    /// The guest's regions, as (first page, pages).
    pub regions: Vec<(u32, u32)>,
    /// Pages that were written, as runs (first page, pages), ascending and apart.
    pub runs: Vec<(u32, u32)>,
    /// Runs begin and end at multiples of so many pages: 1, or a power of two where there would be
    /// more than [`RUNS_MAX`].
    pub block_pages: u32,
}

/// The most runs of one [`Epoch`]: an answer has room for them.
pub const RUNS_MAX: usize = 500_000;

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What kind of failure, for programs.
    pub kind: FailureKind,
    /// What happened and what to do, for people.
    pub message: String,
}

/// The kinds of [`Failure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    /// The line is not a request: not JSON, too long, a field missing or of the wrong type.
    BadRequest,
    /// No such request in this version.
    UnknownRequest,
    /// The client speaks another version.
    Version,
    /// There is no guest of that name or process id.
    NoSuchGuest,
    /// A setting is out of its range, or does not go with another one.
    BadSetting,
    /// The configuration file is wrong, or there is none.
    BadFile,
    /// The peer may not ask this.
    Refused,
    /// Too many operators or jobs at once; try again.
    Busy,
    /// No checkpoint has that name, or it is another user's.
    NoSuchCheckpoint,
    /// There is no such pool, or none is named.
    NoPool,
    /// A name is taken, or another process has the pool open.
    Taken,
    /// No job has that number, or it is another user's or forgotten.
    NoSuchJob,
    /// The job was ended before it was done.
    Cancelled,
    /// Something that was stored cannot be read.
    Damaged,
    /// It was tried and did not work.
    Failed,
}

impl Failure {
    /// A failure of this kind.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

/// Reads one line as a request.
///
/// # Errors
/// `BadRequest`, `UnknownRequest`, `BadSetting` or `Version`, with what is wrong.
pub fn decode_request(line: &[u8]) -> Result<Request, Failure> {
    let bad = |message: String| Failure::new(FailureKind::BadRequest, message);
    let value = serde_json::from_slice(line)
        .map_err(|error| bad(format!("a request is one JSON object on one line: {error}")))?;
    let serde_json::Value::Object(mut object) = value else {
        return Err(bad("a request is one JSON object on one line".into()));
    };
    match object.remove("version").map(|version| version.as_u64()) {
        Some(Some(version)) if version == u64::from(VERSION) => {}
        Some(Some(version)) => {
            return Err(Failure::new(
                FailureKind::Version,
                format!("this daemon speaks version {VERSION}, not {version}: use its own bindery"),
            ));
        }
        _ => return Err(bad(format!("a request says \"version\":{VERSION}"))),
    }
    let name = match object.get("request") {
        Some(serde_json::Value::String(name)) => name.clone(),
        _ => return Err(bad("a request names itself: \"request\":\"status\"".into())),
    };
    let refusal = if name == "set" { refused_setting(&object) } else { None };
    serde_json::from_value(object.into()).map_err(|error| {
        if let Some(refusal) = refusal {
            refusal
        } else if error.to_string().starts_with(&format!("unknown variant `{name}`")) {
            Failure::new(FailureKind::UnknownRequest, format!("no such request: {error}"))
        } else {
            bad(format!("{name:?}: {error}"))
        }
    })
}

/// The first of the settings of a `set` that there is not, or that cannot be what it is to be, with what
/// it may be.
fn refused_setting(request: &serde_json::Map<String, serde_json::Value>) -> Option<Failure> {
    // What is told of what came is short, however long that was.
    let short = |text: String| if text.len() > 40 { "what it was to be".to_owned() } else { text };
    // Null is as good as nothing.
    let is_setting = |name: &str, value: &serde_json::Value| name != "request" && !value.is_null();
    request.iter().filter(|(name, value)| is_setting(name, value)).find_map(|(name, value)| {
        let Some(may_be) = allowed(name) else {
            let message = format!("\"set\": no setting is called {}", short(name.clone()));
            return Some(Failure::new(FailureKind::BadRequest, message));
        };
        let is_allowed = match value {
            serde_json::Value::Bool(_) => is_truth_value(name),
            serde_json::Value::String(word) => {
                !is_truth_value(name) && allowed_words(name).contains(&word.as_str())
            }
            number => number
                .as_u64()
                .zip(allowed_numbers(name))
                .is_some_and(|(number, range)| range.contains(&number)),
        };
        let message = || format!("{name} is {may_be}, not {}", short(value.to_string()));
        (!is_allowed).then(|| Failure::new(FailureKind::BadSetting, message()))
    })
}

/// One line, its end included, that says `message` in this version.
///
/// # Panics
/// Never for the types of this module: they have no maps with keys that JSON does not allow.
pub fn encode_line(message: &impl Serialize) -> Vec<u8> {
    #[derive(Serialize)]
    struct Versioned<'a, T> {
        version: u32,
        #[serde(flatten)]
        message: &'a T,
    }
    let mut line = serde_json::to_vec(&Versioned { version: VERSION, message })
        .expect("the protocol's types always have a JSON form");
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_come_back_as_they_went() {
        for request in [
            Request::Status {},
            Request::Set(Box::new(Change { workers: Some(3), ..Change::default() })),
            Request::Unmerge { guest: "web \"1\"".into() },
            Request::CheckpointVerify { pool: None, select: Selection::All {} },
            Request::CheckpointDelete {
                pool: Some(vec!["/p".into()]),
                select: older(),
                force: false,
            },
            Request::CheckpointExport { pool: None, checkpoint: called(), key: Some(key()) },
            Request::Job { job: 7, wait_ms: Some(200) },
            Request::Stop { unmerge: true },
        ] {
            let line = encode_line(&request);
            assert_eq!(line.iter().filter(|&&byte| byte == b'\n').count(), 1);
            assert_eq!(decode_request(&line), Ok(request));
        }
    }

    fn called() -> CheckpointName {
        let (guest, name) = ("web".into(), "a".into());
        CheckpointName { guest, name, domain: Some("db".into()), uid: None }
    }

    fn older() -> Selection {
        Selection::Older { guest: "web".into(), keep: 3, domain: None, uid: Some(7) }
    }

    fn key() -> ExportKey {
        ExportKey("ab".repeat(32))
    }

    #[test]
    fn a_key_is_not_printed() {
        let request =
            Request::CheckpointExport { pool: None, checkpoint: called(), key: Some(key()) };
        assert!(!format!("{request:?}").contains("abab"));
    }

    #[test]
    fn each_mistake_has_its_kind() {
        let kind = |line: &str| decode_request(line.as_bytes()).unwrap_err().kind;
        assert_eq!(kind(r#"{"version":1,"request":"dance"}"#), FailureKind::UnknownRequest);
        assert_eq!(kind(r#"{"version":2,"request":"status"}"#), FailureKind::Version);
        for bad in [
            "",
            "{",
            "[]",
            "7",
            r#"{"request":"status"}"#,
            r#"{"version":"1","request":"status"}"#,
            r#"{"version":1}"#,
            r#"{"version":1,"request":7}"#,
            r#"{"version":1,"request":"unmerge"}"#,
            r#"{"version":1,"request":"checkpoint-verify","select":{"some":{}}}"#,
            r#"{"version":1,"request":"checkpoint-verify","select":{"all":{"guest":"a"}}}"#,
            r#"{"version":1,"request":"checkpoint-show","checkpoint":{"guest":"a","name":"b","x":1}}"#,
            r#"{"version":1,"request":"set","worker":2}"#,
            r#"{"version":1,"request":"status"} {"#,
        ] {
            assert_eq!(kind(bad), FailureKind::BadRequest, "{bad}");
        }
    }

    #[test]
    fn a_setting_of_the_wrong_kind_is_told_with_what_it_may_be() {
        for (field, told) in [
            (r#""workers":-2"#, "workers is 1 to 256, not -2"),
            (r#""workers":4294967296"#, "workers is 1 to 256, not 4294967296"),
            (r#""period_ms":"1s""#, "period_ms is 10 to 600000, not \"1s\""),
            (r#""advisor_max_cpu":null,"advisor_mode":"fast""#, "none, scan-time or steady"),
            (r#""run_when":[1]"#, "run_when is always or pressure, not [1]"),
            (r#""run_when":true"#, "run_when is always or pressure, not true"),
            (r#""across_nodes":"true""#, "across_nodes is true or false, not \"true\""),
            (r#""across_nodes":1"#, "across_nodes is true or false, not 1"),
        ] {
            let line = format!(r#"{{"version":1,"request":"set",{field}}}"#);
            let failure = decode_request(line.as_bytes()).unwrap_err();
            assert_eq!(failure.kind, FailureKind::BadSetting, "{field}");
            assert!(failure.message.contains(told), "{field}: {failure:?}");
        }
        let long = format!(r#"{{"version":1,"request":"set","{}":1}}"#, "x".repeat(60_000));
        assert!(decode_request(long.as_bytes()).unwrap_err().message.len() < 200);
    }

    proptest! {
        #[test]
        fn no_line_stops_the_decoder(line in prop::collection::vec(any::<u8>(), 0..512)) {
            prop_assert!(decode_request(&line).is_err(), "random bytes are no request");
        }

        #[test]
        fn no_near_miss_stops_the_decoder(
            name in "status|guests|set|unmerge|merge|unmanage|job|jobs|checkpoint-(list|show|verify)|stop|[a-z]{0,8}",
            field in "guest|workers|period_ms|unmerge|job|pool|checkpoint|select|[a-z]{0,8}",
            value in "-?[0-9]{1,25}|null|true|\"[a-z]{0,8}\"|\\[{1,64}|\\{",
        ) {
            let line = format!(r#"{{"version":1,"request":"{name}","{field}":{value}}}"#);
            if let Ok(request) = decode_request(line.as_bytes()) {
                prop_assert_eq!(decode_request(&encode_line(&request)), Ok(request));
            }
        }
    }
}
