//! File systems that do not answer. Each is let go of when it is dropped, which ends every call that waits in it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Nobody reads what the kernel asks: whoever touches the directory waits until this is dropped.
pub struct Hung {
    at: PathBuf,
    _fuse: File,
}

impl Hung {
    /// Lies over a directory. `None`: that cannot be done here.
    pub fn over(at: &Path) -> Option<Hung> {
        let fuse = File::options().read(true).write(true).open("/dev/fuse").ok()?;
        let mut mount = Command::new("mount");
        // It has the device as its standard input.
        mount.args(["-i", "-n", "-t", "fuse.hung", "-o", "fd=0,rootmode=40755,user_id=0,group_id=0", "hung"]);
        let is_mounted = mount.arg(at).stdin(fuse.try_clone().ok()?).stderr(Stdio::null()).status().ok()?.success();
        is_mounted.then(|| Hung { at: at.to_owned(), _fuse: fuse })
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}
