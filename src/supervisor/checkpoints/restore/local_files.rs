//! The files of a commit that are already in the checkpoint directory: they are neither fetched nor committed again.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::edge::fs::links;
use crate::edge::fs::rooted_dir::{RootedDir, forget, read_at, set_time};
use crate::edge::transfer::blocking::blocking;
use crate::rules::checkpoint::listing::{around, join};
use crate::rules::checkpoint::{Kind, Listing};
use crate::rules::store::manifest::{Item, ItemKind, Manifest};
use crate::supervisor::checkpoints::directory::sums::Sums;
use crate::supervisor::checkpoints::mirror::Mirror;

const PART: u64 = 8 << 20;

/// Paths of the manifest's files and links that the directory has unchanged: with equal size and checksum, or equal target.
/// Errors: as open(2) of the directory.
pub(crate) async fn equal_files(
    dir: &Arc<RootedDir>,
    manifest: &Manifest,
    listing: &Listing,
) -> io::Result<HashSet<String>> {
    let links = manifest.files.iter().filter(|item| is_equal_link(item, listing));
    let mut equal: HashSet<String> = links.map(|item| item.path.clone()).collect();
    let dir = Arc::clone(dir);
    let files: Vec<Item> = manifest.regular().filter(|item| listing.file(&item.path).is_some()).cloned().collect();
    let ends = listing.files().filter_map(|file| Some((file.path.clone(), file.through.clone()?)));
    let through: HashMap<String, PathBuf> = ends.collect();
    let files = blocking(move || {
        let is_same = |item: &Item| {
            let opened = match through.get(&item.path) {
                Some(real) => links::open(real),
                None => dir.read_file(&item.path),
            };
            let Ok(file) = opened else { return false };
            let size = file.metadata().map(|m| m.len());
            size.is_ok_and(|size| size == item.size) && is_equal(&file, item).is_ok_and(|equal| equal)
        };
        Ok(files.into_iter().filter(is_same).map(|item| item.path).collect::<Vec<String>>())
    });
    equal.extend(files.await?);
    Ok(equal)
}

impl Mirror {
    /// Whether the directory holds the commit byte for byte; a file that cannot be read counts as different.
    pub(crate) async fn holds(&self, manifest: &Manifest) -> bool {
        let Ok(dir) = self.in_dir(Ok).await else { return false };
        let Ok(listing) = self.followed().await else { return false };
        let equal = equal_files(&dir, manifest, &listing).await.unwrap_or_default();
        manifest.regular().all(|item| equal.contains(&item.path)) && has_others(manifest, &listing)
    }
}

fn is_equal_link(item: &Item, listing: &Listing) -> bool {
    let now = listing.get(&item.path).map(|entry| &entry.kind);
    matches!((now, &item.target), (Some(Kind::Symlink(now)), Some(target)) if now == target)
}

fn is_equal(file: &File, item: &Item) -> io::Result<bool> {
    let (mut sums, mut at) = (Sums::default(), 0);
    while at < item.size {
        let bytes = read_at(file, at, PART as usize)?;
        if bytes.is_empty() {
            break;
        }
        sums.add(&bytes);
        at += bytes.len() as u64;
    }
    forget(file);
    Ok(sums.are_of(item))
}

/// Whether every file of the manifest is in the directory with its size. Files that were not fetched get the manifest's
/// modification times, and directories that of their newest content, because trainers take the newest by its time; what
/// belongs to other users keeps its own. Errors: as stat(2).
pub(crate) async fn settle(dir: &Arc<RootedDir>, manifest: &Manifest, equal: &HashSet<String>) -> io::Result<bool> {
    let dir = Arc::clone(dir);
    let files: Vec<(Item, bool)> = manifest.regular().map(|item| (item.clone(), equal.contains(&item.path))).collect();
    let parents = manifest.regular().flat_map(|item| around(&item.path).skip(1));
    let directories: BTreeSet<String> = parents.map(str::to_owned).collect();
    blocking(move || {
        for (item, is_old) in files {
            let entry = dir.look(&item.path)?.filter(|entry| entry.kind == Kind::File && entry.size == item.size);
            let Some(entry) = entry else { return Ok(false) };
            if is_old && entry.mtime_ns != item.mtime_ns {
                let _ = dir.read_file(&item.path).and_then(|file| set_time(&file, item.mtime_ns));
            }
        }
        // The innermost first.
        for path in directories.iter().rev() {
            let content = dir.names(path)?.into_iter().map(|name| dir.look(&join(path, &name)));
            let newest = content.filter_map(|entry| Some(entry.ok()??.mtime_ns)).max();
            let _ = newest.map(|newest| dir.set_time_of(path, newest));
        }
        Ok(true)
    })
    .await
}

/// Whether the directory has every link and directory of the manifest.
pub(crate) fn has_others(manifest: &Manifest, listing: &Listing) -> bool {
    let others = || manifest.files.iter().filter(|item| item.kind != ItemKind::File);
    others().all(|item| match item.kind {
        ItemKind::Directory => listing.get(&item.path).is_some_and(|entry| entry.kind == Kind::Directory),
        _ => is_equal_link(item, listing),
    })
}
