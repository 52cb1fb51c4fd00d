//! The command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use bindery_host::access::Group;
use bindery_host::{NAME_BYTES_MAX, PERIODS, WORKERS, is_name};
use bindery_wire::control::default_socket;
use bindery_wire::environment::{DOMAIN_VARIABLE, NAME_VARIABLE, SOCKET_VARIABLE};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::advisor::AdvisorCommand;
use crate::checkpoint::{CheckpointCommand, CloneArgs, ForkArgs, RestoreArgs, ServeFaultsArgs};
use crate::completion;
use crate::config::STORES_MIB;
use crate::exit::exit_codes;
use crate::ksm::KsmCommand;
use crate::pool::PoolCommand;
use crate::setting_names::{SETTINGS, Setting};
use crate::times::{parse_time, parse_within};

/// Merges identical pages of running virtual machines.
#[derive(Debug, Parser)]
#[command(
    name = "bindery",
    version,
    propagate_version = true,
    after_help = "\
Examples:
  bindery run --name web1 -- qemu-system-x86_64 -m 1G …   run a VM with its memory managed
  bindery top                                             watch memory shrink
  bindery scan $(pgrep qemu)                              what would be saved, without managing
  bindery doctor                                          is this machine ready, and if not, why

`bindery help exit-codes` lists the exit codes."
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// The daemon's socket [default: /run/bindery/bindery.sock for root, otherwise
    /// $XDG_RUNTIME_DIR/bindery.sock or /tmp/bindery-UID/bindery.sock]
    #[arg(long, env = SOCKET_VARIABLE, global = true, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

