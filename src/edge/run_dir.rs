//! A small directory of this run's own, for the files that trainer and trainit tell each other by.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::process::own_pid;

/// Removed with what is in it when dropped.
#[derive(Debug)]
pub struct RunDir(PathBuf);

impl RunDir {
    /// Makes it in the first place that takes it: /dev/shm (memory: a preemption is told without a disk's help), `tmp` (the
    /// user's TMPDIR), /tmp, /run. `None`: nowhere.
    pub fn make(tmp: Option<&str>, stamp: u64) -> Option<RunDir> {
        let places = [Some("/dev/shm"), tmp, Some("/tmp"), Some("/run")].into_iter().flatten();
        places.map(Path::new).find_map(|place| {
            (0..8).find_map(|salt| {
                let path = place.join(format!("trainit-{}-{:x}", own_pid(), stamp.wrapping_add(salt)));
                DirBuilder::new().mode(0o755).create(&path).ok().map(|()| RunDir(path))
            })
        })
    }

    /// A file in it, as text for a variable.
    pub fn file(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }

    /// Writes a file whole: it appears with its content or not at all. Errors: as for files.
    pub fn publish(&self, name: &str, content: &str) -> io::Result<()> {
        let (hidden, path) = (self.0.join(format!(".{name}")), self.0.join(name));
        fs::write(&hidden, content)?;
        fs::rename(&hidden, &path)
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // Mostly nothing is in it.
        if fs::remove_dir(&self.0).is_err() {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}
