//! Checks of a manifest's paths and links, which may be hostile.

use std::collections::BTreeMap;

use super::names::is_storable;
use crate::checkpoint::listing::{OWN, parent_of};

const MAX_DEPTH: usize = 64;
const MAX_NAME: usize = 255;
/// The kernel's limit of links in one path.
const MOST_HOPS: u32 = 40;
/// The limit of path parts followed for all links together.
const MOST_STEPS: u32 = 10_000_000;
/// The limit of characters in a message.
const LONGEST_LINE: usize = 300;

/// Whether a path may be written under the checkpoint directory. Errors: why not.
pub fn path(text: &str) -> Result<(), String> {
    beneath(text, MAX_DEPTH)
}

/// Whether a file's key may be read under the prefix. A key is a path with a node and a stamp. Errors: why not.
pub fn key(text: &str) -> Result<(), String> {
    beneath(text, MAX_DEPTH + 2)?;
    if is_storable(text) { Ok(()) } else { Err(format!("no store accepts the key {text:?}")) }
}

fn beneath(text: &str, deepest: usize) -> Result<(), String> {
    let parts = || text.split('/');
    let why = if text.contains('\0') {
        "holds a NUL"
    } else if parts().any(|part| matches!(part, "" | "." | "..")) {
        "is not relative, or has an empty, . or .. part"
    } else if parts().any(|part| part.len() > MAX_NAME) || parts().count() > deepest {
        "is too deep, or has a part over 255 bytes"
    } else if parts().next() == Some(OWN) {
        "lies in trainit's own directory"
    } else {
        return Ok(());
    };
    Err(format!("the manifest's path {text:?} {why}"))
}

/// Whether every link stays in the checkpoint directory, also through other links. A circle of links leads nowhere.
/// Errors: a link that leaves it.
pub(super) fn links(targets: &BTreeMap<&str, &str>) -> Result<(), String> {
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
    }
    Ok(())
}

/// A message that quotes a manifest, cut to fit a log line.
pub(super) fn shown(text: &str) -> String {
    let mut short: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST_LINE).collect();
    if text.chars().nth(LONGEST_LINE).is_some() {
        short.push_str("...");
    }
    short
}

#[cfg(test)]
mod tests {
    use super::super::names::{Attempt, Stamp, data_key};
    use super::*;

    #[test]
    fn every_key_of_trainit_is_accepted_and_no_other_is() {
        let stamp = Stamp { attempt: Attempt { number: Attempt::LAST, tag: Some(u32::MAX) }, seq: u64::MAX };
        let deepest = ["d"; MAX_DEPTH].join("/");
        assert_eq!(path(&deepest), Ok(()));
        assert!(path(&format!("d/{deepest}")).is_err() && key(&format!("d/d/d/{deepest}")).is_err());
        let odd = "\n#\\".repeat(85);
        for (unit, file) in
            [("d", deepest.as_str()), ("d/d", &deepest), ("u", "u/a\nb#1\\\u{7f}"), ("u", &odd), (&odd, &odd)]
        {
            assert_eq!(key(&data_key(unit, &stamp, file)), Ok(()), "{unit} {file}");
        }
        for bad in ["u/a\nb", "u/\u{7f}", "u/a#1", "u/a\\b", &["k"; 60].map(|k| k.repeat(20)).join("/")] {
            assert!(key(bad).is_err(), "{bad:?}");
        }
    }
}
