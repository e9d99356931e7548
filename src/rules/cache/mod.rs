//! The compilation caches of frameworks: their variables, the index of the files in the store, what to fetch and what to drop.
//!
//! A cached file is executed, so the store is trusted as for checkpoints. Deliberately absent: what the files mean.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::process::env::{Changes, Env};

/// The prefix of the files in the store, and the key of their index.
pub const PREFIX: &str = ".trainit/cache";
/// The index.
pub const INDEX: &str = ".trainit/cache/index.json";
/// The longest index that is read, in bytes.
pub const INDEX_LIMIT: u64 = 16 << 20;
/// The limits of the store's files: each, all, and their number.
pub const LARGEST: u64 = 256 << 20;
/// See above.
pub const MOST_BYTES: u64 = 10 << 30;
/// See above.
pub const MOST_FILES: usize = 20_000;

const SCHEMA: &str = "trainit.cache/1";
/// The variables, and the directory of each.
const VARIABLES: [(&str, &str); 6] = [
    ("JAX_COMPILATION_CACHE_DIR", "jax"),
    ("TORCHINDUCTOR_CACHE_DIR", "inductor"),
    ("TRITON_CACHE_DIR", "triton"),
    ("CUDA_CACHE_PATH", "cuda"),
    ("NEURON_COMPILE_CACHE_URL", "neuron"),
    ("XLA_PERSISTENT_CACHE_PATH", "xla"),
];
/// The shortest id whose appearance in a path is no coincidence.
const SHORTEST_ID: usize = 4;

/// Sets the variables that the user has not set.
pub fn set_variables(dir: &str, env: &Env, changes: &mut Changes) {
    for (name, within) in VARIABLES {
        if env.given(name).is_none() && !changes.touches(name) {
            changes.set(name, format!("{dir}/{within}"));
        }
    }
}

/// The directories below the cache's, which their frameworks may expect.
pub fn directories() -> impl Iterator<Item = &'static str> {
    VARIABLES.into_iter().map(|(_, within)| within)
}

/// Why no later run would find anything: the id of a job or a machine in the path.
pub fn passing_id<'a>(dir: &str, ids: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    ids.into_iter().find(|id| id.len() >= SHORTEST_ID && dir.contains(id))
}

/// A file of the index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cached {
    /// The hash of its content, the last part of its key.
    pub hash: String,
    /// Bytes.
    pub size: u64,
    /// When a run had it last, seconds since 1970.
    pub used: u64,
}

/// The files of the store, by their path below the cache's directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Index(pub BTreeMap<String, Cached>);

#[derive(Serialize, Deserialize)]
struct Text {
    schema: String,
    files: BTreeMap<String, Cached>,
}

impl Index {
    /// Reads the index. A file whose path or hash could lead elsewhere is left out. Errors: it is no index of this version.
    pub fn read(bytes: &[u8]) -> Result<Index, &'static str> {
        let text: Text = serde_json::from_slice(bytes).map_err(|_| "it is not whole, or no index")?;
        if text.schema != SCHEMA {
            return Err("it is of another version of trainit");
        }
        let is_sound = |path: &str, file: &Cached| {
            crate::store::check_path(path).is_ok() && is_hash(&file.hash) && file.size <= LARGEST && is_cacheable(path)
        };
        Ok(Index(text.files.into_iter().filter(|(path, file)| is_sound(path, file)).collect()))
    }

    /// The index's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(&Text { schema: SCHEMA.to_owned(), files: self.0.clone() }).unwrap_or_default()
    }

    /// Drops the files that were not used for the longest time, until the limits hold. Returns the hashes that no file has any
    /// more.
    pub fn shrink(&mut self, most_bytes: u64, most_files: usize) -> BTreeSet<String> {
        let mut oldest: Vec<(u64, String)> = self.0.iter().map(|(path, file)| (file.used, path.clone())).collect();
        oldest.sort();
        let (mut bytes, mut dropped) = (self.0.values().map(|file| file.size).sum::<u64>(), BTreeSet::new());
        for (_, path) in oldest {
            if bytes <= most_bytes && self.0.len() <= most_files {
                break;
            }
            if let Some(file) = self.0.remove(&path) {
                bytes -= file.size;
                dropped.insert(file.hash);
            }
        }
        self.0.values().for_each(|file| _ = dropped.remove(&file.hash));
        dropped
    }
}

/// The key of a file's content.
pub fn key_of(hash: &str) -> String {
    format!("{PREFIX}/{hash}")
}

/// The hash of a content.
pub fn hash_of(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether a file belongs into the store: not a lock, a temporary file, or the mark of a last use.
pub fn is_cacheable(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let is_passing = name.starts_with('.')
        || name.contains(".tmp")
        || name.starts_with("tmp")
        || [".lock", "-atime", ".trainit-new"].iter().any(|end| name.ends_with(end));
    !is_passing && !path.split('/').any(|part| part == "locks" || part.starts_with("tmp."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(hash: char, size: u64, used: u64) -> Cached {
        Cached { hash: hash.to_string().repeat(64), size, used }
    }

    #[test]
    fn a_variable_that_is_set_stays() {
        let (env, mut changes) = (Env::from_pairs([("TRITON_CACHE_DIR", "/own")]), Changes::default());
        set_variables("/var/cache/trainit", &env, &mut changes);
        assert_eq!(changes.set["JAX_COMPILATION_CACHE_DIR"], "/var/cache/trainit/jax");
        assert!(!changes.touches("TRITON_CACHE_DIR") && changes.set.len() == VARIABLES.len() - 1);
    }

    #[test]
    fn a_path_with_the_id_of_a_job_is_found() {
        assert_eq!(passing_id("/cache/job-81234", ["node-a", "81234"]), Some("81234"));
        assert_eq!(passing_id("/cache/jobs1", ["1", "81234"]), None);
    }

    #[test]
    fn an_index_reads_back_without_paths_that_lead_elsewhere() {
        let mut index = Index::default();
        index.0.insert("jax/a".into(), file('a', 5, 1));
        assert_eq!(Index::read(&index.bytes()), Ok(index.clone()));
        let good = index.clone();
        for bad in ["../a", "/etc/passwd", "jax/../../a", "jax/x.lock"] {
            index.0.insert(bad.into(), file('b', 5, 1));
        }
        index.0.insert("jax/b".into(), Cached { hash: "../x".into(), ..file('c', 5, 1) });
        assert_eq!(Index::read(&index.bytes()), Ok(good));
        assert!(Index::read(b"{").is_err() && Index::read(b"{\"schema\":\"trainit.cache/2\",\"files\":{}}").is_err());
    }

    #[test]
    fn the_files_that_were_not_used_for_the_longest_time_are_dropped_first() {
        let files =
            [("a", file('a', 60, 1)), ("b", file('b', 60, 3)), ("c", file('a', 60, 2)), ("d", file('d', 60, 4))];
        let mut index = Index(files.map(|(path, file)| (path.to_owned(), file)).into());
        assert_eq!(index.shrink(200, 10), BTreeSet::new(), "the content of a is that of c");
        assert_eq!(index.shrink(200, 2), ["a".repeat(64)].into());
        assert_eq!(index.0.keys().collect::<Vec<_>>(), ["b", "d"]);
    }

    #[test]
    fn locks_and_temporary_files_are_not_cached() {
        let all = [
            "jax/k-cache",
            "jax/k-atime",
            "jax/.lockfile",
            "inductor/locks/a",
            "inductor/ab/c.so",
            "triton/x/tmp.pid_1/y",
        ];
        assert_eq!(all.map(is_cacheable), [true, false, false, false, true, false]);
    }
}
