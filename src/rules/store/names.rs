//! The keys of a store: attempts, commits and data.
//!
//! ```text
//! .trainit/attempts/0000000007.json
//! .trainit/commits/0000000007-000003-000000001200-0123456789abcdef.json
//! ckpt-1200/0000000007-000003/ckpt-1200.index
//! ```

use std::fmt;

use super::address::Address;
use crate::checkpoint::listing::{OWN, name_of, parent_of};

/// The suffix of the temporary file that replaces a file.
pub const FRESH: &str = ".trainit-new";
/// The prefix of claims of attempts.
pub const ATTEMPTS: &str = ".trainit/attempts";
/// The prefix of commits.
pub const COMMITS: &str = ".trainit/commits";
/// The prefix of notes about commits from which a trainer failed.
pub const BAD: &str = ".trainit/bad";
/// The prefix of probes of the store.
pub const PROBES: &str = ".trainit/probes";

/// One start of trainit: the incarnation. Later ones are greater.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt {
    /// From 1, one higher for each start.
    pub number: u64,
    /// Eight random hex digits if the store ignores put-if-absent, so that equal numbers never share a key.
    pub tag: Option<u32>,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:010}", self.number)?;
        self.tag.map_or(Ok(()), |tag| write!(f, "r{tag:08x}"))
    }
}

impl Attempt {
    /// The highest number, ten digits. A key with a longer one is not trainit's.
    pub const LAST: u64 = 9_999_999_999;

    /// Parses the `Display` form.
    pub fn parse(text: &str) -> Option<Attempt> {
        let (number, tag) = match text.split_once('r') {
            Some((number, tag)) => (number, Some(u32::from_str_radix(tag, 16).ok()?)),
            None => (text, None),
        };
        let number = number.parse().ok().filter(|number| *number <= Attempt::LAST)?;
        let attempt = Attempt { number, tag };
        (attempt.to_string() == text).then_some(attempt)
    }

    /// The key of its claim.
    pub fn key(&self) -> String {
        format!("{ATTEMPTS}/{self}.json")
    }

    /// Parses such a key.
    pub fn from_key(key: &str) -> Option<Attempt> {
        Attempt::parse(key.strip_prefix(ATTEMPTS)?.strip_prefix('/')?.strip_suffix(".json")?)
    }
}

/// The position of a commit in the order of all: the attempt, then the sequence within it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    /// The attempt that committed.
    pub attempt: Attempt,
    /// From 1 within the attempt.
    pub seq: u64,
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:06}", self.attempt, self.seq)
    }
}

impl Stamp {
    /// The key of the note that a trainer failed twice soon after resuming from this commit.
    pub fn bad_key(&self) -> String {
        format!("{BAD}/{self}.json")
    }

    /// Parses the `Display` form.
    pub fn parse(text: &str) -> Option<Stamp> {
        let (attempt, seq) = text.split_once('-')?;
        let stamp = Stamp { attempt: Attempt::parse(attempt)?, seq: seq.parse().ok()? };
        (stamp.to_string() == text).then_some(stamp)
    }
}

/// The name of a commit, which contains the hash of its manifest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommitName {
    /// Its position in the order.
    pub stamp: Stamp,
    /// The step; 0 if the checkpoint has none.
    pub step: u64,
    /// The first 16 hex digits of the BLAKE3 of the manifest's bytes.
    pub hash: String,
}

impl fmt::Display for CommitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:012}-{}", self.stamp, self.step, self.hash)
    }
}

impl CommitName {
    /// For a manifest of these bytes.
    pub fn of(stamp: Stamp, step: Option<u64>, manifest: &[u8]) -> CommitName {
        CommitName { stamp, step: step.unwrap_or(0), hash: hash16(manifest) }
    }

    /// The key of the manifest.
    pub fn key(&self) -> String {
        format!("{COMMITS}/{self}.json")
    }

