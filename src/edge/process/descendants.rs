//! The processes below this one, from /proc. A /proc that is missing or shows another PID namespace is reported as unusable.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::hash::{Hash, Hasher};
use std::io;

use crate::edge::clock;
use crate::edge::process::spawn::{self, own_pid};
use crate::edge::process::{facts, pidfd, proc_listing};
use crate::rules::process::signal::{Disposition, Signal};
use crate::rules::text::safe_text::printable;

/// The limit for reading a process again because its parent exited during the scan.
const MORE_LOOKS: usize = 8;
/// Half of the smallest number of process ids that a kernel assigns before it wraps around. Fewer are assigned within one
/// clock tick.
const HALF_ROUND: i32 = 1 << 14;

/// A process of the tree. Two values are equal if id and start time are equal; the process group may change.
#[derive(Debug, Clone, Copy, Default)]
pub struct Descendant {
    /// Its id.
    pub pid: i32,
    /// Its parent's id.
    pub parent: i32,
    /// Its process group.
    pub group: i32,
    /// Its controlling terminal; 0 for none.
    pub terminal: i32,
    /// The foreground group of that terminal.
    pub foreground: i32,
    /// Start time in clock ticks since boot: together with the id it identifies one process.
    pub started: u64,
    /// A signal has stopped it: only SIGKILL has an effect until it is continued.
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

/// A point in time that divides processes into older and younger ones.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// In clock ticks since boot.
    ticks: u64,
    /// The newest process id of our namespace.
    newest: Option<i32>,
}

impl Moment {
    /// The present moment; `None` without a usable /proc.
    pub fn now() -> Option<Moment> {
        shows_own_namespace().then_some(())?;
        // The last word of /proc/loadavg (proc_loadavg(5)). The time is read second, so that a process with an id from in
        // between counts as younger.
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let newest = load.split_whitespace().last().and_then(|word| word.parse().ok()).filter(|pid| *pid > 0);
        Some(Moment { ticks: clock::boot_ticks(), newest })
    }
}

impl Descendant {
    /// Whether the process existed at this moment. Within one clock tick the order of the process ids decides; if that is
    /// unknown, the answer is no.
    pub fn existed_at(&self, moment: Moment) -> bool {
        let by_id =
            |newest: i32| (newest - HALF_ROUND < self.pid && self.pid <= newest) || self.pid - newest >= HALF_ROUND;
        self.started < moment.ticks || self.started == moment.ticks && moment.newest.is_some_and(by_id)
    }
}

/// The descendants of this process in one scan of /proc.
#[derive(Debug, Default)]
pub struct Tree {
    /// Every living descendant, including adopted ones, except separate processes and their descendants.
    pub processes: Vec<Descendant>,
    /// How many they are together with those that are dead and not reaped.
    pub count: usize,
    /// Process groups with a child of ours, dead or alive, and no process from outside the tree. Until that child is reaped,
    /// the kernel does not reuse the group's number.
    pub groups: Vec<i32>,
    /// Whether the PID namespace has no living process except this one and these.
    pub is_alone: bool,
}

/// The descendants of an init or supervisor; `None` without a usable /proc.
pub fn tree(is_apart: impl Fn(&Descendant) -> bool) -> Option<Tree> {
    let mut seen = scan()?;
    close_gaps(&mut seen);
    let own = own_pid();
    let mut children: HashMap<i32, Vec<(Descendant, bool)>> = HashMap::new();
    for (descendant, is_zombie) in &seen {
        children.entry(descendant.parent).or_default().push((*descendant, *is_zombie));
    }
    let (mut processes, mut below, mut open) = (Vec::new(), HashSet::new(), vec![own]);
    while let Some(parent) = open.pop() {
        for (descendant, is_zombie) in children.remove(&parent).unwrap_or_default() {
            if is_apart(&descendant) {
                continue;
            }
            open.push(descendant.pid);
            below.insert(descendant.pid);
            if !is_zombie {
                processes.push(descendant);
            }
        }
    }
    let others: Vec<&(Descendant, bool)> = seen.iter().filter(|(process, _)| !below.contains(&process.pid)).collect();
    let their_groups: HashSet<i32> = others.iter().map(|(process, _)| process.group).collect();
    let is_child = |process: &Descendant| process.parent == own && below.contains(&process.pid);
    let groups: HashSet<i32> = seen.iter().filter(|(child, _)| is_child(child)).map(|(child, _)| child.group).collect();
    let is_alone = others.iter().all(|(process, is_zombie)| process.pid == own || *is_zombie);
    let groups = groups.difference(&their_groups).copied().collect();
    Some(Tree { groups, processes, count: below.len(), is_alone })
}