impl Global {
    /// The socket asked for, or the user's own.
    pub(crate) fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(default_socket)
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the daemon that merges this user's guests
    #[command(after_help = "\
Examples:
  bindery daemon                             in the foreground, until SIGTERM or SIGINT
  bindery daemon --background                return once it listens
  bindery daemon --workers 4 --period 500ms
  bindery daemon --set advisor_max_cpu=20 --set advisor_target_scan_time=60s
  bindery daemon --group kvm                 members of that group may use it
  bindery daemon --print-config > /etc/bindery/bindery.toml
  bindery daemon --http 127.0.0.1:9480       metrics, an API and a dashboard for this machine's users
  bindery daemon --http 0.0.0.0:9480 --http-token-file /etc/bindery/token

Flags go before the configuration file. SIGHUP, or `bindery reload`, has it read again. A daemon
that ends, however it ends, leaves its guests running with their merged pages; the next daemon
takes them over. With --unmerge-at-exit they get private pages back first.

BINDERY_LOG chooses what it logs: error, warn, info (the default) or debug.")]
    Daemon(DaemonArgs),
    /// Run a VMM with its guest's memory managed
    #[command(after_help = "\
Examples:
  bindery run -- qemu-system-x86_64 -m 1G -drive file=disk.img
  bindery run --name web1 --domain web -- cloud-hypervisor --memory size=1G,mergeable=on …

A QEMU (called kvm, qemu, qemu-kvm or *qemu-system-*) gets a monitor of Bindery's own, which only its user
reaches; checkpoints need it. --no-monitor leaves it out.

The VMM replaces this command: its process id, exit code and signals are the VMM's. Where no daemon
runs, one is started in the background for this user's guests.

BINDERY_LOG_FILE names a file for messages about this guest's memory; without it they go to the VMM's
standard error.")]
    Run(RunArgs),
    /// List the guests
    #[command(after_help = "\
Examples:
  bindery ps
  bindery ps --json | jq '.[] | select(.state.advice) | .name'")]
    Ps,
    /// Watch the guests, live
    #[command(after_help = "\
Examples:
  bindery top
  bindery top --sort breaks --interval 500ms

Keys: s or arrows choose the column to sort by, r reverses, q quits. When the output is no
terminal, the table is printed once; with --json, one line for each interval. A terminal that takes no
escape sequences (TERM=dumb) gets the whole table each interval.")]
    Top(TopArgs),
    /// Show the daemon, its domains and what they save
    #[command(after_help = "\
Examples:
  bindery status
  bindery status --json | jq '.domains[].general_profit'")]
    Status,
    /// Change settings of the running daemon, or show them
    #[command(after_help = set_help("\
Examples:
  bindery set                                        show all
  bindery set workers=1 period=5s
  bindery set advisor_target_scan_time=60s advisor_max_cpu=20
  bindery set advisor_mode=none pages_to_scan=0      as fast as it goes
  bindery set run_when=pressure                      merge only while memory is short"))]
    Set(SetArgs),
    /// Have the daemon read its configuration file again
    #[command(after_help = "\
Examples:
  bindery reload

Settings that take a restart are named. If a line of the file is wrong, nothing is changed.")]
    Reload,
    /// Make all merged pages of a guest private again, and stop merging it
    #[command(after_help = "\
Examples:
  bindery unmerge web1
  bindery unmerge 4711          by process id

Needs as much free memory as the guest has merged pages. `bindery merge` undoes it.")]
    Unmerge(GuestArgs),
    /// Merge a guest again after `unmerge`
    #[command(after_help = "\
Examples:
  bindery merge web1")]
    Merge(GuestArgs),
    /// Give a guest its memory back for good: the shim steps aside
    #[command(after_help = "\
Examples:
  bindery unmanage web1

Needed before the VMM uses userfaultfd itself: QEMU's post-copy migration (as the destination) and
background snapshots. Needed, too, before a debugger or dumper looks into the VMM (gdb, gcore, ptrace,
/proc/PID/mem): without it absent pages cannot be read, nor merged ones written (EIO). The guest cannot
be managed again until its VMM is restarted.")]
    Unmanage(GuestArgs),
    /// See how fast a guest's memory changes, where, and whether it could be migrated
    #[command(after_help = "\
Examples:
  bindery dirty web1                                   five seconds, as a table
  bindery dirty web1 --watch                           live
  bindery dirty web1 --for 30s --png web1.png          where: blue cold, orange warm, white hot
  bindery dirty web1 --bandwidth 25G --downtime 100ms  can it be moved over 25 Gbit/s?

A page counts once an epoch, however often it was written. Hot pages were written in half of the
epochs or more, warm ones in fewer, cold ones in none. Each epoch write-protects what was written
before, so that the first write to a page in an epoch takes about a microsecond longer.

Keys with --watch: q quits. When the output is no terminal, and with --json, --watch prints one line
for each epoch.")]
    Dirty(DirtyArgs),
    /// End the daemon
    #[command(after_help = "\
Examples:
  bindery stop                  guests keep their merged pages, for the next daemon
  bindery stop --unmerge        guests get private pages back first")]
    Stop(StopArgs),
    /// Estimate what processes and memory images would save; reads only
    #[command(after_help = "\
Examples:
  bindery scan 4711                      by zero pages and duplicates inside one process
  bindery scan $(pgrep qemu)             and across several
  bindery scan base.mem clone.mem        memory images
  bindery scan ./4711                    a file whose name is a number

Of processes only pages that are in memory are read, of private anonymous mappings: nothing is
faulted in. Pages that are shared already (KSM, the zero page, a bindery store) are told apart as
far as the kernel lets this user see them.")]
    Scan(ScanArgs),
    /// Try out how fast memory would be scanned, without scanning any
    #[command(after_help = "\
Examples:
  bindery advisor simulate
  bindery advisor simulate --target-scan-time 60s --max-cpu 20 --png laws.png")]
    Advisor {
        #[command(subcommand)]
        command: AdvisorCommand,
    },
    /// Pace the kernel's own page merging (KSM), and see what it saves and costs
    #[command(after_help = "\
Examples:
  bindery ksm run --target-scan-time 60s --max-cpu 20    pace ksmd until ^C
  bindery ksm status                                     what it saves, what it costs, for whom
  bindery ksm enable -- redis-server                     offer all of a program's memory
  bindery ksm restore                                    after a pilot was killed")]
    Ksm {
        #[command(subcommand)]
        command: KsmCommand,
    },
    /// Keep guests: their checkpoints in a pool
    #[command(after_help = "\
Examples:
  bindery checkpoint list --pool guests
  bindery checkpoint verify --all
  bindery checkpoint delete web1 --keep 24
  bindery checkpoint export web1@monday web1.checkpoint --key-file key

The daemon opens the pool, so it needs the right to; it closes it some seconds after its last use, and others
can have it then. Root and the daemon's user see all checkpoints, members of the group those of their own
guests.")]
    Checkpoint {
        #[command(subcommand)]
        command: CheckpointCommand,
    },
    /// Start a guest that goes on from a checkpoint
    #[command(after_help = "\
Examples:
  bindery restore web1@monday
  bindery restore web1@monday --name web2 --detach --log web2.log
  bindery restore web1@monday --paused -- -smp 2 -netdev user,id=net0
  bindery restore web1@monday --pool guests --disks-directory /srv/overlays

The VMM is started as the saved one was, but for the options behind --, and runs at once: memory comes from the
pool when it is touched, first what the last restore touched. Disks write to new overlays above the images of the
checkpoint. In the foreground this command becomes the VMM, as `bindery run` does. The saved guest may run on
beside it: network addresses and UUIDs that both have are named.")]
    Restore(RestoreArgs),
    /// Serve the page faults of microVMs that Firecracker restores, from a checkpoint
    #[command(after_help = "\
Examples:
  bindery serve-faults fn1@warm --listen /run/fn1.sock --state-to /srv/fn1.state
  bindery serve-faults fn1@warm --listen /run/fn1.sock --once
  bindery serve-faults fn1@warm --listen /srv/jails/fn1/uffd.sock --socket-user 1007

Then, for each microVM:
  curl --unix-socket fc.sock -X PUT http://localhost/snapshot/load -d '{
    \"snapshot_path\": \"/srv/fn1.state\", \"resume_vm\": true,
    \"mem_backend\": {\"backend_type\": \"Uffd\", \"backend_path\": \"/run/fn1.sock\"}}'

Any number of microVMs is served at once, each until it ends. What a microVM touches comes first, before that what
the first one touched, and then the rest. SIGTERM and ^C: no more microVMs are taken, and the command ends once
those that it serves have ended; a second one ends it at once, and microVMs that lack memory wait for ever. If the
daemon ends, they wait for the next one.")]
    ServeFaults(ServeFaultsArgs),
    /// Start several guests that go on from one checkpoint
    #[command(after_help = "\
Examples:
  bindery clone ci@booted --count 8
  bindery clone ci@booted --count 8 --name runner --log-directory /var/log/runners
  bindery clone ci@booted --count 8 --json -- -qmp unix:/run/runner-{}.sock,server=on,wait=off
  bindery clone ci@booted --count 8 --hook ./plug-into-network

Each is started as `bindery restore --detach` starts one, one after the other, and has what it has not touched yet
in the pool. The rest is brought to one guest at a time, as what they have in common is merged. All have the saved
guest's network addresses unless options behind -- or the hook say otherwise. If one fails, those before it stay,
and are named; a hook that fails ends its own guest alone.")]
    Clone(CloneArgs),
    /// Start children of a guest that runs on
    #[command(after_help = "\
Examples:
  bindery fork ci --count 8 --without-disks
  bindery fork web1 --count 2 --name trial --disks-directory /srv/overlays
  bindery fork ci --count 8 --without-disks --hook ./plug-into-network -- -qmp unix:/run/{}.sock,server=on,wait=off

The guest stands still for some milliseconds, and its memory is copied within the host's, once for all children:
nothing of it is written to a disk. Each child is started as `bindery clone` starts one, and the copy goes once
the last child has all of its memory. Disks are as for `bindery checkpoint create`: the guest writes to overlays
from then on, and each child to its own. Children are of the guest's user, who has to be yours, and in its domain.
^C keeps the children that run.")]
    Fork(ForkArgs),
    /// Keep immutable objects in media classes, on files or block devices
    #[command(after_help = "\
Examples:
  bindery pool create guests --capacity /srv/pool --size 200G
  bindery pool put guests kernel.img                     prints the object's id
  bindery pool get guests 0x100 -o kernel.img
  bindery pool stat guests
  bindery pool verify guests                             reads everything, names what is damaged

Pools are known by name to the user who made or imported them: root's in /var/lib/bindery/pools, others'
in ~/.local/state/bindery/pools, or where BINDERY_POOLS says.")]
    Pool {
        #[command(subcommand)]
        command: PoolCommand,
    },
    /// Check whether this machine is ready, and say what to change
    #[command(after_help = "\
Examples:
  bindery doctor
  bindery doctor --json | jq '.[] | select(.verdict != \"ok\")'

Exits with 7 if something needed is missing, with 0 if all that is wrong is that something works
less well.")]
    Doctor,
    /// Print a completion script for a shell
    #[command(after_help = "\
Examples:
  bindery completions bash > /etc/bash_completion.d/bindery
  bindery completions zsh > ~/.zfunc/_bindery

Names of guests and checkpoints are completed, too, if the daemon answers within half a second.")]
    Completions(CompletionsArgs),
    /// Print the manual page, or write all of them to a directory
    #[command(after_help = "\
Examples:
  bindery man | man -l -
  bindery man /usr/local/share/man/man1")]
    Man(ManArgs),
    /// Explain the exit codes
    #[command(name = "exit-codes", hide = true, after_help = exit_code_table())]
    ExitCodes,
}