    /// Parses such a key; `None` for anything else.
    pub fn from_key(key: &str) -> Option<CommitName> {
        let name = key.strip_prefix(COMMITS)?.strip_prefix('/')?.strip_suffix(".json")?;
        let (rest, hash) = name.rsplit_once('-')?;
        let (stamp, step) = rest.rsplit_once('-')?;
        let commit = CommitName { stamp: Stamp::parse(stamp)?, step: step.parse().ok()?, hash: hash.to_owned() };
        let is_hash = hash.len() == 16 && hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        (is_hash && commit.to_string() == name).then_some(commit)
    }
}

/// The first 16 hex digits of the BLAKE3 of some bytes.
pub fn hash16(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().chars().take(16).collect()
}

/// The key of one file's data: `UNIT/A-S/PATH`. If the unit is a directory, the path is relative to it. Characters that
/// stores do not accept are percent-encoded.
pub fn data_key(unit: &str, stamp: &Stamp, path: &str) -> String {
    let within = path.strip_prefix(unit).and_then(|rest| rest.strip_prefix('/')).unwrap_or(path);
    format!("{}/{stamp}/{}", encode(unit), encode(within))
}

/// The prefix with the data of the commit that wrote this key; for any other key its parent.
pub fn prefix_of_data(key: &str) -> &str {
    let ends = key.match_indices('/').map(|(at, _)| at).chain([key.len()]).skip(1);
    let prefix = ends.map(|end| &key[..end]).find(|prefix| Stamp::parse(name_of(prefix)).is_some());
    prefix.unwrap_or_else(|| parent_of(key))
}

/// The stamp in a data key: its first part that is a stamp.
pub fn stamp_of_data(key: &str) -> Option<Stamp> {
    if is_below_own(key) { None } else { key.split('/').skip(1).find_map(Stamp::parse) }
}

/// Whether the key has a form that trainit writes. Other objects under the prefix belong to other programs.
pub fn is_trainits(key: &str) -> bool {
    is_below_own(key) || stamp_of_data(key).is_some()
}

fn is_below_own(key: &str) -> bool {
    key.split('/').next() == Some(OWN)
}

/// The prefixes of nested stores that this data key may belong to (another node's or another job's store below this
/// prefix). Each store has a directory [`OWN`] before it has data.
pub fn possible_nested_stores(key: &str) -> impl Iterator<Item = &str> {
    let unit = parent_of(prefix_of_data(key));
    unit.match_indices('/').map(|(at, _)| &unit[..at])
}

/// The prefix of the nested store whose directory [`OWN`] contains this key.
pub fn nested_store_of(key: &str) -> Option<&str> {
    let at = key.find(&format!("/{OWN}/"))?;
    Some(&key[..at])
}

/// Longest part of a key, bytes: file systems take 255, and a store in a directory writes under a longer name first.
const LONGEST_PART: usize = 200;
/// Longest unit or path within a key, bytes: object stores take keys of 1024.
const LONGEST_PATH: usize = 400;
/// Longest key: a unit, a stamp, a path.
const LONGEST_KEY: usize = 2 * LONGEST_PATH + 50;

/// The path in a form that stores accept. It need not be decoded, because the manifest names the key of each file. A part
/// that is too long ends in a hash; a path that is too long becomes a hash.
fn encode(path: &str) -> String {
    let encoded = path.split('/').map(encode_part).collect::<Vec<String>>().join("/");
    if encoded.len() <= LONGEST_PATH { encoded } else { format!("~{}{}", hash16(path.as_bytes()), path.len()) }
}

/// Characters that a key must not have: control characters break stores, `#1` is the file store's suffix of half-written
/// files, and some stores treat `\` as a delimiter.
fn must_be_encoded(c: char) -> bool {
    c.is_ascii_control() || matches!(c, '#' | '\\')
}

/// Whether every store accepts this key. Every key of [`data_key`] is accepted.
pub(super) fn is_storable(key: &str) -> bool {
    key.len() <= LONGEST_KEY && !key.contains(must_be_encoded)
}

