//! A small directory of this run: the files that trainer and trainit exchange, and the status socket.
//!
//! It is called `trainit-UID-PID-RANDOM`, because containers may share the place and another user must not be able to take
//! the name first. It is in memory if the system has such a place. The run holds flock(2) on it while it lives, so a process in
//! any PID namespace can detect the directory of a killed run.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::unistd::geteuid;

use crate::edge::clock;
use crate::edge::fs::trusted_open;
use crate::edge::process::spawn::own_pid;

/// The file that announces a preemption.
pub const PREEMPTION: &str = "preemption";
/// The file whose mtime shows that the trainer is alive.
const HEARTBEAT: &str = "heartbeat";
/// Prefix of temporary files that are renamed to it.
const BEGUN_HEARTBEAT: &str = ".heartbeat.";
/// Prefix of the directory in which any user may create it.
const OPEN: &str = "open-";
/// The file with the hosts for MPI.
pub const HOSTFILE: &str = "hostfile";
/// The file with the checkpoint directory and the store of this run, and whether it commits them.
pub const KEPT: &str = "kept";
/// The status socket: a connection receives the run's status.
pub const SOCKET: &str = "socket";

/// The number of random names to try in one place.
const TRIES: usize = 8;
/// A younger directory without a lock may be about to get one.
const SETTLED: Duration = Duration::from_secs(5);
/// The limit of entries to read in one place.
const LOOKED_AT: usize = 4096;
/// The limit of directories that one run checks for removal.
const CLEARED: usize = 64;
/// More bytes than any file of trainit has.
const RESERVED_BYTES: usize = 64;

/// The directory. It is removed with its content when this value is dropped.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    /// The directory in which any user may create the heartbeat file, if there is one.
    open: Option<PathBuf>,
    /// Published files: name and content.
    published: Vec<(String, String)>,
    /// Keeps the lock.
    lock: Option<File>,
    /// It has looked for directories of killed runs.
    has_cleared: bool,
}

/// Candidate places in order; `tmp` is the user's TMPDIR.
fn places(tmp: Option<&str>) -> impl Iterator<Item = &Path> {
    ["/dev/shm"].into_iter().chain(tmp).chain(["/tmp", "/run"]).map(Path::new)
}

impl RunDir {
    /// Creates it in the first usable place. `None`: no place is usable.
    pub fn make(tmp: Option<&str>) -> Option<RunDir> {
        let path = |place: &Path| place.join(format!("trainit-{}-{}-{:016x}", own_uid(), own_pid(), random()));
        let make = |path: PathBuf| DirBuilder::new().mode(0o755).create(&path).ok().and_then(|()| RunDir::hold(path));
        places(tmp).find_map(|place| (0..TRIES).find_map(|_| make(path(place))))
    }

    fn hold(path: PathBuf) -> Option<RunDir> {
        let lock = take(&path).ok()?;
        Some(RunDir { path, open: None, published: Vec::new(), lock, has_cleared: false })
    }

    /// Creates it again if it was removed, for example by a trainer that clears `/dev/shm`. Names and published files stay the
    /// same, because the trainer's variables contain them. Returns whether it did.
    pub fn recreate_if_missing(&mut self) -> bool {
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

    /// Where the trainer creates its heartbeat file, as text for a variable. Root's entrypoint may change to another user
    /// (gosu, setpriv), and that user may create this file, but no other file of trainit. Only the trainer receives the
    /// name of the directory, so that no other process can put a link there.
    pub fn heartbeat(&mut self) -> String {
        let open = self.path(&format!("{OPEN}{:016x}", random()));
        self.open = (own_uid() == 0 && self.open_up(&open)).then_some(open);
        self.open.as_ref().unwrap_or(&self.path).join(HEARTBEAT).to_string_lossy().into_owned()
    }

    /// Creates the directory into which any user may write.
    fn open_up(&self, open: &Path) -> bool {
        let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).is_ok();
        set(&self.path, 0o711) && DirBuilder::new().mode(0o700).create(open).is_ok() && set(open, 0o1733)
    }

    /// Removes a published file.
    pub fn withdraw(&mut self, name: &str) {
        if self.published.iter().any(|(published, _)| published == name) {
            self.published.retain(|(published, _)| published != name);
            let _ = fs::remove_file(self.path(name));
        }
    }

