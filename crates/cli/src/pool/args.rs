//! The command line of `bindery pool`.

use std::path::PathBuf;
use std::time::Duration;

use bindery_pool::{MediaClass, ObjectId, PoolName};
use clap::{Args, Subcommand};

use super::values::{parse_age, parse_class, parse_id, parse_size};

#[derive(Debug, Subcommand)]
pub(crate) enum PoolCommand {
    /// Make a pool on files, in directories, or on block devices
    #[command(after_help = "\
Examples:
  bindery pool create guests --capacity /srv/pool --size 200G
  bindery pool create guests --capacity /dev/sdb /dev/sdc --staging /dev/nvme1n1
  bindery pool create guests --capacity /srv/pool --size 200G --archive s3://backups/host7
  bindery pool create builds --capacity /srv/pool --size 2T --catalogue 1G     for millions of objects

In a directory a sparse file of --size is made, called NAME.CLASS.N.bindery; a file or block device is
used as it is, all of it, and must be empty unless --force is given.")]
    Create(CreateArgs),
    /// List the pools that this machine knows
    #[command(
        visible_alias = "ls",
        after_help = "\
Examples:
  bindery pool list
  bindery pool list --json | jq '.[] | select(.state != \"ready\")'"
    )]
    List,
    /// Show a pool: its devices, what is on them, its catalogue
    #[command(after_help = "\
Examples:
  bindery pool stat guests
  bindery pool stat guests --json | jq .classes.capacity.free_bytes

Only reads, also while another process uses the pool.")]
    Stat(NameArgs),
    /// Look for pools on devices and in directories, incomplete ones as well
    #[command(after_help = "\
Examples:
  bindery pool scan                          on this machine's block devices, and where pools were
  bindery pool scan /mnt/disk1 /dev/sdb

Only reads two blocks of each device, and takes no locks. Without paths, devices that this user may
not read are passed over.")]
    Scan(ScanArgs),
    /// Read everything that a pool has, and name what is damaged
    #[command(after_help = "\
Examples:
  bindery pool verify guests
  bindery pool verify guests --repair
  bindery pool verify guests --json | jq -r '.findings[].message'

Reads superblocks, both copies of the catalogue and all objects against their checksums, those in the
archive too, also while another process uses the pool. --repair makes good what has a second copy
(superblocks, the catalogue), and needs the pool for itself. Exits with 9 if anything is damaged, repaired
or not; with 1 if nothing is, and objects in an archive that cannot be reached were not read.")]
    Verify(VerifyArgs),
    /// Make a pool larger: a longer device, or more devices
    #[command(after_help = "\
Examples:
  bindery pool grow guests --device /srv/pool/guests.capacity.0.bindery --size 400G
  bindery pool grow guests --device /dev/sdb                  which has become longer
  bindery pool grow guests --add-capacity /mnt/disk2 --size 200G
  bindery pool grow guests --add-staging /dev/nvme2n1")]
    Grow(GrowArgs),
    /// Call a pool something else
    #[command(after_help = "\
Examples:
  bindery pool rename guests old-guests

Files in directories keep their names.")]
    Rename(RenameArgs),
    /// End a pool: all that it holds is lost
    #[command(after_help = "\
Examples:
  bindery pool destroy guests
  bindery pool destroy guests --yes          without asking

The superblocks of its devices are wiped, and its files called *.bindery are removed. Devices that are
missing are left as they are.")]
    Destroy(DestroyArgs),
    /// Close a pool, to take its devices to another machine
    #[command(after_help = "\
Examples:
  bindery pool export guests

It cannot be used before `bindery pool import` was told of it, here or there.")]
    Export(NameArgs),
    /// Use a pool that was exported, or whose devices this machine does not know
    #[command(after_help = "\
Examples:
  bindery pool import                                the only one there is on block devices
  bindery pool import --directory /mnt/disk1 guests
  bindery pool import --directory /dev/sdb --directory /dev/sdc")]
    Import(ImportArgs),
    /// Store files, each as an object, and print their ids
    #[command(after_help = "\
