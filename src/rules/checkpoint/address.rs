//! `--checkpoint-store URL` as data. This build has `file://`; the other schemes are known by name only.

use std::path::PathBuf;

/// Where a store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A directory, absolute.
    Directory(PathBuf),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Address::Directory(path) = self;
        write!(f, "file://{}", path.display())
    }
}

impl Address {
    /// Reads a URL. Errors: what was expected, in one clause.
    pub fn parse(url: &str) -> Result<Address, String> {
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(format!("expected a URL such as file:///mnt/checkpoints/job-1, found {url:?}"));
        };
        match scheme {
            "file" => {
                let path = rest.strip_prefix("localhost").unwrap_or(rest);
                let path = decode(path).filter(|p| p.starts_with('/') && !p.contains('\0'));
                let path = path.ok_or_else(|| {
                    format!("expected an absolute path, three slashes, as in file:///mnt/checkpoints, found {url:?}")
                })?;
                if path.split('/').any(|part| part == "..") {
                    return Err(format!("expected a path without .., found {url:?}"));
                }
                Ok(Address::Directory(PathBuf::from(path)))
            }
            "gs" | "s3" | "az" | "abfs" | "abfss" | "http" | "https" => Err(format!(
                "this build stores checkpoints in file:// only, not in {scheme}://; mount the bucket and name its path"
            )),
            _ => Err(format!("unknown scheme {scheme:?}; expected file:///path")),
        }
    }

    /// The part of the store that a node has for itself: node rank 0 the whole prefix, the others a corner of it each,
    /// so that they never fence each other.
    pub fn of_node(&self, rank: u32) -> Address {
        let Address::Directory(path) = self;
        Address::Directory(if rank == 0 { path.clone() } else { path.join(format!("node-{rank:05}")) })
    }
}

/// Percent-decoding; `None` when what comes out is no UTF-8.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|d| std::str::from_utf8(d).ok());
        match digits.filter(|_| *first == b'%').and_then(|d| u8::from_str_radix(d, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_url_is_an_absolute_path() {
        let path = |url| Address::parse(url).map(|a| a.to_string());
        assert_eq!(path("file:///a/b"), Ok("file:///a/b".into()));
        assert_eq!(path("file://localhost/a%20b"), Ok("file:///a b".into()));
        for bad in ["file://a/b", "file://", "file:///a/../b", "/a/b", "gs://bucket/x", "ftp://x/y", ""] {
            assert!(Address::parse(bad).is_err(), "{bad}");
        }
        assert!(Address::parse("s3://b/p").is_err_and(|e| e.contains("file:// only")));
    }

    #[test]
    fn every_node_but_the_first_has_a_corner_of_its_own() {
        let store = Address::parse("file:///s").expect("good");
        assert_eq!(store.of_node(0).to_string(), "file:///s");
        assert_eq!(store.of_node(12).to_string(), "file:///s/node-00012");
    }
}
