//! The manifest: a checkpoint exists if and only if its manifest does.
//!
//! JSON, UTF-8, keys sorted, named by its own hash. One that was read is hostile until [`Manifest::read`] has gone
//! through it: it decides which files are written where.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::hostile::{bounded, shown};
pub use super::hostile::{key, path};
use super::names::{Attempt, CommitName, Stamp};
use crate::rules::checkpoint::layout::Pointer;
use crate::rules::checkpoint::listing::{is_below, name_of, parent_of};

/// What a directory's permission bits are where nobody thought of them.
pub const ORDINARY: u32 = 0o755;
/// The schema where each file is an object of its own.
pub const SCHEMA: &str = "trainit.ckpt/1";
/// The schema where some lie in archives, which those who know only the other one must not take for theirs.
pub const WITH_ARCHIVES: &str = "trainit.ckpt+tar/1";
/// Longest manifest, bytes.
pub const LIMIT: u64 = 256 << 20;
/// Bytes of a chunk with a checksum of its own.
pub const CHUNK: u64 = 64 << 20;
/// A larger file is never in an archive, bytes.
pub const SMALL: u64 = 1 << 20;
/// Smaller chunks would be a way to make a restore endless.
const MIN_CHUNK: u64 = 1 << 20;
const MAX_POINTER: usize = 64 << 10;
/// Each takes as much room as the unit.
const MOST_COPIES: usize = 32;

// The fields of what is written stand in the order of their keys: a map that sorts them takes 1 KiB a file.

/// What a commit says of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The attempt's number.
    pub attempt: u64,
    /// The attempt's tag, where the store ignores put-if-absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_tag: Option<u32>,
    /// The step that the trainer itself calls the best so far, where it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_step: Option<u64>,
    /// Paths beside the unit, one file, under which it lies as well; without bytes of their own in the store.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded")]
    pub copies: Vec<String>,
    /// Seconds since 1970, for people.
    pub created_unix: u64,
    /// What is to be restored.
    #[serde(deserialize_with = "bounded")]
    pub files: Vec<Item>,
    /// The layout that recognised it.
    pub framework: String,
    /// The checkpoint directory, where a pointer names the unit in it by its absolute path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<String>,
    /// The job's name, for people.
    pub job: String,
    /// The node that committed.
    pub node: u32,
    /// The commit that the run resumed from, `A-S`.
    pub parent: Option<String>,
    /// What names the newest checkpoint; restored last.
    #[serde(deserialize_with = "bounded")]
    pub pointers: Vec<Pointer>,
    /// [`SCHEMA`] or [`WITH_ARCHIVES`].
    pub schema: String,
    /// The sequence within the attempt.
    pub seq: u64,
    /// The training step, where known.
    pub step: Option<u64>,
    /// Sum of the sizes.
    pub total_bytes: u64,
    /// What the framework loads, relative to the checkpoint directory.
    pub unit: String,
    /// Permission bits of the unit, where it is a directory and they are not [`ORDINARY`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit_mode: Option<u32>,
    /// Number of training processes, where known.
    pub world_size: Option<u32>,
}

/// What is read before anything else.
#[derive(Deserialize)]
struct Head {
    schema: Option<String>,
}

/// One file or symbolic link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// BLAKE3 of the whole file, 64 lower-case hex digits, where it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blake3: Option<String>,
    /// Of each chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunks: Option<Chunks>,
    /// Of the whole file, eight lower-case hex digits.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub crc32c: String,
    /// The store's tag for the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// The store's version of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<String>,
    /// Where its bytes lie in the store, relative to the prefix.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// Permission bits.
    #[serde(default)]
    pub mode: u32,
    /// Modification time, nanoseconds since 1970.
    #[serde(default)]
    pub mtime_ns: i64,
    /// At which byte of the object it begins, where that is an archive of many small files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Relative to the checkpoint directory.
    pub path: String,
    /// Bytes.
    #[serde(default)]
    pub size: u64,
    /// What the link says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// What it is.
    #[serde(rename = "type")]
    pub kind: ItemKind,
}

/// What an [`Item`] is.
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
    #[serde(deserialize_with = "bounded")]
    pub crc32c: Vec<String>,
    /// Bytes of each but the last.
    pub size: u64,
}

impl Item {
    /// The bytes of the object that are its own.
    pub fn run(&self) -> Range<u64> {
        let from = self.offset.unwrap_or(0);
        from..from + self.size
    }

    /// Whether an object of so many bytes may be the one that holds it.
    pub fn fits(&self, object: u64) -> bool {
        if self.offset.is_some() { self.run().end <= object } else { self.size == object }
    }
}

