//! Signs of life of a guest: lines that a program in it writes to the console, again and again.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use bindery_testkit::guest::QemuGuest;

use crate::interrupt;

/// The program checks its own memory, and says a number that is nowhere but there.
const PROGRAM: &str =
    "guest_agent heartbeat --mib 16 --writes 8 --reads 16 --pause-ms 4 > /dev/ttyS0";

const POLL: Duration = Duration::from_millis(1);

const PATIENCE: Duration = Duration::from_secs(120);

/// Starts the program in a guest. Returns its number, once it has said that.
pub(super) fn start(guest: &mut QemuGuest) -> Result<String> {
    guest.run_in_background("heartbeat", PROGRAM)?;
    await_first(guest)
}

/// Waits for the first sign of life on the console of a guest. Returns the program's number.
///
/// # Errors
/// If none comes within two minutes, or the program has found a wrong page.
pub(super) fn await_first(guest: &mut QemuGuest) -> Result<String> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        let console = guest.console();
        if let Some(nonce) = console.split_inclusive('\n').find_map(nonce_in) {
            return nonce;
        }
        if !guest.is_running() {
            bail!("the guest has ended: {}{console}", guest.log());
        }
        interrupt::rest(POLL)?;
    }
    bail!("no sign of life within {PATIENCE:?}: {}{}", guest.log(), guest.console())
}

/// The number in a whole line; an error if a page is wrong. The first line of a console may lack its beginning.
fn nonce_in(line: &str) -> Option<Result<String>> {
    let (_, rest) = line.strip_suffix('\n')?.split_once("HEARTBEAT nonce=")?;
    let (nonce, rest) = rest.split_once(' ')?;
    let (_, bad) = rest.trim_end().split_once(" bad=")?;
    Some(if bad == "0" { Ok(nonce.to_owned()) } else { Err(anyhow!("a page is wrong: {line}")) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_name_the_program_and_wrong_pages() {
        let line = "HEARTBEAT nonce=00ab beat=4 verified=9 bad=0\r\n";
        assert_eq!(nonce_in(line).unwrap().unwrap(), "00ab");
        assert!(nonce_in(&line[5..]).is_none() && nonce_in(&line[..30]).is_none());
        assert!(nonce_in(&line.replace("bad=0", "bad=1")).unwrap().is_err());
    }
}