/// What `bindery set` says behind its options.
fn set_help(examples: &str) -> String {
    format!("{examples}\n\n{SETTINGS}\n\nChanges last until the daemon ends, or `bindery reload`.")
}

/// The exit codes, one a line.
pub(crate) fn exit_code_table() -> String {
    let lines = exit_codes().map(|(code, meaning)| format!("  {code}  {meaning}"));
    format!("Exit codes:\n{}", lines.collect::<Vec<_>>().join("\n"))
}

#[derive(Debug, Args)]
pub(crate) struct DaemonArgs {
    /// Let the members of this group use the daemon, too: look, and run and handle guests of their own
    #[arg(long, value_name = "NAME", value_parser = parse_group)]
    pub(crate) group: Option<Group>,
    /// Read settings from this file [default: /etc/bindery/bindery.toml for root, if it is there]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print a configuration file with every setting and its default, and end
    #[arg(long)]
    pub(crate) print_config: bool,
    /// How many workers merge [default: 2, or 1 on a machine with one CPU]
    #[arg(long, value_parser = parse_workers, allow_negative_numbers = true)]
    pub(crate) workers: Option<u32>,
    /// How long a merge period is [default: 1s]
    #[arg(long, value_parser = parse_period)]
    pub(crate) period: Option<Duration>,
    /// Any other setting; may be repeated. They are listed in `bindery set --help`
    #[arg(long, value_name = "SETTING=VALUE")]
    pub(crate) set: Vec<Setting>,
    /// The most memory that the canonical pages of each domain may take [default: no limit]
    #[arg(long, value_name = "MIB", value_parser = parse_store_mib, allow_negative_numbers = true)]
    pub(crate) store_mib: Option<u64>,
    /// Keep checkpoints in this pool, where a command names no other: a directory with its files, or its
    /// device
    #[arg(long, value_name = "PATH")]
    pub(crate) checkpoint_pool: Option<PathBuf>,
    /// Encrypt new domains' checkpoints in pools with the key in this file: 32 random bytes, or 64 hexadecimal
    /// digits, of the daemon's user or root alone; [checkpoint.keys] in the configuration file has keys by domain
    #[arg(long, value_name = "FILE")]
    pub(crate) checkpoint_key: Option<PathBuf>,
    /// Serve metrics, a JSON API and a dashboard at this address and port, for looking only; port 0
    /// takes a free one
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_address)]
    pub(crate) http: Option<SocketAddr>,
    /// Have HTTP clients show the secret in this file; needed where other machines can reach ADDR
    #[arg(long, value_name = "FILE", requires = "http")]
    pub(crate) http_token_file: Option<PathBuf>,
    /// Detach from the terminal and return once the daemon listens
    #[arg(long)]
    pub(crate) background: bool,
    /// Write what the daemon logs to this file [default: stderr; with --background, the socket's
    /// path with .log]
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// Give guests private pages back before ending
    #[arg(long)]
    pub(crate) unmerge_at_exit: bool,
    /// Leave the terminal's session, and say on stdout, in one line, that the daemon listens
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// What to call the guest [default: the VMM's name and process id]
    #[arg(long, env = NAME_VARIABLE, value_parser = parse_name)]
    pub(crate) name: Option<String>,
    /// Share pages only with guests of this domain [default: `default`]; never with other users'
    #[arg(long, env = DOMAIN_VARIABLE, value_parser = parse_name)]
    pub(crate) domain: Option<String>,
    /// Give a QEMU no monitor of Bindery's own: its guest cannot be checkpointed then
    #[arg(long)]
    pub(crate) no_monitor: bool,
    /// The VMM and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "VMM"
    )]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// The column to sort by
    #[arg(long, value_enum, default_value = "merged")]
    pub(crate) sort: Column,
    /// How often to ask the daemon
    #[arg(long, default_value = "1s", value_parser = parse_period)]
    pub(crate) interval: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct DirtyArgs {
    /// Its name or process id
    #[arg(add = completion::guests())]
    pub(crate) guest: String,
    /// Show it live, until q or ^C
    #[arg(long)]
    pub(crate) watch: bool,
    /// How long an epoch is
    #[arg(long, default_value = "250ms", value_parser = parse_epoch)]
    pub(crate) interval: Duration,
    /// How long to observe
    #[arg(long = "for", default_value = "5s", value_parser = parse_time, conflicts_with = "watch")]
    pub(crate) duration: Duration,
    /// Write a picture of the guest's memory to this file
    #[arg(long, value_name = "FILE", conflicts_with = "watch")]
    pub(crate) png: Option<PathBuf>,
    /// What a migration may send, in bits a second: 10G, 2500M
    #[arg(long, default_value = "10G", value_parser = parse_bandwidth, value_name = "BITS")]
    pub(crate) bandwidth: u64,
    /// How long the guest may stand still in a migration
    #[arg(long, default_value = "300ms", value_parser = parse_time)]
    pub(crate) downtime: Duration,
}

