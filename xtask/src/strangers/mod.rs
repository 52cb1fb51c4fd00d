//! Programs that nobody of this project wrote, run plainly and with all their memory offered: the
//! kernel's own tests of memory, and stress-ng's stressors.
//!
//! They do not offer memory themselves. A preload library (`offer.c`) does so for every private mapping
//! of some size, with Bindery's behind it.

pub(crate) mod selftests;
pub(crate) mod stressors;

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bindery_testkit::bindery::{Bindery, Daemon, PROGRAM_VARIABLE};

use crate::cargo::{build_programs, root, target_directory};

/// What has a program's memory offered and merged.
struct Offer {
    daemon: Daemon,
    preload: String,
    logs: PathBuf,
}

impl Offer {
    /// Builds the preload library, and the programs unless `BINDERY_PROGRAM` names them, and starts a
    /// daemon with `arguments`. `None`, said loudly, without a C compiler.
    fn start(arguments: &[&str]) -> Result<Option<Self>> {
        let directory = target_directory().join("strangers");
        std::fs::create_dir_all(&directory)?;
        let library = directory.join("offer.so");
        let source = root().join("xtask/src/strangers/offer.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]);
        let Ok(built) = compiler.arg(&library).arg(source).arg("-ldl").status() else {
            eprintln!("SKIPPED: no C compiler: `apt install gcc libc6-dev`");
            return Ok(None);
        };
        ensure!(built.success(), "the preload library was not built");
        if std::env::var_os(PROGRAM_VARIABLE).is_none() {
            build_programs()?;
        }
        let bindery = Bindery::locate()?;
        let shim = bindery.program().with_file_name("libbindery_shim.so");
        let preload = format!("{}:{}", library.display(), shim.display());
        Ok(Some(Self { daemon: bindery.daemon(arguments)?, preload, logs: directory }))
    }

    /// Has a command's memory offered. What Bindery's library says goes to a file that is called after
    /// `name`.
    fn apply(&self, command: &mut Command, name: &str) {
        command.env("LD_PRELOAD", &self.preload).env("BINDERY_SOCKET", self.daemon.socket());
        command.env("BINDERY_LOG_FILE", self.logs.join(format!("{name}.log")));
    }
}

/// How a program ended.
#[derive(Debug)]
struct Ended {
    /// Its exit status, or what ended it.
    end: String,
    output: String,
}

/// Runs a command to its end, or to the end of `limit`: then it is killed with its children.
fn run_within(limit: Duration, command: &mut Command) -> Result<Ended> {
    let output = tempfile_in_target()?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?);
    let mut child = command.process_group(0).spawn().context("starting a program")?;
    let deadline = Instant::now() + limit;
    let end = loop {
        if let Some(status) = child.try_wait()? {
            break match status.code() {
                Some(code) => format!("exit status {code}"),
                None => format!("signal {}", status.signal().unwrap_or_default()),
            };
        }
        if Instant::now() > deadline {
            let group = format!("-{}", child.id());
            Command::new("kill").args(["-KILL", "--", &group]).status()?;
            child.wait()?;
            break format!("killed after {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    Ok(Ended { end, output: whole(output)? })
}

/// A file without a name.
fn tempfile_in_target() -> Result<File> {
    let path = target_directory().join(format!("strangers/output-{}", std::process::id()));
    let mut options = File::options();
    let file = options.read(true).append(true).create(true).open(&path)?;
    std::fs::remove_file(path)?;
    Ok(file)
}

fn whole(mut file: File) -> Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
