//! The command line of `bindery ksm`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use bindery_advisor::{AdvisorSettings, Mode};
use bindery_ksm::DEFAULT_STATE;
use clap::{Args, Subcommand};

use crate::setting_names::number_of;
use crate::target_scan_time::TargetScanTime;
use crate::times::parse_time;

#[derive(Debug, Subcommand)]
pub(crate) enum KsmCommand {
    /// Pace ksmd: a scan in the time and for the CPU time that you name
    #[command(after_help = "\
Examples:
  bindery ksm run                                      a scan a minute, at most 20% of a CPU
  bindery ksm run --target-scan-time 5m --max-cpu 5    gently
  bindery ksm run --start --for 1h                     start KSM, and stop it after an hour
  bindery ksm run --mode scan-time                     as the kernel's own advisor would
  bindery ksm run --mode none                          leave the pace as it is, and guard it
  bindery ksm run --json | jq 'select(.event == \"ksm_advisor\")'

Sets pages_to_scan between scans, guards it against other writers, and puts everything back as it was
when it ends (SIGINT, SIGTERM, SIGHUP, SIGQUIT). If it is killed, the next one does, or `bindery ksm restore`. Works on
every kernel since 5.10; needs root. One runs at a time.")]
    Run(RunArgs),
    /// Show what KSM saves and costs, who sets its pace, and which processes gain or lose
    #[command(after_help = "\
Examples:
  bindery ksm status
  bindery ksm status --for 10s --top 20
  bindery ksm status --json | jq .net_bytes

Saved memory is told less what KSM keeps for it: 64 bytes for each page that it knows and for each page
that is shared. A process loses if what is kept for its pages is more than it saves. Without root, only
your own processes are told of.")]
    Status(StatusArgs),
    /// Run a program with all of its memory offered to KSM
    #[command(after_help = "\
Examples:
  bindery ksm enable -- redis-server
  bindery ksm enable -- firecracker --api-sock /tmp/fc.sock

For programs that do not offer their memory themselves. Its children inherit it. The program replaces
this command. Needs Linux 6.4; before 6.10 the kernel may forget the offer when the program is
started. A container's or a service manager's filter may forbid it.")]
    Enable(EnableArgs),
    /// Put back what a pilot that was killed had found
    #[command(after_help = "\
Examples:
  bindery ksm restore

Refused while a pilot runs: it puts everything back itself when it ends.")]
    Restore(RestoreArgs),
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The law: `steady` reaches the target in one scan, `scan-time` is the kernel's, `none` only
    /// guards what is set
    #[arg(long, default_value = "steady")]
    mode: Mode,
    /// How long a scan of all pages should take
    #[arg(long, default_value_t = TargetScanTime(60), value_name = "TIME")]
    target_scan_time: TargetScanTime,
    /// The most CPU time that ksmd may take, in percent of one CPU
    #[arg(long, default_value_t = 20, value_name = "PERCENT", allow_negative_numbers = true)]
    #[arg(value_parser = number_of("advisor_max_cpu"))]
    max_cpu: u64,
    /// The smallest batch; the first scan begins with it
    #[arg(long, default_value_t = AdvisorSettings::of_kernel(Mode::None).min_pages_to_scan, value_name = "N")]
    #[arg(allow_negative_numbers = true, value_parser = number_of("advisor_min_pages_to_scan"))]
    min_pages: u64,
    /// The largest batch
    #[arg(long, default_value_t = AdvisorSettings::of_kernel(Mode::None).max_pages_to_scan, value_name = "N")]
    #[arg(allow_negative_numbers = true, value_parser = number_of("advisor_max_pages_to_scan"))]
    max_pages: u64,
    /// How long to run [default: until a signal to end]
    #[arg(long = "for", value_parser = parse_time, value_name = "TIME")]
    pub(crate) duration: Option<Duration>,
    /// Start KSM as well (run = 1), and stop it at the end if it did not run
    #[arg(long)]
    pub(crate) start: bool,
    /// Where to keep what was set before
    #[arg(long, default_value = DEFAULT_STATE, value_name = "FILE")]
    pub(crate) state: PathBuf,
}

impl RunArgs {
    /// What the advisor is to be set to.
    pub(crate) fn settings(&self) -> AdvisorSettings {
        AdvisorSettings {
            mode: self.mode,
            target_scan_time_s: self.target_scan_time.0,
            max_cpu_percent: self.max_cpu,
            min_pages_to_scan: self.min_pages,
            max_pages_to_scan: self.max_pages,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// How long to measure ksmd's pace and CPU time
    #[arg(long = "for", default_value = "1s", value_parser = parse_time, value_name = "TIME")]
    pub(crate) duration: Duration,
    /// How many processes to list
    #[arg(long, default_value_t = 10, value_name = "N")]
    pub(crate) top: usize,
}

#[derive(Debug, Args)]
pub(crate) struct EnableArgs {
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// Where the pilot kept what was set before
    #[arg(long, default_value = DEFAULT_STATE, value_name = "FILE")]
    pub(crate) state: PathBuf,
}

#[cfg(test)]
mod tests {
    use crate::args::Arguments;
    use clap::CommandFactory;

    #[test]
    fn every_subcommand_has_examples() {
        let command = Arguments::command();
        let ksm = command.find_subcommand("ksm").unwrap();
        for command in ksm.get_subcommands().filter(|command| command.get_name() != "help") {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:"), "{} has none", command.get_name());
        }
    }
}