/// A column of `bindery top` that can be sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Column {
    Name,
    Ram,
    Private,
    Merged,
    Zero,
    Huge,
    Breaks,
    Mappings,
}

#[derive(Debug, Args)]
pub(crate) struct SetArgs {
    /// What to change
    #[arg(value_name = "SETTING=VALUE")]
    pub(crate) settings: Vec<Setting>,
}

#[derive(Debug, Args)]
pub(crate) struct GuestArgs {
    /// The guest's name or process id
    #[arg(add = completion::guests())]
    pub(crate) guest: String,
}

#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// Give guests private pages back first
    #[arg(long)]
    pub(crate) unmerge: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ScanArgs {
    /// Process ids and files
    #[arg(required = true, value_name = "PID|FILE")]
    pub(crate) inputs: Vec<OsString>,
    /// How many threads read and digest [default: one for each CPU]
    #[arg(long)]
    pub(crate) threads: Option<NonZeroUsize>,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Which shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Write a page for each command into this directory
    pub(crate) directory: Option<PathBuf>,
}

fn parse_group(name: &str) -> Result<Group, String> {
    Group::find(name).map_err(|error| error.to_string())
}

fn parse_workers(text: &str) -> Result<u32, String> {
    let workers = text.parse().ok().filter(|workers| WORKERS.contains(workers));
    workers.ok_or_else(|| format!("a number from {} to {}", WORKERS.start(), WORKERS.end()))
}

