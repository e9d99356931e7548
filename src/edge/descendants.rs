//! Which processes belong to our tree, from /proc. Where there is none (or one of another PID namespace) it says so.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::hash::{Hash, Hasher};

use super::process::own_pid;

/// How often /proc is read again where a parent went meanwhile.
const MORE_LOOKS: usize = 3;

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

/// Every living process below us, adopted ones included; `None` without a usable /proc.
pub fn all() -> Option<Vec<Descendant>> {
    let mut seen = scan()?;
    for _ in 0..MORE_LOOKS {
        if !has_gap(&seen) {
            break;
        }
        seen = scan()?;
    }
    let mut children: HashMap<i32, Vec<(Descendant, bool)>> = HashMap::new();
    for (parent, descendant, is_zombie) in seen {
        children.entry(parent).or_default().push((descendant, is_zombie));
    }
    let (mut found, mut open) = (Vec::new(), vec![own_pid()]);
    while let Some(parent) = open.pop() {
        for (descendant, is_zombie) in children.remove(&parent).unwrap_or_default() {
            open.push(descendant.pid);
            if !is_zombie {
                found.push(descendant);
            }
        }
    }
    Some(found)
}

/// Every living process of these groups, whoever its parent is by now. Nobody without a usable /proc.
pub fn of_groups(groups: &[i32]) -> Vec<Descendant> {
    let seen = scan().unwrap_or_default();
    seen.into_iter().filter(|(_, d, is_zombie)| !is_zombie && groups.contains(&d.group)).map(|(_, d, _)| d).collect()
}

/// Whether somebody's parent went while we looked: who hung on it would seem to be nobody's.
fn has_gap(seen: &[(i32, Descendant, bool)]) -> bool {
    let pids: HashSet<i32> = seen.iter().map(|(_, d, _)| d.pid).collect();
    seen.iter().any(|(parent, ..)| *parent != 0 && !pids.contains(parent))
}

/// All that /proc shows: parent, process, and whether it is a zombie.
fn scan() -> Option<Vec<(i32, Descendant, bool)>> {
    let seen_as = fs::read_link("/proc/self").ok()?;
    if seen_as.to_str()?.parse() != Ok(own_pid()) {
        return None;
    }
    let mut seen = Vec::new();
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else { continue };
        let Ok(stat) = fs::read(format!("/proc/{pid}/stat")) else { continue };
        seen.extend(parse(pid, &String::from_utf8_lossy(&stat)));
    }
    Some(seen)
}

/// Parent, process and whether it is a zombie, from /proc/PID/stat (proc(5)). The command's name may hold anything.
fn parse(pid: i32, stat: &str) -> Option<(i32, Descendant, bool)> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let state = *fields.first()?;
    let descendant = Descendant {
        pid,
        group: fields.get(2)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
        is_stopped: state == "T",
    };
    Some((fields.get(1)?.parse().ok()?, descendant, matches!(state, "Z" | "X")))
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
    fn a_process_that_changes_its_group_or_stops_is_still_the_same() {
        let read = |stat| parse(42, stat).expect("well formed").1;
        let before = read("42 (x) S 7 40 40 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99123 1 2");
        let after = read("42 (x) T 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99123 1 2");
        let another = read("42 (x) S 7 40 40 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99124 1 2");
        assert!(after == before && after.is_stopped && another != before);
        assert!(std::collections::HashSet::from([before]).contains(&after));
    }

    #[test]
    fn a_parent_that_went_between_two_lines_is_noticed() {
        let process = |parent, pid| (parent, Descendant { pid, ..Descendant::default() }, false);
        assert!(!has_gap(&[process(0, 1), process(1, 7), process(7, 8)]));
        assert!(has_gap(&[process(0, 1), process(7, 8)]));
    }

    #[test]
    fn a_cut_line_is_nobody() {
        assert_eq!(parse(42, "42 (x) S 7"), None);
        assert_eq!(parse(42, ""), None);
    }
}
