//! File systems that do not answer. Dropping one unmounts it and ends every call that waits in it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The kernel's requests are not read: a process that uses the directory waits until this is dropped.
pub struct Hung {
    at: PathBuf,
    _fuse: File,
}

impl Hung {
    /// Mounts over a directory. `None`: impossible on this machine.
    pub fn over(at: &Path) -> Option<Hung> {
        let fuse = File::options().read(true).write(true).open("/dev/fuse").ok()?;
        let mut mount = Command::new("mount");
        // The helper has the device as its standard input.
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

/// It can be read. A process that writes waits until it thaws.
pub struct Frozen {
    at: PathBuf,
}

impl Frozen {
    /// Mounts over a directory, with an image in the same parent, not frozen yet. `None`: impossible on this machine.
    pub fn over(at: &Path) -> Option<Frozen> {
        let image = at.with_extension("image");
        File::create(&image).ok()?.set_len(32 << 20).ok()?;
        let done = |program: &str, args: &[&str]| {
            let mut command = Command::new(program);
            let done = command.args(args).arg(&image).stdout(Stdio::null()).stderr(Stdio::null()).status();
            done.is_ok_and(|status| status.success())
        };
        let is_made = done("mkfs.ext4", &["-q", "-F"]);
        let mut mount = Command::new("mount");
        mount.args(["-o", "loop"]).arg(&image).arg(at).stderr(Stdio::null());
        (is_made && mount.status().ok()?.success()).then(|| Frozen { at: at.to_owned() })
    }

    /// Freezes until the result is dropped. Drop it before waiting for a process that writes.
    pub fn freeze(&self) -> Ice<'_> {
        assert!(Command::new("fsfreeze").arg("-f").arg(&self.at).status().unwrap().success());
        Ice(&self.at)
    }
}

pub struct Ice<'a>(&'a Path);

impl Drop for Ice<'_> {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").arg("-u").arg(self.0).status();
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
        let _ = fs::remove_file(self.at.with_extension("image"));
    }
}
