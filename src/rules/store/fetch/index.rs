//! The record of a fetch in its directory: a file of JSON lines ([`INDEX`]). The first line has the URL; then follows a line
//! for each file that is in place. If a kill cuts a line, its file is fetched again.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::plan::Object;

/// The name of the file.
pub const INDEX: &str = ".trainit-fetch";
/// trainit writes no longer line, in bytes.
pub const LONGEST_LINE: u64 = 64 << 10;

#[derive(Serialize, Deserialize)]
struct Head {
    trainit_fetch: u32,
    url: String,
}

#[derive(Serialize, Deserialize)]
struct Line<'a> {
    path: Cow<'a, str>,
    size: u64,
    tag: Cow<'a, str>,
}

/// The format's number.
const VERSION: u32 = 1;

/// The first line for this URL.
pub fn head(url: &str) -> String {
    line(&Head { trainit_fetch: VERSION, url: url.to_owned() })
}

/// The line for a file that is in place.
pub fn entry(object: &Object) -> String {
    line(&Line { path: object.path.as_str().into(), size: object.size, tag: object.tag.as_str().into() })
}

fn line(of: &impl Serialize) -> String {
    serde_json::to_string(of).unwrap_or_default() + "\n"
}

/// The content of an index.
#[derive(Debug, Default)]
pub struct Index {
    is_of_this_url: bool,
    /// Size and tag by path.
    files: HashMap<String, (u64, String)>,
}

impl Index {
    /// Reads the next line. An index of another URL is ignored, because the same names mean other files there.
    pub fn read(&mut self, url: &str, line: &str) {
        if let Ok(Head { trainit_fetch: VERSION, url: other }) = serde_json::from_str(line) {
            self.is_of_this_url = other == url;
        } else if self.is_of_this_url
            && let Ok(Line { path, size, tag }) = serde_json::from_str(line)
        {
            self.files.insert(path.into_owned(), (size, tag.into_owned()));
        }
    }

    /// Whether this version of an object is in place.
    pub fn has(&self, object: &Object) -> bool {
        self.files.get(&object.path).is_some_and(|(size, tag)| (*size, tag) == (object.size, &object.tag))
    }

    /// Every file in the index.
    pub fn into_files(self) -> impl Iterator<Item = Object> {
        let object = |(path, (size, tag))| Object { path, size, tag, modified_ns: 0 };
        self.files.into_iter().map(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &str) -> Index {
        let mut index = Index::default();
        lines.lines().for_each(|line| index.read("gs://b", line));
        index
    }

    fn object(path: &str) -> Object {
        Object { path: path.to_owned(), size: 3, tag: "\"g1\"".to_owned(), modified_ns: 0 }
    }

    #[test]
    fn a_file_is_known_by_its_line_and_a_cut_line_is_ignored() {
        let (own, odd) = (object("a/b"), object("q\"\u{fc}\\"));
        let text = head("gs://b") + &entry(&own) + &entry(&odd) + "{\"path\":\"cut\",\"si";
        let index = read(&text);
        assert!(index.has(&own) && index.has(&odd));
        assert!(!index.has(&Object { size: 4, ..own.clone() }) && !index.has(&Object { tag: "g2".to_owned(), ..own }));
        assert_eq!(index.into_files().count(), 2);
    }

    #[test]
    fn an_index_of_another_url_or_of_no_url_is_ignored() {
        for text in [head("gs://other") + &entry(&object("a")), entry(&object("a")), "not JSON".to_owned()] {
            assert_eq!(read(&text).into_files().count(), 0, "{text}");
        }
    }
}
