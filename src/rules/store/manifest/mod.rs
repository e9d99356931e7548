//! The manifest: a checkpoint exists if and only if its manifest does.
//!
//! JSON, UTF-8, keys sorted, named by its own hash. A manifest decides which files a restore writes, and to which paths. So it
//! counts as hostile until [`Manifest::read`] has checked it.

use std::collections::HashSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};

pub use super::hostile::{key, path};
use super::hostile::{links, shown};
use super::names::{Attempt, CommitName, FRESH, Stamp};
use crate::checkpoint::listing::{around, end_of, parent_of};
use crate::checkpoint::{PartRecord, SaveTiming};

/// Usual permission bits of a directory.
pub const ORDINARY: u32 = 0o755;
/// The schema of a snapshot of several parts. Its files may be in archives.
pub const SCHEMA: &str = "trainit.ckpt/2";
/// The schema of earlier versions: one checkpoint, each file an object of its own. Still read.
pub const ONE_UNIT: &str = "trainit.ckpt/1";
/// The same with files in archives. Still read.
pub const ONE_UNIT_WITH_ARCHIVES: &str = "trainit.ckpt+tar/1";
/// The unit of a snapshot whose whole directory is resumed from.
pub const WHOLE: &str = ".";
/// Longest manifest, bytes.
pub const LIMIT: u64 = 256 << 20;
/// Bytes of a chunk with a checksum of its own.
pub const CHUNK: u64 = 64 << 20;
/// A larger file is never in an archive, bytes.
pub const SMALL: u64 = 1 << 20;
/// The smallest chunk, in bytes. Smaller ones could make a restore endless.
const MIN_CHUNK: u64 = 1 << 20;

/// A small file or link that names a unit, in a manifest of an earlier schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pointer {
    /// The text of the file, or the target of the link.
    pub content: String,
    /// Relative to the checkpoint directory.
    pub path: String,
    /// Whether it is a symbolic link.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub symlink: bool,
}

// The fields are in the order of their keys, because sorting them in a map would take 1 KiB a file.

/// The description of a committed checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The attempt's number.
    pub attempt: u64,
    /// The attempt's tag, if the store ignores put-if-absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_tag: Option<u32>,
    /// More paths of the same content as the unit, if that is one file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<String>,
    /// Seconds since 1970, for people.
    pub created_unix: u64,
    /// The files to restore.
    pub files: Vec<Item>,
    /// The layout of the part that is resumed from; `tree` if that is the whole directory.
    pub framework: String,
    /// The newest step that all replicas of the gang had; 0: none, and `None`: there was no gang. A prune by hand keeps what
    /// the run kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang_kept: Option<u64>,
    /// The checkpoint directory, absolute: a pointer may name a unit by its absolute path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<String>,
    /// The job's name, for people.
    pub job: String,
    /// The node that committed.
    pub node: u32,
    /// The commit that the run resumed from, `A-S`.
    pub parent: Option<String>,
    /// The parts that the files belong to; empty in earlier schemas.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<PartRecord>,
    /// The files that name the unit, in earlier schemas; restored last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pointers: Vec<Pointer>,
    /// [`SCHEMA`], [`ONE_UNIT`] or [`ONE_UNIT_WITH_ARCHIVES`].
    pub schema: String,
    /// The sequence within the attempt.
    pub seq: u64,
    /// The training step, if known.
    pub step: Option<u64>,
    /// Timing of earlier saves.
    #[serde(default)]
    pub timing: SaveTiming,
    /// Sum of the sizes.
    pub total_bytes: u64,
    /// What the framework loads, relative to the checkpoint directory; [`WHOLE`] for the directory itself.
    pub unit: String,
    /// Number of training processes, if known.
    pub world_size: Option<u32>,
}

/// The field that is read first.
#[derive(Deserialize)]
struct Head {
    schema: String,
}

/// One file or symbolic link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// The checksums of the chunks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunks: Option<Chunks>,
    /// The checksum of the whole file, eight lower-case hex digits.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub crc32c: String,
    /// The store's tag for the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// The key of the object with its bytes, relative to the prefix.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// Permission bits.
    #[serde(default)]
    pub mode: u32,
    /// Modification time, nanoseconds since 1970.
    #[serde(default)]
    pub mtime_ns: i64,
    /// The byte offset in the object, if that is an archive of small files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Relative to the checkpoint directory.
    pub path: String,
    /// Bytes.
    #[serde(default)]
    pub size: u64,
    /// The target of a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: ItemKind,
}

