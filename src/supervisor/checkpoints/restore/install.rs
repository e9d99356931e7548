//! Installs one commit: local files that differ are moved aside, and fetched files are moved into place.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::sync::Arc;

use crate::edge::fault::Faults;
use crate::edge::fs::rooted_dir::RootedDir;
use crate::edge::fs::walk;
use crate::edge::transfer::blocking::blocking;
use crate::rules::checkpoint::listing::{around, is_below, join};
use crate::rules::checkpoint::{Exclusions, Kind, Listing};
use crate::rules::store::manifest::{Item, ItemKind, Manifest};
use crate::rules::store::names::Attempt;
use crate::rules::store::plan;
use crate::rules::text::safe_text::and_more;
use crate::supervisor::checkpoints::directory::disk::{ASIDE, TEMPORARY, free_place};
use crate::supervisor::checkpoints::directory::record;
use crate::supervisor::checkpoints::directory::scratch_dir::{ScratchDir, turn};
use crate::supervisor::checkpoints::failure::{Failure, Refusal};
use crate::supervisor::checkpoints::mirror::Mirror;
use crate::supervisor::checkpoints::restore::earlier::put_names;
use crate::supervisor::checkpoints::restore::fetch::Fetching;
use crate::supervisor::checkpoints::restore::local_files::{equal_files, has_others, settle};
use crate::supervisor::checkpoints::store::claim::Remote;
use crate::supervisor::checkpoints::store::commits::lacks;

/// How often a restore that another process disturbs is tried.
const TRIES: u32 = 3;

impl Mirror {
    /// Puts one commit in place, and notes the bytes fetched from the store.
    pub(crate) async fn install_commit(&mut self, remote: &Remote, manifest: &Manifest) -> Result<(), Refusal> {
        for _ in 0..TRIES {
            if let Some(fetched) = self.try_to_bring(remote, manifest).await? {
                self.fetched = Some(fetched);
                return Ok(());
            }
        }
        Err(Refusal::Fatal(Failure::store(format!(
            "{} was changed by another process each time this one restored into it, so the checkpoint may not be whole; {}; see what else uses the directory",
            self.config.dir.display(),
            self.config.nothing_done()
        ))))
    }

    /// `None`: another process changed the directory meanwhile.
    async fn try_to_bring(&self, remote: &Remote, manifest: &Manifest) -> Result<Option<u64>, Refusal> {
        // Fails if the store does not hold the whole commit.
        let whole = async || match lacks(&remote.store, manifest).await {
            Ok(None) => Ok(()),
            Ok(Some(why)) => Err(Refusal::Reject(why)),
            Err(error) => Err(Refusal::Fatal(self.config.away(&error))),
        };
        let faults = &self.config.faults;
        let local = |error: io::Error| Refusal::Fatal(self.config.unusable(&error));
        let at = self.config.dir.clone();
        let dir = blocking(move || RootedDir::create(&at).map(Arc::new)).await.map_err(local)?;
        faults.point(20);
        self.sweep(&dir).await;
        if self.config.options.follow && self.holds(manifest).await {
            whole().await?;
            return Ok(Some(0));
        }
        let listing = self.unfollowed().await.map_err(local)?;
        let equal = equal_files(&dir, manifest, &listing).await.map_err(local)?;
        let moves = self.moves(&listing, manifest, &equal);
        let wanted: Vec<&Item> = manifest.regular().filter(|item| !equal.contains(&item.path)).collect();
        let turn = turn(&dir);
        let (fetched, _turn) = if wanted.is_empty() && moves.is_empty() && has_others(manifest, &listing) {
            whole().await?;
            (0, turn.await)
        } else {
            let needed = wanted.iter().map(|item| item.size).sum();
            if let Err(stop) = self.check_space(&dir, needed).await {
                // The error of an incomplete commit has priority.
                return Err(whole().await.err().unwrap_or(stop));
            }
            self.listeners.begin(needed);
            let scratch = ScratchDir::begin(&dir, TEMPORARY).await.map_err(local)?;
            let temporary = scratch.files();
            let fetching =
                Fetching { store: &remote.store, dir: &dir, config: &self.config, listeners: &self.listeners };
            if let Err(stop) = futures_util::try_join!(whole(), fetching.fetch(wanted, &temporary)) {
                scratch.give_up(&dir).await;
                // The check of the listing has the clearer error for a missing file.
                if matches!(stop, Refusal::Reject(_)) {
                    whole().await?;
                }
                return Err(stop);
            }
            faults.point(22);
            let turn = turn.await;
            let mut install = Install {
                dir: Arc::clone(&dir),
                node: self.config.node,
                attempt: self.attempt().map_or("pull".to_owned(), Attempt::to_string),
                moves,
                before: listing,
                others: manifest.files.iter().filter(|item| item.kind != ItemKind::File).cloned().collect(),
                faults: faults.clone(),
                aside: None,
            };
            // Runs to its end even if the caller stops waiting, and keeps the lock and the scratch directory until then.
            let done = blocking(move || {
                let installed = install.carry_out(&temporary);
                // Removed also after an error, because it may fill the disk.
                let removed = scratch.remove(&install.dir);
                Ok((turn, installed, removed, install))
            });
            let (turn, installed, removed, install) = done.await.map_err(local)?;
            self.report_moved(&install);
            match installed {
                Ok(true) => removed.map_err(local)?,
                Ok(false) => return Ok(None),
                Err((Some(path), error)) => return Err(Refusal::Fatal(self.config.unmovable(&path, &error))),
                Err((None, error)) => return Err(local(error)),
            }
            (needed, turn)
        };
        if !settle(&dir, manifest, &equal).await.map_err(local)? {
            return Ok(None);
        }
        faults.point(26);
        for line in put_names(&dir, manifest).await.map_err(local)? {
            self.note(line);
        }
        faults.point(27);
        let done = Arc::clone(&dir);
        blocking(move || record::end_restore(&done)).await.map_err(local)?;
        Ok(Some(fetched))
    }

