//! The timeline of a run: its attempts, its commits and other marks, from the events of the job. Old entries are dropped
//! when there are too many.

use std::collections::VecDeque;
use std::time::Duration;

use crate::gang::member::Action as Order;
use crate::job::{Event, Flushed, Mirrored, Snapshot, Uptime};

/// The most entries of each kind.
const MOST: usize = 200;

/// The events of a run with their times.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    /// The starts of the command.
    pub attempts: VecDeque<Attempt>,
    /// The commits.
    pub commits: VecDeque<Commit>,
    /// Everything else.
    pub marks: VecDeque<Mark>,
    /// The reason to leave that has a mark.
    leaving: Option<String>,
}

/// One start of the command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// From 1.
    pub number: u32,
    /// When the command was executed.
    pub from: Uptime,
    /// When its tree was empty.
    pub to: Option<Uptime>,
    /// The step that it resumed from.
    pub resumed_step: Option<u64>,
    /// How its main child ended.
    pub end: Option<String>,
}

/// One commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// When it was complete.
    pub at: Uptime,
    /// How long it took.
    pub took: Duration,
    /// Its step, if known.
    pub step: Option<u64>,
    /// The bytes of its files.
    pub bytes: Option<u64>,
}

/// An event without a duration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// When it happened.
    pub at: Uptime,
    /// What happened.
    pub text: String,
}

impl Timeline {
    /// Adds an event. `snapshot` is the state after it.
    pub fn note(&mut self, now: Uptime, event: &Event, snapshot: &Snapshot) {
        match event {
            Event::Spawned { .. } => push(
                &mut self.attempts,
                Attempt {
                    number: snapshot.attempt,
                    from: now,
                    to: None,
                    resumed_step: snapshot.resumed_step,
                    end: None,
                },
            ),
            Event::MainEnded { end, .. } => {
                if let Some(attempt) = self.attempts.back_mut() {
                    attempt.end.get_or_insert_with(|| end.to_string());
                }
            }
            Event::TreeEmpty => {
                if let Some(attempt) = self.attempts.back_mut() {
                    attempt.to.get_or_insert(now);
                }
            }
            Event::Committed { step, took, .. } => {
                push(&mut self.commits, Commit { at: now, took: *took, step: *step, bytes: None });
            }
            Event::Mirrored(Mirrored::Committed { bytes, took }) => match self.commits.back_mut() {
                Some(commit) if commit.bytes.is_none() => commit.bytes = Some(*bytes),
                _ => push(&mut self.commits, Commit { at: now, took: *took, step: None, bytes: Some(*bytes) }),
            },
            Event::Flushed(Flushed::Done { step: Some(step) }) => {
                if let Some(commit) = self.commits.back_mut() {
                    commit.step.get_or_insert(*step);
                }
            }
            Event::Preempted { source, lead, .. } => {
                self.mark(now, format!("preempted ({source}), the machine goes away in {} s", lead.as_secs()));
            }
            Event::Withdrawn { source, .. } => self.mark(now, format!("the notice ({source}) was withdrawn")),
            Event::Warned { why } | Event::Frozen { why, .. } => self.mark(now, why.clone()),
            Event::Gang(Order::Launch(generation)) => self.mark(now, format!("generation {generation} of the gang")),
            _ => {}
        }
        if snapshot.leaving != self.leaving {
            self.leaving.clone_from(&snapshot.leaving);
            if let Some(why) = &snapshot.leaving {
                self.mark(now, format!("leaving: {why}"));
            }
        }
    }

    fn mark(&mut self, at: Uptime, text: String) {
        push(&mut self.marks, Mark { at, text });
    }
}

fn push<T>(all: &mut VecDeque<T>, new: T) {
    if all.len() == MOST {
        all.pop_front();
    }
    all.push_back(new);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::exit::End;

    const SECOND: Duration = Duration::from_secs(1);

    fn timeline(events: impl IntoIterator<Item = Event>) -> Timeline {
        let (mut timeline, mut now) = (Timeline::default(), Duration::ZERO);
        let snapshot = Snapshot { attempt: 1, resumed_step: Some(5), ..Snapshot::default() };
        for event in events {
            now += SECOND;
            timeline.note(now, &event, &snapshot);
        }
        timeline
    }

    #[test]
    fn an_attempt_has_the_end_of_its_first_main_child_and_ends_with_its_tree() {
        let ended = |code| Event::MainEnded { local_rank: 0, end: End::Code(code), oom: None };
        let all = timeline([Event::Spawned { pids: vec![7] }, ended(3), ended(1), Event::TreeEmpty]);
        let expected = Attempt {
            number: 1,
            from: SECOND,
            to: Some(4 * SECOND),
            resumed_step: Some(5),
            end: Some("exit code 3".into()),
        };
        assert_eq!(all.attempts, [expected]);
    }

    #[test]
    fn a_commit_gets_its_bytes_and_the_last_commit_its_step() {
        let committed =
            Event::Committed { unit: "u".into(), step: Some(40), took: SECOND, lag: SECOND, is_progress: true };
        let bytes = |bytes| Event::Mirrored(Mirrored::Committed { bytes, took: SECOND });
        let all = timeline([committed, bytes(8), bytes(9), Event::Flushed(Flushed::Done { step: Some(55) })]);
        let commit = |at, step, bytes| Commit { at, took: SECOND, step: Some(step), bytes: Some(bytes) };
        assert_eq!(all.commits, [commit(SECOND, 40, 8), commit(3 * SECOND, 55, 9)]);
    }

    #[test]
    fn a_reason_to_leave_has_one_mark() {
        let mut timeline = Timeline::default();
        let snapshot = Snapshot { leaving: Some("stopped by SIGTERM".into()), ..Snapshot::default() };
        (1..4).for_each(|n| timeline.note(n * SECOND, &Event::Tidying, &snapshot));
        assert_eq!(timeline.marks, [Mark { at: SECOND, text: "leaving: stopped by SIGTERM".into() }]);
    }

    #[test]
    fn the_number_of_entries_is_limited() {
        let warned = (0..1000).map(|n| Event::Warned { why: n.to_string() });
        let marks = timeline(warned).marks;
        assert_eq!((marks.len(), marks.back().map(|mark| mark.text.as_str())), (MOST, Some("999")));
    }
}
