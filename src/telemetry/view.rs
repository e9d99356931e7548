//! One place that says what happened: each event, what it made the job do, and nothing twice.

use std::time::Duration;

use crate::edge::clock;
use crate::rules::exit::End;
use crate::rules::job::{Action, Event, Flushed, KILLED_FOR_MEMORY, Machine, State, Target, Timer, Uptime};
use crate::rules::signal::Signal;

/// There is no date for what is further away.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Logs one step of the machine, after the fact. `command` is the command's name, without its arguments; `is_out_of_reach`: we
/// may not signal it.
pub fn tell(
    command: &str,
    now: Uptime,
    before: &State,
    event: &Event,
    machine: &Machine,
    actions: &[Action],
    is_out_of_reach: bool,
) {
    match event {
        Event::Restored { resume: Some(resume), .. } if *before == State::Restoring => {
            tracing::info!(step = resume.step, "resuming from {}", resume.from);
        }
        Event::Restored { resume: Some(resume), .. } if let Some(bad) = machine.passed_over() => tracing::warn!(
            code = "poisoned_checkpoint",
            step = resume.step,
            "{command} failed twice soon after going on from {bad}: the next attempt goes on from {}; {bad} is kept aside",
            resume.from
        ),
        Event::PeersReached if *before == State::Gathering => {
            tracing::info!("{} can be reached", machine.peers().unwrap_or_default());
        }
        Event::Spawned { pids } => told_start(command, pids, machine),
        Event::NotSpawned { detail, .. } if !actions.iter().any(|action| matches!(action, Action::Exit(_))) => {
            tracing::warn!("attempt {} could not be started: {detail}", machine.attempt());
        }
        Event::MainEnded { local_rank, end, oom } => {
            let who = machine.leader_name(*local_rank).unwrap_or_else(|| command.to_owned());
            told_end(&who, *end, *oom, machine.is_stopping() || *before == State::Draining);
        }
        Event::Reaped { pid, end } => tracing::debug!(pid, "reaped a process of the tree: {end}"),
        Event::Signal { signal, .. } if machine.announces(*signal) => {
            let left = machine.leaves_by().unwrap_or_default().saturating_sub(now);
            told_notice(&format!("signal {signal}"), left, machine);
        }
        Event::Signal { signal, sender } => {
            let to = if is_out_of_reach { None } else { Some(machine.ranks().is_some()) };
            told_signal(*signal, *sender, now, actions, to);
        }
        Event::Preempted { source, lead, .. } => told_notice(source, *lead, machine),
        Event::Withdrawn { source, .. } => told_withdrawal(source, now, machine),
        Event::Warned { why } => {
            tracing::warn!(code = "preemption_hint", "{why}; training goes on; save a checkpoint soon")
        }
        Event::Frozen { why, .. } => tracing::warn!(code = "preemption_hint", "{why}"),
        Event::Committed { unit, step, lag, .. } => {
            tracing::info!(unit, step, lag_seconds = (lag.as_secs_f64() * 10.0).round() / 10.0, "checkpoint committed");
        }
        Event::AwaitsOthers(Some(patience)) => {
            let seconds = patience.as_secs();
            tracing::info!("the last commit waits for the other processes of this node, for {seconds} s at most");
        }
        Event::Flushed(Flushed::OutOfTime(why)) if says_so(actions, why) => {}
        Event::Flushed(Flushed::OutOfTime(why)) => tracing::warn!("{why}"),
        Event::Flushed(Flushed::Done { step: Some(step) }) => {
            tracing::info!(step, "the newest complete checkpoint is safe in the store")
        }
        Event::Flushed(Flushed::Stepless) => tracing::info!("the newest complete checkpoint is safe in the store"),
        Event::GpuFailed { detail } => tracing::error!(code = "gpu", "a GPU is no place to go on: {detail}"),
        Event::Fenced { .. } if *before == State::Done || machine.is_fenced_again() => {}
        Event::Fenced { detail } if says_so(actions, detail) => {}
        Event::Fenced { detail } => tracing::error!("fenced: {detail}"),
        Event::Due(Timer::Grace) if machine.hung().is_some() => {
            tracing::warn!("SIGABRT has not ended all of it: SIGKILL for every process that is left");
        }
        Event::Due(Timer::Grace) => {
            tracing::warn!("the stop grace is over: SIGKILL for every process that is left");
        }
        _ => {}
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

/// Logs what has to stand before that which the deeds themselves bring to the log.
pub fn forewarn(command: &str, machine: &Machine, actions: &[Action]) {
    if actions.contains(&Action::DumpStacks) {
        let why = machine.hung().unwrap_or_default();
        tracing::error!(
            code = "hung",
            "{command} hangs: {why}; what each process waits in follows, then SIGABRT, at last SIGKILL"
        );
    }
}

/// Whether the last line, which follows at once, says the same as an error. Of a job that was told to stop it is none, and
/// what is lost then needs a line of its own.
fn says_so(actions: &[Action], why: &str) -> bool {
    actions.iter().any(|action| match action {
        Action::Exit(end) => end.reason.is_failure() && end.detail.contains(why),
        _ => false,
    })
}

fn told_notice(source: &str, lead: Duration, machine: &Machine) {
    if lead.is_zero() {
        tracing::warn!("preempted ({source}): its time is past, the machine may go away at any moment");
    } else if machine.is_stopping() || machine.is_leaving() || lead > FOREVER {
        tracing::warn!("preempted ({source}): the machine goes away in {} s", lead.as_secs());
    } else {
        let at = humantime::format_rfc3339_seconds(clock::wall() + lead);
        let lead = humantime::format_duration(Duration::from_secs(lead.as_secs()));
        tracing::warn!(
            code = "preemption_hint",
            "announced ({source}): the machine goes away at {at}, in {lead}; the job goes on until a commit in the last hour \
             before that, or its last two minutes"
        );
    }
}

fn told_withdrawal(source: &str, now: Uptime, machine: &Machine) {
    let then = match machine.leaves_by() {
        _ if machine.is_stopping() || machine.is_leaving() => "too late: the job is leaving already".to_owned(),
        Some(end) => format!("another stands: the machine goes away in {} s", end.saturating_sub(now).as_secs()),
        None => "training goes on".to_owned(),
    };
    tracing::warn!("the notice ({source}) was withdrawn; {then}");
}

fn told_start(command: &str, pids: &[i32], machine: &Machine) {
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
fn told_end(who: &str, end: End, oom: Option<bool>, expected: bool) {
    match end {
        End::Code(0) => tracing::info!("{who} ended with exit code 0"),
        end if oom == Some(true) => tracing::warn!("{who} ended with {end}; {KILLED_FOR_MEMORY}"),
        end if expected => tracing::info!("{who} ended with {end}"),
        end => tracing::warn!("{who} ended with {end}"),
    }
}

/// `several`: whether there are several main children; `None`: none of them may be signalled.
fn told_signal(signal: Signal, sender: Option<u32>, now: Uptime, actions: &[Action], several: Option<bool>) {
    let forwarded = actions.iter().find_map(|action| match action {
        Action::Signal { target, signal } => Some((*target, *signal)),
        _ => None,
    });
    let to = match (forwarded, several) {
        (Some((_, sent)), None) => format!("the command may not be sent {sent}"),
        (Some((Target::Leader, sent)), Some(several)) => {
            format!("{sent} sent to {}", if several { "each rank" } else { "the main child" })
        }
        (Some((Target::Group, sent)), Some(several)) => format!(
            "{sent} sent to {}",
            if several { "each rank's process group" } else { "the child's process group" }
        ),
        (None, _) => "not forwarded now".to_owned(),
    };
    let grace = actions.iter().find_map(|action| match action {
        Action::Arm(Timer::Grace, at) => {
            Some(format!("; SIGKILL in {} for what still runs", seconds(at.saturating_sub(now))))
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

    /// What the machine does when the last commit of a trainer that ended with this code ran out of time.
    fn out_of_time(code: u8, is_stopped: bool) -> Vec<Action> {
        let mut machine = Machine::new(Policy { checkpoints: true, store: true, ..Policy::default() });
        let term = Event::Signal { signal: Signal::TERM, sender: None };
        let stop = is_stopped.then_some(term);
        let ended = Event::MainEnded { local_rank: 0, end: End::Code(code), oom: Some(false) };
        let restored = Event::Restored { resume: None, committed: None, older: false };
        let events = [Event::Started, restored, Event::Spawned { pids: vec![7] }].into_iter().chain(stop);
        for event in events.chain([ended, Event::TreeEmpty]) {
            machine.step(Uptime::ZERO, event);
        }
        assert_eq!(*machine.state(), State::Flushing);
        machine.step(Uptime::ZERO, Event::Flushed(Flushed::OutOfTime("no time left".into())))
    }

    #[test]
    fn what_the_last_line_says_as_an_error_is_not_said_just_before_it() {
        assert!(says_so(&out_of_time(0, false), "no time left"));
        assert!(says_so(&out_of_time(3, false), "no time left"));
    }

    #[test]
    fn a_commit_that_was_lost_on_being_told_to_stop_keeps_its_warning() {
        assert!(!says_so(&out_of_time(0, true), "no time left"));
    }
}
