//! A small directory of this run: the files that trainer and trainit exchange, and the status socket.
//!
//! It is called `trainit-UID-PID-RANDOM`, because containers may share the place and another user must not be able to take
//! the name first. It is in memory if the system has such a place. The run holds flock(2) on it while it lives, so a process in
//! any PID namespace can detect the directory of a killed run.

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

use crate::edge::clock::{self, Clock};
use crate::edge::fs::rooted_dir::open_dir::{MOVED_UP, OpenDir, remove_tree};
use crate::edge::fs::trusted_open;
use crate::edge::process::signals;
use crate::edge::process::spawn::own_pid;

/// The file that announces a preemption.
pub const PREEMPTION: &str = "preemption";
/// The file with the step at which all replicas of a gang save after a notice.
pub const SAVE_AT_STEP: &str = "save-at-step";
/// The file with the step at which the trainer saves next.
pub const SAVE_STEP: &str = "save-step";
/// The file whose mtime shows that the trainer is alive.
const HEARTBEAT: &str = "heartbeat";
/// Prefix of temporary files that are renamed to it.
const BEGUN_HEARTBEAT: &str = ".heartbeat.";
/// Prefix of the files in which the main children leave their last error.
pub const ERROR: &str = "error.";
/// Prefix of the directory in which any user may create it.
const OPEN: &str = "open-";
/// The file with the hosts for MPI.
pub const HOSTFILE: &str = "hostfile";
/// The file with the checkpoint directory and the store of this run, and whether it commits them.
pub const KEPT: &str = "kept";
/// The status socket: a connection receives the run's status.
pub const SOCKET: &str = "socket";
/// The socket to which processes of the job send copies of their reports. It is beside the status socket.
pub const REPORTS: &str = "reports";

/// The number of random names to try in one place.
const TRIES: usize = 8;
/// A younger directory without a lock may be about to get one.
const SETTLED: Duration = Duration::from_secs(5);
/// The limit of run directories to look at in one place.
const LOOKED_AT: usize = 65_536;
/// The limit of directories that one run checks for removal, and of the time for that.
const CLEARED: usize = 64;
const CLEARED_WITHIN: Duration = Duration::from_secs(5);
/// The limit for the removal of a run's own directory. The next run continues it.
const REMOVED_WITHIN: Duration = Duration::from_millis(200);
/// The limit of entries of a killed run's directory to look at.
const MOST_ENTRIES: usize = 4096;
/// More bytes than any file of trainit has.
const RESERVED_BYTES: usize = 64;

const DIRECTORY: OFlag = OFlag::O_DIRECTORY.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);
const NEW_FILE: OFlag = OFlag::O_WRONLY.union(OFlag::O_CREAT).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// The directory. [`RunDir::remove`] removes it with its content.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    /// The directory itself. It keeps the lock.
    dir: File,
    /// The name of the directory in it in which any user may create the heartbeat file, if there is one.
    open: Option<String>,
    /// Published files: name and content.
    published: Vec<(String, String)>,
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
        places(tmp).find_map(|place| (0..TRIES).find_map(|_| RunDir::hold(path(place)).ok()))
    }

    fn hold(path: PathBuf) -> io::Result<RunDir> {
        let dir = create(&path)?;
        Ok(RunDir { path, dir, open: None, published: Vec::new(), has_cleared: false })
    }

    /// Creates it again if it was removed, for example by a trainer that clears `/dev/shm`. Names and published files stay the
    /// same, because the trainer's variables contain them. Returns whether it did.
    pub fn recreate_if_missing(&mut self) -> bool {
        let is_gone = fs::symlink_metadata(&self.path).is_err_and(|error| error.kind() == ErrorKind::NotFound);
        let Some(dir) = is_gone.then(|| create(&self.path).ok()).flatten() else { return false };
        self.dir = dir;
        if let Some(open) = &self.open {
            let _ = self.open_up(open);
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
        let open = format!("{OPEN}{:016x}", random());
        self.open = (own_uid() == 0 && self.open_up(&open).is_ok()).then_some(open);
        let place = self.open.as_ref().map_or(self.path.clone(), |open| self.path(open));
        place.join(HEARTBEAT).to_string_lossy().into_owned()
    }

    /// Creates the directory into which any user may write.
    fn open_up(&self, open: &str) -> nix::Result<()> {
        fchmod(&self.dir, Mode::from_bits_truncate(0o711))?;
        mkdirat(&self.dir, open, Mode::S_IRWXU)?;
        fchmod(openat(&self.dir, open, DIRECTORY, Mode::empty())?, Mode::from_bits_truncate(0o1733))
    }

    /// Removes a published file.
    pub fn withdraw(&mut self, name: &str) {
        if self.published.iter().any(|(published, _)| published == name) {
            self.published.retain(|(published, _)| published != name);
            let _ = unlinkat(&self.dir, name, UnlinkatFlags::NoRemoveDir);
        }
    }

    /// Writes a file whole: it appears with its content or not at all. Errors: as for files.
    pub fn publish(&mut self, name: &str, content: &str) -> io::Result<()> {
        let mut file = self.hidden(name)?;
        file.write_all(content.as_bytes())?;
        file.set_len(content.len() as u64)?;
        renameat(&self.dir, format!(".{name}").as_str(), &self.dir, name)?;
        self.published.retain(|(before, _)| before != name);
        self.published.push((name.to_owned(), content.to_owned()));
        Ok(())
    }

    /// The file that is renamed to a published file. It is not truncated, because that would free the reserved space.
    fn hidden(&self, name: &str) -> io::Result<File> {
        Ok(openat(&self.dir, format!(".{name}").as_str(), NEW_FILE, Mode::from_bits_truncate(0o666))?.into())
    }

    /// Reserves space for a file that is published later, when the file system may be full. Best effort.
    pub fn reserve(&self, name: &str) {
        let _ = self.hidden(name).and_then(|mut file| file.write_all(&[b'\n'; RESERVED_BYTES]));
    }

    /// Removes directories of killed runs in the same place, at the first call, on a thread, because they may be full. On a
    /// machine with many runs each looks at a few of them, from a random one on, so that the cost does not grow with their
    /// number.
    pub fn clear_others(&mut self) {
        let Some(place) = self.path.parent().filter(|_| !self.has_cleared) else { return };
        self.has_cleared = true;
        let place = place.to_owned();
        let _ = signals::thread_without_signals("clear", move || clear(&place));
    }

    /// Removes it with its content, within a limit: a trainer may have filled it, and its file system may hang.
    pub fn remove(self) {
        let removal = move || {
            let (place, name) = trusted_open::parent(&self.path)?;
            OpenDir::of(self.dir.into())?.empty(REMOVED_WITHIN)?;
            Ok(unlinkat(place, name.as_os_str(), UnlinkatFlags::RemoveDir)?)
        };
        let _ = signals::in_time("run directory", REMOVED_WITHIN, removal);
    }
}

