//! `--checkpoint-store URL` as data. Deliberately absent: how a store is reached and who may.

use std::fmt;
use std::path::{Path, PathBuf};

/// Where a store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A directory, absolute, spelt in the one way that runs can be told apart by.
    Directory(PathBuf),
    /// A bucket of a cloud, or of what speaks like one.
    Bucket(Bucket),
}

/// A bucket and where in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// Whose language it speaks.
    pub cloud: Cloud,
    /// The bucket; Azure says container.
    pub name: String,
    /// Azure's storage account, where the URL names it.
    pub account: Option<String>,
    /// Everything lies under it; no `/` at either end, empty for the whole bucket.
    pub prefix: String,
}

/// Where Vertex AI mounts every bucket of Cloud Storage.
pub const MOUNTED_BUCKETS: &str = "/gcs";

/// How a directory and a store lie to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nearness {
    /// Neither is in the other.
    Apart,
    /// They are one place.
    Same,
    /// One is in the other.
    Nested,
}

/// Whose language a bucket speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cloud {
    /// Cloud Storage, `gs://`.
    Google,
    /// S3 and what is compatible with it, `s3://`.
    Amazon,
    /// Blob Storage, `az://`, `abfs://`, `abfss://`.
    Azure,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Directory(path) => write!(f, "file://{}", path.display()),
            Address::Bucket(bucket) => bucket.fmt(f),
        }
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match (self.cloud, &self.account) {
            (Cloud::Google, _) => "gs",
            (Cloud::Amazon, _) => "s3",
            (Cloud::Azure, None) => "az",
            (Cloud::Azure, Some(_)) => "abfss",
        };
        write!(f, "{scheme}://{}", self.name)?;
        if let Some(account) = &self.account {
            write!(f, "@{account}.dfs.core.windows.net")?;
        }
        if self.prefix.is_empty() { Ok(()) } else { write!(f, "/{}", self.prefix) }
    }
}

impl Address {
    /// Reads a URL: `file:///path`, `gs://bucket/prefix`, `s3://bucket/prefix`, `az://container/prefix`,
    /// `abfss://container@account.dfs.core.windows.net/prefix`. Errors: what was expected, in one clause; what may be a
    /// secret in the URL is not repeated.
    pub fn parse(url: &str) -> Result<Address, String> {
        let found = shown(url);
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(format!(
                "expected a URL such as gs://bucket/job-1 or file:///mnt/checkpoints/job-1, found {found:?}"
            ));
        };
        match scheme {
            "file" => {
                let path = rest.strip_prefix("localhost").unwrap_or(rest);
                let path = decode(path).filter(|p| p.starts_with('/') && !p.contains('\0'));
                let path = path.ok_or_else(|| {
                    format!("expected an absolute path, three slashes, as in file:///mnt/checkpoints, found {found:?}")
                })?;
                if path.split('/').any(|part| part == "..") {
                    return Err(format!("expected a path without .., found {found:?}"));
                }
                // Without `//`, `/./` and a slash at the end.
                Ok(Address::Directory(Path::new(&path).components().collect()))
            }
            "gs" => bucket(Cloud::Google, rest, &found).map(Address::Bucket),
            "s3" | "s3a" => bucket(Cloud::Amazon, rest, &found).map(Address::Bucket),
            "az" | "azure" | "abfs" | "abfss" => bucket(Cloud::Azure, rest, &found).map(Address::Bucket),
            "http" | "https" => Err(format!(
                "expected s3://bucket/prefix with the server in AWS_ENDPOINT_URL (or gs://, az://), found {found:?}"
            )),
            _ => Err(format!("unknown scheme {scheme:?}; expected gs://, s3://, az:// or file:///path")),
        }
    }

    /// How a directory and the store lie to each other; `real` frees a path of symbolic links.
    pub fn nearness(&self, dir: &Path, real: &dyn Fn(&Path) -> PathBuf) -> Nearness {
        let place = match self {
            Address::Directory(path) => Some(real(path)),
            // Only named: to ask a mounted bucket takes time.
            Address::Bucket(bucket) => bucket.mounted(),
        };
        let Some(place) = place.filter(|_| !dir.as_os_str().is_empty()) else { return Nearness::Apart };
        let dir = real(dir);
        if dir == place {
            Nearness::Same
        } else if dir.starts_with(&place) || place.starts_with(&dir) {
            Nearness::Nested
        } else {
            Nearness::Apart
        }
    }

    /// Says of the store, called so, and of a directory, called so, that they lie in each other, and what comes of it.
    pub fn nested(&self, called: &str, dir: &Path, so: &str) -> String {
        let mounted = if let Address::Bucket(bucket) = self { bucket.mounted() } else { None };
        let here = mounted.map_or(String::new(), |path| format!(" (which Vertex AI mounts at {})", path.display()));
        format!(
            "{called} {self}{here} and the directory {} lie in each other, so {so}; choose places apart",
            dir.display()
        )
    }

    /// The part of the store that a node has for itself: node rank 0 the whole prefix, the others a corner of it each,
    /// so that they never fence each other.
    pub fn of_node(&self, rank: u32) -> Address {
        let corner = format!("node-{rank:05}");
        match self {
            _ if rank == 0 => self.clone(),
            Address::Directory(path) => Address::Directory(path.join(corner)),
            Address::Bucket(bucket) => {
                let prefix = if bucket.prefix.is_empty() { corner } else { format!("{}/{corner}", bucket.prefix) };
                Address::Bucket(Bucket { prefix, ..bucket.clone() })
            }
        }
    }
}