    /// Writes a file whole: it appears with its content or not at all. Errors: as for files.
    pub fn publish(&mut self, name: &str, content: &str) -> io::Result<()> {
        let (hidden, path) = (self.path(&format!(".{name}")), self.path(name));
        // Not truncated first: that would free the reserved space.
        let mut file = trusted_open::open(&hidden, OFlag::O_WRONLY | OFlag::O_CREAT)?;
        file.write_all(content.as_bytes())?;
        file.set_len(content.len() as u64)?;
        fs::rename(&hidden, &path)?;
        self.published.retain(|(before, _)| before != name);
        self.published.push((name.to_owned(), content.to_owned()));
        Ok(())
    }

    /// Reserves space for a file that is published later, when the file system may be full. Best effort.
    pub fn reserve(&self, name: &str) {
        let file = trusted_open::open(&self.path(&format!(".{name}")), OFlag::O_WRONLY | OFlag::O_CREAT);
        let _ = file.and_then(|mut file| file.write_all(&[b'\n'; RESERVED_BYTES]));
    }

    /// Removes directories of killed runs in the same place, at the first call. On a machine with many runs each looks at a few
    /// of them, from a random one on, so that the cost does not grow with their number.
    pub fn clear_others(&mut self) {
        let Some(place) = self.path.parent().filter(|_| !self.has_cleared) else { return };
        let mut found = run_directories_in(place);
        self.has_cleared = true;
        let first = random() as usize % found.len().max(1);
        found.rotate_left(first);
        found.iter().take(CLEARED).for_each(|path| {
            clear_if_left(path);
        });
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // Usually the directory is empty.
        let _ = fs::remove_file(self.path(SOCKET));
        if fs::remove_dir(&self.path).is_err() {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// The run directories of trainit's user only, because a caller trusts their answers.
pub fn own(tmp: Option<&str>) -> Vec<PathBuf> {
    let is_own = |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|found| found.uid() == own_uid());
    all(tmp).into_iter().filter(is_own).collect()
}

/// The directories of runs that may be alive and may be asked: those of trainit's user, all of them for root. Directories of
/// killed runs of this user are removed.
pub fn all(tmp: Option<&str>) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = places(tmp).flat_map(own_runs_in).filter(|path| !clear_if_left(path)).collect();
    found.sort();
    found.dedup();
    found
}

fn own_runs_in(place: &Path) -> Vec<PathBuf> {
    let own = own_uid();
    let is_own = |path: &PathBuf| {
        fs::symlink_metadata(path).is_ok_and(|found| found.is_dir() && (found.uid() == own || own == 0))
    };
    run_directories_in(place).into_iter().filter(is_own).collect()
}

/// The directories that have the name of a run directory.
fn run_directories_in(place: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(place) else { return Vec::new() };
    let is_name = |name: &str| {
        let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        name.strip_prefix("trainit-").and_then(|rest| rest.split_once('-')).is_some_and(|(uid, rest)| {
            let (pid, random) = rest.split_once('-').unwrap_or((rest, "0"));
            number(uid) && pid.split('.').all(number) && random.bytes().all(|b| b.is_ascii_hexdigit())
        })
    };
    let named = entries.take(LOOKED_AT).flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_name));
    named.map(|entry| entry.path()).collect()
}

/// Removes the directory if it is of an ended run of trainit's user; returns whether it did. Foreign files stay.
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
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        match entry.file_name().to_str() {
            Some(name) if name.starts_with(OPEN) => _ = fs::remove_dir_all(entry.path()),
            // A temporary heartbeat of the Python package: `.heartbeat.PID.THREAD`.
            Some(name) if name.starts_with(BEGUN_HEARTBEAT) => _ = fs::remove_file(entry.path()),
            _ => {}
        }
    }
    fs::remove_dir(path).is_ok()
}

fn open(dir: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(dir)
}

/// The lock on a directory that was just created. `None`: it cannot be locked, because of a umask that denies reading or a
/// file system without locks. Errors: another process has the lock.
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

/// Locks without waiting. Errors: as flock(2).
fn lock(dir: &File) -> io::Result<()> {
    Ok(dir.try_lock()?)
}

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// The owner of a run directory; `None` if it no longer exists.
pub fn owner(dir: &Path) -> Option<u32> {
    fs::symlink_metadata(dir).map(|found| found.uid()).ok()
}

