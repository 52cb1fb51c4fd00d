//! Who may look: by address, by name and by token.
//!
//! A browser that shows somebody else's page can be made to ask a server on this machine under that
//! page's own name (DNS rebinding), and would let the page read the answer. A server on a loopback
//! address therefore serves only requests for an address or for `localhost`. Servers that other
//! machines can reach have names of their own, and a token instead.

use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use constant_time_eq::constant_time_eq;

use super::{HttpConfig, HttpError};

/// How long a token is, in bytes.
const TOKEN_BYTES: std::ops::RangeInclusive<usize> = 16..=1024;

/// What clients have to show.
#[derive(Debug)]
pub(super) struct Access {
    token: Option<Token>,
    /// Whether only names of this machine are answered to.
    by_local_name: bool,
}

impl Access {
    /// What `config` asks for.
    ///
    /// # Errors
    /// If the address needs a token that is not there, or the token's file is of no use.
    pub(super) fn new(config: &HttpConfig) -> Result<Self, HttpError> {
        let token = config.token_file.as_deref().map(Token::read).transpose()?;
        let is_local = config.address.ip().is_loopback();
        if token.is_none() && !is_local {
            return Err(HttpError::NeedsToken(config.address));
        }
        Ok(Self { token, by_local_name: is_local })
    }

    /// Whether a request with this `Host` header is for us.
    pub(super) fn knows_host(&self, host: &str) -> bool {
        !self.by_local_name || is_local_name(host)
    }

    /// Returns true if what only some may see needs a token.
    pub(super) const fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Whether a request with this `Authorization` header may see what only some may see.
    pub(super) fn admits(&self, authorization: Option<&[u8]>) -> bool {
        let Some(token) = &self.token else { return true };
        let shown = authorization.and_then(|value| {
            let (scheme, shown) = value.split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"Bearer ").then_some(shown.trim_ascii())
        });
        shown.is_some_and(|shown| constant_time_eq(shown, &token.0))
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn of_token(token: Option<&str>) -> Self {
        Self { token: token.map(|token| Token(token.into())), by_local_name: true }
    }
}

/// An address, or the one name that no name server is asked for; with or without a port.
fn is_local_name(host: &str) -> bool {
    let is_address = host.parse::<SocketAddr>().is_ok() || host.parse::<IpAddr>().is_ok();
    let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if is_address || bracketed.is_some_and(|address| address.parse::<IpAddr>().is_ok()) {
        return true;
    }
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => name,
        _ => host,
    };
    name.eq_ignore_ascii_case("localhost")
}

/// A secret. Never shown.
struct Token(Vec<u8>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Reads the file at `path`: one line of visible characters.
    fn read(path: &Path) -> Result<Self, HttpError> {
        let failed = |source: io::Error| HttpError::TokenFile { path: path.into(), source };
        let wrong = |problem: String| HttpError::Token { path: path.into(), problem };
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_file() && metadata.permissions().mode() & 0o004 != 0 {
            return Err(wrong("every user of this machine can read it: `chmod o= FILE`".into()));
        }
        let mut text = Vec::new();
        let most = *TOKEN_BYTES.end() as u64 + 2;
        file.take(most).read_to_end(&mut text).map_err(failed)?;
        let token = text.trim_ascii();
        if !TOKEN_BYTES.contains(&token.len()) || !token.iter().all(u8::is_ascii_graphic) {
            let (least, most) = TOKEN_BYTES.into_inner();
            return Err(wrong(format!(
                "a token is one line of {least} to {most} letters, digits and signs: make one with \
                 `openssl rand -hex 32`"
            )));
        }
        Ok(Self(token.to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;

    #[test]
    fn names_of_others_are_not_ours() {
        for ours in [
            "127.0.0.1",
            "127.0.0.1:9480",
            "localhost",
            "LOCALHOST:1",
            "[::1]",
            "[::1]:9480",
            "::1",
            "192.168.1.1:80",
        ] {
            assert!(is_local_name(ours), "{ours}");
        }
        for other in [
            "",
            "evil.example",
            "evil.example:9480",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "localhost:",
            "localhost:99999",
            "[localhost]",
            "user@localhost",
            "127.1",
            "localhost ",
        ] {
            assert!(!is_local_name(other), "{other}");
        }
    }

    #[test]
    fn a_token_is_asked_for_where_there_is_one() {
        let access = Access::of_token(Some("0123456789abcdef"));
        assert!(access.admits(Some(b"Bearer 0123456789abcdef")));
        assert!(access.admits(Some(b"bearer 0123456789abcdef")));
        for wrong in
            [&b""[..], b"Bearer ", b"Bearer 0123456789abcdeF", b"Basic 0123456789abcdef", b"Bearer"]
        {
            assert!(!access.admits(Some(wrong)), "{wrong:?}");
        }
        assert!(!access.admits(None));
        assert!(Access::of_token(None).admits(None));
    }

    #[test]
    fn who_can_be_reached_needs_a_token_of_some_length_that_others_cannot_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let access = |address: &str, with_token: bool| {
            let token_file = with_token.then(|| path.clone());
            Access::new(&HttpConfig { address: address.parse().unwrap(), token_file })
        };
        let write = |text: &str, mode| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        };
        assert!(matches!(access("0.0.0.0:1", false), Err(HttpError::NeedsToken(_))));
        assert!(matches!(access("[::]:1", false), Err(HttpError::NeedsToken(_))));
        assert!(access("127.0.0.2:1", false).is_ok());
        assert!(matches!(access("0.0.0.0:1", true), Err(HttpError::TokenFile { .. })));
        write("0123456789abcdef\n", 0o600);
        let wide = access("0.0.0.0:1", true).unwrap();
        assert!(wide.admits(Some(b"Bearer 0123456789abcdef")) && wide.knows_host("any.example"));
        assert!(!access("127.0.0.1:1", true).unwrap().knows_host("any.example"));
        write("0123456789abcdef\n", 0o644);
        assert!(matches!(access("0.0.0.0:1", true), Err(HttpError::Token { .. })));
        for wrong in ["", "short", "two words of some length", &"x".repeat(2000)] {
            write(wrong, 0o600);
            assert!(matches!(access("0.0.0.0:1", true), Err(HttpError::Token { .. })), "{wrong}");
        }
    }
}
