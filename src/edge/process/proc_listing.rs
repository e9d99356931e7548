//! The ids in a directory of /proc: processes, or threads of one.
//!
//! The kernel lists ids in ascending order. A listing that reads files in between never ends while processes fork without
//! end. So the whole listing is read first.

use std::fs;

/// A kernel has no more ids at a time (PID_MAX_LIMIT).
const MOST_ENTRIES: usize = 4 << 20;

/// The ids that are listed now, `/proc` or `/proc/PID/task`; `None` if the directory cannot be read.
pub(crate) fn ids(directory: &str) -> Option<Vec<i32>> {
    let entries = fs::read_dir(directory).ok()?.take(MOST_ENTRIES).flatten();
    Some(entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_are_among_the_processes_and_have_a_thread() {
        let own = std::process::id() as i32;
        assert!(ids("/proc").expect("a /proc").contains(&own));
        assert!(ids("/proc/self/task").expect("threads").contains(&own));
        assert_eq!(ids("/proc/0"), None);
    }
}