    pub(crate) async fn unfollowed(&self) -> io::Result<Listing> {
        let dir = self.config.dir.clone();
        blocking(move || walk::walk(&dir)).await
    }

    /// The paths that a restore moves aside. In a directory of several nodes, files outside this commit stay.
    pub(crate) fn moves(&self, listing: &Listing, manifest: &Manifest, equal: &HashSet<String>) -> Vec<String> {
        to_move(listing, manifest, equal, &self.config.options.exclusions, !self.config.has_other_nodes)
    }

    async fn check_space(&self, dir: &Arc<RootedDir>, needed: u64) -> Result<(), Refusal> {
        let place = Arc::clone(dir);
        let free = blocking(move || place.free_bytes()).await;
        let free = free.map_err(|error| Refusal::Fatal(self.config.unusable(&error)))?;
        let wanted = if needed == 0 { 0 } else { plan::space_needed(needed) };
        if free >= wanted {
            return Ok(());
        }
        Err(Refusal::Fatal(Failure::store(format!(
            "no space to restore: {} has {free} bytes free and the checkpoint needs {wanted}; nothing was written, and {}; free space there",
            dir.path().display(),
            self.config.nothing_done()
        ))))
    }

    fn report_moved(&self, install: &Install) {
        let (Some(aside), Some(first)) = (&install.aside, install.moves.first()) else { return };
        let first = and_more(first, install.moves.len());
        self.note(format!(
            "{first} in {} differs from the store's newest commit, which is restored: the local version is kept in {aside}; delete it when it is not needed",
            self.config.dir.display()
        ));
    }
}

/// The paths that a restore moves aside: files that differ from the commit, and, with `extras`, files that are not in it and
/// not excluded from commits. A directory of which everything is moved is moved as one.
fn to_move(
    listing: &Listing,
    manifest: &Manifest,
    equal: &HashSet<String>,
    exclusions: &Exclusions,
    extras: bool,
) -> Vec<String> {
    let directories: BTreeSet<&str> =
        manifest.files.iter().filter(|item| item.kind == ItemKind::Directory).map(|item| item.path.as_str()).collect();
    let files: HashSet<&str> =
        manifest.files.iter().filter(|item| item.kind != ItemKind::Directory).map(|item| item.path.as_str()).collect();
    let mut parents: HashSet<&str> = directories.iter().copied().collect();
    parents.extend(manifest.files.iter().flat_map(|item| around(&item.path).skip(1)));
    let is_moved = |entry: &crate::rules::checkpoint::Entry| {
        let path = entry.path.as_str();
        match entry.kind {
            Kind::Directory => files.contains(path),
            _ if files.contains(path) => !equal.contains(path),
            _ if parents.contains(path) => true,
            _ => extras && exclusions.decide(path).is_none(),
        }
    };
    let mut moved: Vec<&str> = Vec::new();
    for entry in listing.entries().iter().filter(|entry| is_moved(entry)) {
        if !moved.last().is_some_and(|last| is_below(&entry.path, last)) {
            moved.push(&entry.path);
        }
    }
    whole_directories(listing, &moved, &parents)
}

