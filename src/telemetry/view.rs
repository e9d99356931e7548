//! Logs what happened: each event and the resulting actions, each only once.

use std::time::Duration;

use crate::edge::clock;
use crate::rules::gang::member::Action as Order;
use crate::rules::job::{Action, Event, Flushed, KILLED_FOR_MEMORY, Machine, State, Target, Timer, Uptime};
use crate::rules::process::exit::End;
use crate::rules::process::signal::Signal;

/// A time further away than this is printed without a date.
const FARTHEST_DATE: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Facts about the signals that were sent to the command's processes.
#[derive(Debug, Default)]
pub struct Signalled {
    /// The user of this process must not signal the main children.
    pub is_out_of_reach: bool,
    /// A main child gets the stop's signal later, after the processes that need it.
    pub main_waits: bool,
    /// The processes that were left when the last main child ended, in words.
    pub left_behind: Option<String>,
    /// The processes that get the stop's signal only at the end of the grace, in words.
    pub late: Option<String>,
    /// The processes that were killed at the deadline, in words.
    pub killed: Option<String>,
}

/// Logs one step of the machine after it happened. `command` is the command's name, without arguments.
pub fn log_step(
    command: &str,
    now: Uptime,
    before: &State,
    event: &Event,
    machine: &Machine,
    actions: &[Action],
    signalled: &Signalled,
) {
    match event {
        Event::Restored { resume: Some(resume), .. } if let Some(bad) = machine.passed_over() => tracing::warn!(
            code = "poisoned_checkpoint",
            step = resume.step,
            "{command} failed twice soon after resuming from {bad}: the next attempt resumes from {}; {bad} is moved aside",
            resume.from
        ),
        Event::PeersReached if *before == State::Gathering => {
            tracing::info!("{} can be reached", machine.peers().unwrap_or_default());
        }
        Event::Spawned { pids } => log_start(command, pids, machine),
        Event::NotSpawned { detail, .. } if !actions.iter().any(|action| matches!(action, Action::Exit(_))) => {
            tracing::warn!("attempt {} could not be started: {detail}", machine.attempt());
        }
        Event::MainEnded { local_rank, end, oom } => {
            let subject = machine.main_child_name(*local_rank).unwrap_or_else(|| command.to_owned());
            log_end(&subject, *end, *oom, machine.is_stopping() || *before == State::Draining);
            // The explanations of the last attempt are in the verdict.
            if machine.would_restart(now) {
                machine.explain(*end).iter().for_each(|clue| tracing::warn!("{subject}: {clue}"));
            }
            let is_natural = matches!(end, End::Code(_)) && !machine.is_stopping() && machine.hung().is_none();
            if let Some(left) = signalled.left_behind.as_ref().filter(|_| is_natural) {
                tracing::warn!(
                    "{subject} ended while processes that it had started were still running in the background, and they are stopped now: {left}; \
                     if one of them is the trainer, let the script wait for it (wait), or start it with exec"
                );
            }
        }
        Event::Reaped { pid, end } => log_reaped(*pid, *end),
        Event::Signal { signal, .. } if machine.announces(*signal) => {
            let left = machine.leaves_by().unwrap_or_default().saturating_sub(now);
            log_notice(&format!("signal {signal}"), left, machine);
        }
        Event::Signal { signal, sender } => {
            log_signal(*signal, *sender, now, actions, machine.ranks().is_some(), signalled);
        }
        Event::Preempted { source, lead, .. } => log_notice(source, *lead, machine),
        Event::Withdrawn { source, .. } => log_withdrawal(source, now, machine),
        Event::Warned { why } => {
            tracing::warn!(code = "preemption_hint", "{why}; training continues; save a checkpoint soon")
        }
        Event::Frozen { why, .. } => tracing::warn!(code = "preemption_hint", "{why}"),
        Event::Committed { unit, step, lag, .. } => {
            tracing::info!(unit, step, lag_seconds = (lag.as_secs_f64() * 10.0).round() / 10.0, "checkpoint committed");
        }
        Event::AwaitsOthers(Some(limit)) => {
            let seconds = limit.as_secs();
            tracing::info!("the last commit waits for the other processes of this node, for {seconds} s at most");
        }
        Event::Flushed(Flushed::OutOfTime(why)) if is_last_line(actions, why) => {}
        Event::Flushed(Flushed::OutOfTime(why)) => tracing::warn!("{why}"),
        Event::Flushed(Flushed::Done { step: Some(step) }) => {
            tracing::info!(step, "the newest complete checkpoint is safe in the store")
        }
        Event::Flushed(Flushed::Stepless) => tracing::info!("the newest complete checkpoint is safe in the store"),
        Event::GpuFailed { detail } => tracing::error!(code = "gpu", "a GPU is unfit for training: {detail}"),
        Event::Gang(order) => log_gang(command, *before == State::Running, order),
        Event::Fenced { .. } if *before == State::Done || machine.is_fenced_again() => {}
        Event::Fenced { detail } if is_last_line(actions, detail) => {}
        Event::Fenced { detail } => tracing::error!("fenced: {detail}"),
        Event::Due(Timer::Grace) => {
            let over = match machine.hung() {
                Some(_) => "SIGABRT did not end all processes".to_owned(),
                None => machine.grace_in_words(),
            };
            let subject = signalled.killed.as_deref().unwrap_or("every remaining process");
            tracing::warn!("{over}: SIGKILL for {subject}");
        }
        _ => {}
    }
    if let Some(late) = &signalled.late {
        tracing::warn!("{late}");
    }
    for action in actions {
        if *action == Action::AwaitPeers {
            tracing::info!("waiting for {}", machine.peers().unwrap_or_default());
        }
        if let Action::Arm(Timer::Backoff, at) = action {
            let pause = at.saturating_sub(now);
            tracing::warn!(next_attempt = machine.attempt() + 1, "restarting {command} in {}", seconds(pause));
        }
    }
}