/// Eight lower-case hex digits.
pub fn hex(crc32c: u32) -> String {
    format!("{crc32c:08x}")
}

impl Manifest {
    /// The bytes to commit: sorted keys, one line. Errors: too long.
    pub fn bytes(&self) -> Result<Vec<u8>, String> {
        let bytes = serde_json::to_vec(self).map_err(|error| error.to_string())?;
        if bytes.len() as u64 > LIMIT { Err("its manifest would be over 256 MiB".to_owned()) } else { Ok(bytes) }
    }

    /// Reads and judges the bytes found under a commit's name. Errors: why it must not be used, in one line.
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
        // A list of the values in order would do for serde.
        let is_object = bytes.trim_ascii_start().starts_with(b"{");
        let head = serde_json::from_slice::<Head>(bytes).ok().filter(|_| is_object);
        let head = head.ok_or("the manifest is no JSON of ours")?;
        match head.schema.as_deref() {
            Some(SCHEMA | WITH_ARCHIVES) => {}
            Some(other) => return Err(format!("the manifest's schema {other:?} is not known to this version")),
            None => return Err("the manifest has no schema".to_owned()),
        }
        let manifest: Manifest =
            serde_json::from_slice(bytes).map_err(|error| format!("the manifest is malformed: {error}"))?;
        if manifest.stamp() != name.stamp || manifest.step.unwrap_or(0) != name.step {
            return Err("the manifest speaks of another commit than its name".to_owned());
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

    /// The newest modification time of its files, nanoseconds since 1970.
    pub fn newest_ns(&self) -> i64 {
        self.regular().map(|f| f.mtime_ns).max().unwrap_or(0)
    }

    /// The unit, where it is one file.
    pub fn only_file(&self) -> Option<&Item> {
        self.files.first().filter(|file| self.files.len() == 1 && file.kind == ItemKind::File && file.path == self.unit)
    }

    /// Whether the unit is a directory, and not a file or what the names of several begin with.
    pub fn is_directory(&self) -> bool {
        self.files.iter().any(|f| is_below(&f.path, &self.unit))
    }

    /// The unit's directory, where it is one, and those of the same name elsewhere that are halves of it.
    pub fn directories(&self) -> BTreeSet<&str> {
        let inside = format!("/{}/", name_of(&self.unit));
        let halves = self.files.iter().filter_map(|f| Some(&f.path[..f.path.find(&inside)? + inside.len() - 1]));
        let own = self.is_directory().then_some(self.unit.as_str());
        let is_apart = |own: &str, half: &str| !is_below(half, own) && !is_below(own, half);
        own.into_iter().flat_map(|own| halves.clone().filter(move |half| is_apart(own, half)).chain([own])).collect()
    }

    /// What a restore puts in place, each by one rename: the unit's directories, and the files elsewhere that are not there already.
    pub fn places(&self, equal: &HashSet<String>) -> Vec<&str> {
        let directories = self.directories();
        let is_inside = |path: &str| directories.iter().any(|directory| is_below(path, directory));
        let others = self.regular().map(|f| f.path.as_str());
        let others: Vec<&str> = others.filter(|path| !is_inside(path) && !equal.contains(*path)).collect();
        directories.into_iter().chain(others).collect()
    }

    /// Whether the unit is a file, the directory of one, or what the names of several begin with.
    fn holds_unit(&self) -> bool {
        let goes_on = |rest: &str| rest.chars().next().is_none_or(|c| !c.is_alphanumeric());
        self.files.iter().any(|f| f.path.strip_prefix(&self.unit).is_some_and(goes_on))
    }

    fn judge(&self) -> Result<(), String> {
        path(&self.unit)?;
        if self.schema == SCHEMA && self.files.iter().any(|file| file.offset.is_some()) {
            return Err(format!("the manifest's schema {SCHEMA:?} knows no archives, and it has files in some"));
        }
        if !self.holds_unit() {
            return Err(format!("its unit {:?} is none of its files", self.unit));
        }
        let mut seen = HashSet::new();
        let mut parents = HashSet::new();
        let beside = self.pointers.iter().map(|p| &p.path).chain(&self.copies);
        for file in self.files.iter().map(|f| &f.path).chain(beside) {
            path(file)?;
            if !seen.insert(file.as_str()) {
                return Err(format!("the manifest names {file:?} twice"));
            }
            let mut parent = parent_of(file);
            while !parent.is_empty() && parents.insert(parent) {
                parent = parent_of(parent);
            }
        }
        let directories = self.files.iter().filter(|f| f.kind == ItemKind::Directory);
        let directories: HashSet<&str> = directories.map(|f| f.path.as_str()).collect();
        if let Some(both) = parents.iter().find(|p| seen.contains(**p) && !directories.contains(**p)) {
            return Err(format!("the manifest has {both:?} both as a file and as a directory"));
        }
        let mut total = 0u64;
        for file in &self.files {
            item(file, &self.unit)?;
            total = total.checked_add(file.size).ok_or("the sizes in the manifest overflow")?;
        }
        let links = self.files.iter().filter(|f| f.kind == ItemKind::Symlink);
        let links = links.filter_map(|link| Some((link.path.as_str(), link.target.as_deref()?)));
        super::hostile::links(&links.collect(), &self.unit)?;
        for pointer in &self.pointers {
            super::hostile::pointer(&pointer.path)?;
            let leaves = pointer.symlink && !link_stays(&pointer.path, &pointer.content);
            if pointer.content.len() > MAX_POINTER || leaves {
                return Err(format!("the manifest's pointer {:?} is too long or leads outside", pointer.path));
            }
        }
        let is_beside = |copy: &String| parent_of(copy) == parent_of(&self.unit);
        if !self.copies.is_empty() && self.only_file().is_none() || !self.copies.iter().all(is_beside) {
            return Err("the manifest has copies of what is not one file, or elsewhere".to_owned());
        }
        if self.copies.len() > MOST_COPIES {
            return Err(format!("the manifest has over {MOST_COPIES} copies of its file"));
        }
        if total == self.total_bytes {
            Ok(())
        } else {
            Err(format!("the sizes in the manifest sum to {total}, not {}", self.total_bytes))
        }
    }
}

fn item(file: &Item, unit: &str) -> Result<(), String> {
    let what = &file.path;
    match file.kind {
        ItemKind::Directory if file.size == 0 => Ok(()),
        ItemKind::Directory => Err(format!("the manifest gives the directory {what:?} a size")),
        ItemKind::Symlink => {
            let target = file.target.as_deref().unwrap_or_default();
            let fits = file.size == 0 && crate::rules::checkpoint::unit::stays_inside(what, target, unit);
            if fits {
                Ok(())
            } else {
                Err(format!("the manifest's link {what:?} leads outside or is too long ({target:?})"))
            }
        }
        ItemKind::File => {
            key(&file.key).map_err(|_| format!("the manifest's key {:?} is none that trainit makes", file.key))?;
            if file.offset.is_some_and(|offset| file.size > SMALL || offset.checked_add(file.size).is_none()) {
                return Err(format!("the manifest's {what:?} lies in an archive as none of ours can"));
            }
            let is_hex = |text: &str, length: usize| {
                text.len() == length && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
            };
            let is_crc = |text: &str| is_hex(text, 8);
            if file.blake3.as_ref().is_some_and(|hash| !is_hex(hash, 64)) {
                return Err(format!("the manifest's blake3 of {what:?} is none"));
            }
            if !is_crc(&file.crc32c) {
                return Err(format!("the manifest has no crc32c for {what:?}"));
            }
            if let Some(chunks) = &file.chunks {
                let fits = chunks.size >= MIN_CHUNK && chunks.crc32c.len() as u64 == file.size.div_ceil(chunks.size);
                if !fits || !chunks.crc32c.iter().all(|c| is_crc(c)) {
                    return Err(format!("the manifest's chunks of {what:?} do not fit its size"));
                }
                if hex(whole(chunks, file.size)) != file.crc32c {
                    return Err(format!("the manifest's chunks of {what:?} do not make its crc32c"));
                }
            }
            Ok(())
        }
    }
}

/// The CRC-32C of bytes whose first ones have `before`, and the `length` bytes after them `after`. Costs as much as the sum of
/// 100 KiB, and nothing where no byte is before (the sum of which is 0, and zeros before do not change a sum of 0).
pub fn joined(before: u32, after: u32, length: u64) -> u32 {
    if before == 0 { after } else { crc32c::crc32c_combine(before, after, length as usize) }
}

/// The checksum of all the chunks' bytes.
fn whole(chunks: &Chunks, size: u64) -> u32 {
    let sums = chunks.crc32c.iter().map(|sum| u32::from_str_radix(sum, 16).unwrap_or(0));
    let append = |(before, left): (u32, u64), sum| {
        let length = chunks.size.min(left);
        (joined(before, sum, length), left - length)
    };
    sums.fold((0, size), append).0
}

/// Whether a pointer that is a link stays in its own directory tree.
fn link_stays(path: &str, target: &str) -> bool {
    crate::rules::checkpoint::unit::stays_inside(&format!("top/{path}"), target, "top")
}

#[cfg(test)]
mod tests;