/// These paths, with whole directories in place of their contents.
fn whole_directories(listing: &Listing, moved: &[&str], parents: &HashSet<&str>) -> Vec<String> {
    let all: HashSet<&str> = moved.iter().copied().collect();
    // A directory stays if a file in it stays or will be installed.
    let mut stays: HashSet<&str> = parents.clone();
    for entry in listing.entries() {
        let is_kept = entry.kind != Kind::Directory && !around(&entry.path).any(|path| all.contains(path));
        if is_kept {
            stays.extend(around(&entry.path).skip(1));
        }
    }
    let mut whole = BTreeSet::new();
    for path in moved {
        let outermost = around(path).skip(1).take_while(|parent| !stays.contains(parent)).last();
        whole.insert(outermost.unwrap_or(path).to_owned());
    }
    whole.into_iter().collect()
}

struct Install {
    dir: Arc<RootedDir>,
    node: u32,
    attempt: String,
    moves: Vec<String>,
    /// The listing from before the fetch.
    before: Listing,
    /// Links and directories of the commit.
    others: Vec<Item>,
    faults: Faults,
    /// The directory of moved files.
    aside: Option<String>,
}

impl Install {
    /// Moves local files aside and fetched files into place. False: another process changed the directory first. Errors:
    /// with the path that could not be moved, if any.
    fn carry_out(&mut self, temporary: &str) -> Result<bool, (Option<String>, io::Error)> {
        let dir = Arc::clone(&self.dir);
        let without_path = |error| (None, error);
        if !self.is_as_seen(&dir) {
            return Ok(false);
        }
        // From here on the directory may mix two commits, and only the store is reliable.
        record::begin_restore(&dir, self.node).map_err(without_path)?;
        self.faults.point(23);
        if !self.moves.is_empty() {
            let place = free_place(&dir, ASIDE, &self.attempt).map_err(without_path)?;
            for path in &self.moves {
                let to = format!("{place}/{path}");
                if let Err(error) = dir.rename(path, &to) {
                    // Nothing was changed yet.
                    if self.aside.is_none() {
                        record::end_restore(&dir).map_err(without_path)?;
                    }
                    return Err((Some(path.clone()), error));
                }
                self.aside.get_or_insert_with(|| place.clone());
                self.faults.point(24);
            }
        }
        let (mut at, mut is_free) = (String::new(), true);
        let put = self.put(&dir, temporary, "", &mut at, &mut is_free).and_then(|()| self.put_others(&dir));
        match put {
            Ok(()) => Ok(is_free),
            Err(error) => match error.kind() {
                io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound => Ok(false),
                _ => Err((Some(at), error)),
            },
        }
    }

    /// Whether the paths to move aside are the same files as in the listing.
    fn is_as_seen(&self, dir: &RootedDir) -> bool {
        self.moves.iter().all(|path| {
            let (now, then) = (dir.look(path), self.before.get(path));
            matches!((now, then), (Ok(Some(now)), Some(then)) if (now.inode, now.device) == (then.inode, then.device))
        })
    }

    /// Moves the content of this temporary directory into place. A directory that does not exist yet is moved as one.
    fn put(&self, dir: &RootedDir, temporary: &str, within: &str, at: &mut String, free: &mut bool) -> io::Result<()> {
        let source = |path: &str| join(temporary, path);
        for name in dir.names(&if within.is_empty() { temporary.to_owned() } else { source(within) })? {
            let path = join(within, &name);
            at.clone_from(&path);
            let is_directory = dir.look(&source(&path))?.is_some_and(|entry| entry.kind == Kind::Directory);
            match dir.look(&path)?.map(|entry| entry.kind) {
                Some(Kind::Directory) if is_directory => self.put(dir, temporary, &path, at, free)?,
                None => {
                    dir.rename(&source(&path), &path)?;
                    self.faults.point(25);
                }
                // Another process has created it meanwhile and may use it.
                Some(_) => *free = false,
            }
        }
        Ok(())
    }

    fn put_others(&self, dir: &RootedDir) -> io::Result<()> {
        for item in &self.others {
            match &item.target {
                Some(target) if dir.look(&item.path)?.is_none() => dir.link_symbolically(&item.path, target)?,
                Some(_) => {}
                None => dir.create_directory(&item.path).and_then(|()| dir.set_mode(&item.path, item.mode))?,
            }
        }
        Ok(())
    }
}