/// Epochs of `bindery dirty`. To scan a guest takes some milliseconds a GiB; the daemon hangs up on
/// operators who say nothing for a minute.
const EPOCHS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(30);

fn parse_store_mib(text: &str) -> Result<u64, String> {
    let mib = text.parse().ok().filter(|mib| STORES_MIB.contains(mib));
    let (least, most) = (STORES_MIB.start(), STORES_MIB.end());
    mib.ok_or_else(|| format!("a number of MiB from {least} to {most}"))
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "an IP address and a port from 0 to 65535: 127.0.0.1:9480, [::1]:9480".to_owned()
    })
}

fn parse_period(text: &str) -> Result<Duration, String> {
    parse_within(text, &PERIODS)
}

fn parse_epoch(text: &str) -> Result<Duration, String> {
    parse_within(text, &EPOCHS)
}

/// Bits a second.
fn parse_bandwidth(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit {
        "" => 1,
        "k" | "K" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        _ => return Err("bits a second are a number and k, M or G: 10G".into()),
    };
    let number: Option<u64> = number.parse().ok().filter(|number| *number > 0);
    let bits = number.and_then(|number| number.checked_mul(factor));
    bits.ok_or_else(|| "bits a second are a number above zero and k, M or G: 10G".into())
}

fn parse_name(text: &str) -> Result<String, String> {
    if is_name(text) {
        return Ok(text.to_owned());
    }
    Err(format!("1 to {NAME_BYTES_MAX} letters, digits and any of -_.:@"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_command_has_examples() {
        for command in Arguments::command().get_subcommands().filter(|c| !c.is_hide_set()) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:"), "{} has none", command.get_name());
        }
    }

    #[test]
    fn times_have_units_and_bounds() {
        assert_eq!(parse_period("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_period("2m"), Ok(Duration::from_secs(120)));
        for wrong in ["", "1", "s", "-1s", "1.5s", "0ms", "1h", "99999999999999999999s", "1000m"] {
            assert!(parse_period(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_vmm_keeps_its_own_flags() {
        let arguments = Arguments::try_parse_from([
            "bindery", "run", "--name", "a", "--", "qemu", "--name", "b", "--json",
        ]);
        let arguments = arguments.unwrap();
        let Command::Run(run) = arguments.command else { panic!("that was run") };
        assert_eq!(run.name.as_deref(), Some("a"));
        assert_eq!(run.command, ["qemu", "--name", "b", "--json"]);
        assert!(!arguments.global.json);
    }
}
