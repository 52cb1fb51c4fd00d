//! The command line of `bindery checkpoint`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use bindery_host::protocol::checkpoint::CheckpointName;
use clap::{Args, Subcommand};

use super::remote_args::{AtArgs, PullArgs, PushArgs};
use crate::completion::{checkpoints, deletable, guests, kept_guests};
use crate::times::parse_within;

#[derive(Debug, Subcommand)]
pub(crate) enum CheckpointCommand {
    /// Make a checkpoint of a guest that runs
    #[command(after_help = "\
Examples:
  bindery checkpoint create web1 --pool guests
  bindery checkpoint create web1 --name before-upgrade --disks-directory /srv/overlays
  bindery checkpoint create sandbox7 --without-disks --json | jq .pause_us
  bindery checkpoint create web1 --every 10m --keep 24

The guest runs on but for a pause of some milliseconds. Only what has changed since its last checkpoint is read
if that was made in the last quarter of an hour, and only what the pool lacks is stored. Writable disks get
overlays: their images stay as of the checkpoint, and the guest writes to the overlays from then on, which its
next start has to use. ^C ends the job; the guest runs on.")]
    Create(CreateArgs),
    /// List checkpoints, of one guest or all
    #[command(
        visible_alias = "ls",
        after_help = "\
Examples:
  bindery checkpoint list
  bindery checkpoint list web1 --pool guests
  bindery checkpoint list --json | jq -r '.[] | \"\\(.guest)@\\(.name)\"'
  bindery checkpoint list --at s3://backups/guests --key-file key

STORED is what of RAM is not zero; OWN the part of it that no earlier checkpoint had, and WRITTEN what that
takes in the pool. Sizes are of pages as they are in memory, but for WRITTEN."
    )]
    List(ListArgs),
    /// Show all about a checkpoint: the VMM, memory blocks, disks
    #[command(after_help = "\
Examples:
  bindery checkpoint show web1@monday
  bindery checkpoint show web1@monday --json | jq -r '.arguments[]'")]
    Show(ShowArgs),
    /// Read all of checkpoints, and name what is damaged
    #[command(after_help = "\
Examples:
  bindery checkpoint verify web1@monday
  bindery checkpoint verify --all --pool guests
  bindery checkpoint verify --all --json | jq '.[] | select(.damaged_pages > 0)'

Exits with 9 if anything cannot be read. Damaged pages are stored anew by the next checkpoint that has them.
^C ends the verification.")]
    Verify(VerifyArgs),
    /// Delete checkpoints, by name or all of a guest but the last ones
    #[command(after_help = "\
Examples:
  bindery checkpoint delete web1@monday web1@tuesday
  bindery checkpoint delete web1 --keep 24
  bindery checkpoint delete web1 --keep 7 --at s3://backups/guests --key-file key

Others keep the pages that they share with it. Overlays of the guest's disks that no checkpoint needs any more are
merged into the layer below, while the guest runs: the topmost, which it writes to, and images that were not made
for a checkpoint stay. A checkpoint on whose disks restored guests or clones stand is refused with their names. Once
their overlays are removed it can be deleted; or at once with --force: they run on, and keep the layers below.")]
    Delete(DeleteArgs),
    /// Write a checkpoint to one file, for another host
    #[command(after_help = "\
Examples:
  bindery checkpoint export web1@monday web1.checkpoint
  bindery checkpoint export web1@monday - --key-file key | ssh other bindery checkpoint import - --key-file key
  head -c 32 /dev/urandom > key && chmod 600 key

The file holds memory and device state, not disks. FILE is what it was, or all of the checkpoint. Guest memory
is full of secrets: without --key-file whoever has the file can read them.")]
    Export(ExportArgs),
    /// Make a checkpoint of a file that `export` wrote
    #[command(after_help = "\
Examples:
  bindery checkpoint import web1.checkpoint
  bindery checkpoint import web1.checkpoint --guest web2 --name copy --pool guests
  zstd -dc web1.checkpoint.zst | bindery checkpoint import -

It is there when all of the file was read and verified, or not at all. It becomes yours: a checkpoint of your
user and the domain that --domain names.")]
    Import(ImportArgs),
    /// Send a checkpoint to S3 or a directory, encrypted; only what is not there yet
    #[command(after_help = "\
Examples:
  head -c 32 /dev/urandom > key && chmod 600 key
  bindery checkpoint push web1@monday s3://backups/guests --key-file key
  AWS_ENDPOINT_URL=https://minio.example:9000 bindery checkpoint push web1@tuesday s3://backups/guests --key-file key
  bindery checkpoint push web1@monday file:///mnt/nfs/guests --unencrypted

