//! Where directories really lie.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The path without symbolic links, as far as it is there.
pub fn real(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let found = whole.ancestors().find_map(|above| {
        let rest = whole.strip_prefix(above).ok()?;
        // Not joined: an empty rest would leave a slash at the end.
        Some(fs::canonicalize(above).ok()?.components().chain(rest.components()).collect())
    });
    found.unwrap_or(whole)
}

/// Whether what lies there is not on the root's file system.
pub fn is_mounted(path: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev()).ok();
    device(path).is_some_and(|there| Some(there) != device(Path::new("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_resolved_as_far_as_there_is_anything() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let root = fs::canonicalize(dir.path()).expect("is there");
        fs::create_dir(root.join("a")).expect("mkdir");
        std::os::unix::fs::symlink("a", root.join("link")).expect("symlink");
        assert_eq!(real(&root.join("link")).as_os_str(), root.join("a").as_os_str());
        assert_eq!(real(&root.join("link/b/c")), root.join("a/b/c"));
    }

    #[test]
    fn proc_is_mounted_and_what_is_not_there_is_not() {
        assert!(is_mounted(Path::new("/proc/self")));
        assert!(!is_mounted(Path::new("/")) && !is_mounted(Path::new("/no/such/place")));
    }
}