impl Bucket {
    /// Where Vertex AI mounts it; `None`: it mounts no such bucket.
    fn mounted(&self) -> Option<PathBuf> {
        let path = || Path::new(MOUNTED_BUCKETS).join(&self.name).join(&self.prefix);
        (self.cloud == Cloud::Google).then(path)
    }
}

fn bucket(cloud: Cloud, rest: &str, found: &str) -> Result<Bucket, String> {
    if rest.contains(['?', '#']) {
        return Err(format!(
            "expected no query in the URL (keys and tokens belong in the environment, not in an address), found {found:?}"
        ));
    }
    let (authority, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let (name, account) = match (cloud, authority.split_once('@')) {
        (_, None) => (authority, None),
        (Cloud::Azure, Some((name, host))) if !name.contains(':') => {
            let account = [".dfs.core.windows.net", ".blob.core.windows.net"].iter().find_map(|s| host.strip_suffix(s));
            let account = account.filter(|a| is_name(a)).ok_or_else(|| {
                format!("expected abfss://container@account.dfs.core.windows.net/prefix, found {found:?}")
            })?;
            (name, Some(account.to_owned()))
        }
        _ => {
            return Err(format!(
                "expected no user or key in the URL (they belong in the environment, not in an address), found {found:?}"
            ));
        }
    };
    if !is_name(name) {
        return Err(format!("expected the name of a bucket after the scheme, found {found:?}"));
    }
    let prefix = prefix.trim_matches('/');
    let is_odd = |part: &str| matches!(part, "" | "." | "..") || part.chars().any(char::is_control);
    if !prefix.is_empty() && prefix.split('/').any(is_odd) {
        return Err(format!("expected a prefix without empty, . or .. parts, found {found:?}"));
    }
    Ok(Bucket { cloud, name: name.to_owned(), account, prefix: prefix.to_owned() })
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'$'))
}