Any host that has the key can pull it. Pages that a former push with this key of the same domain has sent are not
sent again. It is there when all of it is, or not at all; what was interrupted goes on when it is repeated. Keep the
key: without it nobody can read what was pushed. It holds memory and device state, not disks.")]
    Push(PushArgs),
    /// Make a checkpoint of one that `push` has sent
    #[command(after_help = "\
Examples:
  bindery checkpoint list --at s3://backups/guests --key-file key
  bindery checkpoint pull s3://backups/guests web1@monday --key-file key
  bindery checkpoint pull s3://backups/guests web1@monday --key-file key --guest web2 --name copy --pool guests

It is there when all of it was read and verified, or not at all. It becomes yours: a checkpoint of your user.")]
    Pull(PullArgs),
    /// Make a checkpoint of a snapshot of Firecracker's: the files of mem_file_path and snapshot_path
    #[command(after_help = "\
Examples:
  bindery checkpoint import-memory vm.mem --state vm.state --guest fn1 --name warm
  bindery checkpoint import-memory diff.mem --state diff.state --guest fn1 --name later --on fn1@warm
  bindery serve-faults fn1@warm --listen /run/fn1.sock --state-to /srv/fn1.state

Zero pages are not stored, and neither are pages that the domain has. With --on the files are those of a diff
snapshot, of which holes count as unchanged; the checkpoint is whole by itself all the same. Disks are not part
of it. Afterwards the files are not needed: `bindery serve-faults` restores from the pool.")]
    ImportMemory(ImportMemoryArgs),
}

#[derive(Debug, Args)]
pub(crate) struct PoolArgs {
    /// The pool, by the name that `bindery pool list` shows or by the path of its device or directory
    /// [default: the daemon's checkpoint_pool]
    #[arg(long)]
    pub(super) pool: Option<String>,
}

/// Tells guests of one name apart.
#[derive(Debug, Args)]
pub(crate) struct OwnerArgs {
    /// The guest's domain, where guests of one name were in several
    #[arg(long)]
    pub(super) domain: Option<String>,
    /// The guest's user by number, where guests of several users had one name
    #[arg(long, value_name = "UID")]
    pub(super) user: Option<u32>,
}

impl OwnerArgs {
    /// Returns `name` with what tells it apart.
    pub(super) fn of(&self, name: &CheckpointName) -> CheckpointName {
        CheckpointName { domain: self.domain.clone(), uid: self.user, ..name.clone() }
    }
}

