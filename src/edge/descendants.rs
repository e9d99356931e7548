//! Which processes belong to our tree, from /proc. Where there is none (or one of another PID namespace) it says so.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::hash::{Hash, Hasher};

use super::clock;
use super::process::own_pid;

/// How often a process is read again whose parent went while we looked.
const MORE_LOOKS: usize = 8;
/// Half of the smallest number of process ids that a kernel hands out before it begins again: fewer are handed out within
/// one clock tick.
const HALF_ROUND: i32 = 1 << 14;

/// A process of the tree. Two are the same when their ids and starts are: it may change its group as it likes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Descendant {
    /// Its id.
    pub pid: i32,
    /// Its process group.
    pub group: i32,
    /// When it started, in clock ticks since boot: with the id it names one process for ever.
    pub started: u64,
    /// A signal has stopped it: it hears nothing but SIGKILL until it is continued.
    pub is_stopped: bool,
}

impl PartialEq for Descendant {
    fn eq(&self, other: &Descendant) -> bool {
        (self.pid, self.started) == (other.pid, other.started)
    }
}

impl Eq for Descendant {}

impl Hash for Descendant {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.pid, self.started).hash(state);
    }
}

/// A point in time that parts processes into older and younger ones.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// In clock ticks since boot.
    ticks: u64,
    /// The newest process id of our namespace.
    newest: Option<i32>,
}

impl Moment {
    /// This one; `None` without a usable /proc.
    pub fn now() -> Option<Moment> {
        shows_us().then_some(())?;
        // The last word of /proc/loadavg (proc_loadavg(5)). The time second: who is given an id in between is the younger.
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let newest = load.split_whitespace().last().and_then(|word| word.parse().ok()).filter(|pid| *pid > 0);
        Some(Moment { ticks: clock::boot_ticks(), newest })
    }
}

impl Descendant {
    /// Whether it was there at this moment. Within one clock tick the order of the process ids decides; where that is not
    /// known, it was not.
    pub fn was_there(&self, moment: Moment) -> bool {
        let by_id =
            |newest: i32| (newest - HALF_ROUND < self.pid && self.pid <= newest) || self.pid - newest >= HALF_ROUND;
        self.started < moment.ticks || self.started == moment.ticks && moment.newest.is_some_and(by_id)
    }
}

/// Every living process below us, adopted ones included, but for those that are apart and what is below them; `None` without
/// a usable /proc.
pub fn all(is_apart: impl Fn(&Descendant) -> bool) -> Option<Vec<Descendant>> {
    let mut seen = scan()?;
    close_gaps(&mut seen);
    let mut children: HashMap<i32, Vec<(Descendant, bool)>> = HashMap::new();
    for (parent, descendant, is_zombie) in seen {
        children.entry(parent).or_default().push((descendant, is_zombie));
    }
    let (mut found, mut open) = (Vec::new(), vec![own_pid()]);
    while let Some(parent) = open.pop() {
        for (descendant, is_zombie) in children.remove(&parent).unwrap_or_default() {
            if is_apart(&descendant) {
                continue;
            }
            open.push(descendant.pid);
            if !is_zombie {
                found.push(descendant);
            }
        }
    }
    Some(found)
}

/// Whether all our children are apart; without a usable /proc nobody knows, and they are not.
///
/// One that is not cannot hide from the look: what is below us has a child of ours above it, and that stays, if only as a
/// zombie, until we reap it.
pub fn are_all_apart(is_apart: impl Fn(&Descendant) -> bool) -> bool {
    let own = own_pid();
    scan().is_some_and(|seen| seen.iter().all(|(parent, d, _)| *parent != own || is_apart(d)))
}

/// Where somebody's parent went while we looked, who hung on it would seem to be nobody's: it has another parent by now.
fn close_gaps(seen: &mut Vec<(i32, Descendant, bool)>) {
    let pids: HashSet<i32> = seen.iter().map(|(_, d, _)| d.pid).collect();
    seen.retain_mut(|process| {
        for _ in 0..MORE_LOOKS {
            if process.0 == 0 || pids.contains(&process.0) {
                break;
            }
            match read(process.1.pid) {
                Some(now) => *process = now,
                None => return false,
            }
        }
        true
    });
}

/// All that /proc shows: parent, process, and whether it is a zombie.
fn scan() -> Option<Vec<(i32, Descendant, bool)>> {
    shows_us().then_some(())?;
    let mut seen = Vec::new();
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else { continue };
        seen.extend(read(pid));
    }
    Some(seen)
}

/// Whether there is a /proc, and of our own PID namespace.
pub fn shows_us() -> bool {
    fs::read_link("/proc/self")
        .is_ok_and(|seen_as| seen_as.to_str().and_then(|pid| pid.parse().ok()) == Some(own_pid()))
}

fn read(pid: i32) -> Option<(i32, Descendant, bool)> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse(pid, &String::from_utf8_lossy(&stat))
}

