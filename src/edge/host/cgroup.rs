//! The memory controller's own counters, v1 and v2: out-of-memory kills and peak use. Facts only.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The memory cgroup of this process, with the values that are visible.
#[derive(Debug, Default)]
pub struct MemoryCgroup {
    dir: Option<PathBuf>,
    /// The open file with the count of kills; it is read again at each end of a command.
    counters: Option<File>,
    limit: Option<u64>,
}

const V1: &str = "/sys/fs/cgroup/memory";
const V2: &str = "/sys/fs/cgroup";
/// v1 reports "no limit" as a number close to 2^63.
const NO_LIMIT: u64 = 1 << 60;
/// The number of levels to search: the job's own group and the groups around it.
const MOST_LEVELS: usize = 16;
/// The maximum size of the file with the counters, far more than it holds.
const COUNTERS_BYTES: usize = 1024;

impl MemoryCgroup {
    /// Finds our group. Inside a container the path of the group is not visible, and the root of the mount is the
    /// group.
    pub fn find() -> MemoryCgroup {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        candidates(&own).into_iter().find_map(MemoryCgroup::at).unwrap_or_default()
    }

    /// The group in this directory, if it counts kills.
    pub fn at(dir: PathBuf) -> Option<MemoryCgroup> {
        let counters = ["memory.events", "memory.oom_control"].iter().find_map(|f| File::open(dir.join(f)).ok())?;
        let limit = number(&dir, &["memory.max", "memory.limit_in_bytes"]).filter(|limit| *limit < NO_LIMIT);
        Some(MemoryCgroup { dir: Some(dir), counters: Some(counters), limit })
    }

    /// The number of processes that the kernel has killed for this group's limit; `None` if there is no counter.
    pub fn oom_kills(&self) -> Option<u64> {
        let mut buffer = [0; COUNTERS_BYTES];
        let count = self.counters.as_ref()?.read_at(&mut buffer, 0).ok()?;
        let text = std::str::from_utf8(&buffer[..count]).ok()?;
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
    }

    /// The group's peak memory use in bytes; `None` without a limit, because the figure would be the whole machine's.
    pub fn peak_bytes(&self) -> Option<u64> {
        self.limit?;
        number(self.dir.as_ref()?, &["memory.peak", "memory.max_usage_in_bytes"])
    }

    /// The group's memory use in bytes; `None` without a limit.
    pub fn current_bytes(&self) -> Option<u64> {
        self.limit?;
        number(self.dir.as_ref()?, USAGE)
    }

    /// The group's memory limit in bytes, if there is one.
    pub fn limit_bytes(&self) -> Option<u64> {
        self.limit
    }

    /// Bytes that can be allocated before this group or one around it reaches its limit, page cache counted as free;
    /// `None` without a limit.
    pub fn room_bytes(&self) -> Option<u64> {
        let groups = self.dir.as_deref()?.ancestors().take(MOST_LEVELS);
        groups.map_while(|dir| number(dir, USAGE).map(|used| (dir, used))).filter_map(room).min()
    }
}

const USAGE: &[&str] = &["memory.current", "memory.usage_in_bytes"];

/// The room of a group with this many bytes in use.
fn room((dir, used): (&Path, u64)) -> Option<u64> {
    let limits = ["memory.max", "memory.high", "memory.limit_in_bytes"];
    let limit = limits.iter().filter_map(|limit| number(dir, &[limit])).filter(|limit| *limit < NO_LIMIT).min()?;
    let counts = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
    // v1 reports the counts with and without the groups below.
    let is_v1 = counts.contains("\ntotal_inactive_file ");
    let names = if is_v1 { ["total_inactive_file ", "total_active_file "] } else { ["inactive_file ", "active_file "] };
    let count = |line: &str| names.iter().find_map(|name| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    let cached: u64 = counts.lines().filter_map(count).sum();
    Some(limit.saturating_sub(used.saturating_sub(cached)))
}

fn number(dir: &Path, files: &[&str]) -> Option<u64> {
    files.iter().find_map(|file| fs::read_to_string(dir.join(file)).ok()?.trim().parse().ok())
}

/// The possible directories of the group, from /proc/self/cgroup (cgroups(7)): `5:memory:/docker/x` or `0::/x`.
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
        assert_eq!(cgroup.oom_kills(), Some(3), "it is read again");
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
    fn page_cache_counts_as_room_and_the_narrowest_group_decides() {
        let stat = "anon 1000\nfile 900\ninactive_file 500\nactive_file 300\n";
        let (outer, _) = group(&[
            ("memory.events", ""),
            ("memory.max", "10000\n"),
            ("memory.high", "4000\n"),
            ("memory.current", "3000\n"),
            ("memory.stat", stat),
        ]);
        let inner = outer.path().join("task");
        fs::create_dir(&inner).expect("made");
        for (name, text) in [("memory.events", ""), ("memory.max", "max\n"), ("memory.current", "2000\n")] {
            fs::write(inner.join(name), text).expect("written");
        }
        let room = || MemoryCgroup::at(inner.clone()).expect("a memory group").room_bytes();
        assert_eq!(room(), Some(4000 - (3000 - 800)));
        fs::write(inner.join("memory.max"), "2100\n").expect("written");
        assert_eq!(room(), Some(100), "the inner group decides");
        let v1 = "inactive_file 1\nactive_file 1\ntotal_inactive_file 600\ntotal_active_file 0\n";
        let (_dir, cgroup) = group(&[
            ("memory.oom_control", "oom_kill 0\n"),
            ("memory.limit_in_bytes", "5000\n"),
            ("memory.usage_in_bytes", "6000\n"),
            ("memory.stat", v1),
        ]);
        assert_eq!(cgroup.room_bytes(), Some(0), "more is in use than the limit");
        let (_dir, free) = group(&[("memory.events", ""), ("memory.max", "max\n"), ("memory.current", "1\n")]);
        assert_eq!(free.room_bytes(), None);
    }

    #[test]
    fn both_hierarchies_are_searched_own_path_first() {
        let found = candidates("5:cpu,memory:/docker/x\n0::/y\n3:cpuset:/z\n");
        let expected = ["/sys/fs/cgroup/memory/docker/x", "/sys/fs/cgroup/y", V1, V2];
        assert_eq!(found, expected.map(PathBuf::from));
    }
}
