//! The memory controller's own counters, v1 and v2: out-of-memory kills and peak use. Facts only.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Our memory cgroup, as far as it can be seen from here.
#[derive(Debug, Default)]
pub struct MemoryCgroup {
    dir: Option<PathBuf>,
    /// The file with the count of kills, kept open: it is read again at each end.
    counters: Option<File>,
    limit: Option<u64>,
}

const V1: &str = "/sys/fs/cgroup/memory";
const V2: &str = "/sys/fs/cgroup";
/// Of the file with the counters, and far more than it holds.
const COUNTERS_BYTES: usize = 1024;

impl MemoryCgroup {
    /// Finds it. Inside a container the group's own path is not visible, and the mount's root is the group.
    pub fn find() -> MemoryCgroup {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        candidates(&own).into_iter().find_map(MemoryCgroup::at).unwrap_or_default()
    }

    fn at(dir: PathBuf) -> Option<MemoryCgroup> {
        let counters = ["memory.events", "memory.oom_control"].iter().find_map(|f| File::open(dir.join(f)).ok())?;
        // v1 says "none" with a number close to 2^63.
        let limit = number(&dir, &["memory.max", "memory.limit_in_bytes"]).filter(|limit| *limit < 1 << 60);
        Some(MemoryCgroup { dir: Some(dir), counters: Some(counters), limit })
    }

    /// Processes the kernel has killed for this group's limit so far; `None` where nobody counts.
    pub fn oom_kills(&self) -> Option<u64> {
        let mut buffer = [0; COUNTERS_BYTES];
        let count = self.counters.as_ref()?.read_at(&mut buffer, 0).ok()?;
        let text = std::str::from_utf8(&buffer[..count]).ok()?;
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
    }

    /// The group's highest memory use in bytes, where the group has a limit (without one it is the whole machine's).
    pub fn peak_bytes(&self) -> Option<u64> {
        self.limit?;
        number(self.dir.as_ref()?, &["memory.peak", "memory.max_usage_in_bytes"])
    }

    /// The group's memory use in bytes, where the group has a limit.
    pub fn current_bytes(&self) -> Option<u64> {
        self.limit?;
        number(self.dir.as_ref()?, &["memory.current", "memory.usage_in_bytes"])
    }

    /// The group's memory limit in bytes; `None` when there is none.
    pub fn limit_bytes(&self) -> Option<u64> {
        self.limit
    }
}

fn number(dir: &Path, files: &[&str]) -> Option<u64> {
    files.iter().find_map(|file| fs::read_to_string(dir.join(file)).ok()?.trim().parse().ok())
}

/// Where the group may lie, from /proc/self/cgroup (cgroups(7)): `5:memory:/docker/x` or `0::/x`.
fn candidates(own: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let root = match controllers {
            "" => V2,
            _ if controllers.split(',').any(|c| c == "memory") => V1,
            _ => continue,
        };
        found.push(Path::new(root).join(path.trim_start_matches('/')));
    }
    found.extend([PathBuf::from(V1), PathBuf::from(V2)]);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A group's files as the kernel writes them.
    fn group(files: &[(&str, &str)]) -> (tempfile::TempDir, MemoryCgroup) {
        let dir = tempfile::tempdir().expect("temporary directory");
        files.iter().for_each(|(name, text)| fs::write(dir.path().join(name), text).expect("written"));
        let found = MemoryCgroup::at(dir.path().to_owned()).expect("a memory group");
        (dir, found)
    }

    #[test]
    fn version_2_counts_in_memory_events() {
        let events = "low 0\nhigh 14\nmax 96\noom 3\noom_kill 2\noom_group_kill 1\n";
        let (dir, cgroup) =
            group(&[("memory.events", events), ("memory.max", "67108864\n"), ("memory.peak", "67104768\n")]);
        assert_eq!((cgroup.oom_kills(), cgroup.limit_bytes()), (Some(2), Some(67_108_864)));
        assert_eq!(cgroup.peak_bytes(), Some(67_104_768));
        fs::write(dir.path().join("memory.events"), events.replace("oom_kill 2", "oom_kill 3")).expect("written");
        assert_eq!(cgroup.oom_kills(), Some(3), "it is read anew");
        let (_dir, unlimited) = group(&[("memory.events", events), ("memory.max", "max\n"), ("memory.peak", "1\n")]);
        assert_eq!((unlimited.limit_bytes(), unlimited.peak_bytes()), (None, None));
    }

    #[test]
    fn version_1_counts_in_oom_control() {
        let control = "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n";
        let none = "9223372036854771712\n";
        let (_dir, cgroup) = group(&[("memory.oom_control", control), ("memory.limit_in_bytes", none)]);
        assert_eq!((cgroup.oom_kills(), cgroup.limit_bytes()), (Some(4), None));
    }

    #[test]
    fn both_hierarchies_are_looked_at_own_path_first() {
        let found = candidates("5:cpu,memory:/docker/x\n0::/y\n3:cpuset:/z\n");
        let expected = ["/sys/fs/cgroup/memory/docker/x", "/sys/fs/cgroup/y", V1, V2];
        assert_eq!(found, expected.map(PathBuf::from));
    }
}
