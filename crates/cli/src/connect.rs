//! Asking the daemon.

use std::thread;
use std::time::{Duration, Instant};

use bindery_host::client::{Client, ClientError};
use bindery_host::protocol::{Answer, Request};
use bindery_host::status::{GuestStatus, HostStatus};
use bindery_sys::process;

use crate::args::Global;
use crate::exit::{Failure, Reason};

/// How long the daemon may take to answer what it has at hand.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time in which a guest whose process has ended must have left.
const LEAVING_PATIENCE: Duration = Duration::from_secs(2);

const LOOK_EVERY: Duration = Duration::from_millis(5);

/// How long it may take to give a guest's memory back: minutes for hundreds of gigabytes.
const WORK_PATIENCE: Duration = Duration::from_secs(600);

/// Connects to the daemon that `global` names.
pub(crate) fn connect(global: &Global) -> Result<Client, Failure> {
    Ok(Client::connect(&global.socket())?)
}

/// Has the daemon do `request`, which may be work, and returns its answer.
pub(crate) fn ask(global: &Global, request: &Request) -> Result<Answer, Failure> {
    Ok(connect(global)?.ask(request, WORK_PATIENCE)?)
}

/// The daemon's status.
pub(crate) fn ask_status(client: &mut Client) -> Result<HostStatus, Failure> {
    match client.ask(&Request::Status {}, PATIENCE)? {
        Answer::Status(status) => Ok(*status),
        answer => Err(misplaced(&answer)),
    }
}

/// Finds the guest of a name. One whose process has just ended is listed until the daemon hears of that: it is waited
/// for.
pub(crate) fn find_guest(global: &Global, name: &str) -> Result<Option<GuestStatus>, Failure> {
    let begun = Instant::now();
    let mut client = connect(global)?;
    loop {
        let guests = ask_guests(&mut client)?;
        let Some(guest) = guests.into_iter().find(|guest| guest.name == name) else {
            return Ok(None);
        };
        let has_ended = u32::try_from(guest.pid).is_ok_and(process::has_ended);
        if !has_ended || begun.elapsed() > LEAVING_PATIENCE {
            return Ok(Some(guest));
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// The daemon's guests.
pub(crate) fn ask_guests(client: &mut Client) -> Result<Vec<GuestStatus>, Failure> {
    match client.ask(&Request::Guests {}, PATIENCE)? {
        Answer::Guests { guests } => Ok(guests),
        answer => Err(misplaced(&answer)),
    }
}

/// The failure of an answer that is not one to the question.
pub(crate) fn misplaced(answer: &Answer) -> Failure {
    ClientError::Nonsense(format!("it does not fit the question: {answer:?}")).into()
}

/// Whether a daemon answers; `Err` if there is one that does not serve us.
pub(crate) fn is_running(global: &Global) -> Result<bool, Failure> {
    match connect(global) {
        Ok(mut client) => ask_status(&mut client).map(|_| true),
        Err(failure) if failure.reason() == Reason::NoDaemon => Ok(false),
        Err(failure) => Err(failure),
    }
}
