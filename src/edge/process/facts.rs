//! What a process does with a signal, and what it has open, from /proc/PID/status and /proc/PID/fd (proc(5)). Links are
//! read and never followed: a file system may hang.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::edge::process::descendants::Descendant;
use crate::edge::process::{pidfd, proc_listing};
use crate::rules::process::roles::{Facts, Pipe};
use crate::rules::process::signal::{Disposition, Signal};

const FUSE: &str = "/dev/fuse";

/// A process's handling of a signal. For a process that has exited: the default.
pub fn disposition(pid: i32, signal: Signal) -> Disposition {
    disposition_in(&status(pid), signal)
}

fn status(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default()
}

fn disposition_in(status: &str, signal: Signal) -> Disposition {
    let holds = |field: &str| {
        let set = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0);
        set >> (signal.number() - 1) & 1 == 1
    };
    match () {
        () if holds("SigIgn") => Disposition::Ignores,
        () if holds("SigCgt") || holds("SigBlk") => Disposition::Handles,
        () => Disposition::Default,
    }
}

/// The facts about these processes. `signal` is the stop's.
pub fn of_tree(tree: &[Descendant], main_children: &[i32], signal: Signal) -> Vec<Facts> {
    let own_input = pipe_at("self", "0");
    let mut all: Vec<Facts> = tree.iter().map(|process| of_process(process, main_children, signal)).collect();
    all.iter_mut().for_each(|facts| facts.input.take_if(|pipe| Some(&*pipe) == own_input.as_ref()).map_or((), drop));
    let by_pid: BTreeMap<i32, bool> = all.iter().map(|facts| (facts.pid, facts.ignores_int)).collect();
    let has_fuse = Path::new(FUSE).exists();
    let has_readers = all.iter().any(|facts| facts.input.is_some());
    for facts in &mut all {
        let is_marked_like_its_parent = facts.ignores_int && by_pid.get(&facts.parent) == Some(&true);
        facts.has_own_input = is_marked_like_its_parent && pidfd::have_other_inputs(facts.pid, facts.parent);
        if has_fuse || has_readers {
            add_open(facts);
        }
    }
    all
}

fn of_process(process: &Descendant, main_children: &[i32], signal: Signal) -> Facts {
    let Descendant { pid, parent, group, terminal, foreground, .. } = *process;
    let status = status(pid);
    let ignores = |signal| disposition_in(&status, signal) == Disposition::Ignores;
    Facts {
        pid,
        parent,
        is_main: main_children.contains(&pid),
        group,
        terminal,
        foreground,
        disposition: disposition_in(&status, signal),
        ignores_int: ignores(Signal::INT),
        ignores_quit: ignores(Signal::QUIT),
        input: pipe_at(&pid.to_string(), "0"),
        ..Facts::default()
    }
}

/// Adds what the process has open besides its standard input.
fn add_open(facts: &mut Facts) {
    let Some(descriptors) = proc_listing::ids(&format!("/proc/{}/fd", facts.pid)) else {
        facts.is_opaque = true;
        return;
    };
    for fd in descriptors.into_iter().filter(|fd| *fd != 0) {
        let target = link(&facts.pid.to_string(), &fd.to_string());
        facts.holds_fuse |= target.as_deref() == Some(FUSE);
        if let Some(pipe) = target.and_then(as_pipe) {
            if fd <= 2 {
                facts.outputs.insert(pipe.clone());
            }
            facts.pipes.insert(pipe);
        }
    }
}

fn pipe_at(pid: &str, fd: &str) -> Option<Pipe> {
    link(pid, fd).and_then(as_pipe)
}

fn link(pid: &str, fd: &str) -> Option<String> {
    fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok()?.into_os_string().into_string().ok()
}

fn as_pipe(target: String) -> Option<Pipe> {
    target.starts_with("pipe:[").then_some(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_handles_what_it_catches_or_waits_for_and_not_what_it_ignores() {
        let status = |blocked: &str, ignored: &str, caught: &str| {
            let text = format!("Name:\tx\nSigBlk:\t{blocked}\nSigIgn:\t{ignored}\nSigCgt:\t{caught}\n");
            disposition_in(&text, Signal::TERM)
        };
        let (none, term, other) = ("0000000000000000", "0000000000004000", "0000000000012002");
        assert_eq!(status(none, none, other), Disposition::Default);
        assert_eq!(status(none, none, term), Disposition::Handles);
        assert_eq!(status(term, none, none), Disposition::Handles);
        assert_eq!(status(term, term, none), Disposition::Ignores);
        assert_eq!(disposition_in("", Signal::TERM), Disposition::Default);
    }
}
