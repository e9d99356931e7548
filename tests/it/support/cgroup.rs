//! A memory cgroup for one test.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// v1 or v2; removed when it is dropped.
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// `None` if none can be created here.
    pub fn with_limit(bytes: u64) -> Option<Cgroup> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let hierarchies = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        hierarchies.into_iter().find_map(|(root, limit)| {
            let group = Cgroup(Path::new(root).join(format!("trainit-test-{}-{number}", std::process::id())));
            fs::create_dir(&group.0).ok()?;
            // Fails if the memory controller belongs to another hierarchy, or is not delegated.
            fs::write(group.0.join(limit), bytes.to_string()).ok()?;
            // Swap would only slow the test down.
            let _ = fs::write(group.0.join("memory.swap.max"), "0");
            let _ = fs::write(group.0.join("memory.memsw.limit_in_bytes"), bytes.to_string());
            Some(group)
        })
    }

    /// A script for `sh -c` that runs its arguments in it.
    pub fn enter(&self) -> String {
        format!("echo $$ >{}/cgroup.procs && exec \"$0\" \"$@\"", self.0.display())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}
