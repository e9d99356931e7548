//! The activity of the threads of a process, from /proc: running time, bytes read and written, and the kernel function
//! in which they wait. A value that cannot be read is omitted.

use std::collections::BTreeMap;
use std::fs;

use crate::edge::process::proc_listing;
use crate::rules::text::safe_text::counted;

/// What one process has done so far.
#[derive(Debug, Default)]
pub struct ProcessCounters {
    /// By thread: nanoseconds of running or being runnable.
    pub busy_ns: Vec<(i32, u64)>,
    /// Bytes through read(2), write(2) and similar calls.
    pub moved_bytes: u64,
    /// It is stopped, by a signal or a debugger.
    pub is_stopped: bool,
}

/// Threads of one process whose kernel side is looked at.
const MOST_THREADS: usize = 512;
/// Frames of the kernel's stack in the line.
const MOST_FRAMES: usize = 6;

/// What a process has done so far.
pub fn counters(pid: i32) -> ProcessCounters {
    let busy_ns = threads(pid).filter_map(|tid| Some((tid, busy_ns(pid, tid)?))).collect();
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let number = |name: &str| io.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    let moved_bytes = number("rchar:").unwrap_or(0) + number("wchar:").unwrap_or(0);
    ProcessCounters { busy_ns, moved_bytes, is_stopped: matches!(state(pid, pid), 'T' | 't') }
}

/// The state of a process's main thread, and the kernel function in which it waits.
pub fn activity(pid: i32) -> (char, String) {
    (state(pid, pid), or(read(pid, pid, "wchan"), "?"))
}

/// One line about the kernel functions in which a process waits: `pid 17 (python): 3 threads sleep in futex_wait_queue
/// (python); 1 ...`.
pub fn stacks(pid: i32) -> String {
    let mut groups: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for tid in threads(pid).take(MOST_THREADS) {
        let place = or(read(pid, tid, "wchan"), "an unknown place");
        let does = match state(pid, tid) {
            'R' => "running".to_owned(),
            'D' => format!("stuck in {place}"),
            'T' | 't' => "stopped".to_owned(),
            'Z' | 'X' => "dead".to_owned(),
            _ => format!("asleep in {place}"),
        };
        let frames: Vec<String> = read(pid, tid, "stack").lines().take(MOST_FRAMES).filter_map(frame).collect();
        groups.entry((does, frames.join(" < "))).or_default().push(or(read(pid, tid, "comm"), "?"));
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, names)| std::cmp::Reverse(names.len()));
    let parts: Vec<String> = groups
        .into_iter()
        .map(|((does, frames), mut names)| {
            let count = names.len();
            names.dedup();
            names.truncate(4);
            let frames = if frames.is_empty() { frames } else { format!(" [{frames}]") };
            format!("{} {does}{frames} ({})", counted(count, "thread"), names.join(", "))
        })
        .collect();
    format!("pid {pid} ({}): {}", or(read(pid, pid, "comm"), "?"), or(parts.join("; "), "gone"))
}

fn threads(pid: i32) -> impl Iterator<Item = i32> {
    proc_listing::ids(&format!("/proc/{pid}/task")).into_iter().flatten()
}

/// Running time and time on the run queue (`schedstat`, a few kernels lack it), else running time in clock ticks (`stat`).
fn busy_ns(pid: i32, tid: i32) -> Option<u64> {
    let text = read(pid, tid, "schedstat");
    let mut numbers = text.split_ascii_whitespace().map_while(|n| n.parse::<u64>().ok());
    if let (Some(ran), Some(waited)) = (numbers.next(), numbers.next()) {
        return Some(ran + waited);
    }
    let stat = read(pid, tid, "stat");
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    // USER_HZ is 100 wherever we run.
    Some(ticks * 10_000_000)
}

fn state(pid: i32, tid: i32) -> char {
    let stat = read(pid, tid, "stat");
    stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next()).unwrap_or('X')
}

fn read(pid: i32, tid: i32, what: &str) -> String {
    fs::read(format!("/proc/{pid}/task/{tid}/{what}"))
        .map_or(String::new(), |text| String::from_utf8_lossy(&text).trim().to_owned())
}

fn or(text: String, otherwise: &str) -> String {
    if text.is_empty() || text == "0" { otherwise.to_owned() } else { text }
}

/// `[<0>] futex_wait_queue+0x60/0x90` is `futex_wait_queue`.
fn frame(line: &str) -> Option<String> {
    let name = line.split_ascii_whitespace().nth(1)?.split('+').next()?;
    (!name.starts_with("0x")).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_activity_and_the_wait_of_our_own_threads_are_read() {
        let own = crate::edge::process::spawn::own_pid();
        let counted = counters(own);
        assert!(!counted.busy_ns.is_empty() && counted.moved_bytes > 0 && !counted.is_stopped, "{counted:?}");
        assert!(stacks(own).starts_with(&format!("pid {own} (")), "{}", stacks(own));
        assert!(stacks(i32::MAX).ends_with("gone"));
        assert!("RSD".contains(activity(own).0) && activity(i32::MAX) == ('X', "?".to_owned()));
    }

    #[test]
    fn a_frame_is_the_functions_name() {
        assert_eq!(frame("[<0>] futex_wait_queue+0x60/0x90").as_deref(), Some("futex_wait_queue"));
        assert_eq!(frame("[<0>] 0xffffffffffffffff"), None);
        assert_eq!(frame(""), None);
    }
}
