//! Who the agent says it is, and to whom.

use std::env;
use std::fs;
use std::path::PathBuf;

use bindery_wire::control::default_socket;
use bindery_wire::environment::{DOMAIN_VARIABLE, NAME_VARIABLE, SOCKET_VARIABLE};

/// The most of each text that is sent, in bytes: more than any daemon keeps.
const TEXT_BYTES_MAX: usize = 512;

/// Where the daemon is, and what it is told of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentConfig {
    /// The daemon's socket.
    pub socket: PathBuf,
    /// The guest's name; the daemon finds one otherwise.
    pub name: Option<String>,
    /// The domain to share pages in, within those of the user; the user's own otherwise.
    pub domain: Option<String>,
    /// The command of the process, as `bindery ps` shows it.
    pub command: String,
}

impl AgentConfig {
    /// What the environment says (`BINDERY_SOCKET`, `BINDERY_NAME`, `BINDERY_DOMAIN`), and the
    /// command of this process.
    #[must_use]
    pub fn from_environment() -> Self {
        let text = |variable| env::var_os(variable).map(|text| text.to_string_lossy().into_owned());
        Self {
            socket: env::var_os(SOCKET_VARIABLE).map_or_else(default_socket, PathBuf::from),
            name: text(NAME_VARIABLE),
            domain: text(DOMAIN_VARIABLE),
            command: own_command(),
        }
        .bounded()
    }

    /// The same with texts cut to what fits a message.
    #[must_use]
    pub(super) fn bounded(mut self) -> Self {
        let texts = [self.name.as_mut(), self.domain.as_mut(), Some(&mut self.command)];
        for text in texts.into_iter().flatten() {
            text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        }
        self
    }
}

/// The arguments of this process, separated by blanks; empty if /proc is not mounted.
fn own_command() -> String {
    let arguments = fs::read("/proc/self/cmdline").unwrap_or_default();
    let text = String::from_utf8_lossy(&arguments);
    text.trim_end_matches('\0').replace('\0', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_to_fit_a_message() {
        let long = "é".repeat(100_000);
        let config = AgentConfig {
            socket: "/nowhere".into(),
            name: Some(long.clone()),
            domain: Some("d".into()),
            command: long,
        }
        .bounded();
        assert_eq!(config.command.len(), TEXT_BYTES_MAX);
        assert_eq!(config.name.as_ref().map(String::len), Some(TEXT_BYTES_MAX));
        assert_eq!(config.domain.as_deref(), Some("d"));
    }

    #[test]
    fn the_command_is_this_process() {
        let program = env::args().next().unwrap();
        assert!(own_command().starts_with(&program));
    }
}