Examples:
  bindery pool put guests kernel.img initrd.img
  bindery pool put guests --class staging hot.img

Each is committed on its own: those whose id was printed are there after a crash. The first that cannot be
stored ends it, and it says which were not.")]
    Put(PutArgs),
    /// Write an object to a file or to stdout, every block verified
    #[command(after_help = "\
Examples:
  bindery pool get guests 0x1f -o kernel.img
  bindery pool get guests 0x1f | sha256sum

The file is written beside its place and put there when it is whole: FILE is what it was, or all of the
object. Objects in the archive are read from there; how it is reached is in the AWS_* variables.")]
    Get(GetArgs),
    /// List the objects of a pool
    #[command(after_help = "\
Examples:
  bindery pool objects guests
  bindery pool objects guests --json | jq '[.[].length_bytes] | add'")]
    Objects(NameArgs),
    /// Delete objects
    #[command(after_help = "\
Examples:
  bindery pool delete guests 0x1f 0x20

Their space is free once nobody reads them any more. What objects in the archive have there is deleted, too;
where that cannot be, it says so, and `bindery pool sweep` removes it later. An object that was brought back
leaves its copy in the archive to a sweep.")]
    Delete(DeleteArgs),
    /// Move objects to the pool's archive, and free their space here
    #[command(after_help = "\
Examples:
  bindery pool archive guests 0x1f 0x20
  bindery pool archive guests 0x1f --no-read-back

They keep their ids and are read from there. How the archive is reached, and who asks, is in the AWS_*
variables. What is interrupted goes on when it is repeated. Before the space here is freed, all of each
object is read back and verified; with --no-read-back one small request a part shows that it is there,
has its length, and ends as it should.")]
    Archive(ArchiveArgs),
    /// Bring objects back from the archive
    #[command(after_help = "\
Examples:
  bindery pool restore guests 0x1f
  bindery pool restore guests 0x1f --class staging")]
    Restore(RestoreArgs),
    /// Remove from the pool's archive what belongs to none of its objects
    #[command(after_help = "\
Examples:
  bindery pool sweep guests --dry-run        what would be removed
  bindery pool sweep guests
  bindery pool sweep guests --older-than 7d

What deletions left there that could not reach the archive, copies that a crash interrupted, and copies of
objects that were brought back and then deleted. What another machine wrote stays: it may have a copy of the
pool that knows the objects. Look with --dry-run first if the pool's devices were put back from a backup:
it does not know what was archived since.")]
    Sweep(SweepArgs),
}

#[derive(Debug, Args)]
pub(crate) struct NameArgs {
    /// The pool's name
    pub(super) name: PoolName,
}

#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// What to call it
    pub(super) name: PoolName,
    /// Where the bulk of all objects is to be
    #[arg(long, required = true, num_args = 1.., value_name = "PATH")]
    pub(super) capacity: Vec<PathBuf>,
    /// Where objects are to be that must be written and read fast
    #[arg(long, num_args = 1.., value_name = "PATH")]
    pub(super) staging: Vec<PathBuf>,
    /// How long each file is to be that is made in a directory
    #[arg(long, value_parser = parse_size)]
    pub(super) size: Option<u64>,
    /// How long each of the two logs is that name the objects, about 100 bytes for each and half of it to spare
    /// [default: a thousandth of all devices, from 256K to 256M]
    #[arg(long, value_parser = parse_size)]
    pub(super) catalogue: Option<u64>,
    /// The pool's archive: s3://BUCKET/PREFIX or file:///DIRECTORY. How it is reached, and who asks, is
    /// in the AWS_ variables that other S3 clients know
    #[arg(long, value_name = "URL")]
    pub(super) archive: Option<String>,
    /// Use devices although something is on them, which is lost
    #[arg(long)]
    pub(super) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ScanArgs {
    /// Devices, files and directories
    #[arg(value_name = "PATH")]
    pub(super) paths: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The pool's name
    pub(super) name: PoolName,
    /// Make good what has a second copy
    #[arg(long)]
    pub(super) repair: bool,
}