#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// The guest, by its name or process id
    #[arg(add = guests())]
    pub(super) guest: String,
    /// Name of the checkpoint [default: the time in UTC]
    #[arg(long)]
    pub(super) name: Option<String>,
    /// Make one again and again, at this interval, until ^C or the guest ends; their names begin with every-
    #[arg(long, value_name = "TIME", value_parser = parse_interval, conflicts_with = "name")]
    pub(super) every: Option<Duration>,
    /// Delete those that were made at an interval, but for the last N
    #[arg(long, value_name = "N", requires = "every", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) keep: Option<u32>,
    /// How long the guest may stand still, as far as that can be foreseen; a guest that writes too much for that stands
    /// still for a second at most, or no checkpoint is made [default: 10ms]
    #[arg(long, value_name = "TIME", value_parser = parse_pause)]
    pub(super) pause_max: Option<Duration>,
    /// Leave the disks out: they have nothing of value, or are kept by other means
    #[arg(long, conflicts_with = "disks_directory")]
    pub(super) without_disks: bool,
    /// Where to make the disks' overlays [default: beside each image]
    #[arg(long, value_name = "DIRECTORY")]
    pub(super) disks_directory: Option<PathBuf>,
    /// Compress pages with zstd where that saves an eighth, which takes longer
    #[arg(long)]
    pub(super) compress: bool,
    /// A QMP socket of the guest's QEMU that nobody else uses [default: the one that `bindery run` made]
    #[arg(long, value_name = "SOCKET")]
    pub(super) qmp: Option<PathBuf>,
    #[command(flatten)]
    pub(super) pool: PoolArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// The checkpoint
    #[arg(value_name = "GUEST@NAME", value_parser = parse_checkpoint, add = checkpoints())]
    pub(super) checkpoint: CheckpointName,
    /// Name of the guest [default: as it was called]
    #[arg(long)]
    pub(super) name: Option<String>,
    /// Leave it paused: QMP's `cont` lets it run
    #[arg(long)]
    pub(super) paused: bool,
    /// Leave the VMM in the background, once the guest runs
    #[arg(long)]
    pub(super) detach: bool,
    /// Where the VMM's output goes if it is in the background [default: nowhere]
    #[arg(long, value_name = "FILE", requires = "detach")]
    pub(super) log: Option<PathBuf>,
    /// Where to make the overlays that the guest's disks write to [default: beside each image]
    #[arg(long, value_name = "DIRECTORY")]
    pub(super) disks_directory: Option<PathBuf>,
    #[command(flatten)]
    pub(super) owner: OwnerArgs,
    #[command(flatten)]
    pub(super) pool: PoolArgs,
    /// Start the VMM, and leave it to another process to have the guest go on
    #[arg(long, hide = true, conflicts_with_all = ["detach", "attach"])]
    pub(super) wait: bool,
    /// Let the guest of this process, which waits, go on
    #[arg(long, hide = true, value_name = "PID")]
    pub(super) attach: Option<u32>,
    /// Options of the VMM that differ from the saved ones
    #[arg(last = true, value_name = "OPTION")]
    pub(super) instead: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct CloneArgs {
    /// The checkpoint
    #[arg(value_name = "GUEST@NAME", value_parser = parse_checkpoint, add = checkpoints())]
    pub(super) checkpoint: CheckpointName,
    #[command(flatten)]
    pub(super) start: StartArgs,
    #[command(flatten)]
    pub(super) owner: OwnerArgs,
    #[command(flatten)]
    pub(super) pool: PoolArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ForkArgs {
    /// The guest that runs, by its name or process id
    pub(super) guest: String,
    #[command(flatten)]
    pub(super) start: StartArgs,
    /// Time that the guest may stand still, as far as that can be foreseen [default: 10ms]
    #[arg(long, value_name = "TIME", value_parser = parse_pause)]
    pub(super) pause_max: Option<Duration>,
    /// Leave the disks out: they have nothing of value, or options behind -- name others
    #[arg(long, conflicts_with = "disks_directory")]
    pub(super) without_disks: bool,
    /// A QMP socket of the guest's QEMU that nobody else uses [default: the one that `bindery run` made]
    #[arg(long, value_name = "SOCKET")]
    pub(super) qmp: Option<PathBuf>,
}

/// Guests that are started from one checkpoint.
#[derive(Clone, Debug, Args)]
pub(crate) struct StartArgs {
    /// How many guests to start
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) count: u32,
    /// Name of the guests, before their numbers: the first one is NAME-1 [default: as the guest was called]
    #[arg(long)]
    pub(super) name: Option<String>,
    /// Leave them paused: QMP's `cont` lets one run
    #[arg(long)]
    pub(super) paused: bool,
    /// Run this program for each guest before it runs; if it fails, that guest is ended. It has BINDERY_GUEST,
    /// BINDERY_INDEX, BINDERY_CHECKPOINT, BINDERY_PID and BINDERY_QMP (the path of a QMP socket) in its environment
    #[arg(long, value_name = "PROGRAM")]
    pub(super) hook: Option<PathBuf>,
    /// Where the VMMs' output goes: a file for each, NAME-1.log [default: nowhere]
    #[arg(long, value_name = "DIRECTORY")]
    pub(super) log_directory: Option<PathBuf>,
    /// Where to make the overlays that the guests' disks write to [default: beside each image]
    #[arg(long, value_name = "DIRECTORY")]
    pub(super) disks_directory: Option<PathBuf>,
    /// Options of the VMMs that differ from the saved ones; {} stands for the number of the guest
    #[arg(last = true, value_name = "OPTION")]
    pub(super) instead: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// The guest whose checkpoints to list
    #[arg(add = kept_guests())]
    pub(super) guest: Option<String>,
    #[command(flatten)]
    pub(super) at: AtArgs,
    #[command(flatten)]
    pub(super) pool: PoolArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The checkpoint
    #[arg(value_name = "GUEST@NAME", value_parser = parse_checkpoint, add = checkpoints())]
    pub(super) checkpoint: CheckpointName,
    #[command(flatten)]
    pub(super) owner: OwnerArgs,
    #[command(flatten)]
    pub(super) pool: PoolArgs,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The checkpoints
    #[arg(
        value_name = "GUEST@NAME",
        value_parser = parse_checkpoint,
        add = checkpoints(),
        required_unless_present = "all",
        conflicts_with = "all"
    )]
    pub(super) checkpoints: Vec<CheckpointName>,
    /// All that you may see
    #[arg(long)]
    pub(super) all: bool,
    #[command(flatten)]
    pub(super) owner: OwnerArgs,
    #[command(flatten)]
    pub(super) pool: PoolArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// The checkpoints; with --keep the guest
    #[arg(required = true, value_name = "GUEST@NAME|GUEST", add = deletable())]
    pub(super) names: Vec<String>,
    /// Delete all checkpoints of the guest but the last N
    #[arg(long, value_name = "N")]
    pub(super) keep: Option<u64>,
    /// Delete also what disks of restored guests stand on: those guests run on, and layers below their disks stay
    #[arg(long)]
    pub(super) force: bool,
    #[command(flatten)]
    pub(super) at: AtArgs,
    #[command(flatten)]
    pub(super) owner: OwnerArgs,
    #[command(flatten)]
    pub(super) pool: PoolArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// The checkpoint
    #[arg(value_name = "GUEST@NAME", value_parser = parse_checkpoint, add = checkpoints())]
    pub(super) checkpoint: CheckpointName,
    /// The file; - is standard output
    pub(super) file: PathBuf,
    /// Encrypt with the key in this file: 32 random bytes, or 64 hexadecimal digits
    #[arg(long, value_name = "FILE")]
    pub(super) key_file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) owner: OwnerArgs,
    #[command(flatten)]
    pub(super) pool: PoolArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The file; - is standard input
    pub(super) file: PathBuf,
    /// Name of the guest [default: as in the file]
    #[arg(long)]
    pub(super) guest: Option<String>,
    /// Name of the checkpoint [default: as in the file]
    #[arg(long)]
    pub(super) name: Option<String>,
    /// Share pages with checkpoints of this domain of yours
    #[arg(long, default_value = "default")]
    pub(super) domain: String,
    /// Decrypt with the key in this file; what is not encrypted is refused then
    #[arg(long, value_name = "FILE")]
    pub(super) key_file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) pool: PoolArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ImportMemoryArgs {
    /// The memory of the microVM: the file of mem_file_path
    #[arg(value_name = "MEM_FILE")]
    pub(super) memory: PathBuf,
    /// The state of the microVM: the file of snapshot_path
    #[arg(long, value_name = "VMSTATE")]
    pub(super) state: PathBuf,
    /// Name of the guest
    #[arg(long)]
    pub(super) guest: String,
    /// Name of the checkpoint
    #[arg(long)]
    pub(super) name: String,
    /// The checkpoint that the diff snapshot was made on
    #[arg(long, value_name = "GUEST@NAME", value_parser = parse_checkpoint)]
    pub(super) on: Option<CheckpointName>,
    /// Share pages with checkpoints of this domain of yours [default: that of --on, or default]
    #[arg(long)]
    pub(super) domain: Option<String>,
    #[command(flatten)]
    pub(super) pool: PoolArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ServeFaultsArgs {
    /// The checkpoint, which `bindery checkpoint import-memory` made
    #[arg(value_name = "GUEST@NAME", value_parser = parse_checkpoint)]
    pub(super) checkpoint: CheckpointName,
    /// Socket to listen at: the backend_path of the microVMs
    #[arg(long, value_name = "PATH")]
    pub(super) listen: PathBuf,
    /// Write the state of the microVM to this file first: the snapshot_path of the microVMs
    #[arg(long, value_name = "FILE")]
    pub(super) state_to: Option<PathBuf>,
    /// Serve microVMs of this user, as the jailer runs them, and no others [default: your own user]
    #[arg(long, value_name = "UID")]
    pub(super) socket_user: Option<u32>,
    /// End once one microVM was served, and has ended
    #[arg(long, conflicts_with = "count")]
    pub(super) once: bool,
    /// End once so many microVMs were served, and have ended
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) count: Option<u32>,
    /// Send only what is touched, and before that what was touched last time
    #[arg(long)]
    pub(super) lazy: bool,
    #[command(flatten)]
    pub(super) owner: OwnerArgs,
    #[command(flatten)]
    pub(super) pool: PoolArgs,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    parse_within(text, &(Duration::from_secs(1)..=Duration::from_secs(24 * 3600)))
}

