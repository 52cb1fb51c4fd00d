//! Completion of names in a shell: guests and checkpoints, as the daemon has them at that moment.
//!
//! The script that `bindery completions` prints runs this program for each word. Where no daemon answers soon, there are
//! no names, and nothing is printed: a shell shows what a completion prints as if the user had typed it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use bindery_host::client::Client;
use bindery_host::protocol::{Answer, Request};
use bindery_pool::PoolName;
use bindery_wire::control::default_socket;
use bindery_wire::environment::SOCKET_VARIABLE;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Shells};

use crate::manual;
use crate::pool;

/// Variable of the environment in which the script asks for completions.
const VARIABLE: &str = "_BINDERY_COMPLETE";

/// Time that the daemon has to answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// Bash splits words at `@`, `:` and `=`. So the line is split anew, at blanks alone, and what bash keeps of the word is
/// taken off the completions.
const BASH: &str = r#"_bindery() {
    local line="${COMP_LINE:0:COMP_POINT}" words word kept
    read -ra words <<< "$line"
    [[ "$line" == *[[:space:]] ]] && words+=("")
    word="${words[-1]}"
    kept="${word%"$2"}"
    local IFS=$'\n'
    COMPREPLY=($(VARIABLE=bash _CLAP_IFS=$'\n' _CLAP_COMPLETE_INDEX=$((${#words[@]} - 1)) \
        "${words[0]}" -- "${words[@]}" 2> /dev/null))
    COMPREPLY=("${COMPREPLY[@]#"$kept"}")
    [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" == *[=/:] ]] && compopt -o nospace
}
complete -o bashdefault -o default -F _bindery bindery
"#;

/// Completes a word and ends, if a shell asks for that.
pub(crate) fn complete() {
    CompleteEnv::with_factory(manual::command).var(VARIABLE).complete();
}

/// Returns the script that has a shell ask this program; none for a shell that has no such way.
pub(crate) fn script(shell: &str) -> Option<Vec<u8>> {
    if shell == "bash" {
        return Some(BASH.replace("VARIABLE", VARIABLE).into_bytes());
    }
    let mut script = Vec::new();
    let shells = Shells::builtins();
    let written = shells.completer(shell)?.write_registration(
        VARIABLE,
        "bindery",
        "bindery",
        "bindery",
        &mut script,
    );
    written.ok().map(|()| script)
}

/// Completes names of guests that are there.
pub(crate) fn guests() -> ArgValueCandidates {
    ArgValueCandidates::new(|| candidates(&line(), Line::guests))
}

/// Completes names of checkpoints, as GUEST@NAME.
pub(crate) fn checkpoints() -> ArgValueCandidates {
    ArgValueCandidates::new(|| candidates(&line(), Line::checkpoints))
}

/// Completes names of guests that have checkpoints.
pub(crate) fn kept_guests() -> ArgValueCandidates {
    ArgValueCandidates::new(|| candidates(&line(), Line::kept_guests))
}

/// Completes names of checkpoints, and of guests that have some where `--keep` is on the line.
pub(crate) fn deletable() -> ArgValueCandidates {
    ArgValueCandidates::new(|| candidates(&line(), Line::deletable))
}

/// Options on the line that is completed.
struct Line {
    socket: PathBuf,
    pool: Option<Vec<String>>,
    has_keep: bool,
}

fn line() -> Line {
    Line::of(std::env::args_os().skip_while(|word| word != "--").skip(1))
}

fn candidates(line: &Line, names: fn(&Line) -> Option<Vec<String>>) -> Vec<CompletionCandidate> {
    let mut names = names(line).unwrap_or_default();
    names.sort();
    names.dedup();
    names.into_iter().map(CompletionCandidate::new).collect()
}

impl Line {
    fn of(words: impl Iterator<Item = OsString>) -> Self {
        let words: Vec<String> = words
            .map(|word| word.to_string_lossy().into_owned())
            .take_while(|word| word != "--")
            .collect();
        let value = |option: &str| {
            let joined =
                |word: &String| word.strip_prefix(option)?.strip_prefix('=').map(str::to_owned);
            let apart = words.windows(2).find(|pair| pair[0] == option).map(|pair| pair[1].clone());
            words.iter().find_map(joined).or(apart).filter(|value| !value.is_empty())
        };
        let socket = value("--socket").map(PathBuf::from);
        let socket = socket.or_else(|| std::env::var_os(SOCKET_VARIABLE).map(PathBuf::from));
        Self {
            socket: socket.unwrap_or_else(default_socket),
            pool: value("--pool").and_then(|pool| pool_paths(&pool)),
            has_keep: words.iter().any(|word| word == "--keep" || word.starts_with("--keep=")),
        }
    }

    fn ask(&self, request: &Request) -> Option<Answer> {
        Client::connect(&self.socket).ok()?.ask(request, PATIENCE).ok()
    }

    fn guests(&self) -> Option<Vec<String>> {
        match self.ask(&Request::Guests {})? {
            Answer::Guests { guests } => Some(guests.into_iter().map(|guest| guest.name).collect()),
            _ => None,
        }
    }

    /// Returns the names of guests and checkpoints that there are.
    fn kept(&self) -> Option<Vec<(String, String)>> {
        let request = Request::CheckpointList { pool: self.pool.clone(), guest: None };
        match self.ask(&request)? {
            Answer::Checkpoints { checkpoints } => {
                Some(checkpoints.into_iter().map(|found| (found.guest, found.name)).collect())
            }
            _ => None,
        }
    }

    fn checkpoints(&self) -> Option<Vec<String>> {
        let kept = self.kept()?;
        Some(kept.iter().map(|(guest, name)| format!("{guest}@{name}")).collect())
    }

    fn kept_guests(&self) -> Option<Vec<String>> {
        Some(self.kept()?.into_iter().map(|(guest, _)| guest).collect())
    }

    fn deletable(&self) -> Option<Vec<String>> {
        if self.has_keep { self.kept_guests() } else { self.checkpoints() }
    }
}

/// Returns the paths of a pool that the user names; none if there is no such pool.
fn pool_paths(pool: &str) -> Option<Vec<String>> {
    let paths = if pool.contains('/') {
        vec![std::path::absolute(pool).ok()?]
    } else {
        pool::device_paths(&pool.parse::<PoolName>().ok()?).ok()?
    };
    paths.into_iter().map(|path| path.into_os_string().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Line {
        Line::of(line.split(' ').map(OsString::from))
    }

    #[test]
    fn options_on_the_line_count() {
        let line = of("bindery --socket /s checkpoint delete --keep 3 --pool=/p x");
        assert_eq!((line.socket, line.has_keep), ("/s".into(), true));
        assert_eq!(line.pool, Some(vec!["/p".to_owned()]));
        let line = of("bindery restore x --socket=/t -- --keep --socket /u");
        assert_eq!((line.socket, line.has_keep, line.pool), ("/t".into(), false, None));
        assert!(of("bindery checkpoint show --socket /nonexistent/s ").checkpoints().is_none());
    }
}
