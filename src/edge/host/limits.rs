//! Limits of this process: processors, memory, open files; and the host name.

use std::{fs, io};

use nix::sys::statvfs::statvfs;
use sysinfo::{MemoryRefreshKind, RefreshKind, System};

use crate::edge::host::cgroup::MemoryCgroup;
use crate::edge::process::spawn::refuses_clone3;

/// The limits; `None` if unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Processors, by affinity and the cgroup's quota (rounded down, at least one).
    pub cpus: Option<usize>,
    /// The machine's memory in bytes.
    pub memory_bytes: Option<u64>,
    /// The cgroup's memory limit in bytes, if there is one.
    pub cgroup_memory_bytes: Option<u64>,
    /// The soft limit on open descriptors; `None` means no limit.
    pub open_files: Option<u64>,
}

/// Reads the limits.
pub fn read() -> Limits {
    Limits {
        cpus: cpus(),
        memory_bytes: machine().map(|system| system.total_memory()).filter(|bytes| *bytes > 0),
        cgroup_memory_bytes: MemoryCgroup::find().limit_bytes(),
        open_files: open_files(&fs::read_to_string("/proc/self/limits").unwrap_or_default()),
    }
}

/// Bytes of memory that can be allocated before the kernel kills a process, by the cgroup's limit and the machine's
/// memory; `None` if both are unknown.
pub fn memory_room() -> Option<u64> {
    let of_machine = machine().map(|system| system.available_memory()).filter(|bytes| *bytes > 0);
    [MemoryCgroup::find().room_bytes(), of_machine].into_iter().flatten().min()
}

/// The size of /dev/shm and its free space, in bytes; `None` if it does not exist.
pub fn shared_memory() -> Option<(u64, u64)> {
    let stat = statvfs("/dev/shm").ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.fragment_size() as u64);
    Some((bytes(stat.blocks() as u64), bytes(stat.blocks_available() as u64)))
}

fn machine() -> Option<System> {
    let memory = MemoryRefreshKind::nothing().with_ram();
    System::new_with_specifics(RefreshKind::nothing().with_memory(memory)).ok()
}

/// Advice for an error: which limit to raise if one was reached, else `otherwise`.
pub fn way_out(error: &io::Error, otherwise: &'static str) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE) => "raise the limit on open files (ulimit -n, docker run --ulimit nofile=65536)",
        Some(libc::ENFILE) => "raise the machine's limit on open files (sysctl fs.file-max)",
        Some(libc::EAGAIN) => "raise the limit on processes and threads (ulimit -u, docker run --pids-limit)",
        Some(libc::EPERM) if refuses_clone3() => NO_CLONE3,
        _ => otherwise,
    }
}

/// The advice if a seccomp profile refuses clone3(2).
pub const NO_CLONE3: &str = "the seccomp profile of this container refuses clone3 with EPERM, so that a C library \
                             such as glibc 2.34 or newer can start no thread: update Docker (20.10.10 or newer), \
                             containerd and runc on the host, or start the container with --security-opt seccomp=unconfined";

/// Whether the error is a limit on open files.
pub fn of_files(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// The number of processors, by affinity and the cgroup's quota.
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
