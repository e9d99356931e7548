//! A small directory of this run's own: the files that trainer and trainit tell each other by, and the status socket.
//!
//! `trainit-UID-PID` (`….1`, `….2` where that is taken: containers may share a place), in memory where there is a place
//! in memory. Its owner holds flock(2) on the directory as long as it lives, so that anybody, in any PID namespace, can
//! tell one that a killed run left behind.

#![expect(unsafe_code, reason = "flock and geteuid")]

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::clock;
use super::process::own_pid;

/// Announces a preemption.
pub const PREEMPTION: &str = "preemption";
/// Its mtime says that the trainer is alive.
const HEARTBEAT: &str = "heartbeat";
/// Begins the name of the directory that holds it where anybody may make it.
const OPEN: &str = "open-";
/// The hosts for MPI.
pub const HOSTFILE: &str = "hostfile";
/// Which checkpoints it keeps, or is beside the keeper of.
pub const KEPT: &str = "kept";
/// Who connects here is told the run's status.
pub const SOCKET: &str = "socket";

/// Runs of the same user and PID in one place: containers that share it.
const NAMESAKES: usize = 64;
/// A directory without a lock that is younger may be about to get one.
const SETTLED: Duration = Duration::from_secs(5);
/// Of a crowded place no more is looked at.
const LOOKED_AT: usize = 4096;
/// More than any file of ours holds before its end.
const RESERVED_BYTES: usize = 64;

/// Removed with what is in it when dropped.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    /// Where anybody may make the heartbeat file, if not right here.
    open: Option<PathBuf>,
    /// What was published: name and content.
    published: Vec<(String, String)>,
    /// Held for the lock on it.
    lock: Option<File>,
}

/// Where it may be, in order; `tmp` is the user's TMPDIR.
fn places(tmp: Option<&str>) -> impl Iterator<Item = &Path> {
    ["/dev/shm"].into_iter().chain(tmp).chain(["/tmp", "/run"]).map(Path::new)
}

impl RunDir {
    /// Makes it in the first place that takes it. `None`: nowhere.
    pub fn make(tmp: Option<&str>) -> Option<RunDir> {
        let name = format!("trainit-{}-{}", own_uid(), own_pid());
        places(tmp).find_map(|place| {
            (0..NAMESAKES).find_map(|n| {
                let path = place.join(if n == 0 { name.clone() } else { format!("{name}.{n}") });
                match DirBuilder::new().mode(0o755).create(&path) {
                    Ok(()) => RunDir::hold(path).map(Some),
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                        let again = clear_if_left(&path) && DirBuilder::new().mode(0o755).create(&path).is_ok();
                        if again { RunDir::hold(path).map(Some) } else { None }
                    }
                    // No namesake fares better here.
                    Err(_) => Some(None),
                }
            })?
        })
    }

    fn hold(path: PathBuf) -> Option<RunDir> {
        let lock = take(&path).ok()?;
        Some(RunDir { path, open: None, published: Vec::new(), lock })
    }

    /// Makes it anew where somebody has removed it, as trainers do that clear `/dev/shm`: under its old names, which the
    /// trainer's variables hold, with what was published. Whether it did.
    pub fn mend(&mut self) -> bool {
        let is_gone = fs::symlink_metadata(&self.path).is_err_and(|error| error.kind() == ErrorKind::NotFound);
        if !is_gone || DirBuilder::new().mode(0o755).create(&self.path).is_err() {
            return false;
        }
        let Ok(lock) = take(&self.path) else { return false };
        self.lock = lock;
        if let Some(open) = &self.open {
            self.open_up(open);
        }
        for (name, content) in std::mem::take(&mut self.published) {
            let _ = self.publish(&name, &content);
        }
        true
    }

    /// A file in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// A file in it, as text for a variable.
    pub fn file(&self, name: &str) -> String {
        self.path(name).to_string_lossy().into_owned()
    }

    /// Where the trainer makes its heartbeat file, as text for a variable. Root's entrypoint may become another user (gosu,
    /// setpriv), who may then make that file and no other of ours. Only the trainer is told the name of its directory, so
    /// that nobody else can lay a link there.
    pub fn heartbeat(&mut self) -> String {
        let open = self.path(&format!("{OPEN}{:016x}", RandomState::new().build_hasher().finish()));
        self.open = (own_uid() == 0 && self.open_up(&open)).then_some(open);
        self.open.as_ref().unwrap_or(&self.path).join(HEARTBEAT).to_string_lossy().into_owned()
    }

    /// Makes the directory that anybody may write into.
    fn open_up(&self, open: &Path) -> bool {
        let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).is_ok();
        set(&self.path, 0o711) && DirBuilder::new().mode(0o700).create(open).is_ok() && set(open, 0o1733)
    }

    /// Writes a file whole: it appears with its content or not at all. Errors: as for files.
    pub fn publish(&mut self, name: &str, content: &str) -> io::Result<()> {
        let (hidden, path) = (self.path(&format!(".{name}")), self.path(name));
        // Not truncated first: the room that was reserved would be given away.
        let mut file = OpenOptions::new().write(true).create(true).truncate(false).open(&hidden)?;
        file.write_all(content.as_bytes())?;
        file.set_len(content.len() as u64)?;
        fs::rename(&hidden, &path)?;
        self.published.retain(|(before, _)| before != name);
        self.published.push((name.to_owned(), content.to_owned()));
        Ok(())
    }

    /// Takes the room for a file that is to be published when the place may be full. Trying is all that can be done.
    pub fn reserve(&self, name: &str) {
        let _ = fs::write(self.path(&format!(".{name}")), [b'\n'; RESERVED_BYTES]);
    }

    /// Removes what killed runs left beside it.
    pub fn clear_others(&self) {
        if let Some(place) = self.path.parent() {
            ours_in(place).iter().for_each(|path| {
                clear_if_left(path);
            });
        }
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // Mostly nothing else is in it.
        let _ = fs::remove_file(self.path(SOCKET));
        if fs::remove_dir(&self.path).is_err() {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Those of our own user's alone: who goes by what they say trusts them.
pub fn own(tmp: Option<&str>) -> Vec<PathBuf> {
    let is_own = |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|found| found.uid() == own_uid());
    all(tmp).into_iter().filter(is_own).collect()
}

/// The directories of runs that may be alive and that we may ask: our own user's, everybody's for root. What killed runs
/// of ours left behind is removed.
pub fn all(tmp: Option<&str>) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = places(tmp).flat_map(ours_in).filter(|path| !clear_if_left(path)).collect();
    found.sort();
    found.dedup();
    found
}

