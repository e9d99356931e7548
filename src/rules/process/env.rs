//! The environment as data: a snapshot of trainit's own, and the changes for the child.
//!
//! Only `main` reads `std::env`. Deliberately absent: the meaning of any variable.

use std::collections::{BTreeMap, BTreeSet};

/// A snapshot of the process environment, taken once in `main`.
#[derive(Debug, Clone, Default)]
pub struct Env {
    /// In the original order.
    entries: Vec<Entry>,
}

#[derive(Debug, Clone)]
struct Entry {
    /// The original bytes, `NAME=value` without the NUL; malformed entries too.
    raw: Vec<u8>,
    /// A copy with invalid UTF-8 replaced, if the entry is not valid UTF-8.
    lossy: Option<String>,
    /// An earlier entry has the same name.
    is_repeated: bool,
}

impl Entry {
    /// Name and value; `None` for an entry without a name.
    fn parts(&self) -> Option<(&str, &str)> {
        // One of the two is UTF-8.
        let text = self.lossy.as_deref().or_else(|| std::str::from_utf8(&self.raw).ok())?;
        text.split_once('=').filter(|(name, _)| !name.is_empty())
    }

    /// The value in its original bytes, if the entry has this name.
    fn value(&self, name: &str) -> Option<&[u8]> {
        self.raw.strip_prefix(name.as_bytes())?.strip_prefix(b"=")
    }
}

impl Env {
    /// From raw `NAME=value` entries, as in the process's environment block.
    pub fn from_raw(raw: Vec<Vec<u8>>) -> Env {
        let lossy = |raw: &[u8]| std::str::from_utf8(raw).is_err().then(|| String::from_utf8_lossy(raw).into_owned());
        let entry = |raw: Vec<u8>| Entry { lossy: lossy(&raw), raw, is_repeated: false };
        let mut entries: Vec<Entry> = raw.into_iter().map(entry).collect();
        let mut seen = BTreeSet::new();
        let repeats = |entry: &Entry| entry.parts().is_some_and(|(name, _)| !seen.insert(name.to_owned()));
        let repeated: Vec<bool> = entries.iter().map(repeats).collect();
        for (entry, is_repeated) in entries.iter_mut().zip(repeated) {
            entry.is_repeated = is_repeated;
        }
        Env { entries }
    }

    /// From pairs; for tests and tools.
    pub fn from_pairs<K: AsRef<str>, V: AsRef<str>>(pairs: impl IntoIterator<Item = (K, V)>) -> Env {
        Env::from_raw(pairs.into_iter().map(|(k, v)| format!("{}={}", k.as_ref(), v.as_ref()).into_bytes()).collect())
    }

    /// The value, which may be empty. The first entry of a name wins, as in getenv(3).
    pub fn get(&self, name: &str) -> Option<&str> {
        self.named(name).map(|(_, value)| value)
    }

    /// The name and the value, as [`Env::get`].
    pub fn named(&self, name: &str) -> Option<(&str, &str)> {
        self.entries.iter().find(|entry| entry.value(name).is_some())?.parts()
    }

    /// The value in its original bytes, for values that need not be UTF-8.
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.entries.iter().find_map(|entry| entry.value(name))
    }

    /// Whether the value is not valid UTF-8, so that [`Env::get`] returns a changed copy of it.
    pub fn is_damaged(&self, name: &str) -> bool {
        self.bytes(name).is_some_and(|bytes| std::str::from_utf8(bytes).is_err())
    }

    /// The value unless it is absent, empty or blank.
    pub fn given(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|v| !v.trim().is_empty())
    }

    /// All names and (lossy) values, each name once.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.entries.iter().filter(|entry| !entry.is_repeated).filter_map(Entry::parts)
    }

    /// The child's environment block: this snapshot with the changes. Unchanged entries keep their exact bytes.
    pub fn with(&self, changes: &Changes) -> Vec<Vec<u8>> {
        let is_untouched = |entry: &&Entry| {
            let name = entry.raw.split(|b| *b == b'=').next().unwrap_or_default();
            std::str::from_utf8(name).map_or(true, |name| !changes.touches(name))
        };
        let mut block: Vec<Vec<u8>> = self.entries.iter().filter(is_untouched).map(|entry| entry.raw.clone()).collect();
        for (name, value) in &changes.set {
            block.push(format!("{name}={value}").into_bytes());
        }
        block
    }
}

/// What trainit changes in the environment for the child. A name is either set or removed, never both.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Variables set for the child.
    pub set: BTreeMap<String, String>,
    /// Variables taken away from the child.
    pub removed: BTreeSet<String>,
}

impl Changes {
    /// Sets a variable.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        let name = name.into();
        self.removed.remove(&name);
        self.set.insert(name, value.into());
    }

    /// Removes a variable.
    pub fn remove(&mut self, name: impl Into<String>) {
        let name = name.into();
        self.set.remove(&name);
        self.removed.insert(name);
    }

    /// Whether the name is set or removed.
    pub fn touches(&self, name: &str) -> bool {
        self.set.contains_key(name) || self.removed.contains(name)
    }

    /// Adds every change of `other`, which wins over an earlier change of the same variable.
    pub fn extend(&mut self, other: Changes) {
        for name in other.removed {
            self.remove(name);
        }
        for (name, value) in other.set {
            self.set(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_two_entries_wins_as_in_getenv() {
        let env = Env::from_pairs([("A", "1"), ("A", "2")]);
        assert_eq!(env.get("A"), Some("1"));
    }

    #[test]
    fn every_name_is_listed_once_and_invalid_utf8_is_replaced() {
        let env =
            Env::from_raw(vec![b"A=1".to_vec(), b"B=\xff".to_vec(), b"odd".to_vec(), b"=x".to_vec(), b"A=2".to_vec()]);
        assert_eq!(env.iter().collect::<Vec<_>>(), [("A", "1"), ("B", "\u{fffd}")]);
        assert_eq!((env.get("B"), env.bytes("B"), env.get("odd")), (Some("\u{fffd}"), Some(&b"\xff"[..]), None));
    }

    #[test]
    fn untouched_entries_reach_the_child_byte_for_byte_and_in_order() {
        let env = Env::from_raw(vec![b"B=\xff\xfe".to_vec(), b"odd".to_vec(), b"A=1".to_vec()]);
        let mut changes = Changes::default();
        changes.set("C", "3");
        changes.remove("A");
        assert_eq!(env.with(&changes), vec![b"B=\xff\xfe".to_vec(), b"odd".to_vec(), b"C=3".to_vec()]);
    }

    #[test]
    fn a_blank_value_is_not_given() {
        let env = Env::from_pairs([("A", " "), ("B", "x")]);
        assert_eq!(env.given("A"), None);
        assert_eq!(env.given("B"), Some("x"));
    }

    #[test]
    fn setting_after_removing_sets() {
        let mut changes = Changes::default();
        changes.remove("A");
        changes.set("A", "1");
        assert!(changes.removed.is_empty());
    }
}
