//! The heartbeat file: its modification time shows that the trainer is alive, and it may contain the training step.

use std::fs::{self, Metadata};
use std::sync::{Arc, OnceLock};
use std::time::UNIX_EPOCH;

use crate::edge::fs::small_file;

/// A heartbeat file holds a few digits.
const LONGEST: usize = 4096;

/// The path of the file, once it is known; shared with the thread that commits.
#[derive(Debug, Clone, Default)]
pub struct Heartbeat(Arc<OnceLock<String>>);

impl Heartbeat {
    /// Sets the path.
    pub(in crate::supervisor) fn is_at(&self, path: &str) {
        // A run has only one heartbeat file.
        let _ = self.0.set(path.to_owned());
    }

    /// The last heartbeat: its time in seconds since 1970, and its step.
    pub(in crate::supervisor) fn beat(&self) -> Option<(f64, u64)> {
        let (nanos, step) = read(self.0.get()?);
        Some((nanos? as f64 / 1e9, step?))
    }

    /// The step in the last heartbeat.
    pub(in crate::supervisor) fn step(&self) -> Option<u64> {
        self.0.get().and_then(|path| read(path).1)
    }
}

/// The file's modification time, nanoseconds since 1970, and the step in it: `{"step": 12}`. Symbolic links are not
/// followed, because the trainer may run as another user.
pub(in crate::supervisor) fn read(path: &str) -> (Option<i128>, Option<u64>) {
    let file = fs::symlink_metadata(path).ok().filter(Metadata::is_file);
    let Some(modified) = file.and_then(|file| file.modified().ok()) else { return (None, None) };
    let nanos = match modified.duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_nanos() as i128,
        Err(before) => -(before.duration().as_nanos() as i128),
    };
    let text = small_file::read_small_itself(path, LONGEST).ok().flatten().unwrap_or_default();
    let step = serde_json::from_str::<serde_json::Value>(&text).ok().and_then(|v| v.get("step")?.as_u64());
    (Some(nanos), step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_no_heartbeat() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
        fs::write(path("file"), "{\"step\": 3}").expect("a file");
        std::os::unix::fs::symlink(path("file"), path("link")).expect("a link");
        assert!(matches!(read(&path("file")), (Some(_), Some(3))));
        assert_eq!((read(&path("link")), read(&path("absent"))), ((None, None), (None, None)));
    }
}