fn ours_in(place: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(place) else { return Vec::new() };
    let is_name = |name: &str| {
        let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        name.strip_prefix("trainit-")
            .and_then(|rest| rest.split_once('-'))
            .is_some_and(|(uid, pid)| number(uid) && pid.split('.').all(number))
    };
    let named = entries.take(LOOKED_AT).flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_name));
    let own = own_uid();
    let is_ours = |path: &PathBuf| {
        fs::symlink_metadata(path).is_ok_and(|found| found.is_dir() && (found.uid() == own || own == 0))
    };
    named.map(|entry| entry.path()).filter(is_ours).collect()
}

/// Removes the directory of a run of ours that is no more; whether it was one. What we did not put there stays.
fn clear_if_left(path: &Path) -> bool {
    let is_old = fs::symlink_metadata(path).is_ok_and(|found| {
        let age = found.modified().ok().and_then(|at| clock::wall().duration_since(at).ok());
        found.is_dir() && found.uid() == own_uid() && age.is_some_and(|age| age >= SETTLED)
    });
    if !is_old {
        return false;
    }
    let Ok(dir) = open(path) else { return false };
    if lock(&dir).is_err() {
        return false;
    }
    for name in [PREEMPTION, HEARTBEAT, HOSTFILE, KEPT, SOCKET] {
        for file in [name.to_owned(), format!(".{name}")] {
            let _ = fs::remove_file(path.join(file));
        }
    }
    let is_open = |entry: &fs::DirEntry| entry.file_name().to_str().is_some_and(|name| name.starts_with(OPEN));
    for open in fs::read_dir(path).into_iter().flatten().flatten().filter(is_open) {
        let _ = fs::remove_dir_all(open.path());
    }
    fs::remove_dir(path).is_ok()
}

fn open(dir: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(dir)
}

/// The lock on a directory that we have just made. `None`: nobody can lock it, as with a mask that keeps even us from
/// reading it, or where there are no locks at all. Errors: somebody else was quicker.
fn take(path: &Path) -> io::Result<Option<File>> {
    let Ok(dir) = open(path) else { return Ok(None) };
    match lock(&dir) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            let _ = fs::remove_dir(path);
            Err(error)
        }
        _ => Ok(Some(dir)),
    }
}

