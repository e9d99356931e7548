//! Paths in `.trainit` of a checkpoint directory, and small file operations that several modules share.

use std::collections::BTreeSet;
use std::io;

use crate::edge::clock;
use crate::edge::fs::rooted_dir::RootedDir;
use crate::rules::checkpoint::listing::around;
use crate::rules::store::names::hash16;

/// For files that a restore fetches.
pub(crate) const TEMPORARY: &str = ".trainit/tmp";
/// Hard links to files that are being sent.
pub(crate) const HARD_LINKS: &str = ".trainit/pin";
/// Locked by the process that installs files.
pub(crate) const LOCK: &str = ".trainit/lock";
/// Files that a restore moved. trainit removes only those of a gang's decisions, except the newest two.
pub(crate) const ASIDE: &str = ".trainit/aside";
/// Incomplete files of a killed trainer. The newest few are kept.
pub(crate) const TORN: &str = ".trainit/torn";
/// Bytes of the record of the last commit, which names each file.
pub(crate) const RECORD_LIMIT: u64 = 512 << 20;
/// Limit of the numbers tried by [`free_place`].
const MOST_PLACES: u32 = 10_000;

/// A free path `WITHIN/NAME-1`, `-2` and so on. Errors: as stat(2); AlreadyExists if there are too many.
pub(crate) fn free_place(dir: &RootedDir, within: &str, name: &str) -> io::Result<String> {
    let taken: Vec<String> = dir.names(within)?;
    let free = (1..MOST_PLACES).map(|n| format!("{name}-{n}")).find(|place| !taken.contains(place));
    free.map(|place| format!("{within}/{place}")).ok_or_else(|| io::ErrorKind::AlreadyExists.into())
}

/// Moves these paths to a place, and removes directories that become empty, because a framework may take one for the newest
/// checkpoint. Absent paths are ignored. Errors: as rename(2).
pub(crate) fn move_away<'a>(dir: &RootedDir, paths: impl Iterator<Item = &'a String>, place: &str) -> io::Result<()> {
    let mut parents = BTreeSet::new();
    for path in paths {
        match dir.rename(path, &format!("{place}/{path}")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            moved => moved?,
        }
        parents.extend(around(path).skip(1));
    }
    parents.iter().rev().for_each(|parent| _ = dir.remove_empty(parent));
    Ok(())
}

/// The number of places of one kind that are kept. A job that is killed repeatedly must not fill its disk.
const KEPT: usize = 2;

/// Removes all but the newest places in `within` whose names begin with `prefix`. `place` counts as the newest. Errors: as
/// stat(2), unlink(2).
pub(crate) fn keep_newest(dir: &RootedDir, within: &str, prefix: &str, place: &str) -> io::Result<()> {
    let mut places = Vec::new();
    for name in dir.names(within)?.into_iter().filter(|name| name.starts_with(prefix)) {
        let path = format!("{within}/{name}");
        let changed = dir.look(&path)?.map_or(0, |entry| entry.mtime_ns);
        places.push((path == place, changed, path));
    }
    places.sort();
    let older = places.len().saturating_sub(KEPT);
    places[..older].iter().try_for_each(|(_, _, path)| dir.remove_tree(path))
}

/// Sixteen random hex digits.
pub(crate) fn nonce() -> String {
    use std::hash::{BuildHasher, Hasher};
    let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
    hash16(format!("{random} {} {:?}", std::process::id(), clock::wall()).as_bytes())
}

/// Whether this is the error of a read-only directory.
pub(crate) fn is_read_only(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EROFS | libc::EACCES | libc::EPERM))
}