fn parse_pause(text: &str) -> Result<Duration, String> {
    parse_within(text, &(Duration::from_millis(1)..=Duration::from_secs(60)))
}

/// Splits at the last `@`: names of guests may have some, those of checkpoints have none.
pub(super) fn parse_checkpoint(text: &str) -> Result<CheckpointName, String> {
    let parts = text.rsplit_once('@').filter(|(guest, name)| !guest.is_empty() && !name.is_empty());
    let (guest, name) =
        parts.ok_or("a checkpoint is GUEST@NAME, as `bindery checkpoint list` has them")?;
    Ok(CheckpointName { guest: guest.into(), name: name.into(), domain: None, uid: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Arguments;
    use clap::CommandFactory;

    #[test]
    fn every_subcommand_has_examples() {
        let command = Arguments::command();
        let checkpoint = command.find_subcommand("checkpoint").unwrap();
        for command in checkpoint.get_subcommands().filter(|command| command.get_name() != "help") {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:"), "{} has none", command.get_name());
        }
    }

    #[test]
    fn guests_may_have_an_at_in_their_names() {
        let name = parse_checkpoint("web@lab@monday").unwrap();
        assert_eq!((&*name.guest, &*name.name), ("web@lab", "monday"));
        for wrong in ["web", "@monday", "web@", "@", ""] {
            parse_checkpoint(wrong).unwrap_err();
        }
    }
}