/// The URL without what may be a secret in it: what stands before an `@`, and after a `?` or a `#`. In a path all of them
/// are signs like others.
pub fn shown(url: &str) -> String {
    let (scheme, rest) = url.split_at(url.find("://").map_or(0, |at| at + 3));
    if scheme == "file://" {
        return url.to_owned();
    }
    // A secret may hold any of the signs that end it.
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    let at = if authority.contains(':') { rest.rfind('@') } else { authority.rfind('@') };
    let (user, rest) = at.map_or(("", rest), |at| rest.split_at(at + 1));
    let (rest, query) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
    let host = rest.split('/').next().unwrap_or_default();
    let is_container = !user.contains(':') && host.ends_with(".core.windows.net");
    let user = if user.is_empty() || is_container { user } else { "...@" };
    let cut = if query.is_empty() { "" } else { "..." };
    format!("{scheme}{user}{rest}{}{cut}", query.get(..1).unwrap_or_default())
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

    fn read(url: &str) -> Result<String, String> {
        Address::parse(url).map(|a| a.to_string())
    }

    #[test]
    fn a_file_url_is_an_absolute_path() {
        assert_eq!(read("file:///a/b"), Ok("file:///a/b".into()));
        assert_eq!(read("file://localhost/a%20b"), Ok("file:///a b".into()));
        for same in ["file:///a/b/", "file:///a//b", "file:///./a/./b/.", "file:////a/b//"] {
            assert_eq!(read(same), Ok("file:///a/b".into()), "{same}");
        }
        assert_eq!(read("file:///"), Ok("file:///".into()));
        for bad in ["file://a/b", "file://", "file:///a/../b", "/a/b", "ftp://x/y", ""] {
            assert!(Address::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_bucket_url_is_a_bucket_and_a_prefix() {
        for (url, same) in [
            ("gs://b", "gs://b"),
            ("gs://b/", "gs://b"),
            ("gs://my.bucket/jobs/1/", "gs://my.bucket/jobs/1"),
            ("s3://b/a b/ü", "s3://b/a b/ü"),
            ("s3a://b/x", "s3://b/x"),
            ("az://c/x", "az://c/x"),
            ("abfss://c@acc.dfs.core.windows.net/x/y", "abfss://c@acc.dfs.core.windows.net/x/y"),
            ("abfs://c@acc.blob.core.windows.net", "abfss://c@acc.dfs.core.windows.net"),
        ] {
            assert_eq!(read(url), Ok(same.into()), "{url}");
        }
        for bad in [
            "gs://",
            "gs:///x",
            "s3://b/a//b",
            "s3://b/../x",
            "s3://b\nx/y",
            "az://c@acc.example.com/x",
            "https://b.s3.amazonaws.com/x",
        ] {
            assert!(Address::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_url_is_shown_without_what_may_be_a_secret_and_otherwise_as_it_is() {
        for (url, same) in [
            ("gs://bucket/a/b", "gs://bucket/a/b"),
            ("s3://AKIA:hunter2@bucket/x", "s3://...@bucket/x"),
            ("s3://hunter2@bucket", "s3://...@bucket"),
            ("s3://AKIA:hun/ter2@bucket/x", "s3://...@bucket/x"),
            ("s3://AKIA:hun#t?er2@bucket/x", "s3://...@bucket/x"),
            ("az://c/x?sig=hunter2", "az://c/x?..."),
            ("az://c/x#sig=hunter2", "az://c/x#..."),
            ("az://c#hunter2?x@y", "az://c#..."),
            ("gs://b/a@b:c", "gs://b/a@b:c"),
            ("file:///a?b#c@d", "file:///a?b#c@d"),
            ("abfss://c@acc.dfs.core.windows.net/x", "abfss://c@acc.dfs.core.windows.net/x"),
            ("abfss://c:hunter2@acc.dfs.core.windows.net/x", "abfss://...@acc.dfs.core.windows.net/x"),
        ] {
            assert_eq!(shown(url), same);
        }
    }

    #[test]
    fn a_secret_in_a_url_is_refused_and_not_repeated() {
        for url in [
            "s3://AKIA:hunter2@bucket/x",
            "az://c/x?sv=1&sig=hunter2",
            "az://c/x#sig=hunter2",
            "s3://AKIA:hunter2/@bucket/x",
            "https://acc.blob.core.windows.net/c?sig=hunter2",
            "gs://user:hunter2@b",
            "az://c:hunter2@acc.dfs.core.windows.net/x",
        ] {
            let why = Address::parse(url).expect_err("refused");
            assert!(!why.contains("hunter2") && !why.contains("AKIA"), "{why}");
        }
    }

    #[test]
    fn a_mounted_bucket_and_the_bucket_are_one_place() {
        let near = |url: &str, dir: &str| {
            let store = Address::parse(url).expect("good");
            store.nearness(Path::new(dir), &Path::to_owned)
        };
        for (url, dir, expected) in [
            ("gs://b/job/model", "/gcs/b/job/model/", Nearness::Same),
            ("gs://b", "/gcs/b", Nearness::Same),
            ("gs://b/job", "/gcs/b/job/model", Nearness::Nested),
            ("gs://b/job/model/1", "/gcs/b/job/model", Nearness::Nested),
            ("gs://b/job", "/gcs/b/job-2", Nearness::Apart),
            ("gs://b/job", "/gcs/c/job", Nearness::Apart),
            ("s3://b/job", "/gcs/b/job", Nearness::Apart),
            ("file:///m/", "/m", Nearness::Same),
            ("file:///m", "/m/out", Nearness::Nested),
            ("file:///gcs/b/m/out", "/gcs/b/m", Nearness::Nested),
            ("file:///m", "/model", Nearness::Apart),
            ("file:///m", "", Nearness::Apart),
        ] {
            assert_eq!(near(url, dir), expected, "{url} {dir}");
        }
        let store = Address::parse("gs://b/job").expect("good");
        let line = store.nested("the store", Path::new("/gcs/b"), "no");
        assert!(line.contains("gs://b/job (which Vertex AI mounts at /gcs/b/job) and"), "{line}");
    }

    #[test]
    fn every_node_but_the_first_has_a_corner_of_its_own() {
        for (url, corner) in [
            ("file:///s", "file:///s/node-00012"),
            ("gs://b", "gs://b/node-00012"),
            ("s3://b/p", "s3://b/p/node-00012"),
        ] {
            let store = Address::parse(url).expect("good");
            assert_eq!(store.of_node(0).to_string(), url);
            assert_eq!(store.of_node(12).to_string(), corner);
        }
    }
}
