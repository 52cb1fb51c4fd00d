//! Registry of the guests. Names are unique, and so are numbers, which come round after 2^32 guests.
//!
//! A guest is entered when it is welcomed and taken out when its connection ends. A process whose
//! connection broke comes back under its own name, even if the end of the old connection was not
//! noticed yet.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bindery_guest::{NAME_BYTES_MAX, is_name};

/// Who has a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The guest's number.
    pub(crate) id: u32,
    /// Its process.
    pub(crate) pid: i32,
    /// Drawn by its shim: tells one process from the next with its number.
    pub(crate) instance: u64,
}

/// Why a guest was not entered, for the guest.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a guest is called {name} already (process {pid}); start this one with another --name")]
pub(crate) struct NameTaken {
    name: String,
    pid: i32,
}

/// The guests by name.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    by_name: BTreeMap<String, Entry>,
    last_id: u32,
}

impl Inner {
    /// Returns the number after the last one, past those in use, from 1 on again after the end.
    fn free_id(&self, is_in_use: impl Fn(u32) -> bool) -> u32 {
        let after = self.last_id.wrapping_add(1).max(1);
        let has_it = |id: &u32| self.by_name.values().any(|entry| entry.id == *id);
        let mut ids = (after..=u32::MAX).chain(1..=self.last_id);
        ids.find(|id| !has_it(id) && !is_in_use(*id)).expect("guests are fewer than numbers")
    }
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Each change is one insertion or removal: a panic elsewhere leaves the map whole.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a process a number, one for which `is_in_use` is false, and a name: the one it asks for,
    /// or one made of its command.
    pub(crate) fn enter(
        &self,
        asked: Option<&str>,
        command: &str,
        (pid, instance): (i32, u64),
        is_in_use: impl Fn(u32) -> bool,
    ) -> Result<(u32, String), NameTaken> {
        let mut inner = self.lock();
        let is_free = |name: &str| match inner.by_name.get(name) {
            None => true,
            Some(entry) => entry.pid == pid && entry.instance == instance,
        };
        let name = match asked {
            Some(name) if is_free(name) => name.to_owned(),
            Some(name) => {
                let pid = inner.by_name[name].pid;
                return Err(NameTaken { name: name.to_owned(), pid });
            }
            None => default_names(command, pid)
                .find(|name| is_free(name))
                .expect("there are more numbered names than guests"),
        };
        let id = inner.free_id(is_in_use);
        inner.last_id = id;
        inner.by_name.insert(name.clone(), Entry { id, pid, instance });
        Ok((id, name))
    }

    /// Frees the name of guest `id`, unless the process came back and has it again.
    pub(crate) fn leave(&self, id: u32) {
        self.lock().by_name.retain(|_, entry| entry.id != id);
    }

    /// The guest called `text`, or else the one whose process id it is.
    pub(crate) fn find(&self, text: &str) -> Option<(String, Entry)> {
        let inner = self.lock();
        if let Some(entry) = inner.by_name.get(text) {
            return Some((text.to_owned(), entry.clone()));
        }
        let pid: i32 = text.parse().ok()?;
        let found = inner.by_name.iter().find(|(_, entry)| entry.pid == pid);
        found.map(|(name, entry)| (name.clone(), entry.clone()))
    }

    /// The numbers of all guests.
    pub(crate) fn ids(&self) -> Vec<u32> {
        self.lock().by_name.values().map(|entry| entry.id).collect()
    }
}

/// `qemu-4711`, then `qemu-4711.2` and so on: processes in other PID namespaces may have the same
/// number.
fn default_names(command: &str, pid: i32) -> impl Iterator<Item = String> {
    let program = command.split_ascii_whitespace().next().unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or_default();
    let mut stem: String =
        program.chars().filter(|&c| is_name(c.encode_utf8(&mut [0; 4]))).collect();
    // Room for the numbers.
    stem.truncate(NAME_BYTES_MAX - 24);
    if stem.is_empty() {
        stem.push_str("guest");
    }
    let first = format!("{stem}-{pid}");
    let others = (2_u32..).map({
        let first = first.clone();
        move |number| format!("{first}.{number}")
    });
    std::iter::once(first).chain(others)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(registry: &Registry, pid: i32, instance: u64) -> Result<(u32, String), NameTaken> {
        registry.enter(Some("web"), "qemu", (pid, instance), |_| false)
    }

    #[test]
    fn numbers_come_round_past_those_in_use() {
        let registry = Registry::default();
        let enter = |name| registry.enter(Some(name), "qemu", (10, 1), |id| id == 2).unwrap().0;
        assert_eq!(enter("first"), 1);
        registry.lock().last_id = u32::MAX - 1;
        assert_eq!(enter("last"), u32::MAX);
        assert_eq!(enter("third"), 3);
    }

    #[test]
    fn a_name_is_given_once() {
        let registry = Registry::default();
        let (id, name) = enter(&registry, 10, 1).unwrap();
        assert_eq!((id, name.as_str()), (1, "web"));
        let taken = enter(&registry, 11, 2).unwrap_err();
        assert!(taken.to_string().contains("process 10"), "{taken}");
        // The same process number, but another process.
        assert!(enter(&registry, 10, 3).is_err());
        registry.leave(id);
        assert_eq!(enter(&registry, 11, 2).unwrap().0, 2);
    }

    #[test]
    fn a_process_that_comes_back_keeps_its_name() {
        let registry = Registry::default();
        let (old, _) = enter(&registry, 10, 1).unwrap();
        let (new, _) = enter(&registry, 10, 1).unwrap();
        assert_ne!(old, new);
        // The old connection's end is noticed last, and must not free the new one's name.
        registry.leave(old);
        assert_eq!(registry.find("web").unwrap().1.id, new);
        assert_eq!(registry.ids(), [new]);
    }

    #[test]
    fn default_names_are_names() {
        let registry = Registry::default();
        let name = |command: &str, instance| {
            registry.enter(None, command, (7, instance), |_| false).unwrap().1
        };
        assert_eq!(name("/usr/bin/qemu-system-x86_64 -m 1G", 1), "qemu-system-x86_64-7");
        assert_eq!(name("/usr/bin/qemu-system-x86_64 -m 1G", 2), "qemu-system-x86_64-7.2");
        assert_eq!(name("", 3), "guest-7");
        assert_eq!(name("a\u{1b}b/ c", 4), "guest-7.2");
        assert!(is_name(&name(&"x".repeat(300), 5)));
        assert_eq!(registry.find("7").unwrap().1.pid, 7);
        assert!(registry.find("8").is_none());
    }
}
