//! `bindery run`: a VMM with the shim in it.
//!
//! The VMM replaces this process (`exec`), so its process id, its signals, its descriptors and its exit
//! code are what whoever started us sees. All checks come before: afterwards only the VMM's log can tell.

mod monitor;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bindery_sys::handover;
use bindery_sys::process::has_file_capabilities;
use bindery_wire::environment::{DOMAIN_VARIABLE, NAME_VARIABLE, SOCKET_VARIABLE};

use crate::args::{Global, RunArgs};
use crate::connect::{find_guest, is_running};
use crate::daemon::start_in_background;
use crate::exit::{Failure, Reason};

/// How long a daemon may take from its lock to its first answer.
const LISTEN_PATIENCE: Duration = Duration::from_secs(5);

/// The preload library's file name.
const SHIM: &str = "libbindery_shim.so";

/// Runs the VMM in place of this process. Returns only if that fails.
pub(crate) fn run(global: &Global, arguments: &RunArgs) -> Result<(), Failure> {
    let preload = preload(&find_shim()?)?;
    let [program, rest @ ..] = arguments.command.as_slice() else {
        return Err(Failure::new(Reason::Usage, "name the VMM to run"));
    };
    let program = find_program(program)?;
    check_preloadable(&program)?;
    let socket = std::path::absolute(global.socket())
        .map_err(|error| Failure::of_io("cannot name the socket", &error))?;
    ensure_daemon(global)?;
    if let Some(name) = &arguments.name {
        check_name_is_free(global, name)?;
    }
    let mut command = Command::new(&program);
    command.args(rest).env("LD_PRELOAD", preload).env(SOCKET_VARIABLE, &socket);
    if !arguments.no_monitor {
        command.args(monitor::arguments(&program, rest, &socket));
    }
    for (variable, value) in
        [(NAME_VARIABLE, &arguments.name), (DOMAIN_VARIABLE, &arguments.domain)]
    {
        if let Some(value) = value {
            command.env(variable, value);
        }
    }
    let error = handover::replace(&mut command);
    Err(Failure::of_io(format_args!("cannot run {}", program.display()), &error))
}

/// Starts a daemon for this user's guests if none runs, and says so.
fn ensure_daemon(global: &Global) -> Result<(), Failure> {
    if is_running(global)? {
        return Ok(());
    }
    match start_in_background(&global.socket(), &["bindery".into(), "daemon".into()]) {
        Ok(started) => {
            eprintln!(
                "bindery: no daemon ran on {}; started one in the background (pid {}), `bindery \
                 stop` ends it",
                started.socket.display(),
                started.pid
            );
            Ok(())
        }
        // Somebody else's `bindery run` was faster.
        Err(failure) if failure.reason() == Reason::Taken => await_daemon(global, failure),
        Err(failure) => Err(failure),
    }
}