fn encode_part(part: &str) -> String {
    let mut encoded = String::with_capacity(part.len());
    for c in part.chars() {
        match c {
            '%' => encoded.push_str("%25"),
            c if must_be_encoded(c) => encoded.push_str(&format!("%{:02X}", u32::from(c))),
            c => encoded.push(c),
        }
    }
    if encoded.len() > LONGEST_PART {
        encoded.truncate(encoded.floor_char_boundary(LONGEST_PART - 20));
        encoded.push_str(&format!("~{}", hash16(part.as_bytes())));
    }
    encoded
}

/// Whether a store in a directory treats this name as a half-written file: it writes `NAME` as `NAME#1` first.
pub fn is_half_written(name: &str) -> bool {
    name.rsplit_once('#').is_some_and(|(_, k)| !k.is_empty() && k.bytes().all(|b| b.is_ascii_digit()))
}

/// Longest key of an object, with the prefix, bytes.
const LONGEST_OBJECT: usize = 1024;
/// Longest path and longest name of a file, bytes, with room for the suffix of a temporary name.
const LONGEST_FILE: usize = 4090;
const LONGEST_NAME: usize = 250;

/// Why a store cannot keep a file under its own path; `None` if it can.
pub fn unfit(path: &str, store: &Address) -> Option<String> {
    let (place, longest) = match store {
        Address::Directory(root) => (root.as_os_str().len(), LONGEST_FILE),
        Address::Bucket(bucket) => (bucket.prefix.len(), LONGEST_OBJECT),
    };
    let (name, is_directory) = (name_of(path), matches!(store, Address::Directory(_)));
    if path.chars().any(|c| c.is_ascii_control()) {
        return Some("stores accept no control characters in a name".to_owned());
    }
    if is_directory && is_half_written(name) {
        return Some("there, names that end in # and a number are those of half-written files".to_owned());
    }
    if is_directory && name.len() > LONGEST_NAME {
        return Some(format!("its name has {} bytes, and there it may have {LONGEST_NAME}", name.len()));
    }
    let length = place + 1 + path.len();
    (length > longest).then(|| format!("there, its path has {length} bytes, and it may have {longest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(number: u64, seq: u64) -> Stamp {
        Stamp { attempt: Attempt { number, tag: None }, seq }
    }

    #[test]
    fn a_key_contains_its_commit_and_its_store() {
        let s = Some(stamp(1, 2));
        for (key, prefix, stamp, stores) in [
            ("step-1/0000000001-000002/a/b.bin", "step-1/0000000001-000002", s.clone(), &[][..]),
            (
                "a/b/step-1/0000000001-000002/0000000009-000009/x",
                "a/b/step-1/0000000001-000002",
                s.clone(),
                &["a", "a/b"],
            ),
            ("0000000001-000002/x", "0000000001-000002", None, &[]),
            ("data/x", "data", None, &[]),
            (".trainit/commits/x", ".trainit/commits", None, &[]),
        ] {
            assert_eq!((prefix_of_data(key), stamp_of_data(key)), (prefix, stamp), "{key}");
            assert_eq!(possible_nested_stores(key).collect::<Vec<_>>(), stores, "{key}");
            assert_eq!(is_trainits(key), stamp_of_data(key).is_some() || key.starts_with(OWN), "{key}");
        }
        assert_eq!(nested_store_of("a/b/.trainit/attempts/0000000001.json"), Some("a/b"));
        assert_eq!((nested_store_of(".trainit/attempts/x"), nested_store_of("a/b.trainit/x")), (None, None));
    }

    #[test]
    fn names_read_back_as_they_were_written_and_later_attempts_sort_above_earlier_ones() {
        let commit = CommitName::of(stamp(7, 3), Some(1200), b"{}");
        assert!(commit.key().starts_with(".trainit/commits/0000000007-000003-000000001200-"), "{}", commit.key());
        let huge = CommitName::of(stamp(Attempt::LAST, u64::MAX), Some(u64::MAX), b"");
        for name in [commit, huge] {
            assert_eq!(CommitName::from_key(&name.key()), Some(name));
        }
        let tagged = Attempt { number: 2, tag: Some(0xab) };
        assert_eq!(tagged.key(), ".trainit/attempts/0000000002r000000ab.json");
        assert_eq!(Attempt::from_key(&tagged.key()), Some(tagged));
        assert!(stamp(2, 1) > stamp(1, 999) && stamp(10, 1) > stamp(9, 1));
    }

    #[test]
    fn text_that_is_not_exactly_a_name_is_refused() {
        let good = "0000000007-000003-000000001200-0123456789abcdef";
        let commit = |name: &str| CommitName::from_key(&format!(".trainit/commits/{name}.json"));
        assert!(commit(good).is_some());
        for (from, to) in [
            ("0000000007-000003", "7-3"),
            ("0000000007", "00000000007"),
            ("0000000007", "+000000007"),
            ("0000000007", "10000000000"),
            ("0000000007", "18446744073709551616r000000ab"),
            ("abcdef", "ABCDEF"),
            ("abcdef", "abcde"),
            ("abcdef", "abcdef-x"),
        ] {
            assert_eq!(commit(&good.replace(from, to)), None, "{to}");
        }
        for bad in [format!(".trainit/commits/{good}.json#1"), ".trainit/attempts/0000000007.json".to_owned()] {
            assert_eq!(CommitName::from_key(&bad), None, "{bad}");
        }
        assert_eq!(Attempt::parse("9999999999").map(|attempt| attempt.number), Some(Attempt::LAST));
    }

    #[test]
    fn data_keys_have_the_unit_the_stamp_and_the_path() {
        for (unit, path, key) in [
            ("checkpoint-5", "checkpoint-5/a/b.bin", "checkpoint-5/0000000007-000003/a/b.bin"),
            ("ckpt-5", "ckpt-5.index", "ckpt-5/0000000007-000003/ckpt-5.index"),
            ("a.pt", "a.pt", "a.pt/0000000007-000003/a.pt"),
            ("u", "u/x y\n#1%", "u/0000000007-000003/x y%0A%231%25"),
        ] {
            assert_eq!(data_key(unit, &stamp(7, 3), path), key);
        }
    }

    #[test]
    fn a_path_that_a_store_cannot_keep_as_it_is_has_a_reason() {
        let (file, bucket) = ("file:///s", "gs://b/p");
        let long = |bytes: usize| format!("d/{}", "x".repeat(bytes));
        for (store, path, expected) in [
            (file, "a b/%2e#1/st*r\u{fc}#a".to_owned(), None),
            (bucket, "h#1".to_owned(), None),
            (bucket, long(255), None),
            (file, long(250), None),
            (file, "a/h#1".to_owned(), Some("half-written")),
            (file, "a\nb".to_owned(), Some("control characters")),
            (bucket, "a\u{7f}/b".to_owned(), Some("control characters")),
            (file, long(251), Some("251 bytes")),
            (bucket, ["d"; 512].join("/"), Some("1025 bytes")),
            (file, ["d"; 2048].join("/"), Some("4098 bytes")),
        ] {
            let store = Address::parse(store).expect("good");
            let why = unfit(&path, &store);
            assert_eq!(why.is_some(), expected.is_some(), "{path}: {why:?}");
            assert!(why.as_deref().unwrap_or_default().contains(expected.unwrap_or_default()), "{why:?}");
        }
    }

    #[test]
    fn names_too_long_for_a_store_are_cut_and_stay_distinct() {
        let key = |unit: &str, path: &str| data_key(unit, &stamp(7, 3), &format!("{unit}/{path}"));
        let (wide, deep, odd) = ("\u{fc}".repeat(127), ["d"; 250].join("/"), "\n".repeat(255));
        for (unit, path) in [("u", wide.as_str()), ("u", &deep), (&odd, "x")] {
            let (one, two) = (key(unit, &format!("{path}/a")), key(unit, &format!("{path}/b")));
            assert!(one != two && key(unit, &format!("{path}a")) != key(unit, &format!("{path}b")), "{one}");
            assert!(one.split('/').all(|part| part.len() <= LONGEST_PART) && one.len() <= LONGEST_KEY, "{one}");
            assert_eq!(stamp_of_data(&one), Some(stamp(7, 3)), "{one}");
        }
    }
}
