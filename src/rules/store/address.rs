//! `--checkpoint-store URL` as data. Deliberately absent: how a store is reached, and credentials.

use std::fmt;
use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;

use crate::text::quoted;

/// Where a store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A directory, absolute and normalised, so that two runs can compare it.
    Directory(PathBuf),
    /// A bucket of a cloud, or of a server with the same protocol.
    Bucket(Bucket),
}

/// A bucket and a prefix in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// The protocol that it speaks.
    pub cloud: Cloud,
    /// The bucket; in Azure a container.
    pub name: String,
    /// Azure's storage account, if the URL names it.
    pub account: Option<String>,
    /// The prefix of every key; no `/` at either end, empty for the whole bucket.
    pub prefix: String,
}

/// The directory where Vertex AI mounts every bucket of Cloud Storage.
pub const MOUNTED_BUCKETS: &str = "/gcs";

/// The relation between a directory and a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nearness {
    /// Neither contains the other.
    Apart,
    /// They are the same place.
    Same,
    /// One contains the other.
    Nested,
}

/// The protocol of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cloud {
    /// Cloud Storage, `gs://`.
    Google,
    /// S3 and compatible stores, `s3://`.
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
    /// `abfss://container@account.dfs.core.windows.net/prefix`. Errors: what was expected, in one clause, without any
    /// part of the URL that may be a secret.
    pub fn parse(url: &str) -> Result<Address, String> {
        let expected = |what: &str| format!("expected {what}, found {}", quoted::shown(url));
        let Some((scheme, rest)) = url.split_once("://") else {
            let hint = if url.starts_with('/') { format!("; did you mean file://{url}?") } else { String::new() };
            return Err(expected("a URL such as gs://bucket/job-1 or file:///mnt/checkpoints/job-1") + &hint);
        };
        let cloud = match scheme.to_ascii_lowercase().as_str() {
            "file" => {
                let what = "an absolute path without .., three slashes, as in file:///mnt/checkpoints";
                return directory(rest).map(Address::Directory).ok_or_else(|| expected(what));
            }
            "gs" => Cloud::Google,
            "s3" | "s3a" => Cloud::Amazon,
            "az" | "azure" | "abfs" | "abfss" => Cloud::Azure,
            "http" | "https" => {
                return Err(expected("s3://bucket/prefix with the server in AWS_ENDPOINT_URL (or gs://, az://)"));
            }
            "gcs" => return Err("unknown scheme \"gcs\"; did you mean gs://?".to_owned()),
            _ => return Err(format!("unknown scheme {scheme:?}; expected gs://, s3://, az:// or file:///path")),
        };
        bucket(cloud, rest).map(Address::Bucket).map_err(expected)
    }

    /// The relation between a directory and the store; `real` resolves the symbolic links of a path.
    pub fn nearness(&self, dir: &Path, real: &dyn Fn(&Path) -> PathBuf) -> Nearness {
        let place = match self {
            Address::Directory(path) => Some(real(path)),
            // Its links are not resolved, because a mounted bucket answers slowly.
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

    /// The message that the store (called `name`) and a directory overlap.
    pub fn nested(&self, name: &str, dir: &Path, consequence: &str) -> String {
        let mounted = if let Address::Bucket(bucket) = self { bucket.mounted() } else { None };
        let mount_point =
            mounted.map_or(String::new(), |path| format!(" (which Vertex AI mounts at {})", path.display()));
        format!(
            "{name} {self}{mount_point} and the directory {} overlap, so {consequence}; choose separate places",
            dir.display()
        )
    }

    /// The part of the store that belongs to one node: node rank 0 has the prefix itself, each other node a directory in it.
    /// So nodes never fence each other.
    pub fn of_node(&self, rank: u32) -> Address {
        let own = format!("node-{rank:05}");
        match self {
            _ if rank == 0 => self.clone(),
            Address::Directory(path) => Address::Directory(path.join(own)),
            Address::Bucket(bucket) => {
                let prefix = if bucket.prefix.is_empty() { own } else { format!("{}/{own}", bucket.prefix) };
                Address::Bucket(Bucket { prefix, ..bucket.clone() })
            }
        }
    }
}

impl Bucket {
    /// The directory where Vertex AI mounts it; `None`: Vertex AI mounts no such bucket.
    fn mounted(&self) -> Option<PathBuf> {
        let path = || Path::new(MOUNTED_BUCKETS).join(&self.name).join(&self.prefix);
        (self.cloud == Cloud::Google).then(path)
    }
}

/// An absolute path, without `//`, `/./` and a slash at the end.
fn directory(path: &str) -> Option<PathBuf> {
    let path = percent_decode_str(path.strip_prefix("localhost").unwrap_or(path)).decode_utf8().ok()?;
    let is_good = path.starts_with('/') && !path.contains('\0') && !path.split('/').any(|part| part == "..");
    is_good.then(|| Path::new(&*path).components().collect())
}

/// Errors: what was expected.
fn bucket(cloud: Cloud, rest: &str) -> Result<Bucket, &'static str> {
    if rest.contains(['?', '#']) {
        return Err("no query in the URL (keys and tokens belong in the environment, not in an address)");
    }
    let (authority, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let (name, account) = match (cloud, authority.split_once('@')) {
        (_, None) => (authority, None),
        (Cloud::Azure, Some((name, host))) if !name.contains(':') => {
            let account = [".dfs.core.windows.net", ".blob.core.windows.net"].iter().find_map(|s| host.strip_suffix(s));
            let account = account.filter(|account| is_name(account));
            (name, Some(account.ok_or("abfss://container@account.dfs.core.windows.net/prefix")?.to_owned()))
        }
        _ => return Err("no user or key in the URL (they belong in the environment, not in an address)"),
    };
    if !is_name(name) {
        return Err("the name of a bucket after the scheme");
    }
    let prefix = prefix.trim_matches('/');
    let is_odd = |part: &str| matches!(part, "" | "." | "..") || part.chars().any(char::is_control);
    if !prefix.is_empty() && prefix.split('/').any(is_odd) {
        return Err("a prefix without empty, . or .. parts");
    }
    Ok(Bucket { cloud, name: name.to_owned(), account, prefix: prefix.to_owned() })
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'$'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_a_directory_or_a_bucket_and_a_prefix() {
        for (url, same) in [
            ("file:///a/b", "file:///a/b"),
            ("file://localhost/a%20b", "file:///a b"),
            ("file:////a//./b//", "file:///a/b"),
            ("file:///", "file:///"),
            ("gs://b/", "gs://b"),
            ("gs://my.bucket/jobs/1/", "gs://my.bucket/jobs/1"),
            ("s3://b/a b/ü", "s3://b/a b/ü"),
            ("s3a://b/x", "s3://b/x"),
            ("az://c/x", "az://c/x"),
            ("abfss://c@acc.dfs.core.windows.net/x/y", "abfss://c@acc.dfs.core.windows.net/x/y"),
            ("abfs://c@acc.blob.core.windows.net", "abfss://c@acc.dfs.core.windows.net"),
        ] {
            assert_eq!(Address::parse(url).map(|a| a.to_string()), Ok(same.to_owned()), "{url}");
        }
    }

    #[test]
    fn text_that_is_not_an_address_is_refused_without_repeating_a_secret() {
        for url in [
            "",
            "/a/b",
            "ftp://x/y",
            "file://a/b",
            "file://",
            "file:///a/../b",
            "gs://",
            "gs:///x",
            "s3://b/a//b",
            "s3://b/../x",
            "s3://b\nx/y",
            "az://c@acc.example.com/x",
            "https://b.s3.amazonaws.com/x",
            "s3://AKIA:hunter2@bucket/x",
            "s3://AKIA:hunter2/@bucket/x",
            "az://c/x?sv=1&sig=hunter2",
            "az://c/x#sig=hunter2",
            "https://acc.blob.core.windows.net/c?sig=hunter2",
            "gs://user:hunter2@b",
            "az://c:hunter2@acc.dfs.core.windows.net/x",
        ] {
            let why = Address::parse(url).expect_err(url);
            assert!(!why.contains("hunter2") && !why.contains("AKIA"), "{why}");
        }
    }

    #[test]
    fn a_mounted_bucket_and_the_bucket_are_one_place() {
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
            let store = Address::parse(url).expect("good");
            assert_eq!(store.nearness(Path::new(dir), &Path::to_owned), expected, "{url} {dir}");
        }
        let store = Address::parse("gs://b/job").expect("good");
        let line = store.nested("the store", Path::new("/gcs/b"), "no");
        assert!(line.contains("gs://b/job (which Vertex AI mounts at /gcs/b/job) and"), "{line}");
    }
}
