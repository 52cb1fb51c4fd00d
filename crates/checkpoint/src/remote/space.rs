//! The part of a prefix that belongs to one key: names and keys in it.

use std::fmt::Write;

use zeroize::Zeroizing;

use super::pack::DomainTag;
use crate::name::Name;
use crate::page_digest::PageDigestKey;
use crate::seal::SecretKey;

/// Folder of what is not encrypted.
pub(super) const PLAIN: &str = "plain";

/// Kinds of objects, by the letter of their folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Folder {
    /// Packs, and pieces of details.
    Packs,
    Manifests,
    Claims,
    Tombstones,
}

impl Folder {
    const ALL: [Self; 4] = [Self::Packs, Self::Manifests, Self::Claims, Self::Tombstones];

    const fn letter(self) -> char {
        match self {
            Self::Packs => 'p',
            Self::Manifests => 'm',
            Self::Claims => 'c',
            Self::Tombstones => 't',
        }
    }
}

/// A folder of a prefix, and the secret that its names come of.
pub(super) struct Space {
    name: String,
    /// Secret of names and digests: the key file's, or one that lies in the folder.
    root: SecretKey,
    is_sealed: bool,
}

impl Space {
    /// Returns the space of a key.
    pub(super) fn sealed(key: &SecretKey) -> Self {
        let id: [u8; 16] = key.derive(b"", b"bindery push space 1");
        Self { name: hexadecimal(u128::from_be_bytes(id)), root: key.clone(), is_sealed: true }
    }

    /// Returns the space of what is not encrypted, with the secret that lies there.
    pub(super) fn plain(secret: SecretKey) -> Self {
        Self { name: PLAIN.into(), root: secret, is_sealed: false }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the key of the objects, if they are encrypted.
    pub(super) fn key(&self) -> Option<&SecretKey> {
        self.is_sealed.then_some(&self.root)
    }

    /// Returns the id under which the manifest of a checkpoint lies: a digest of its names.
    pub(super) fn manifest_id(&self, guest: &Name, name: &Name) -> u128 {
        let names = format!("{guest}@{name}");
        u128::from_be_bytes(self.root.derive(names.as_bytes(), b"bindery push name 1"))
    }

    pub(super) fn domain_tag(&self, domain: &Name) -> DomainTag {
        self.root.derive(domain.as_str().as_bytes(), b"bindery push domain 1")
    }

    /// Returns the key of the digests of a domain's pages.
    pub(super) fn digest_key(&self, domain: &Name) -> PageDigestKey {
        let salt = domain.as_str().as_bytes();
        let secret = Zeroizing::new(self.root.derive(salt, b"bindery push digests 1"));
        PageDigestKey::from_secret(&secret)
    }

    /// Returns the key of an object in the store.
    pub(super) fn object(&self, folder: Folder, id: u128) -> String {
        format!("{}/{}/{}", self.name, folder.letter(), hexadecimal(id))
    }

    /// Returns what an object is by its key; none if it is nobody's.
    pub(super) fn parse(&self, key: &str) -> Option<(Folder, u128)> {
        let rest = key.strip_prefix(&self.name)?.strip_prefix('/')?;
        let (letter, id) = rest.split_once('/')?;
        let folder =
            Folder::ALL.into_iter().find(|folder| letter == folder.letter().to_string())?;
        let id = u128::from_str_radix(id, 16).ok()?;
        // One spelling each: what is not spelt so was not written by us.
        (self.object(folder, id) == key).then_some((folder, id))
    }
}

fn hexadecimal(id: u128) -> String {
    let mut text = String::with_capacity(32);
    write!(text, "{id:032x}").expect("a string takes all");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_back_and_show_no_names() {
        let space = Space::sealed(&SecretKey::from_bytes([7; 32]));
        let name = |text: &str| text.parse::<Name>().unwrap();
        let id = space.manifest_id(&name("web1"), &name("monday"));
        for folder in Folder::ALL {
            let key = space.object(folder, id);
            assert_eq!(space.parse(&key), Some((folder, id)));
            assert!(!key.contains("web1") && !key.contains("monday"));
        }
        assert_ne!(id, space.manifest_id(&name("web1"), &name("tuesday")));
        let other = Space::sealed(&SecretKey::from_bytes([8; 32]));
        assert_ne!(id, other.manifest_id(&name("web1"), &name("monday")));
        assert_ne!(space.name(), other.name());
        assert_eq!(other.parse(&space.object(Folder::Packs, 1)), None);
        for key in ["plain/p/1", "plain/p/+0000000000000000000000000000001", "plain/x", ""] {
            assert_eq!(Space::plain(SecretKey::from_bytes([1; 32])).parse(key), None, "{key}");
        }
    }
}