/// Logs the end of a process other than a main child.
pub fn log_reaped(pid: i32, end: End) {
    tracing::debug!(pid, "reaped a process of the tree: {end}");
}

/// Logs the lines that must come before those of the actions.
pub fn log_before(command: &str, machine: &Machine, actions: &[Action]) {
    if actions.contains(&Action::DumpStacks) {
        let why = machine.hung().unwrap_or_default();
        tracing::error!(
            code = "hung",
            "{command} hangs: {why}; the stacks of all processes follow, then SIGABRT, then SIGKILL"
        );
    }
}

/// Whether the last line, which follows immediately, repeats this error. If the job was asked to stop, the
/// last line is not an error, and a loss needs its own line.
fn is_last_line(actions: &[Action], why: &str) -> bool {
    actions.iter().any(|action| match action {
        Action::Exit(end) => end.reason.is_failure() && end.detail.contains(why),
        _ => false,
    })
}

/// Logs an order of the gang.
fn log_gang(command: &str, is_running: bool, order: &Order) {
    match order {
        Order::Launch(generation) => tracing::info!("generation {generation} of the gang starts"),
        Order::Stop(grace) if is_running => tracing::warn!(
            code = "gang",
            "the gang halts: SIGTERM for {command}, SIGKILL in {} for the remaining processes",
            seconds(*grace)
        ),
        Order::AwaitEnd(limit) if is_running => tracing::warn!(
            code = "gang",
            "the gang halts, and {command} has closed its connections to the other replicas: it may end by itself within {}, \
             then SIGKILL",
            seconds(*limit)
        ),
        Order::Kill if is_running => {
            tracing::warn!(code = "gang", "there was no message of the gang's leader in time: SIGKILL for {command}");
        }
        Order::End(grace) if is_running => {
            tracing::info!("the chief has finished: {command} may end by itself within {}", seconds(*grace));
        }
        Order::Save { leave: false, .. } if is_running => tracing::warn!(
            code = "gang",
            "another replica's machine goes away: {command} saves and stops, and starts again when a replacement is there"
        ),
        _ => {}
    }
}

fn log_notice(source: &str, lead: Duration, machine: &Machine) {
    if lead.is_zero() {
        tracing::warn!("preempted ({source}): its time has passed, the machine may go away at any moment");
    } else if machine.is_stopping() || machine.is_leaving() || lead > FARTHEST_DATE {
        tracing::warn!("preempted ({source}): the machine goes away in {} s", lead.as_secs());
    } else {
        let at = humantime::format_rfc3339_seconds(clock::wall() + lead);
        let lead = humantime::format_duration(Duration::from_secs(lead.as_secs()));
        tracing::warn!(
            code = "preemption_hint",
            "announced ({source}): the machine goes away at {at}, in {lead}; the job continues until a commit in the last hour \
             before that, or until its last two minutes"
        );
    }
}

