//! The URL of `--fetch` as data: a prefix of a store, one object, or names with wildcards as Vertex AI gives them
//! (`gs://bucket/path/training-*`, <https://cloud.google.com/vertex-ai/docs/training/using-managed-datasets>).

use std::fmt;
use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};

use crate::store::address::{Address, Bucket};

/// The place of the data.
#[derive(Debug, Clone)]
pub struct Source {
    /// The prefix to list. Paths of the data are relative to it.
    pub address: Address,
    /// The pattern of the wanted paths, as text and compiled; `None`: all.
    names: Option<(String, GlobMatcher)>,
}

impl Source {
    /// Reads a URL as [`Address::parse`] does. `*` stands for any characters of a name, `/**/` for any
    /// directories. Errors: what was expected, in one clause, without secrets.
    pub fn parse(url: &str) -> Result<Source, String> {
        let whole = Address::parse(url)?;
        let path = path_of(&whole);
        let Some(star) = path.find('*') else { return Ok(Source { address: whole, names: None }) };
        let (base, pattern) = path.split_at(path[..star].rfind('/').map_or(0, |at| at + 1));
        let glob: Vec<String> = pattern.split('*').map(globset::escape).collect();
        let glob = GlobBuilder::new(&glob.join("*")).literal_separator(true).build();
        let glob = glob.map_err(|error| format!("the wildcard {pattern:?} cannot be read: {}", error.kind()))?;
        let names = Some((pattern.to_owned(), glob.compile_matcher()));
        Ok(Source { address: with_path(&whole, base), names })
    }

    /// Whether this path below the address is wanted.
    pub fn wants(&self, path: &str) -> bool {
        self.names.as_ref().is_none_or(|(_, glob)| glob.is_match(path))
    }

    /// The same URL as the address of one object: the prefix around it, and its name. `None` for wildcards and whole
    /// stores.
    pub fn as_object(&self) -> Option<(Address, String)> {
        let path = path_of(&self.address);
        let name = path.rsplit('/').next().filter(|name| !name.is_empty() && self.names.is_none())?;
        Some((with_path(&self.address, path.strip_suffix(name)?), name.to_owned()))
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.names {
            Some((pattern, _)) => write!(f, "{}/{pattern}", self.address),
            None => self.address.fmt(f),
        }
    }
}

fn path_of(address: &Address) -> String {
    match address {
        Address::Directory(path) => path.to_string_lossy().into_owned(),
        Address::Bucket(bucket) => bucket.prefix.clone(),
    }
}

fn with_path(address: &Address, path: &str) -> Address {
    match address {
        Address::Directory(_) => Address::Directory(Path::new(path).components().collect::<PathBuf>()),
        Address::Bucket(bucket) => {
            Address::Bucket(Bucket { prefix: path.trim_end_matches('/').to_owned(), ..bucket.clone() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(url: &str) -> Source {
        Source::parse(url).expect(url)
    }

    #[test]
    fn a_wildcard_is_a_pattern_below_the_last_directory_before_it() {
        for (url, address, wanted, other) in [
            ("gs://b/p/training-*", "gs://b/p", "training-00000-of-00002", "training-/x"),
            ("gs://b/*.csv", "gs://b", "a.csv", "a/b.csv"),
            ("s3://b/p/*/x-*", "s3://b/p", "a/x-1", "x-1"),
            ("s3://b/p/**/*.tar", "s3://b/p", "a/b/c.tar", "c.tar.gz"),
            ("file:///d/e/[a]*", "file:///d/e", "[a]1", "a1"),
            ("file:///*", "file:///", "x", "x/y"),
        ] {
            let source = source(url);
            assert_eq!(source.address.to_string(), address, "{url}");
            assert!(source.wants(wanted) && !source.wants(other), "{url}");
            assert!(source.as_object().is_none(), "{url}");
            assert!(source.to_string().ends_with('*') || source.to_string().contains('*'));
        }
    }

    #[test]
    fn a_url_without_a_wildcard_is_a_prefix_or_one_object() {
        for (url, around, name) in [
            ("gs://b/p/train.csv", "gs://b/p", "train.csv"),
            ("s3://b/train.csv/", "s3://b", "train.csv"),
            ("file:///train.csv", "file:///", "train.csv"),
        ] {
            let (address, found) = source(url).as_object().expect(url);
            assert_eq!((address.to_string().as_str(), found.as_str()), (around, name));
            assert!(source(url).wants("any/path"));
        }
        assert_eq!((source("gs://b").as_object(), source("file:///").as_object()), (None, None));
    }

    #[test]
    fn text_that_is_not_an_address_is_refused_without_repeating_a_secret() {
        for url in ["", "bq://project.data.table", "/data/*", "s3://b/*?sig=hunter2", "gs://*/x", "file:///../*"] {
            let why = Source::parse(url).expect_err(url);
            assert!(!why.contains("hunter2"), "{why}");
        }
    }
}