/// Creates the directory, and locks it. A file system may have no locks. Errors: as mkdir(2), open(2).
fn create(path: &Path) -> io::Result<File> {
    let (place, name) = trusted_open::parent(path)?;
    mkdirat(&place, name.as_os_str(), Mode::from_bits_truncate(0o755))?;
    let opened = openat(&place, name.as_os_str(), DIRECTORY, Mode::empty()).map_err(io::Error::from).map(File::from);
    let held = opened.and_then(|dir| match lock(&dir) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Err(error),
        _ => Ok(dir),
    });
    held.inspect_err(|_| _ = unlinkat(&place, name.as_os_str(), UnlinkatFlags::RemoveDir))
}

/// The run directories of trainit's user only, because a caller trusts their answers.
pub fn own(tmp: Option<&str>) -> Vec<PathBuf> {
    all(tmp).into_iter().filter(|path| owner(path) == Some(own_uid())).collect()
}

/// The directories of runs that may be alive and may be asked: those of trainit's user, all of them for root.
pub fn all(tmp: Option<&str>) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = places(tmp).flat_map(runs_in).collect();
    found.sort();
    found.dedup();
    found
}

fn runs_in(place: &Path) -> Vec<PathBuf> {
    let Ok(mut directory) = OpenDir::open(place) else { return Vec::new() };
    let names = directory.names_that(LOOKED_AT, is_name).unwrap_or_default();
    let own = own_uid();
    let is_own = |name: &CString| {
        let found = directory.look(name);
        found.is_ok_and(|it| it.st_mode & libc::S_IFMT == libc::S_IFDIR && (it.st_uid == own || own == 0))
    };
    let own_names = names.iter().filter(|name| is_own(name)).filter_map(|name| name.to_str().ok());
    own_names.map(|name| place.join(name)).collect()
}

/// Whether this is the name of a run directory.
fn is_name(name: &CStr) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let rest = name.to_str().ok().and_then(|name| name.strip_prefix("trainit-")?.split_once('-'));
    rest.is_some_and(|(uid, rest)| {
        let (pid, random) = rest.split_once('-').unwrap_or((rest, "0"));
        number(uid) && pid.split('.').all(number) && random.bytes().all(|b| b.is_ascii_hexdigit())
    })
}

/// Removes directories of killed runs.
fn clear(place: &Path) {
    let clock = Clock::start();
    let Ok(mut place) = OpenDir::open(place) else { return };
    let mut names = place.names_that(LOOKED_AT, is_name).unwrap_or_default();
    let first = random() as usize % names.len().max(1);
    names.rotate_left(first);
    for name in names.iter().take(CLEARED) {
        let _ = clear_if_left(&place, name, CLEARED_WITHIN.saturating_sub(clock.now()));
    }
}