/// trainit's user.
pub fn own_uid() -> u32 {
    geteuid().as_raw()
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
    fn a_directory_of_a_killed_run_is_removed_and_one_in_use_is_kept() {
        let place = tempfile::tempdir().expect("a directory");
        let name = |pid: u32| place.path().join(format!("trainit-{}-{pid}", own_uid()));
        let (alive, dead, foreign, new) = (name(1), name(2), name(3), name(4));
        for path in [&alive, &dead, &foreign, &new] {
            fs::create_dir(path).expect("a directory");
            fs::write(path.join(PREEMPTION), "x").expect("a file");
        }
        fs::write(foreign.join("thesis.txt"), "x").expect("a file");
        [&alive, &dead, &foreign].into_iter().for_each(|path| age(path));
        let mut held = RunDir::hold(alive.clone()).expect("a lock");
        let mut dead_run =
            RunDir { path: dead.clone(), open: None, published: Vec::new(), lock: None, has_cleared: false };
        fs::write(dead_run.heartbeat(), "x").expect("a file");
        fs::write(dead.join(".heartbeat.7.7"), "x").expect("a file");
        std::mem::forget(dead_run);
        age(&dead);
        held.clear_others();
        assert!(!dead.exists(), "left behind");
        assert!(alive.join(PREEMPTION).exists(), "in use");
        assert!(foreign.join("thesis.txt").exists(), "a foreign file stays");
        assert!(new.exists(), "it may be about to get its lock");
        drop(held);
        assert!(!alive.exists());
    }

    #[test]
    fn of_many_directories_of_killed_runs_each_run_removes_a_few_once() {
        let place = tempfile::tempdir().expect("a directory");
        for pid in 0..3 * CLEARED {
            let path = place.path().join(format!("trainit-{}-{pid}", own_uid()));
            fs::create_dir(&path).expect("a directory");
            age(&path);
        }
        let left = || fs::read_dir(place.path()).expect("a directory").count();
        let mut held = RunDir::hold(place.path().join("own")).expect("a name");
        held.clear_others();
        assert_eq!(left(), 2 * CLEARED);
        held.clear_others();
        assert_eq!(left(), 2 * CLEARED, "once a run");
    }

    #[test]
    fn another_users_run_is_not_an_own_run_even_for_root() {
        if own_uid() != 0 {
            eprintln!("skipped: only root sees another user's runs");
            return;
        }
        let place = tempfile::tempdir().expect("a directory");
        let (own_run, others_run) = (place.path().join("trainit-0-1"), place.path().join("trainit-12345-2"));
        for (path, uid) in [(&own_run, 0), (&others_run, 12345)] {
            fs::create_dir(path).expect("a directory");
            std::os::unix::fs::chown(path, Some(uid), None).expect("root may");
        }
        let in_place = |found: Vec<PathBuf>| found.into_iter().filter(|run| run.starts_with(place.path())).collect();
        let tmp = place.path().to_str();
        let (own, all): (Vec<_>, Vec<_>) = (in_place(own(tmp)), in_place(all(tmp)));
        assert_eq!((own, all), (vec![own_run.clone()], vec![own_run, others_run]));
    }

    #[test]
    fn a_missing_directory_is_created_again_and_a_file_in_its_place_is_kept() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("trainit-0-1");
        fs::create_dir(&path).expect("a directory");
        let mut dir = RunDir::hold(path.clone()).expect("a lock");
        let heartbeat = dir.heartbeat();
        dir.publish(KEPT, "mine").expect("room");
        assert!(!dir.recreate_if_missing(), "nothing is missing");
        fs::remove_dir_all(&path).expect("it goes");
        assert!(dir.recreate_if_missing());
        fs::write(&heartbeat, "").expect("the trainer may beat");
        assert_eq!(fs::read_to_string(dir.path(KEPT)).expect("it is there"), "mine");
        assert!(open(&path).and_then(|found| lock(&found)).is_err(), "in use");
        fs::remove_dir_all(&path).expect("it goes");
        std::os::unix::fs::symlink(place.path(), &path).expect("a link");
        assert!(!dir.recreate_if_missing());
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
