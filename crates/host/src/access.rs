//! Who may do what, by what the kernel says of a peer.
//!
//! | who | guests | as an operator |
//! |---|---|---|
//! | the daemon's user | taken | everything |
//! | root | taken by a daemon of root's | everything |
//! | members of the group, if there is one | taken by a daemon of root's | sees everything; handles guests of the own user |
//! | all others | refused | refused |
//!
//! The group is for those who run guests, VMMs among them. What concerns everyone's guests (settings,
//! the daemon's end, giving another user's memory back, watching another user's writes) stays with
//! the daemon's user and root: a VMM that its guest has broken out of is a member, too. A daemon that
//! is not root's takes no guests of other users, because it holds what their pages contain.

use std::fmt;
use std::io;
use std::os::fd::AsFd;

use bindery_sys::group::{group_id, overflow_group};
use bindery_sys::process;
use bindery_sys::socket::{self, Peer};

/// A group whose members may use the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    name: String,
    gid: u32,
}

/// Why a group cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// There is none.
    #[error("there is no group {0} on this machine: make it with `groupadd --system {0}`")]
    Unknown(String),
    /// Its number stands for every group that has none in this user namespace.
    #[error(
        "group {0} is what the kernel calls all groups that it has no number for here: use another"
    )]
    Overflow(String),
    /// The machine cannot say.
    #[error("cannot look up group {name}: {source}")]
    Lookup {
        /// Its name.
        name: String,
        /// The answer.
        source: io::Error,
    },
}

impl Group {
    /// Looks a group up by its name. Blocks as long as the machine's directory takes.
    ///
    /// # Errors
    /// [`GroupError`]
    pub fn find(name: &str) -> Result<Self, GroupError> {
        let found =
            group_id(name).map_err(|source| GroupError::Lookup { name: name.into(), source })?;
        match found {
            None => Err(GroupError::Unknown(name.into())),
            Some(gid) if gid == overflow_group() => Err(GroupError::Overflow(name.into())),
            Some(gid) => Ok(Self { name: name.into(), gid }),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn gid(&self) -> u32 {
        self.gid
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// What a peer may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rights {
    /// Everything.
    Owner,
    /// See everything, and handle the guests of the user `uid`.
    Member { uid: u32 },
    /// Nothing.
    None,
}

/// Whom a daemon serves.
#[derive(Debug)]
pub(crate) struct Access {
    uid: u32,
    group: Option<Group>,
}

impl Access {
    /// Serves the user of this process, and the members of `group`.
    pub(crate) fn new(group: Option<Group>) -> Self {
        Self { uid: process::effective_user(), group }
    }

    /// The daemon's user.
    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }

    /// What the peer at the other end of `stream` may do, by its credentials when it connected.
    pub(crate) fn rights(&self, stream: impl AsFd, peer: Peer) -> Rights {
        // Not knowing the groups is not being in them.
        self.rights_of(peer, || socket::peer_groups(stream).unwrap_or_default())
    }

    /// Rights of a user whose guest was taken.
    pub(crate) fn rights_of_user(&self, uid: u32) -> Rights {
        if uid == self.uid || uid == 0 { Rights::Owner } else { Rights::Member { uid } }
    }

    fn rights_of(&self, peer: Peer, groups: impl FnOnce() -> Vec<u32>) -> Rights {
        if peer.uid == self.uid || peer.uid == 0 {
            return Rights::Owner;
        }
        let is_member = |group: &Group| peer.gid == group.gid || groups().contains(&group.gid);
        match self.group.as_ref().is_some_and(is_member) {
            true => Rights::Member { uid: peer.uid },
            false => Rights::None,
        }
    }

    /// Whether a guest with these rights is taken.
    pub(crate) fn takes_guest(&self, peer: Peer, rights: Rights) -> bool {
        peer.uid == self.uid || (self.uid == 0 && rights != Rights::None)
    }

    /// Why an operator is not served.
    pub(crate) fn refusal_of_operator(&self, peer: Peer) -> String {
        let group = self.of_group();
        format!(
            "this daemon belongs to user {}{group}, and you are user {}: use a daemon of your own",
            self.uid, peer.uid
        )
    }

    /// Why a guest is not taken.
    pub(crate) fn refusal_of_guest(&self, peer: Peer) -> String {
        let group = if self.uid == 0 { self.of_group() } else { String::new() };
        format!(
            "this daemon belongs to user {}{group} and takes no guests of user {}: unset \
             BINDERY_SOCKET to use a daemon of your own",
            self.uid, peer.uid
        )
    }

    fn of_group(&self) -> String {
        let group = self.group.as_ref();
        group.map(|group| format!(" and group {group}")).unwrap_or_default()
    }
}

impl Rights {
    /// Whether guests of user `uid` may be handled.
    pub(crate) fn cover_guests_of(self, uid: u32) -> bool {
        self == Self::Owner || self == Self::Member { uid }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(uid: u32, gid: Option<u32>) -> Access {
        Access { uid, group: gid.map(|gid| Group { name: "bindery".into(), gid }) }
    }

    fn peer(uid: u32, gid: u32) -> Peer {
        Peer { pid: 1, uid, gid }
    }

    #[test]
    fn rights_come_from_user_and_groups() {
        let daemon = access(500, Some(40));
        assert_eq!(daemon.rights_of(peer(500, 1), Vec::new), Rights::Owner);
        assert_eq!(daemon.rights_of(peer(0, 1), Vec::new), Rights::Owner);
        let member = Rights::Member { uid: 7 };
        assert_eq!(daemon.rights_of(peer(7, 40), Vec::new), member);
        assert_eq!(daemon.rights_of(peer(7, 1), || vec![3, 40]), member);
        assert_eq!(daemon.rights_of(peer(7, 1), || vec![3, 4]), Rights::None);
        assert_eq!(access(500, None).rights_of(peer(7, 40), || vec![40]), Rights::None);
        assert!(member.cover_guests_of(7) && !member.cover_guests_of(8));
        assert!(Rights::Owner.cover_guests_of(8) && !Rights::None.cover_guests_of(8));
    }

    #[test]
    fn only_roots_daemon_takes_guests_of_others_and_only_of_members() {
        let takes = |access: &Access, peer: Peer| {
            access.takes_guest(peer, access.rights_of(peer, Vec::new))
        };
        let (users, roots) = (access(500, Some(40)), access(0, Some(40)));
        assert!(takes(&users, peer(500, 1)));
        assert!(!takes(&users, peer(7, 40)) && !takes(&users, peer(0, 0)));
        assert!(takes(&roots, peer(7, 40)) && takes(&roots, peer(0, 0)));
        assert!(!takes(&roots, peer(7, 1)));
        assert!(!takes(&access(0, None), peer(7, 40)));
    }

    #[test]
    fn a_group_that_cannot_be_is_named() {
        let error = Group::find("no-such-group").unwrap_err().to_string();
        assert!(error.contains("no-such-group"), "{error}");
        assert_eq!(Group::find("root").unwrap().gid(), 0);
        if group_id("nogroup").unwrap() == Some(overflow_group()) {
            assert!(matches!(Group::find("nogroup"), Err(GroupError::Overflow(_))));
        }
    }
}
