//! What of a commit lies in the checkpoint directory already: not to be fetched, and not to be committed again.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::mirror::{RESTORING, SMALL, beneath, blocking};
use super::sums::Compared;
use crate::edge::beneath::{Beneath, forget, read_at, set_time};
use crate::edge::links;
use crate::rules::checkpoint::manifest::{Item, ItemKind, Manifest};
use crate::rules::checkpoint::{Kind, Listing};

/// Bytes read at a time.
const PART: u64 = 8 << 20;

/// Paths of the manifest's files that lie in the directory, or at the end of a link that is followed, with equal size and
/// checksum.
pub(super) async fn equal_files(
    dir: &Arc<Beneath>,
    manifest: &Manifest,
    listing: &Listing,
) -> io::Result<HashSet<String>> {
    let dir = Arc::clone(dir);
    let through = |path: &str| listing.get(path).and_then(|e| e.through.clone());
    let files: Vec<(Item, Option<PathBuf>)> =
        manifest.regular().map(|item| (item.clone(), through(&item.path))).collect();
    blocking(move || {
        let mut equal = HashSet::new();
        for (item, through) in files {
            let opened = match through {
                Some(real) => links::open(&real),
                None => dir.read_file(&item.path),
            };
            let Ok(file) = opened else { continue };
            let size = file.metadata().map(|m| m.len());
            if size.is_ok_and(|size| size == item.size) && is_equal(&file, &item).is_ok_and(|equal| equal) {
                equal.insert(item.path);
            }
        }
        Ok(equal)
    })
    .await
}

/// Leaves out what lies at the ends of links: a restore puts files in their place.
pub(super) fn own(equal: &mut HashSet<String>, listing: &Listing) {
    equal.retain(|path| listing.get(path).is_none_or(|e| e.through.is_none()));
}

/// Whether a file has the checksum of the manifest, and its strong hash where there is one.
fn is_equal(file: &File, item: &Item) -> io::Result<bool> {
    let (mut sums, mut at) = (Compared::with(item), 0);
    while at < item.size {
        let bytes = read_at(file, at, PART as usize)?;
        if bytes.is_empty() {
            break;
        }
        sums.add(&bytes);
        at += bytes.len() as u64;
    }
    forget(file);
    Ok(sums.found().is_of(item))
}

/// Whether a file that was just written has the manifest's strong hash, if there is one. Its parts came in no order, so
/// it is read once more, from memory.
pub(super) fn is_strongly_equal(file: &File, item: &Item) -> io::Result<bool> {
    Ok(item.blake3.is_none() || is_equal(file, item)?)
}

/// Whether the directory holds the commit's unit byte for byte; what cannot be read is taken for different.
pub(super) async fn holds(dir: &Path, manifest: &Manifest, listing: &Listing) -> bool {
    let at = dir.to_owned();
    let Ok(dir) = blocking(move || beneath(&at)).await else { return false };
    let equal = equal_files(&dir, manifest, listing).await.unwrap_or_default();
    is_in_place(&dir, manifest, &equal, listing).await
}

/// Whether every file of the manifest lies in the directory with its size; what lies at the end of a link that is followed
/// is not asked for. Those that were not fetched get the manifest's times: the order in which files were written tells a
/// whole checkpoint from two halves. Where that may not be (a file of somebody else's), they keep theirs.
pub(super) async fn settle(
    dir: &Arc<Beneath>,
    manifest: &Manifest,
    equal: &HashSet<String>,
    listing: &Listing,
) -> io::Result<bool> {
    let dir = Arc::clone(dir);
    let ours = manifest.regular().filter(|i| listing.get(&i.path).is_none_or(|e| e.through.is_none()));
    let files: Vec<(Item, bool)> = ours.map(|item| (item.clone(), equal.contains(&item.path))).collect();
    blocking(move || {
        for (item, is_old) in files {
            let there = dir.look(&item.path)?.filter(|there| there.kind == Kind::File && there.size == item.size);
            let Some(there) = there else { return Ok(false) };
            if is_old && there.mtime_ns != item.mtime_ns {
                let _ = dir.read_file(&item.path).and_then(|file| set_time(&file, item.mtime_ns));
            }
        }
        Ok(true)
    })
    .await
}

/// Units that a restore which was cut short, or is under way, may have left half in place.
pub(super) fn half(dir: &Beneath) -> Vec<String> {
    dir.read(RESTORING, SMALL).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

/// Whether this one is among them.
pub(super) async fn is_half(dir: &Arc<Beneath>, unit: &str) -> bool {
    let (dir, unit) = (Arc::clone(dir), unit.to_owned());
    blocking(move || Ok(half(&dir).contains(&unit))).await.unwrap_or(true)
}

/// Writes down which units may be half in place from now on.
pub(super) fn mark(dir: &Beneath, half: &[String]) -> io::Result<()> {
    match half {
        [] => dir.remove_file(RESTORING),
        _ => dir.replace(RESTORING, serde_json::json!(half).to_string().as_bytes(), 0o644),
    }
}

/// Whether the directory holds the unit exactly: every file equal, every link and directory there, nothing more, and no
/// restore of it was cut short.
pub(super) async fn is_in_place(
    dir: &Arc<Beneath>,
    manifest: &Manifest,
    equal: &HashSet<String>,
    listing: &Listing,
) -> bool {
    if manifest.regular().any(|f| !equal.contains(&f.path)) || is_half(dir, &manifest.unit).await {
        return false;
    }
    for item in manifest.files.iter().filter(|f| f.kind != ItemKind::File) {
        let kind = listing.get(&item.path).map(|e| e.kind.clone());
        let is_there = match (&kind, &item.target) {
            (Some(Kind::Symlink(now)), Some(target)) => now == target,
            (Some(Kind::Directory), None) => true,
            _ => false,
        };
        if !is_there {
            return false;
        }
    }
    let named: HashSet<&str> = manifest.files.iter().map(|f| f.path.as_str()).collect();
    let is_extra = |path: &str, kind: &Kind| *kind != Kind::Directory && !named.contains(path);
    let directories = manifest.directories();
    let mut inside = directories.iter().flat_map(|directory| listing.below(directory));
    let extra = inside.any(|e| is_extra(&e.path, &e.kind));
    !extra
}