/// At once or not at all. Errors: as flock(2).
fn lock(dir: &File) -> io::Result<()> {
    // SAFETY: an open descriptor and flags.
    match unsafe { libc::flock(dir.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn own_uid() -> u32 {
    // SAFETY: it takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    fn age(path: &Path) {
        let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        open(path).and_then(|dir| dir.set_modified(old)).expect("an older stamp");
    }

    #[test]
    fn one_that_a_killed_run_left_is_cleared_and_one_in_use_is_not() {
        let place = tempfile::tempdir().expect("a directory");
        let name = |pid: u32| place.path().join(format!("trainit-{}-{pid}", own_uid()));
        let (alive, dead, foreign, new) = (name(1), name(2), name(3), name(4));
        for path in [&alive, &dead, &foreign, &new] {
            fs::create_dir(path).expect("a directory");
            fs::write(path.join(PREEMPTION), "x").expect("a file");
        }
        fs::write(foreign.join("thesis.txt"), "x").expect("a file");
        [&alive, &dead, &foreign].into_iter().for_each(|path| age(path));
        let held = RunDir::hold(alive.clone()).expect("a lock");
        let mut dead_run = RunDir { path: dead.clone(), open: None, published: Vec::new(), lock: None };
        fs::write(dead_run.heartbeat(), "x").expect("a file");
        std::mem::forget(dead_run);
        age(&dead);
        held.clear_others();
        assert!(!dead.exists(), "left behind");
        assert!(alive.join(PREEMPTION).exists(), "in use");
        assert!(foreign.join("thesis.txt").exists(), "what is not ours stays");
        assert!(new.exists(), "it may be about to get its lock");
        drop(held);
        assert!(!alive.exists());
    }

    #[test]
    fn another_users_run_is_not_our_own_even_for_root() {
        if own_uid() != 0 {
            eprintln!("skipped: nobody but root sees another user's runs");
            return;
        }
        let place = tempfile::tempdir().expect("a directory");
        let (ours, anothers) = (place.path().join("trainit-0-1"), place.path().join("trainit-12345-2"));
        for (path, uid) in [(&ours, 0), (&anothers, 12345)] {
            fs::create_dir(path).expect("a directory");
            std::os::unix::fs::chown(path, Some(uid), None).expect("root may");
        }
        let here = |found: Vec<PathBuf>| found.into_iter().filter(|run| run.starts_with(place.path())).collect();
        let tmp = place.path().to_str();
        let (own, all): (Vec<_>, Vec<_>) = (here(own(tmp)), here(all(tmp)));
        assert_eq!((own, all), (vec![ours.clone()], vec![ours, anothers]));
    }

    #[test]
    fn one_that_is_gone_is_made_anew_under_its_names_and_what_lies_in_its_place_is_left_alone() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("trainit-0-1");
        fs::create_dir(&path).expect("a directory");
        let mut dir = RunDir::hold(path.clone()).expect("a lock");
        let heartbeat = dir.heartbeat();
        dir.publish(KEPT, "mine").expect("room");
        assert!(!dir.mend(), "nothing is amiss");
        fs::remove_dir_all(&path).expect("it goes");
        assert!(dir.mend());
        fs::write(&heartbeat, "").expect("the trainer may beat");
        assert_eq!(fs::read_to_string(dir.path(KEPT)).expect("it is there"), "mine");
        assert!(open(&path).and_then(|found| lock(&found)).is_err(), "in use");
        fs::remove_dir_all(&path).expect("it goes");
        std::os::unix::fs::symlink(place.path(), &path).expect("a link");
        assert!(!dir.mend());
        assert!(!place.path().join(KEPT).exists());
        fs::remove_file(&path).expect("it goes");
    }

    #[test]
    fn a_reserved_file_is_published_whole_and_no_longer_than_its_content() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("run");
        fs::create_dir(&path).expect("a directory");
        let mut dir = RunDir::hold(path).expect("a lock");
        dir.reserve(PREEMPTION);
        dir.publish(PREEMPTION, "soon\n").expect("room");
        assert_eq!(fs::read_to_string(dir.path(PREEMPTION)).expect("it is there"), "soon\n");
    }
}
