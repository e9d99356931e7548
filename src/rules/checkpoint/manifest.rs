//! The manifest: a checkpoint exists if and only if its manifest does (contracts/checkpoints.md sections 4 and 5).
//!
//! JSON, UTF-8, keys sorted, named by its own hash. One that was read is hostile until [`Manifest::read`] has gone
//! through it: it decides which files are written where.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::hostile::{bounded, shown};
pub use super::hostile::{key, path};
use super::names::{Attempt, CommitName, Stamp};

/// The one schema.
pub const SCHEMA: &str = "trainit.ckpt/1";
/// Longest manifest, bytes.
pub const LIMIT: u64 = 256 << 20;
/// Bytes of a chunk with a checksum of its own.
pub const CHUNK: u64 = 64 << 20;
/// Smaller chunks would be a way to make a restore endless.
const MIN_CHUNK: u64 = 1 << 20;
const MAX_POINTER: usize = 64 << 10;

/// What a commit says of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`SCHEMA`].
    pub schema: String,
    /// The job's name, for people.
    pub job: String,
    /// The attempt's number.
    pub attempt: u64,
    /// The attempt's tag, where the store ignores put-if-absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_tag: Option<u32>,
    /// The sequence within the attempt.
    pub seq: u64,
    /// The training step, where known.
    pub step: Option<u64>,
    /// What the framework loads, relative to the checkpoint directory.
    pub unit: String,
    /// The layout that recognised it.
    pub framework: String,
    /// Number of training processes, where known.
    pub world_size: Option<u32>,
    /// The node that committed.
    pub node: u32,
    /// Seconds since 1970, for people.
    pub created_unix: u64,
    /// The commit that the run resumed from, `A-S`.
    pub parent: Option<String>,
    /// Sum of the sizes.
    pub total_bytes: u64,
    /// What is to be restored.
    #[serde(deserialize_with = "bounded")]
    pub files: Vec<Item>,
    /// What names the newest checkpoint; restored last.
    #[serde(deserialize_with = "bounded")]
    pub pointers: Vec<PointerItem>,
}

/// What is read before anything else.
#[derive(Deserialize)]
struct Head {
    schema: Option<String>,
}

/// One file or symbolic link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// Relative to the checkpoint directory.
    pub path: String,
    /// What it is.
    #[serde(rename = "type")]
    pub kind: ItemKind,
    /// Bytes.
    #[serde(default)]
    pub size: u64,
    /// Permission bits.
    #[serde(default)]
    pub mode: u32,
    /// Modification time, nanoseconds since 1970.
    #[serde(default)]
    pub mtime_ns: i64,
    /// Where its bytes lie in the store, relative to the prefix.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// What the link says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The store's tag for the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// The store's version of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<String>,
    /// Of the whole file, eight lower-case hex digits.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub crc32c: String,
    /// Of each chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunks: Option<Chunks>,
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
    /// Bytes of each but the last.
    pub size: u64,
    /// Eight lower-case hex digits each.
    #[serde(deserialize_with = "bounded")]
    pub crc32c: Vec<String>,
}

/// A pointer as committed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PointerItem {
    /// Relative to the checkpoint directory.
    pub path: String,
    /// The file's text, or what the link says.
    pub content: String,
    /// Whether it is a symbolic link.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub symlink: bool,
}

/// Eight lower-case hex digits.
pub fn hex(crc32c: u32) -> String {
    format!("{crc32c:08x}")
}