#[derive(Debug, Args)]
pub(crate) struct GrowArgs {
    /// The pool's name
    pub(super) name: PoolName,
    /// A device of it that is to be longer, or has become so
    #[arg(
        long,
        value_name = "PATH",
        required_unless_present_any = ["add_capacity", "add_staging"],
        conflicts_with_all = ["add_capacity", "add_staging"]
    )]
    pub(super) device: Option<PathBuf>,
    /// How long the device is to be in all, or each file that is made in a directory
    #[arg(long, value_parser = parse_size)]
    pub(super) size: Option<u64>,
    /// Devices to add for the bulk of all objects
    #[arg(long, num_args = 1.., value_name = "PATH")]
    pub(super) add_capacity: Vec<PathBuf>,
    /// Devices to add for objects that must be fast
    #[arg(long, num_args = 1.., value_name = "PATH")]
    pub(super) add_staging: Vec<PathBuf>,
    /// Add devices although something is on them, which is lost
    #[arg(long)]
    pub(super) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RenameArgs {
    /// What it is called
    pub(super) name: PoolName,
    /// What it is to be called
    pub(super) new_name: PoolName,
}

#[derive(Debug, Args)]
pub(crate) struct DestroyArgs {
    /// The pool's name
    pub(super) name: PoolName,
    /// Do not ask
    #[arg(long)]
    pub(super) yes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// Where to look for it: a directory, file or block device; may be repeated [default: this
    /// machine's block devices, and where pools were]
    #[arg(long, value_name = "PATH")]
    pub(super) directory: Vec<PathBuf>,
    /// The pool's archive, which its devices do not tell: s3://BUCKET/PREFIX or file:///DIRECTORY
    #[arg(long, value_name = "URL")]
    pub(super) archive: Option<String>,
    /// Its name, where there are several
    pub(super) name: Option<PoolName>,
}

#[derive(Debug, Args)]
pub(crate) struct PutArgs {
    /// The pool's name
    pub(super) name: PoolName,
    /// Where they are to be: capacity or staging
    #[arg(long, default_value_t = MediaClass::Capacity, value_parser = parse_class)]
    pub(super) class: MediaClass,
    /// The files
    #[arg(required = true, value_name = "FILE")]
    pub(super) files: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// The pool's name
    pub(super) name: PoolName,
    /// The object
    #[arg(value_parser = parse_id)]
    pub(super) id: ObjectId,
    /// Write it to this file [default: stdout]
    #[arg(long, short, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// The pool's name
    pub(super) name: PoolName,
    /// The objects
    #[arg(required = true, value_name = "ID", value_parser = parse_id)]
    pub(super) ids: Vec<ObjectId>,
}

#[derive(Debug, Args)]
pub(crate) struct ArchiveArgs {
    /// The pool's name
    pub(super) name: PoolName,
    /// The objects
    #[arg(required = true, value_name = "ID", value_parser = parse_id)]
    pub(super) ids: Vec<ObjectId>,
    /// Do not read all of it back before the space here is freed
    #[arg(long)]
    pub(super) no_read_back: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SweepArgs {
    /// The pool's name
    pub(super) name: PoolName,
    /// Remove nothing, and say what would be removed
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Leave what was written to the archive in the last so long: 30s, 5m, 12h, 7d
    #[arg(long, default_value = "0s", value_name = "TIME", value_parser = parse_age)]
    pub(super) older_than: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// The pool's name
    pub(super) name: PoolName,
    /// Where to: capacity or staging
    #[arg(long, default_value = "capacity", value_parser = parse_class)]
    pub(super) class: MediaClass,
    /// The objects
    #[arg(required = true, value_name = "ID", value_parser = parse_id)]
    pub(super) ids: Vec<ObjectId>,
}

#[cfg(test)]
mod tests {
    use crate::args::Arguments;
    use clap::CommandFactory;

    #[test]
    fn every_subcommand_has_examples() {
        let command = Arguments::command();
        let pool = command.find_subcommand("pool").unwrap();
        for command in pool.get_subcommands().filter(|command| command.get_name() != "help") {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:"), "{} has none", command.get_name());
        }
    }
}