/// Every living process below us except separate ones, as in [`tree`].
pub fn all(is_apart: impl Fn(&Descendant) -> bool) -> Option<Vec<Descendant>> {
    tree(is_apart).map(|tree| tree.processes)
}

/// Sends a signal to this process, or to none if it has exited, even if its id was reused (Linux 5.3 and later; earlier
/// kernels leave a short race). Errors: as kill(2).
pub fn send(to: &Descendant, signal: Signal) -> io::Result<()> {
    let is_gone = |error: &io::Error| error.raw_os_error() == Some(libc::ESRCH);
    let handle = pidfd::open(to.pid);
    // Read after the descriptor was opened: a matching start time proves that the descriptor is this process.
    if handle.as_ref().is_err_and(is_gone) || read(to.pid).is_none_or(|(now, _)| now != *to) {
        return Ok(());
    }
    match handle.and_then(|handle| pidfd::send(&handle, signal)) {
        Ok(()) => Ok(()),
        Err(error) if is_gone(&error) => Ok(()),
        // An old kernel, a seccomp filter without this call, or a real refusal: kill(2) distinguishes them.
        Err(_) => spawn::kill(to.pid, signal),
    }
}

/// The name of a process's command, safe in a log; never its arguments, which may hold secrets.
pub fn name(pid: i32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = printable(name.trim_end_matches('\n'));
    if name.is_empty() { "?".to_owned() } else { name }
}

/// The name of PID 1 if it is a shell, an ancestor of this process, and has no handler for this signal. The kernel then
/// drops the signal, and this process never learns of it. An interactive shell ignores SIGTERM and is not meant.
pub fn shell_that_drops(signal: Signal) -> Option<String> {
    const SHELLS: [&str; 7] = ["sh", "bash", "dash", "ash", "busybox", "ksh", "zsh"];
    const MOST_ANCESTORS: usize = 64;
    let init = Some(name(1)).filter(|name| SHELLS.contains(&name.as_str()))?;
    let mut ancestor = read(own_pid())?.0;
    for _ in 0..MOST_ANCESTORS {
        match ancestor.parent {
            0 => return None,
            1 => return Some(init).filter(|_| facts::disposition(1, signal) == Disposition::Default),
            parent => ancestor = read(parent)?.0,
        }
    }
    None
}

/// Whether all our children are separate processes. Without a usable /proc the answer is no.
///
/// No process of the tree can escape the scan: it has a child of ours as an ancestor, and that child stays, at least as a
/// zombie, until it is reaped here.
pub fn are_all_apart(is_apart: impl Fn(&Descendant) -> bool) -> bool {
    let own = own_pid();
    scan().is_some_and(|seen| seen.iter().all(|(process, _)| process.parent != own || is_apart(process)))
}

/// A process whose parent exited during the scan is read again, because it has been reparented.
fn close_gaps(seen: &mut Vec<(Descendant, bool)>) {
    let pids: HashSet<i32> = seen.iter().map(|(process, _)| process.pid).collect();
    seen.retain_mut(|entry| {
        for _ in 0..MORE_LOOKS {
            if entry.0.parent == 0 || pids.contains(&entry.0.parent) {
                break;
            }
            match read(entry.0.pid) {
                Some(now) => *entry = now,
                None => return false,
            }
        }
        true
    });
}

/// Scans /proc: each process, and whether it is a zombie.
fn scan() -> Option<Vec<(Descendant, bool)>> {
    shows_own_namespace().then_some(())?;
    let pids = proc_listing::ids("/proc")?;
    Some(pids.into_iter().filter_map(read).collect())
}

/// Whether /proc exists and shows our own PID namespace.
pub fn shows_own_namespace() -> bool {
    fs::read_link("/proc/self")
        .is_ok_and(|seen_as| seen_as.to_str().and_then(|pid| pid.parse().ok()) == Some(own_pid()))
}

fn read(pid: i32) -> Option<(Descendant, bool)> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse(pid, &String::from_utf8_lossy(&stat))
}

/// Whether a signal has stopped this process.
pub fn is_stopped(pid: i32) -> bool {
    read(pid).is_some_and(|(process, _)| process.is_stopped)
}

/// The process and whether it is a zombie, from /proc/PID/stat (proc(5)). The command's name may contain any character. A
/// process whose main thread has ended also shows as a zombie while its other threads run.
fn parse(pid: i32, stat: &str) -> Option<(Descendant, bool)> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let state = *fields.first()?;
    let descendant = Descendant {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        terminal: fields.get(4)?.parse().ok()?,
        foreground: fields.get(5)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
        is_stopped: state == "T",
    };
    let threads: u32 = fields.get(17)?.parse().ok()?;
    Some((descendant, state == "X" || state == "Z" && threads < 2))
}

