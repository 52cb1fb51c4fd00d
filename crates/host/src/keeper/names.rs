//! Names of users' guests and domains in a store, and back.
//!
//! A domain of a store is `UID:NAME`, so that no user's domain can be another's. Names of guests and domains
//! here have letters, digits and `-_.:@`; a store's [`Name`] has no `@`, and no dot or dash first. Those become
//! letters that names here do not have: `=`, `+` and `~`. So two names never become one.

use bindery_checkpoint::Name;
use bindery_guest::is_name;

use crate::protocol::{Failure, FailureKind};

/// Replacement of `@`.
const AT: char = '=';

/// Replacements of a first dot and a first dash.
const FIRST: [(char, char); 2] = [('.', '+'), ('-', '~')];

/// Returns a domain's name in a store.
///
/// # Errors
/// `BadRequest` if it is no name.
pub(crate) fn domain(uid: u32, name: &str) -> Result<Name, Failure> {
    if !is_name(name) {
        return Err(bad(name));
    }
    let name = format!("{uid}:{}", name.replace('@', &AT.to_string()));
    name.parse().map_err(|_| bad(&name))
}

/// Returns the user and the name of a domain; none if it is not one of `domain`'s.
pub fn split_domain(stored: &Name) -> Option<(u32, String)> {
    let (uid, name) = stored.as_str().split_once(':')?;
    let (uid, name) = (uid.parse().ok()?, name.replace(AT, "@"));
    // `007:web` and `+7:web` are nobody's.
    (domain(uid, &name).ok()? == *stored).then_some((uid, name))
}

/// Returns a guest's name in a store. Names that guests here cannot have, which another host may have given,
/// stay as they are.
///
/// # Errors
/// `BadRequest` if it is no name.
pub fn guest(name: &str) -> Result<Name, Failure> {
    if !is_name(name) {
        return name.parse().map_err(|_| bad(name));
    }
    let mut stored = name.replace('@', &AT.to_string());
    for (first, other) in FIRST {
        if let Some(rest) = stored.strip_prefix(first) {
            stored = format!("{other}{rest}");
        }
    }
    stored.parse().map_err(|_| bad(name))
}

/// Returns a guest's name as people know it.
pub fn shown_guest(stored: &Name) -> String {
    let mut name = stored.as_str().replace(AT, "@");
    for (first, other) in FIRST {
        if let Some(rest) = name.strip_prefix(other) {
            name = format!("{first}{rest}");
        }
    }
    match guest(&name) {
        Ok(again) if again == *stored && is_name(&name) => name,
        _ => stored.to_string(),
    }
}

/// Returns a checkpoint's name.
///
/// # Errors
/// `BadRequest` if it is no name.
pub fn checkpoint(name: &str) -> Result<Name, Failure> {
    name.parse().map_err(|error: bindery_checkpoint::BadName| {
        Failure::new(FailureKind::BadRequest, error.to_string())
    })
}

fn bad(name: &str) -> Failure {
    let name: String = bindery_guest::printable(name).chars().take(80).collect();
    let message = format!(
        "{name:?} is no name: guests and domains have 1 to {} letters, digits and any of -_.:@",
        bindery_guest::NAME_BYTES_MAX
    );
    Failure::new(FailureKind::BadRequest, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAMES: &str = "[-_.:@a-z0-9]{1,64}";

    proptest! {
        #[test]
        fn every_name_comes_back(uid in any::<u32>(), name in NAMES) {
            prop_assert_eq!(split_domain(&domain(uid, &name).unwrap()), Some((uid, name.clone())));
            prop_assert_eq!(shown_guest(&guest(&name).unwrap()), name);
        }

        #[test]
        fn no_two_users_share_a_domain(
            one in (0_u32..20, "[0-9:@=.]{1,4}"), other in (0_u32..20, "[0-9:@=.]{1,4}"),
        ) {
            let names = [&one, &other].map(|(uid, name)| domain(*uid, name));
            if let [Ok(first), Ok(second)] = names {
                prop_assert_eq!(first == second, one == other);
            }
        }

        #[test]
        fn any_stored_name_is_shown_as_one_that_finds_it(text in "[-+~=@.:a-zä]{1,8}") {
            if let Ok(stored) = text.parse::<Name>() {
                let shown = shown_guest(&stored);
                let again = guest(&shown).unwrap();
                // A name of another host that reads as one of here finds that of here.
                prop_assert!(again == stored || is_name(&shown), "{} {} {}", stored, shown, again);
            }
        }
    }

    #[test]
    fn domains_of_nobody_are_nobodys() {
        for stored in ["web", "007:web", "+7:web", "4294967296:web", "7:", ":web", "7:a=b~"] {
            assert_eq!(split_domain(&stored.parse().unwrap()), None, "{stored}");
        }
        domain(7, &"x".repeat(65)).unwrap_err();
        domain(u32::MAX, &"@".repeat(64)).unwrap();
    }
}
