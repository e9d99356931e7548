//! What a hostile manifest may not say of paths, and how long its lists may be: a longer one is refused while it is
//! read, not when it has filled the memory.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

use super::names::{FRESH, OWN, is_storable};
use crate::rules::checkpoint::listing::{is_below, parent_of};

/// Longest list.
const MOST: usize = 1_000_000;
const MAX_DEPTH: usize = 64;
const MAX_NAME: usize = 255;
/// So many links the kernel goes through before it gives up.
const MOST_HOPS: u32 = 40;
/// Parts of targets, of all links together.
const MOST_STEPS: u32 = 10_000_000;
/// Characters of a message.
const LONGEST_LINE: usize = 300;

/// Whether a path may be written under the checkpoint directory. Errors: why not.
pub fn path(text: &str) -> Result<(), String> {
    beneath(text, MAX_DEPTH)
}

/// Whether a file's key may be read under the prefix: its path, with a node and a stamp in it. Errors: why not.
pub fn key(text: &str) -> Result<(), String> {
    beneath(text, MAX_DEPTH + 2)?;
    if is_storable(text) { Ok(()) } else { Err(format!("no store can keep {text:?}")) }
}

/// Whether a pointer may be written there, through its neighbour. Errors: why not.
pub(super) fn pointer(text: &str) -> Result<(), String> {
    path(text)?;
    path(&format!("{text}{FRESH}"))
}

fn beneath(text: &str, deepest: usize) -> Result<(), String> {
    let bad = |why: &str| Err(format!("the manifest's path {text:?} {why}"));
    if text.is_empty() || text.starts_with('/') {
        return bad("is not relative");
    }
    if text.contains('\0') {
        return bad("holds a NUL");
    }
    if text.split('/').count() > deepest {
        return bad(&format!("is deeper than {deepest}"));
    }
    for part in text.split('/') {
        if matches!(part, "" | "." | "..") {
            return bad("has an empty, . or .. part");
        }
        if part.len() > MAX_NAME {
            return bad("has a part over 255 bytes");
        }
    }
    if text.split('/').next() == Some(OWN) { bad("lies in trainit's own corner") } else { Ok(()) }
}

/// Whether every link ends in the unit whatever other links it goes through; each by itself is known to. One that leads in a
/// circle ends nowhere. Errors: which does not.
pub(super) fn links(targets: &BTreeMap<&str, &str>, unit: &str) -> Result<(), String> {
    let mut steps = 0;
    for (path, target) in targets {
        let mut at: Vec<&str> = parent_of(path).split('/').filter(|part| !part.is_empty()).collect();
        let mut left: Vec<&str> = target.rsplit('/').collect();
        let mut hops = 0;
        while let Some(part) = left.pop() {
            steps += 1;
            if steps > MOST_STEPS {
                return Err("the manifest's links lead through too many others".to_owned());
            }
            match part {
                "" | "." => continue,
                ".." if at.pop().is_none() => {
                    return Err(format!("the manifest's link {path:?} leads outside through others"));
                }
                ".." => continue,
                part => at.push(part),
            }
            if let Some(through) = targets.get(at.join("/").as_str()) {
                hops += 1;
                if hops > MOST_HOPS {
                    break;
                }
                at.pop();
                left.extend(through.rsplit('/'));
            }
        }
        let end = at.join("/");
        if hops <= MOST_HOPS && end != unit && !is_below(&end, unit) {
            return Err(format!("the manifest's link {path:?} leads outside through others"));
        }
    }
    Ok(())
}

/// As much of a message that quotes the hostile as fits a log line.
pub(super) fn shown(text: &str) -> String {
    let mut short: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST_LINE).collect();
    if text.chars().nth(LONGEST_LINE).is_some() {
        short.push_str("...");
    }
    short
}

/// Reads a list of at most a million. Errors: a longer one; what the elements' reader says.
pub(super) fn bounded<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    from.deserialize_seq(Bounded { most: MOST, of: PhantomData })
}

struct Bounded<T> {
    most: usize,
    of: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Bounded<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {}", self.most)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let mut all = Vec::new();
        while let Some(next) = list.next_element()? {
            if all.len() == self.most {
                return Err(A::Error::custom(format!("a list of more than {}", self.most)));
            }
            all.push(next);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::super::names::{Attempt, Stamp, data_key};
    use super::*;

    #[test]
    fn the_deepest_file_has_a_key_that_is_read_back() {
        let deepest = ["d"; MAX_DEPTH].join("/");
        assert_eq!(path(&deepest), Ok(()));
        let stamp = Stamp { attempt: Attempt { number: 7, tag: None }, seq: 3 };
        for unit in ["d", "d/d", &["d"; MAX_DEPTH - 1].join("/")] {
            assert_eq!(key(&data_key(unit, &stamp, &deepest)), Ok(()), "{unit}");
        }
        assert!(path(&format!("d/{deepest}")).is_err() && key(&format!("d/d/d/{deepest}")).is_err());
    }

    #[test]
    fn a_key_that_some_store_cannot_be_asked_for_is_refused() {
        let stamp = Stamp { attempt: Attempt { number: Attempt::LAST, tag: Some(u32::MAX) }, seq: u64::MAX };
        let (unit, file) = (["u"; 200].join("/"), "\n#\\".repeat(85));
        for (unit, file) in [("u", "a\nb#1\\\u{7f}"), ("u", &file), (&unit[..399], "\u{85}"), (&file, &file)] {
            let made = data_key(unit, &stamp, &format!("{unit}/{file}"));
            assert!(is_storable(&made), "{made}");
        }
        for bad in ["u/a\nb", "u/\u{7f}", "u/a#1", "u/a\\b", &["k"; 60].map(|k| k.repeat(20)).join("/")] {
            assert!(key(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn one_more_than_the_most_is_an_error() {
        let read = |text: &str| {
            let mut json = serde_json::Deserializer::from_str(text);
            json.deserialize_seq(Bounded::<u8> { most: 3, of: PhantomData }).map_err(|e| e.to_string())
        };
        assert_eq!(read("[1, 2, 3]"), Ok(vec![1, 2, 3]));
        assert!(read("[1, 2, 3, 4]").is_err_and(|e| e.contains("more than 3")));
        assert!(read("{}").is_err());
    }
}
