//! The real path of a directory, and whether it outlives the container.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::edge::clock::Clock;
use crate::edge::process::signals::thread_without_signals;
use crate::edge::process::spawn;

/// Pause between two checks whether the caller still waits.
const BEAT: Duration = Duration::from_millis(20);

/// The path without symbolic links. Parts that do not exist are kept.
pub fn real(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let found = whole.ancestors().find_map(|above| {
        let rest = whole.strip_prefix(above).ok()?;
        // Not joined: an empty rest would leave a slash at the end.
        Some(fs::canonicalize(above).ok()?.components().chain(rest.components()).collect())
    });
    found.unwrap_or(whole)
}

/// Real paths, found on a thread of its own, because a file system may hang.
#[derive(Debug, Default)]
pub struct Found {
    real: BTreeMap<PathBuf, PathBuf>,
    ephemeral: BTreeSet<PathBuf>,
    /// Whether the caller gave up.
    pub was_stopped: bool,
}

impl Found {
    /// Waits up to the limit, and only while `may_continue` returns true.
    pub fn of(paths: Vec<PathBuf>, limit: Duration, may_continue: &dyn Fn() -> bool) -> Found {
        let (mut found, clock, (sender, receiver)) = (Found::default(), Clock::start(), channel());
        if paths.is_empty() {
            return found;
        }
        let looks = thread_without_signals("places", move || {
            for path in paths {
                let real = real(&path);
                let _ = sender.send((is_deleted_with_container(&real), real, path));
            }
        });
        while looks.is_ok() && !found.was_stopped && clock.now() < limit {
            match receiver.recv_timeout(BEAT) {
                Ok((is_ephemeral, real, path)) => {
                    found.ephemeral.extend(is_ephemeral.then(|| path.clone()));
                    found.real.insert(path, real);
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => found.was_stopped = !may_continue(),
            }
        }
        found
    }

    /// As [`real`]; the path as given if the real one is unknown.
    pub fn real(&self, path: &Path) -> PathBuf {
        let by_name = || std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        self.real.get(path).cloned().unwrap_or_else(by_name)
    }

    /// Whether files existing are deleted with the container; no if that is unknown.
    pub fn is_ephemeral(&self, path: &Path) -> bool {
        self.ephemeral.contains(path)
    }
}

/// Whether the path is in the writable layer over the image, which is deleted with the container.
fn is_deleted_with_container(real: &Path) -> bool {
    let is_over_an_image =
        || fs::read_to_string("/proc/self/mountinfo").is_ok_and(|mounts| is_root_an_overlay(&mounts));
    let existing = real.ancestors().find(|above| above.exists());
    spawn::own_pid() == 1 && existing.is_some_and(|existing| !is_mounted(existing)) && is_over_an_image()
}

/// Whether `/` is an overlay, from the last line for `/` in this form (proc(5)): `71 46 0:39 / / rw,noatime master:3 - overlay
/// overlay rw,lowerdir=…`. A rootless engine uses `fuse.fuse-overlayfs`.
fn is_root_an_overlay(mountinfo: &str) -> bool {
    let of_root = mountinfo.lines().rfind(|line| line.split(' ').nth(4) == Some("/"));
    let kind = of_root.and_then(|line| line.split_once(" - ")).and_then(|(_, rest)| rest.split(' ').next());
    kind.is_some_and(|kind| ["overlay", "fuse.fuse-overlayfs", "aufs"].contains(&kind))
}

/// Whether the path is on another file system than the root.
pub fn is_mounted(path: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev()).ok();
    device(path).is_some_and(|existing| Some(existing) != device(Path::new("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_resolved_and_missing_parts_are_kept() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let root = fs::canonicalize(dir.path()).expect("is existing");
        fs::create_dir(root.join("a")).expect("mkdir");
        std::os::unix::fs::symlink("a", root.join("link")).expect("symlink");
        assert_eq!(real(&root.join("link")).as_os_str(), root.join("a").as_os_str());
        assert_eq!(real(&root.join("link/b/c")), root.join("a/b/c"));
    }

    #[test]
    fn the_layer_over_an_image_is_known_by_the_type_of_the_root() {
        let volume = "90 71 8:1 /data / rw - ext4 /dev/sda1 rw\n";
        for (kind, is_layer) in [("overlay", true), ("fuse.fuse-overlayfs", true), ("ext4", false)] {
            let root = format!("71 46 0:39 / / rw,noatime master:3 - {kind} {kind} rw,lowerdir=/a - b\n");
            assert_eq!(
                is_root_an_overlay(&format!("{root}72 71 0:41 / /store rw - ext4 /dev/sda1 rw\n")),
                is_layer,
                "{kind}"
            );
            assert!(!is_root_an_overlay(&format!("{root}{volume}")), "the later mount covers it");
        }
        assert!(!is_root_an_overlay("") && !is_root_an_overlay("nonsense / / / /\n"));
        assert!(!is_deleted_with_container(Path::new("/no/such/place")), "no container ends with this process");
    }

    #[test]
    fn proc_is_mounted_and_a_missing_path_is_not() {
        assert!(is_mounted(Path::new("/proc/self")));
        assert!(!is_mounted(Path::new("/")) && !is_mounted(Path::new("/no/such/place")));
    }
}
