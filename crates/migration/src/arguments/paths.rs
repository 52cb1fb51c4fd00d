//! Paths that a destination lets a VMM open.

use std::path::{Component, Path, PathBuf};

/// Directories that may be used, and prefixes of the source's that have another place here. Pure: symbolic links are
/// not looked at. Whoever opens a path resolves it first, and asks again for what it resolved to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathPolicy {
    /// Directories, or files, that may be used.
    pub allowed: Vec<PathBuf>,
    /// Prefixes at the source, each with its place here. The first that fits is used.
    pub rewrites: Vec<(PathBuf, PathBuf)>,
}

impl PathPolicy {
    /// Returns true if the path is absolute, plain and in an allowed directory.
    #[must_use]
    pub fn allows(&self, path: &Path) -> bool {
        is_plain(path) && self.allowed.iter().any(|allowed| path.starts_with(allowed))
    }

    /// Returns the place here of a path at the source; `None` if it may not be used.
    #[must_use]
    pub fn place(&self, path: &Path) -> Option<PathBuf> {
        if !is_plain(path) {
            return None;
        }
        let rewritten = self.rewrites.iter().find_map(|(from, to)| {
            let rest = path.strip_prefix(from).ok()?;
            // Joining nothing would add a slash.
            Some(if rest.as_os_str().is_empty() { to.clone() } else { to.join(rest) })
        });
        let placed = rewritten.unwrap_or_else(|| path.to_owned());
        self.allows(&placed).then_some(placed)
    }
}

/// Returns true if a path is absolute and has no part that leads elsewhere.
fn is_plain(path: &Path) -> bool {
    let is_plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    let text = path.as_os_str().as_encoded_bytes();
    let has_dots = text.split(|byte| *byte == b'/').any(|part| part == b"." || part == b"..");
    path.is_absolute() && path.components().all(is_plain) && !has_dots && !text.contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> PathPolicy {
        PathPolicy {
            allowed: vec!["/var/lib/guests".into(), "/dev/null".into()],
            rewrites: vec![("/srv/old".into(), "/var/lib/guests/new".into())],
        }
    }

    #[test]
    fn paths_are_placed_by_whole_names() {
        let place = |path: &str| policy().place(Path::new(path));
        assert_eq!(place("/var/lib/guests/a.qcow2"), Some("/var/lib/guests/a.qcow2".into()));
        assert_eq!(place("/srv/old/a/b"), Some("/var/lib/guests/new/a/b".into()));
        assert_eq!(place("/srv/old"), Some("/var/lib/guests/new".into()));
        assert_eq!(place("/dev/null"), Some("/dev/null".into()));
        let hostile = [
            "/var/lib/guests/../../../etc/shadow",
            "/var/lib/guests2/a",
            "/srv/older/a",
            "/srv/old/../../etc/a",
            "var/lib/guests/a",
            "",
            "/",
            "/etc/shadow",
            "/var/lib/guests/./../a",
            "/var/lib/guests/\0/a",
            "/dev/nullx",
        ];
        for path in hostile {
            assert_eq!(place(path), None, "{path:?}");
        }
    }
}
