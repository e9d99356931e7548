//! Paths in `.trainit` of a checkpoint directory, and small file operations that several modules share.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use crate::edge::clock;
use crate::edge::fs::links::Files;
use crate::edge::fs::rooted_dir::RootedDir;
use crate::edge::fs::walk;
use crate::rules::checkpoint::listing::around;
use crate::rules::checkpoint::{Entry, ends};
use crate::rules::store::names::hash16;

/// For files that a restore fetches.
pub(crate) const TEMPORARY: &str = ".trainit/tmp";
/// Hard links to files that are being sent.
pub(crate) const HARD_LINKS: &str = ".trainit/pin";
/// Locked by the process that installs files.
pub(crate) const LOCK: &str = ".trainit/lock";
/// Files that a restore or a gang's decision moved.
pub(crate) const ASIDE: &str = ".trainit/aside";
/// Files of a killed trainer that may be half a save.
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

/// Removes from the places in `within` the files without the end that their type requires, if a newer place has the path,
/// too. A job that is killed repeatedly must not fill its disk, but what is whole is never removed. Errors: as open(2),
/// unlink(2).
pub(crate) fn remove_superseded(dir: &RootedDir, within: &str) -> io::Result<()> {
    let places = RootedDir::open(&dir.path().join(within))?;
    let listing = walk::walk(places.path())?;
    let mut newest: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
    for file in listing.files() {
        newest.entry(file.path.split_once('/').map_or("", |(_, path)| path)).or_default().push(file);
    }
    let files = Files { rooted_dir: &places, listing: &listing };
    for versions in newest.values_mut() {
        versions.sort_by_key(|file| file.ctime_ns);
        let older = versions.split_last().map_or(&[][..], |(_, older)| older);
        for file in older.iter().filter(|file| ends::whole(&files, file).is_err()) {
            places.remove_file(&file.path)?;
            around(&file.path).skip(1).for_each(|parent| _ = places.remove_empty(parent));
        }
    }
    Ok(())
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