/// Command name and the kernel function a process waits in, for the log.
pub fn describe(pid: i32) -> String {
    let read = |what: &str| fs::read_to_string(format!("/proc/{pid}/{what}")).unwrap_or_default().trim().to_owned();
    let wchan = read("wchan");
    let wchan = if wchan.is_empty() || wchan == "0" { "?".to_owned() } else { wchan };
    format!("pid {pid} ({}, in {wchan})", name(pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_is_read_right() {
        let stat = "42 (a) b (c) S 7 40 40 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99123 1 2";
        let (descendant, is_zombie) = parse(42, stat).expect("well formed");
        assert_eq!((descendant.parent, descendant.pid, descendant.group, descendant.started), (7, 42, 40, 99123));
        assert!(!is_zombie && !descendant.is_stopped);
    }

    #[test]
    fn a_process_whose_main_thread_has_ended_lives_while_another_runs() {
        let is_zombie = |state: &str, threads: u32| {
            let stat = format!("42 (x) {state} 7 40 40 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 {threads} 0 99123 1 2");
            parse(42, &stat).expect("well formed").1
        };
        assert!(is_zombie("Z", 1) && is_zombie("X", 0) && !is_zombie("Z", 2) && !is_zombie("S", 1));
    }

    #[test]
    fn a_process_that_changes_its_group_or_stops_is_still_the_same() {
        let read = |stat| parse(42, stat).expect("well formed").0;
        let before = read("42 (x) S 7 40 40 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99123 1 2");
        let after = read("42 (x) T 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99123 1 2");
        let another = read("42 (x) S 7 40 40 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99124 1 2");
        assert!(after == before && after.is_stopped && another != before);
        assert!(std::collections::HashSet::from([before]).contains(&after));
    }

    #[test]
    fn a_process_whose_parent_exited_during_the_scan_is_read_again() {
        let own = own_pid();
        let mut seen = vec![(Descendant { pid: 1, ..Descendant::default() }, false)];
        seen.extend(read(own));
        let parent = seen[1].0.parent;
        seen[1].0.parent = i32::MAX;
        let gone = Descendant { pid: i32::MAX - 1, parent: i32::MAX, ..Descendant::default() };
        seen.push((gone, false));
        close_gaps(&mut seen);
        assert!(!seen.iter().any(|(process, _)| *process == gone));
        assert_eq!((seen[1].0.parent, seen[1].0.pid), (parent, own));
    }

    #[test]
    fn a_signal_is_not_sent_to_a_later_process_of_the_same_id() {
        #[expect(clippy::disallowed_methods, reason = "its mask and SIGPIPE do not matter here")]
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep");
        let now = read(child.id() as i32).expect("it is there").0;
        let before = Descendant { started: now.started - 1, ..now };
        send(&before, Signal::KILL).expect("the process has exited");
        send(&now, Signal::TERM).expect("sent");
        let ended = std::os::unix::process::ExitStatusExt::signal(&child.wait().expect("reaped"));
        assert_eq!(ended, Some(libc::SIGTERM));
    }

    #[test]
    fn older_and_younger_are_distinguished_within_one_tick_too() {
        let moment = Moment { ticks: 500, newest: Some(1000) };
        let existed = |pid, started| Descendant { pid, started, ..Descendant::default() }.existed_at(moment);
        assert!(existed(1001, 499) && existed(1000, 500) && existed(900, 500));
        assert!(!existed(1001, 500) && !existed(900, 501));
        // The ids wrapped around: at 32768, or between the process and the moment.
        let moment = Moment { ticks: 500, newest: Some(32_760) };
        assert!(!Descendant { pid: 300, started: 500, ..Descendant::default() }.existed_at(moment));
        let moment = Moment { ticks: 500, newest: Some(310) };
        assert!(Descendant { pid: 32_760, started: 500, ..Descendant::default() }.existed_at(moment));
        let moment = Moment { ticks: 500, newest: None };
        assert!(!Descendant { pid: 300, started: 500, ..Descendant::default() }.existed_at(moment));
    }

    #[test]
    fn a_child_is_younger_than_the_moment_before_it_and_older_than_the_one_after() {
        for _ in 0..20 {
            let before = Moment::now().expect("a /proc");
            #[expect(clippy::disallowed_methods, reason = "its mask and SIGPIPE do not matter here")]
            let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep");
            let after = Moment::now().expect("a /proc");
            let seen = read(child.id() as i32).expect("it is there").0;
            assert!(!seen.existed_at(before) && seen.existed_at(after), "{before:?} {seen:?} {after:?}");
            child.kill().expect("killed");
            child.wait().expect("reaped");
        }
    }

    #[test]
    fn a_truncated_line_is_not_a_process() {
        assert_eq!(parse(42, "42 (x) S 7"), None);
        assert_eq!(parse(42, ""), None);
    }
}