/// Removes the directory if it is of an ended run of trainit's user. Foreign files stay. Errors: as for files; the rest stays.
fn clear_if_left(place: &OpenDir, name: &CStr, limit: Duration) -> io::Result<()> {
    let dir = File::from(openat(place, name, DIRECTORY, Mode::empty())?);
    let found = dir.metadata()?;
    let age = found.modified().ok().and_then(|at| clock::wall().duration_since(at).ok());
    if found.uid() != own_uid() || age.is_none_or(|age| age < SETTLED) {
        return Ok(());
    }
    lock(&dir)?;
    let names = OpenDir::of(dir.as_fd().try_clone_to_owned()?)?.names_that(MOST_ENTRIES, is_trainits)?;
    for name in names {
        remove_tree(&dir, &name, limit)?;
    }
    Ok(unlinkat(place, name, UnlinkatFlags::RemoveDir)?)
}

/// Whether an entry of a run directory is of trainit: a file, a temporary one that is renamed to it, the directory for the
/// heartbeat (the Python package's temporary heartbeat is called `.heartbeat.PID.THREAD`), or the rest of a removal.
fn is_trainits(name: &CStr) -> bool {
    let name = name.to_str().unwrap_or_default();
    [PREEMPTION, SAVE_AT_STEP, SAVE_STEP, HEARTBEAT, HOSTFILE, KEPT, SOCKET, REPORTS]
        .contains(&name.trim_start_matches('.'))
        || [OPEN, BEGUN_HEARTBEAT, ERROR, MOVED_UP].iter().any(|prefix| name.starts_with(prefix))
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
        File::open(path).and_then(|dir| dir.set_modified(old)).expect("an older stamp");
    }

    #[test]
    fn a_directory_of_a_killed_run_is_removed_and_one_in_use_is_kept() {
        let place = tempfile::tempdir().expect("a directory");
        let name = |pid: u32| place.path().join(format!("trainit-{}-{pid}", own_uid()));
        let (alive, dead, foreign, new) = (name(1), name(2), name(3), name(4));
        let held = RunDir::hold(alive.clone()).expect("a lock");
        let mut dead_run = RunDir::hold(dead.clone()).expect("a lock");
        fs::write(dead_run.heartbeat(), "x").expect("a file");
        fs::write(dead.join(".heartbeat.7.7"), "x").expect("a file");
        drop(dead_run);
        for path in [&foreign, &new] {
            fs::create_dir(path).expect("a directory");
        }
        for path in [&alive, &dead, &foreign, &new] {
            fs::write(path.join(PREEMPTION), "x").expect("a file");
        }
        fs::write(foreign.join("thesis.txt"), "x").expect("a file");
        [&alive, &dead, &foreign].into_iter().for_each(|path| age(path));
        clear(place.path());
        assert!(!dead.exists(), "left behind");
        assert!(alive.join(PREEMPTION).exists(), "in use");
        assert!(foreign.join("thesis.txt").exists(), "a foreign file stays");
        assert!(new.exists(), "it may be about to get its lock");
        held.remove();
        assert!(!alive.exists());
    }

    #[test]
    fn of_many_directories_of_killed_runs_each_run_removes_a_few() {
        let place = tempfile::tempdir().expect("a directory");
        for pid in 0..3 * CLEARED {
            let path = place.path().join(format!("trainit-{}-{pid}", own_uid()));
            fs::create_dir(&path).expect("a directory");
            age(&path);
        }
        clear(place.path());
        assert_eq!(fs::read_dir(place.path()).expect("a directory").count(), 2 * CLEARED);
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
        let mut dir = RunDir::hold(path.clone()).expect("a lock");
        let heartbeat = dir.heartbeat();
        dir.publish(KEPT, "mine").expect("room");
        assert!(!dir.recreate_if_missing(), "nothing is missing");
        fs::remove_dir_all(&path).expect("it goes");
        assert!(dir.recreate_if_missing());
        fs::write(&heartbeat, "").expect("the trainer may beat");
        assert_eq!(fs::read_to_string(dir.path(KEPT)).expect("it is there"), "mine");
        assert!(File::open(&path).and_then(|found| lock(&found)).is_err(), "in use");
        fs::remove_dir_all(&path).expect("it goes");
        std::os::unix::fs::symlink(place.path(), &path).expect("a link");
        assert!(!dir.recreate_if_missing());
        assert!(!place.path().join(KEPT).exists());
        fs::remove_file(&path).expect("it goes");
    }

    #[test]
    fn a_reserved_file_is_published_whole_and_no_longer_than_its_content() {
        let place = tempfile::tempdir().expect("a directory");
        let mut dir = RunDir::hold(place.path().join("run")).expect("a lock");
        dir.reserve(PREEMPTION);
        dir.publish(PREEMPTION, "soon\n").expect("room");
        assert_eq!(fs::read_to_string(dir.path(PREEMPTION)).expect("it is there"), "soon\n");
    }
}
