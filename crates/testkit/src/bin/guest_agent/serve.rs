//! Runs commands for the host, one at a time, over a virtio-serial port.
//!
//! Request: `ID BYTES\n` and that many bytes of shell script. Answer: `ID STATUS OUT ERR\n`, then
//! standard output and standard error, OUT and ERR bytes. A status of -1 is a death by signal.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

const PORT_NAME: &str = "bindery.agent";

const CPUS: &str = "/sys/devices/system/cpu";

/// A port without a host reads as end of file at once; this is how often it is tried again.
const POLL: Duration = Duration::from_millis(10);

pub(crate) fn serve() -> io::Result<()> {
    let path = loop {
        match find_port()? {
            Some(path) => break path,
            None => sleep(POLL),
        }
    };
    bring_up_cpus()?;
    let mut port = OpenOptions::new().read(true).write(true).open(path)?;
    loop {
        match read_request(&mut port) {
            Ok((id, script)) => answer(&mut port, id, &script)?,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => sleep(POLL),
            Err(error) => eprintln!("guest_agent: a request was dropped: {error}"),
        }
    }
}

/// Brings up the CPUs that the kernel, told `maxcpus=1`, has left down: the drivers have their devices by
/// now, and nothing moves a device's registers any more.
fn bring_up_cpus() -> io::Result<()> {
    for cpu in std::fs::read_dir(CPUS)? {
        // Nothing else there has such a file, and the first CPU may have none.
        let online = cpu?.path().join("online");
        if std::fs::read_to_string(&online).is_ok_and(|is_online| is_online.trim() == "0") {
            std::fs::write(online, "1")?;
        }
    }
    Ok(())
}

fn find_port() -> io::Result<Option<PathBuf>> {
    let Ok(ports) = std::fs::read_dir("/sys/class/virtio-ports") else { return Ok(None) };
    for port in ports {
        let port = port?;
        let name = std::fs::read_to_string(port.path().join("name")).unwrap_or_default();
        let device = PathBuf::from("/dev").join(port.file_name());
        if name.trim() == PORT_NAME && device.exists() {
            return Ok(Some(device));
        }
    }
    Ok(None)
}

fn read_request(port: &mut File) -> io::Result<(u64, String)> {
    let mut line = Vec::new();
    loop {
        let mut byte = [0];
        port.read_exact(&mut byte)?;
        if byte[0] == b'\n' {
            break;
        }
        line.push(byte[0]);
    }
    let line = String::from_utf8_lossy(&line);
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, format!("{line:?}"));
    let (id, length) = line.split_once(' ').ok_or_else(malformed)?;
    let id = id.parse().map_err(|_| malformed())?;
    let mut script = vec![0; length.parse().map_err(|_| malformed())?];
    port.read_exact(&mut script)?;
    Ok((id, String::from_utf8_lossy(&script).into_owned()))
}

fn answer(port: &mut File, id: u64, script: &str) -> io::Result<()> {
    let run = Command::new("/bin/sh").args(["-c", script]).stdin(Stdio::null()).output();
    let (status, out, err) = match run {
        Ok(output) => (output.status.code().unwrap_or(-1), output.stdout, output.stderr),
        Err(error) => (127, Vec::new(), error.to_string().into_bytes()),
    };
    let mut reply = format!("{id} {status} {} {}\n", out.len(), err.len()).into_bytes();
    reply.extend(out);
    reply.extend(err);
    port.write_all(&reply)
}