/// The type of an [`Item`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names say it")]
pub enum ItemKind {
    File,
    Symlink,
    Directory,
}

/// Checksums of equal parts, the last one shorter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunks {
    /// Eight lower-case hex digits each.
    pub crc32c: Vec<String>,
    /// Bytes of each but the last.
    pub size: u64,
}

impl Item {
    /// Its byte range in the object.
    pub fn run(&self) -> Range<u64> {
        let from = self.offset.unwrap_or(0);
        from..from + self.size
    }

    /// Whether an object of this size in bytes may hold it.
    pub fn fits(&self, object: u64) -> bool {
        if self.offset.is_some() { self.run().end <= object } else { self.size == object }
    }
}

/// Eight lower-case hex digits.
pub fn hex(crc32c: u32) -> String {
    format!("{crc32c:08x}")
}

impl Manifest {
    /// The bytes to commit: sorted keys, one line. Errors: the manifest is too long.
    pub fn bytes(&self) -> Result<Vec<u8>, String> {
        let bytes = serde_json::to_vec(self).map_err(|error| error.to_string())?;
        if bytes.len() as u64 > LIMIT { Err("its manifest would be over 256 MiB".to_owned()) } else { Ok(bytes) }
    }

    /// Reads and checks the bytes found under a commit's name. Errors: why they must not be used, in one line.
    pub fn read(name: &CommitName, bytes: &[u8]) -> Result<Manifest, String> {
        Manifest::read_hostile(name, bytes).map_err(|why| shown(&why))
    }

    fn read_hostile(name: &CommitName, bytes: &[u8]) -> Result<Manifest, String> {
        if bytes.len() as u64 > LIMIT {
            return Err("the manifest is over 256 MiB".to_owned());
        }
        if super::names::hash16(bytes) != name.hash {
            return Err("the manifest does not match the hash in its name: torn or altered".to_owned());
        }
        let malformed = |error: serde_json::Error| format!("the manifest is malformed: {error}");
        let Head { schema } = serde_json::from_slice(bytes).map_err(malformed)?;
        if ![SCHEMA, ONE_UNIT, ONE_UNIT_WITH_ARCHIVES].contains(&schema.as_str()) {
            return Err(format!("the manifest's schema {schema:?} is not known to this version"));
        }
        let manifest: Manifest = serde_json::from_slice(bytes).map_err(malformed)?;
        if manifest.stamp() != name.stamp || manifest.step.unwrap_or(0) != name.step {
            return Err("the manifest describes another commit than its name".to_owned());
        }
        manifest.judge()?;
        Ok(manifest)
    }

    /// Its place in the order.
    pub fn stamp(&self) -> Stamp {
        Stamp { attempt: Attempt { number: self.attempt, tag: self.attempt_tag }, seq: self.seq }
    }

    /// Regular files.
    pub fn regular(&self) -> impl Iterator<Item = &Item> + Clone {
        self.files.iter().filter(|f| f.kind == ItemKind::File)
    }

    /// Its parts; for an earlier schema one part, its unit.
    pub fn parts(&self) -> Vec<PartRecord> {
        if self.schema == SCHEMA {
            return self.parts.clone();
        }
        vec![PartRecord {
            root: Some(parent_of(&self.unit).to_owned()),
            layout: Some(self.framework.clone()),
            unit: Some(self.unit.clone()),
            step: self.step,
            files: self.files.iter().map(|file| file.path.clone()).collect(),
            ..PartRecord::default()
        }]
    }

    fn judge(&self) -> Result<(), String> {
        self.judge_paths()?;
        self.judge_parts()?;
        let mut total = 0u64;
        for file in &self.files {
            item(file)?;
            total = total.checked_add(file.size).ok_or("the sizes in the manifest overflow")?;
        }
        if total != self.total_bytes {
            return Err(format!("the sizes in the manifest sum to {total}, not {}", self.total_bytes));
        }
        let own = self.files.iter().filter_map(|file| Some((file.path.as_str(), file.target.as_deref()?)));
        let beside = self.pointers.iter().filter(|pointer| pointer.symlink);
        beside.clone().try_for_each(|pointer| link(&pointer.path, &pointer.content))?;
        links(&own.chain(beside.map(|pointer| (pointer.path.as_str(), pointer.content.as_str()))).collect())
    }