/// Whether a signal has stopped this process.
pub fn is_stopped(pid: i32) -> bool {
    read(pid).is_some_and(|(_, process, _)| process.is_stopped)
}

/// Parent, process and whether it is a zombie, from /proc/PID/stat (proc(5)). The command's name may hold anything. One whose
/// main thread has ended is shown as a zombie, too, while other threads of it run on.
fn parse(pid: i32, stat: &str) -> Option<(i32, Descendant, bool)> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let state = *fields.first()?;
    let descendant = Descendant {
        pid,
        group: fields.get(2)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
        is_stopped: state == "T",
    };
    let threads: u32 = fields.get(17)?.parse().ok()?;
    Some((fields.get(1)?.parse().ok()?, descendant, state == "X" || state == "Z" && threads < 2))
}

/// Command name and the kernel function a process waits in, for the log.
pub fn describe(pid: i32) -> String {
    let read = |what: &str| fs::read_to_string(format!("/proc/{pid}/{what}")).unwrap_or_default().trim().to_owned();
    let (name, wchan) = (read("comm"), read("wchan"));
    let or = |text: String| if text.is_empty() || text == "0" { "?".to_owned() } else { text };
    format!("pid {pid} ({}, in {})", or(name), or(wchan))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_is_read_right() {
        let stat = "42 (a) b (c) S 7 40 40 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99123 1 2";
        let (parent, descendant, is_zombie) = parse(42, stat).expect("well formed");
        assert_eq!((parent, descendant.pid, descendant.group, descendant.started), (7, 42, 40, 99123));
        assert!(!is_zombie && !descendant.is_stopped);
    }

    #[test]
    fn a_process_whose_main_thread_has_ended_lives_while_another_runs() {
        let is_zombie = |state: &str, threads: u32| {
            let stat = format!("42 (x) {state} 7 40 40 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 {threads} 0 99123 1 2");
            parse(42, &stat).expect("well formed").2
        };
        assert!(is_zombie("Z", 1) && is_zombie("X", 0) && !is_zombie("Z", 2) && !is_zombie("S", 1));
    }

    #[test]
    fn a_process_that_changes_its_group_or_stops_is_still_the_same() {
        let read = |stat| parse(42, stat).expect("well formed").1;
        let before = read("42 (x) S 7 40 40 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99123 1 2");
        let after = read("42 (x) T 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99123 1 2");
        let another = read("42 (x) S 7 40 40 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99124 1 2");
        assert!(after == before && after.is_stopped && another != before);
        assert!(std::collections::HashSet::from([before]).contains(&after));
    }

    #[test]
    fn who_hung_on_a_parent_that_went_is_read_again() {
        let own = own_pid();
        let mut seen = vec![(1, Descendant { pid: 1, ..Descendant::default() }, false)];
        seen.extend(read(own));
        let parent = seen[1].0;
        seen[1].0 = i32::MAX;
        let gone = Descendant { pid: i32::MAX - 1, ..Descendant::default() };
        seen.push((i32::MAX, gone, false));
        close_gaps(&mut seen);
        assert!(!seen.iter().any(|(_, d, _)| *d == gone));
        assert_eq!((seen[1].0, seen[1].1.pid), (parent, own));
    }

    #[test]
    fn older_and_younger_are_told_apart_within_one_tick_too() {
        let moment = Moment { ticks: 500, newest: Some(1000) };
        let there = |pid, started| Descendant { pid, started, ..Descendant::default() }.was_there(moment);
        assert!(there(1001, 499) && there(1000, 500) && there(900, 500));
        assert!(!there(1001, 500) && !there(900, 501));
        // The ids began again: at 32768, or between the process and the moment.
        let moment = Moment { ticks: 500, newest: Some(32_760) };
        assert!(!Descendant { pid: 300, started: 500, ..Descendant::default() }.was_there(moment));
        let moment = Moment { ticks: 500, newest: Some(310) };
        assert!(Descendant { pid: 32_760, started: 500, ..Descendant::default() }.was_there(moment));
        let moment = Moment { ticks: 500, newest: None };
        assert!(!Descendant { pid: 300, started: 500, ..Descendant::default() }.was_there(moment));
    }

    #[test]
    fn a_child_is_younger_than_the_moment_before_it_and_older_than_the_one_after() {
        for _ in 0..20 {
            let before = Moment::now().expect("a /proc");
            #[expect(clippy::disallowed_methods, reason = "its mask and SIGPIPE do not matter here")]
            let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep");
            let after = Moment::now().expect("a /proc");
            let seen = read(child.id() as i32).expect("it is there").1;
            assert!(!seen.was_there(before) && seen.was_there(after), "{before:?} {seen:?} {after:?}");
            child.kill().expect("killed");
            child.wait().expect("reaped");
        }
    }

    #[test]
    fn a_cut_line_is_nobody() {
        assert_eq!(parse(42, "42 (x) S 7"), None);
        assert_eq!(parse(42, ""), None);
    }
}