fn log_withdrawal(source: &str, now: Uptime, machine: &Machine) {
    let then = match machine.leaves_by() {
        _ if machine.is_stopping() || machine.is_leaving() => "too late: the job is already leaving".to_owned(),
        Some(end) => {
            format!("another notice is valid: the machine goes away in {} s", end.saturating_sub(now).as_secs())
        }
        None => "training continues".to_owned(),
    };
    tracing::warn!("the notice ({source}) was withdrawn; {then}");
}

fn log_start(command: &str, pids: &[i32], machine: &Machine) {
    let attempt = machine.attempt();
    match (pids, machine.ranks()) {
        (&[pid], _) | (&[pid, ..], None) => tracing::info!(pid, attempt, "started {command}"),
        (_, Some((first, last))) => {
            let pids: Vec<String> = pids.iter().map(i32::to_string).collect();
            tracing::info!(pids = pids.join(" "), attempt, "started {command}, ranks {first} to {last}");
        }
        _ => {}
    }
}

/// `expected`: it was asked to end.
fn log_end(subject: &str, end: End, oom: Option<bool>, expected: bool) {
    match end {
        End::Code(0) => tracing::info!("{subject} ended with exit code 0"),
        end if oom == Some(true) => tracing::warn!("{subject} ended with {end}; {KILLED_FOR_MEMORY}"),
        end if expected => tracing::info!("{subject} ended with {end}"),
        end => tracing::warn!("{subject} ended with {end}"),
    }
}

/// `several`: whether there are several main children.
fn log_signal(
    signal: Signal,
    sender: Option<u32>,
    now: Uptime,
    actions: &[Action],
    several: bool,
    signalled: &Signalled,
) {
    let forwarded = actions.iter().find_map(|action| match action {
        Action::Signal { target, signal } => Some((*target, *signal)),
        _ => None,
    });
    let to = match forwarded {
        Some((_, sent)) if signalled.is_out_of_reach => format!("no permission to send {sent} to the command"),
        Some((_, sent)) if signalled.main_waits => {
            format!("{sent} goes to the processes on the terminal of the main child first")
        }
        Some((Target::Leader, sent)) => {
            format!("{sent} sent to {}", if several { "each rank" } else { "the main child" })
        }
        Some((Target::Group, sent)) => format!(
            "{sent} sent to {}",
            if several { "each rank's process group" } else { "the child's process group" }
        ),
        None => "not forwarded now".to_owned(),
    };
    let grace = actions.iter().find_map(|action| match action {
        Action::Arm(Timer::Grace, at) => {
            Some(format!("; SIGKILL in {} for remaining processes (--stop-grace)", seconds(at.saturating_sub(now))))
        }
        _ => None,
    });
    if signal.asks_to_leave() {
        tracing::info!(sender, "{signal} received; {to}{}", grace.unwrap_or_default());
    } else {
        tracing::debug!(sender, "{signal} received; {to}");
    }
}

fn seconds(duration: Duration) -> String {
    match duration.as_millis() {
        ms @ 1..100 => format!("{ms} ms"),
        _ => format!("{} s", (duration.as_secs_f64() * 10.0).round() / 10.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::job::Policy;

    /// The machine's actions when the last commit of a trainer with this exit code ran out of time.
    fn out_of_time(code: u8, is_stopped: bool) -> Vec<Action> {
        let mut machine = Machine::new(Policy { checkpoints: true, store: true, ..Policy::default() });
        let term = Event::Signal { signal: Signal::TERM, sender: None };
        let stop = is_stopped.then_some(term);
        let ended = Event::MainEnded { local_rank: 0, end: End::Code(code), oom: Some(false) };
        let restored = Event::Restored { resume: None, committed: None, older: false, is_further: false };
        let events = [Event::Started, restored, Event::Spawned { pids: vec![7] }].into_iter().chain(stop);
        for event in events.chain([ended, Event::TreeEmpty]) {
            machine.step(Uptime::ZERO, event);
        }
        assert_eq!(*machine.state(), State::Flushing);
        machine.step(Uptime::ZERO, Event::Flushed(Flushed::OutOfTime("no time left".into())))
    }

    #[test]
    fn an_error_in_the_last_line_is_not_logged_before_it() {
        assert!(is_last_line(&out_of_time(0, false), "no time left"));
        assert!(is_last_line(&out_of_time(3, false), "no time left"));
    }

    #[test]
    fn a_commit_that_was_lost_in_a_stop_keeps_its_warning() {
        assert!(!is_last_line(&out_of_time(0, true), "no time left"));
    }
}
