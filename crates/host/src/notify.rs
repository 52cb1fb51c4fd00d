//! Tells the service manager how far the daemon is: sd_notify(3), `Type=notify` in
//! systemd.service(5).
//!
//! A message is lines `NAME=value` in one datagram to the socket that `NOTIFY_SOCKET` names: a path, or
//! `@` and a name in the abstract namespace. Nobody answers.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use bindery_sys::thread::monotonic_time;

/// What a daemon has to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It listens, or has read its settings again.
    Ready,
    /// It reads its settings again; [`Self::Ready`] follows, whether they could be or not.
    Reloading,
    /// It ends.
    Stopping,
}

/// Where to say it.
#[derive(Debug, Default)]
pub(crate) struct Notifier(Option<(UnixDatagram, SocketAddr)>);

impl Notifier {
    /// The service manager's socket; none of it, and nothing is said, if this daemon is no service.
    pub(crate) fn from_environment() -> Self {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return Self::default() };
        Self::of_socket(&name).unwrap_or_else(|error| {
            tracing::warn!("cannot tell the service manager anything (NOTIFY_SOCKET): {error}");
            Self::default()
        })
    }

    fn of_socket(name: &OsStr) -> io::Result<Self> {
        let address = match name.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        // A manager that does not listen may not hold the daemon up.
        socket.set_nonblocking(true)?;
        Ok(Self(Some((socket, address))))
    }

    /// Says it, if there is somebody to hear it. Never blocks.
    pub(crate) fn say(&self, progress: Progress) {
        let Some((socket, address)) = &self.0 else { return };
        if let Err(error) = socket.send_to_addr(progress.message().as_bytes(), address) {
            tracing::warn!("cannot tell the service manager that it is {progress:?}: {error}");
        }
    }
}

impl Progress {
    fn message(self) -> String {
        match self {
            Self::Ready => "READY=1".into(),
            // With the time, so that the manager knows the reload that it asked for from an earlier one.
            Self::Reloading => {
                format!("RELOADING=1\nMONOTONIC_USEC={}", monotonic_time().as_micros())
            }
            Self::Stopping => "STOPPING=1".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(manager: &UnixDatagram) -> String {
        let mut text = [0; 256];
        let bytes = manager.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..bytes]).into_owned()
    }

    #[test]
    fn what_is_said_is_heard_at_either_kind_of_address() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let notifier = Notifier::of_socket(path.as_os_str()).unwrap();
        notifier.say(Progress::Ready);
        assert_eq!(heard(&manager), "READY=1");
        let before = monotonic_time().as_micros();
        notifier.say(Progress::Reloading);
        let message = heard(&manager);
        let time = message.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        assert!(time.parse::<u128>().unwrap() >= before, "{message}");

        let name = format!("bindery-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        Notifier::of_socket(OsStr::new(&format!("@{name}"))).unwrap().say(Progress::Stopping);
        assert_eq!(heard(&manager), "STOPPING=1");
    }

    #[test]
    fn nobody_to_hear_it_is_no_harm() {
        Notifier::default().say(Progress::Ready);
        Notifier::of_socket(OsStr::new("/nonexistent/notify")).unwrap().say(Progress::Ready);
        assert!(Notifier::of_socket(OsStr::new(&"x".repeat(200))).is_err());
    }
}
