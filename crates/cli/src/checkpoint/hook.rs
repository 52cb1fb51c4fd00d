//! The operator's own program, run for each guest that is cloned before it runs: for network identity, for one.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bindery_host::monitors::Monitors;
use bindery_host::protocol::checkpoint::CheckpointName;
use bindery_sys::process;
use bindery_vmm::{Qemu, QemuSettings, Vmm as _};
use bindery_wire::environment::SOCKET_VARIABLE;

use super::create::absolute;
use super::restore::end;
use crate::exit::{Failure, Reason};

/// A guest that is paused, and is to run.
pub(super) struct Child<'a> {
    pub(super) guest: &'a str,
    pub(super) pid: i32,
    /// Number of the guest, from 1.
    pub(super) number: u32,
    pub(super) checkpoint: &'a CheckpointName,
    /// Socket of the daemon.
    pub(super) socket: PathBuf,
}

impl Child<'_> {
    fn monitor(&self) -> Result<PathBuf, Failure> {
        let socket = absolute(&self.socket)?;
        let monitors = Monitors::of_daemon(Path::new(&socket));
        Ok(monitors.path(process::effective_user(), self.pid.cast_unsigned()))
    }

    /// Lets the guest run.
    pub(super) fn resume(&self) -> Result<(), Failure> {
        let failed = |error: bindery_vmm::VmmError| {
            Failure::new(Reason::Failed, format!("its VMM does not let it run: {error}"))
        };
        let settings = QemuSettings { pid: Some(self.pid), ..QemuSettings::default() };
        let mut qemu = Qemu::connect(&self.monitor()?, settings).map_err(failed)?;
        qemu.resume().map(drop).map_err(failed)
    }

    /// Ends the guest.
    pub(super) fn end(&self) {
        end(self.pid.cast_unsigned());
    }
}

/// Runs the program, and waits for its end. What it prints goes to standard error.
///
/// # Errors
/// If it cannot be run, or does not exit with 0.
pub(super) fn run(program: &Path, child: &Child<'_>) -> Result<(), Failure> {
    let of_io = |error: io::Error| {
        Failure::of_io(format_args!("cannot run the hook {}", program.display()), &error)
    };
    let output = io::stderr().as_fd().try_clone_to_owned().map_err(of_io)?;
    let mut command = Command::new(program);
    command.env("BINDERY_GUEST", child.guest).env("BINDERY_INDEX", child.number.to_string());
    command.env("BINDERY_CHECKPOINT", child.checkpoint.to_string());
    command.env("BINDERY_PID", child.pid.to_string()).env("BINDERY_QMP", child.monitor()?);
    command.env(SOCKET_VARIABLE, absolute(&child.socket)?);
    let ended = command.stdin(Stdio::null()).stdout(output).status().map_err(of_io)?;
    if ended.success() {
        return Ok(());
    }
    let message = format!("the hook {} has failed: {ended}", program.display());
    Err(Failure::new(Reason::Failed, message))
}
