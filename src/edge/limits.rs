//! What this process may use of the machine: processors, memory, open files; and the machine's name.

use std::{fs, io};

use sysinfo::{MemoryRefreshKind, RefreshKind, System};

use super::cgroup::MemoryCgroup;

/// The limits. Absent knowledge is `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Processors, by affinity and the cgroup's quota (rounded down, at least one).
    pub cpus: Option<usize>,
    /// The machine's memory in bytes.
    pub memory_bytes: Option<u64>,
    /// The cgroup's memory limit in bytes, where there is one.
    pub cgroup_memory_bytes: Option<u64>,
    /// Descriptors that may be open at once (the soft limit); `None` is without limit.
    pub open_files: Option<u64>,
}

/// Looks them up.
pub fn read() -> Limits {
    Limits {
        cpus: cpus(),
        memory_bytes: machine().map(|system| system.total_memory()).filter(|bytes| *bytes > 0),
        cgroup_memory_bytes: MemoryCgroup::find().limit_bytes(),
        open_files: open_files(&fs::read_to_string("/proc/self/limits").unwrap_or_default()),
    }
}

/// Bytes of memory that can be taken now before the kernel kills for it, the cgroup's or the machine's; `None` where
/// neither says.
pub fn memory_room() -> Option<u64> {
    let of_machine = machine().map(|system| system.available_memory()).filter(|bytes| *bytes > 0);
    [MemoryCgroup::find().room_bytes(), of_machine].into_iter().flatten().min()
}

fn machine() -> Option<System> {
    let memory = MemoryRefreshKind::nothing().with_ram();
    System::new_with_specifics(RefreshKind::nothing().with_memory(memory)).ok()
}

/// What to do about an error: a limit that was reached is to be raised, whatever was tried.
pub fn way_out(error: &io::Error, otherwise: &'static str) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE) => "raise the limit on open files (ulimit -n, docker run --ulimit nofile=65536)",
        Some(libc::ENFILE) => "all open files that the machine allows are in use (sysctl fs.file-max)",
        Some(libc::EAGAIN) => "raise the limit on processes and threads (ulimit -u, docker run --pids-limit)",
        _ => otherwise,
    }
}

/// Whether no more files may be open.
pub fn of_files(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Processors, by affinity and the cgroup's quota.
pub fn cpus() -> Option<usize> {
    std::thread::available_parallelism().ok().map(Into::into)
}

/// The host name.
pub fn hostname() -> Option<String> {
    System::host_name().ok().filter(|name| !name.is_empty())
}

/// The soft limit in /proc/self/limits (proc(5)): `Max open files            1024                 4096    files`.
fn open_files(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_of_open_files_is_read() {
        let text = "Limit                     Soft Limit           Hard Limit           Units\n\
                    Max open files            1024                 524288               files     \n";
        assert_eq!(open_files(text), Some(1024));
        assert_eq!(open_files(&text.replace("1024 ", "unlimited ")), None);
    }
}