    /// Checks that every path may be written, and that none occurs twice, or as a file and as a directory.
    fn judge_paths(&self) -> Result<(), String> {
        if self.unit != WHOLE {
            path(&self.unit)?;
        }
        let mut seen = HashSet::new();
        let mut parents = HashSet::new();
        // A pointer is written under a temporary name first.
        self.pointers.iter().try_for_each(|pointer| path(&format!("{}{FRESH}", pointer.path)))?;
        let beside = self.pointers.iter().map(|p| &p.path).chain(&self.copies);
        for file in self.files.iter().map(|f| &f.path).chain(beside) {
            path(file)?;
            if !seen.insert(file.as_str()) {
                return Err(format!("the manifest names {file:?} twice"));
            }
            parents.extend(around(parent_of(file)));
        }
        let directories = self.files.iter().filter(|f| f.kind == ItemKind::Directory);
        let directories: HashSet<&str> = directories.map(|f| f.path.as_str()).collect();
        match parents.iter().find(|p| seen.contains(**p) && !directories.contains(**p)) {
            Some(both) => Err(format!("the manifest has {both:?} both as a file and as a directory")),
            None => Ok(()),
        }
    }

    /// Checks that each file belongs to one part at most, and that no part names a missing file.
    fn judge_parts(&self) -> Result<(), String> {
        let mut left: HashSet<&str> = self.files.iter().map(|file| file.path.as_str()).collect();
        for part in &self.parts {
            for place in part.root.iter().chain(&part.unit).filter(|place| !place.is_empty()) {
                path(place)?;
            }
            if let Some(file) = part.files.iter().find(|file| !left.remove(file.as_str())) {
                return Err(format!(
                    "the manifest's parts name {file:?}, which is not among its files, or name it twice"
                ));
            }
        }
        Ok(())
    }
}

fn link(path: &str, target: &str) -> Result<(), String> {
    let error = || format!("the manifest's link {path:?} leads outside or is too long ({target:?})");
    end_of(path, target).map(drop).ok_or_else(error)
}

fn item(file: &Item) -> Result<(), String> {
    let what = &file.path;
    match file.kind {
        ItemKind::Directory | ItemKind::Symlink if file.size > 0 => {
            Err(format!("the manifest gives {what:?} a size, but it is not a file"))
        }
        ItemKind::Directory => Ok(()),
        ItemKind::Symlink => link(what, file.target.as_deref().unwrap_or_default()),
        ItemKind::File => {
            key(&file.key).map_err(|_| format!("the manifest's key {:?} does not come from trainit", file.key))?;
            if file.offset.is_some_and(|offset| file.size > SMALL || offset.checked_add(file.size).is_none()) {
                return Err(format!("the manifest's {what:?} lies in an archive where no file can lie"));
            }
            let is_crc = |text: &String| text.len() == 8 && u32::from_str_radix(text, 16).is_ok();
            if !is_crc(&file.crc32c) {
                return Err(format!("the manifest has no crc32c for {what:?}"));
            }
            let fits = |chunks: &Chunks| {
                let count = chunks.crc32c.len() as u64;
                chunks.size >= MIN_CHUNK && count == file.size.div_ceil(chunks.size) && chunks.crc32c.iter().all(is_crc)
            };
            if file.chunks.as_ref().is_none_or(fits) {
                Ok(())
            } else {
                Err(format!("the manifest's chunks of {what:?} do not fit its size"))
            }
        }
    }
}

/// The CRC-32C of two consecutive byte ranges, from their own sums `before` and `after`; the second has `length` bytes. It
/// costs as much as summing 100 KiB, and nothing if `before` is 0, the sum of no bytes (leading zeros do not change a sum of
/// 0).
pub fn joined(before: u32, after: u32, length: u64) -> u32 {
    if before == 0 { after } else { crc32c::crc32c_combine(before, after, length as usize) }
}

#[cfg(test)]
mod tests;