/// Waits for a daemon that has taken its lock and is about to listen; else fails with `failure`.
fn await_daemon(global: &Global, failure: Failure) -> Result<(), Failure> {
    let deadline = Instant::now() + LISTEN_PATIENCE;
    while !is_running(global)? {
        if Instant::now() > deadline {
            return Err(failure);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Early and friendly; the daemon checks again when the guest connects.
fn check_name_is_free(global: &Global, name: &str) -> Result<(), Failure> {
    match find_guest(global, name)? {
        None => Ok(()),
        Some(guest) => Err(Failure::new(
            Reason::Taken,
            format!("a guest is called {name} already (pid {}); choose another --name", guest.pid),
        )),
    }
}

/// `$BINDERY_SHIM`, beside this program, or where packages put it.
pub(crate) fn find_shim() -> Result<PathBuf, Failure> {
    if let Some(path) = std::env::var_os("BINDERY_SHIM").map(PathBuf::from) {
        return fs::canonicalize(&path).map_err(|error| {
            Failure::of_io(format_args!("BINDERY_SHIM={}", path.display()), &error)
        });
    }
    shim_beside_program().ok_or_else(|| {
        let message = format!(
            "{SHIM} is neither beside this program nor in ../lib/bindery/ from there; install it \
             there, or name it in BINDERY_SHIM"
        );
        Failure::new(Reason::NotFound, message)
    })
}

fn shim_beside_program() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let directory = program.parent()?;
    // Debian has a directory of libraries for each kind of machine, called after GNU's name for it.
    let multiarch = format!("../lib/{}-linux-gnu/bindery", std::env::consts::ARCH);
    ["", "../lib/bindery", &multiarch]
        .into_iter()
        .find_map(|place| fs::canonicalize(directory.join(place).join(SHIM)).ok())
}

/// The list of libraries to preload: the shim first, so that it sees calls before others do.
fn preload(shim: &Path) -> Result<OsString, Failure> {
    // ld.so(8): separated by spaces or colons, and there is no way to escape either.
    if shim.as_os_str().as_bytes().iter().any(|byte| b" :".contains(byte)) {
        let message = format!(
            "{} has a space or colon in its path, which LD_PRELOAD cannot name; install it \
             elsewhere",
            shim.display()
        );
        return Err(Failure::new(Reason::Unsupported, message));
    }
    let mut list = shim.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    Ok(list)
}

/// The file that the shell would run.
fn find_program(name: &OsStr) -> Result<PathBuf, Failure> {
    let is_executable = |path: &Path| {
        fs::metadata(path).is_ok_and(|found| found.is_file() && found.mode() & 0o111 != 0)
    };
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        if is_executable(&path) {
            return Ok(path);
        }
    } else if let Some(path) = std::env::var_os("PATH") {
        let found = std::env::split_paths(&path).map(|directory| directory.join(name));
        if let Some(path) = found.into_iter().find(|path| is_executable(path)) {
            return Ok(path);
        }
    }
    let message = format!("{} is not a program that can be run", name.display());
    Err(Failure::new(Reason::NotFound, message))
}

/// Programs that the dynamic linker does not preload anything into are refused: they would run,
/// unmanaged, and nobody would know.
fn check_preloadable(program: &Path) -> Result<(), Failure> {
    let of_io = |error| Failure::of_io(format_args!("cannot read {}", program.display()), &error);
    let metadata = fs::metadata(program).map_err(of_io)?;
    let unsupported =
        |why: &str| Err(Failure::new(Reason::Unsupported, format!("{} {why}", program.display())));
    if metadata.mode() & 0o6000 != 0 || has_file_capabilities(program).map_err(of_io)? {
        return unsupported(
            "is setuid, setgid or has file capabilities: the dynamic linker ignores LD_PRELOAD for \
             it; run a copy without them",
        );
    }
    let file = match File::open(program) {
        Ok(file) => file,
        // Executable and not readable: nothing can be checked, and it may well work.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return Ok(()),
        Err(error) => return Err(of_io(error)),
    };
    match elf::has_interpreter(&file).map_err(of_io)? {
        Some(false) => unsupported(
            "is linked statically, so that nothing can be preloaded into it; use a dynamically \
             linked build, or one that links bindery itself",
        ),
        // Not ELF: a script, whose interpreter is preloaded into.
        Some(true) | None => Ok(()),
    }
}

/// As much of ELF as tells whether the dynamic linker runs a program (elf(5)).
mod elf {
    use super::{File, FileExt};
    use std::io;

    const PROGRAM_HEADER_BYTES: usize = 56;
    const PT_INTERP: u32 = 3;

    /// Whether a 64-bit little-endian ELF file names a dynamic linker; `None` if it is no such
    /// file.
    pub(super) fn has_interpreter(file: &File) -> io::Result<Option<bool>> {
        let mut header = [0; 64];
        match file.read_exact_at(&mut header, 0) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            result => result?,
        }
        if !header.starts_with(b"\x7fELF\x02\x01") {
            return Ok(None);
        }
        let mut at = u64::from_le_bytes(field(&header, 32));
        for _ in 0..u16::from_le_bytes(field(&header, 56)) {
            let mut program_header = [0; PROGRAM_HEADER_BYTES];
            match file.read_exact_at(&mut program_header, at) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                result => result?,
            }
            if u32::from_le_bytes(field(&program_header, 0)) == PT_INTERP {
                return Ok(Some(true));
            }
            at = at.saturating_add(PROGRAM_HEADER_BYTES as u64);
        }
        Ok(Some(false))
    }

    fn field<const BYTES: usize>(header: &[u8], at: usize) -> [u8; BYTES] {
        std::array::from_fn(|byte| header[at + byte])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dynamic_programs_are_told_from_static_ones() {
        let own = File::open(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(elf::has_interpreter(&own).unwrap(), Some(true));
        let script = tempfile::NamedTempFile::new().unwrap();
        fs::write(script.path(), "#!/bin/sh\n").unwrap();
        assert_eq!(elf::has_interpreter(&File::open(script.path()).unwrap()).unwrap(), None);
        // A program header that is no PT_INTERP, and a file that ends where headers should be.
        let mut header = vec![0_u8; 64 + 56];
        header[..6].copy_from_slice(b"\x7fELF\x02\x01");
        header[32] = 64;
        header[56] = 1;
        fs::write(script.path(), &header).unwrap();
        assert_eq!(elf::has_interpreter(&File::open(script.path()).unwrap()).unwrap(), Some(false));
        fs::write(script.path(), &header[..70]).unwrap();
        assert_eq!(elf::has_interpreter(&File::open(script.path()).unwrap()).unwrap(), None);
    }
}