impl Manifest {
    /// The bytes to commit: sorted keys, one line. Errors: too long.
    pub fn bytes(&self) -> Result<Vec<u8>, String> {
        // A `Value` keeps its keys in a sorted map.
        let bytes = serde_json::to_value(self).and_then(|value| serde_json::to_vec(&value));
        let bytes = bytes.map_err(|error| error.to_string())?;
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
            Some(SCHEMA) => {}
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
    pub fn regular(&self) -> impl Iterator<Item = &Item> {
        self.files.iter().filter(|f| f.kind == ItemKind::File)
    }

    /// The newest modification time of its files, nanoseconds since 1970.
    pub fn newest_ns(&self) -> i64 {
        self.regular().map(|f| f.mtime_ns).max().unwrap_or(0)
    }

    /// Whether the unit is one directory that holds everything.
    pub fn is_directory(&self) -> bool {
        let inside = format!("{}/", self.unit);
        !self.files.is_empty() && self.files.iter().all(|f| f.path.starts_with(&inside))
    }

    /// What a restore puts in place, each by one rename: the unit's directory, or the files that are not there already.
    pub fn places(&self, equal: &HashSet<String>) -> Vec<&str> {
        if self.is_directory() {
            return vec![&self.unit];
        }
        self.regular().map(|f| f.path.as_str()).filter(|path| !equal.contains(*path)).collect()
    }

    fn judge(&self) -> Result<(), String> {
        path(&self.unit)?;
        let mut seen = HashSet::new();
        let mut parents = HashSet::new();
        for file in self.files.iter().map(|f| &f.path).chain(self.pointers.iter().map(|p| &p.path)) {
            path(file)?;
            if !seen.insert(file.as_str()) {
                return Err(format!("the manifest names {file:?} twice"));
            }
            let mut parent = super::listing::parent_of(file);
            while !parent.is_empty() && parents.insert(parent) {
                parent = super::listing::parent_of(parent);
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
        for pointer in &self.pointers {
            let leaves = pointer.symlink && !link_stays(&pointer.path, &pointer.content);
            if pointer.content.len() > MAX_POINTER || leaves {
                return Err(format!("the manifest's pointer {:?} is too long or leads outside", pointer.path));
            }
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
            let fits = file.size == 0 && super::unit::stays_inside(what, target, unit);
            if fits { Ok(()) } else { Err(format!("the manifest's link {what:?} leads outside ({target:?})")) }
        }
        ItemKind::File => {
            key(&file.key).map_err(|_| format!("the manifest's key {:?} lies outside our prefix", file.key))?;
            let is_crc = |text: &str| text.len() == 8 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
            if !is_crc(&file.crc32c) {
                return Err(format!("the manifest has no crc32c for {what:?}"));
            }
            if let Some(chunks) = &file.chunks {
                let fits = chunks.size >= MIN_CHUNK && chunks.crc32c.len() as u64 == file.size.div_ceil(chunks.size);
                if !fits || !chunks.crc32c.iter().all(|c| is_crc(c)) {
                    return Err(format!("the manifest's chunks of {what:?} do not fit its size"));
                }
            }
            Ok(())
        }
    }
}

/// Whether a pointer that is a link stays in its own directory tree.
fn link_stays(path: &str, target: &str) -> bool {
    super::unit::stays_inside(&format!("top/{path}"), target, "top")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn good() -> Manifest {
        let file = |path: &str, size| Item {
            path: path.into(),
            kind: ItemKind::File,
            size,
            mode: 0o644,
            mtime_ns: 5,
            key: format!("data/{path}"),
            target: None,
            etag: None,
            generation: None,
            crc32c: "0123abcd".into(),
            chunks: None,
        };
        let link = Item {
            kind: ItemKind::Symlink,
            target: Some("b".into()),
            key: String::new(),
            crc32c: String::new(),
            ..file("u/l", 0)
        };
        Manifest {
            schema: SCHEMA.into(),
            job: "j".into(),
            attempt: 3,
            attempt_tag: None,
            seq: 2,
            step: Some(10),
            unit: "u".into(),
            framework: "generic".into(),
            world_size: None,
            node: 0,
            created_unix: 1,
            parent: None,
            total_bytes: 30,
            files: vec![file("u/a", 10), file("u/b", 20), link],
            pointers: vec![PointerItem { path: "latest".into(), content: "u".into(), symlink: false }],
        }
    }

    /// Reads it back after a change in the JSON, the name made to fit.
    fn altered(change: impl FnOnce(&mut Value)) -> Result<Manifest, String> {
        let mut value = serde_json::to_value(good()).expect("serialises");
        change(&mut value);
        let bytes = serde_json::to_vec(&value).expect("serialises");
        Manifest::read(&CommitName::of(good().stamp(), good().step, &bytes), &bytes)
    }

    #[test]
    fn what_was_written_reads_back_and_its_keys_are_sorted() {
        let bytes = good().bytes().expect("short");
        let name = CommitName::of(good().stamp(), Some(10), &bytes);
        assert_eq!(Manifest::read(&name, &bytes), Ok(good()));
        let text = String::from_utf8(bytes).expect("UTF-8");
        let keys =
            ["attempt", "created_unix", "files", "framework", "job", "node", "parent", "pointers", "schema", "seq"];
        let places: Vec<usize> = keys.iter().map(|k| text.rfind(&format!("\"{k}\":")).expect(k)).collect();
        assert!(places.is_sorted(), "{text}");
    }

    #[test]
    fn one_flipped_bit_anywhere_is_noticed() {
        let bytes = good().bytes().expect("short");
        let name = CommitName::of(good().stamp(), Some(10), &bytes);
        for at in 0..bytes.len() {
            let mut torn = bytes.clone();
            torn[at] ^= 1;
            assert!(Manifest::read(&name, &torn).is_err());
            assert!(Manifest::read(&name, &bytes[..at]).is_err());
        }
    }

    #[test]
    fn hostile_paths_are_refused() {
        let long = "x".repeat(256);
        let deep = ["d"; 67].join("/");
        let texts = ",/,/etc/passwd,../x,u/../../x,u/./x,u//x,u/,a\0b,.trainit,.trainit/tmp/x,..".split(',');
        for bad in texts.chain([long.as_str(), deep.as_str()]) {
            assert!(altered(|v| v["files"][0]["path"] = json!(bad)).is_err(), "path {bad:?}");
            assert!(altered(|v| v["files"][0]["key"] = json!(bad)).is_err(), "key {bad:?}");
            assert!(altered(|v| v["pointers"][0]["path"] = json!(bad)).is_err(), "pointer {bad:?}");
            assert!(altered(|v| v["unit"] = json!(bad)).is_err(), "unit {bad:?}");
        }
    }

    #[test]
    fn duplicates_and_paths_that_are_file_and_parent_are_refused() {
        assert!(altered(|v| v["files"][1]["path"] = json!("u/a")).is_err());
        assert!(altered(|v| v["files"][1]["path"] = json!("u/a/b")).is_err());
        assert!(altered(|v| v["pointers"][0]["path"] = json!("u/a")).is_err());
        assert!(altered(|v| v["pointers"][0]["path"] = json!("u")).is_err());
    }

    #[test]
    fn sizes_that_lie_or_overflow_are_refused() {
        assert!(altered(|v| v["total_bytes"] = json!(31)).is_err());
        assert!(altered(|v| v["files"][0]["size"] = json!(u64::MAX)).is_err());
        assert!(altered(|v| v["files"][0]["size"] = json!(-1)).is_err());
        assert!(altered(|v| v["files"][0]["chunks"] = json!({"size": 0, "crc32c": []})).is_err());
        assert!(altered(|v| v["files"][0]["chunks"] = json!({"size": 5, "crc32c": ["00000000"]})).is_err());
    }

    #[test]
    fn depth_without_end_is_refused_and_not_followed() {
        for head in ["", r#"{"x":"#, r#"{"schema":"trainit.ckpt/1","files":"#] {
            let bytes = format!("{head}{}", "[".repeat(1_000_000)).into_bytes();
            let name = CommitName::of(good().stamp(), good().step, &bytes);
            assert!(Manifest::read(&name, &bytes).is_err());
        }
    }

    #[test]
    fn a_refusal_is_one_short_line_whatever_it_quotes() {
        let long = "x\n".repeat(100_000);
        for field in ["schema", "unit", "job"] {
            if let Err(why) = altered(|v| v[field] = json!(long)) {
                assert!(why.len() < 1000 && !why.contains('\n'), "{field}: {} bytes", why.len());
            }
        }
        let why = altered(|v| v["files"][0]["type"] = json!(long)).expect_err("no such type");
        assert!(why.len() < 1000 && !why.contains('\n'), "{} bytes", why.len());
    }

    #[test]
    fn links_that_leave_the_unit_are_refused() {
        for bad in ["/etc/passwd", "../x", "", "../../x", "../u2/x"] {
            assert!(altered(|v| v["files"][2]["target"] = json!(bad)).is_err(), "{bad:?}");
        }
        let pointer = json!({"path": "last.ckpt", "content": "../x", "symlink": true});
        assert!(altered(|v| v["pointers"][0] = pointer).is_err());
    }

    #[test]
    fn another_schema_or_another_commits_manifest_is_refused() {
        assert!(altered(|v| v["schema"] = json!("trainit.ckpt/2")).is_err_and(|e| e.contains("trainit.ckpt/2")));
        assert!(altered(|v| v["seq"] = json!(9)).is_err());
        assert!(altered(|v| v["step"] = json!(11)).is_err());
        assert!(altered(|v| v["later"] = json!("addition")).is_ok());
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let name = CommitName::of(good().stamp(), Some(10), &bytes);
            let _ = Manifest::read(&name, &bytes);
        }

        #[test]
        fn an_accepted_path_stays_beneath(text in "[a./\0]{0,12}|[.]{1,3}/?[a.]{0,3}") {
            if path(&text).is_ok() {
                let parts: Vec<&str> = text.split('/').collect();
                prop_assert!(parts.iter().all(|p| !p.is_empty() && *p != "." && *p != ".."));
                prop_assert!(!text.contains('\0') && !text.starts_with('/'));
            }
        }

        #[test]
        fn a_field_of_any_type_is_refused_or_harmless(field in "schema|job|attempt|seq|step|unit|files|pointers|total_bytes", at in 0usize..6) {
            let value = [json!(null), json!(-1), json!("x"), json!([]), json!({}), json!(1e300)][at].clone();
            let _ = altered(|v| v[field.as_str()] = value);
        }
    }
}
