//! The model of a finished job.

use super::hanging::silence;
use super::*;
use crate::job::Flushed;

fn model() -> Option<String> {
    Some("s3://b/m".to_owned())
}

fn leaving(store: bool) -> Machine {
    running(Policy { model: model(), store, ..with_store() })
}

const SAFE: Event = Event::Flushed(Flushed::Done { step: Some(5) });

#[test]
fn the_model_follows_the_last_commit_and_then_the_job_has_finished() {
    let mut machine = leaving(true);
    let flush = feed(&mut machine, 9.0, [ended(0), Event::TreeEmpty]);
    assert_eq!(flush.last(), Some(&Action::Flush { deadline: None, leaving: false, failed: false }));
    let publish = machine.step(secs(9.5), SAFE);
    assert!(matches!(publish[..], [Action::Arm(Timer::FlushLimit, _), Action::Publish]), "{publish:?}");
    let end = outcome(machine.step(secs(9.9), Event::Flushed(Flushed::Done { step: None })));
    assert_eq!((end.reason, end.exit_code, end.committed_step), (Reason::Finished, 0, Some(5)));
}

#[test]
fn without_a_store_only_the_model_is_copied() {
    let mut machine = leaving(false);
    let actions = feed(&mut machine, 9.0, [ended(0), Event::TreeEmpty]);
    assert_eq!(actions.last(), Some(&Action::Publish));
}

#[test]
fn a_model_that_is_not_safe_is_204() {
    let mut machine = leaving(true);
    feed(&mut machine, 9.0, [ended(0), Event::TreeEmpty, SAFE]);
    let end = outcome(machine.step(secs(9.9), Event::Flushed(Flushed::Failed("no rights there".into()))));
    assert_eq!((end.reason, end.exit_code, end.detail.as_str()), (Reason::Store, 204, "no rights there"));
}

#[test]
fn a_failed_or_stopped_job_leaves_no_model() {
    let mut machine = leaving(true);
    feed(&mut machine, 1.0, [term(), ended(0), Event::TreeEmpty]);
    let end = outcome(machine.step(secs(2.0), SAFE));
    assert_eq!(end.exit_code, 143);
    assert!(end.detail.contains("its model is not copied"), "{}", end.detail);
    let mut machine = running(Policy { model: model(), max_restarts: 0, ..with_store() });
    feed(&mut machine, 1.0, [ended(3), Event::TreeEmpty]);
    assert_eq!(outcome(machine.step(secs(2.0), SAFE)).exit_code, 3);
}

#[test]
fn a_hung_job_leaves_no_model_and_stays_hung_for_any_exit_code() {
    let hang_timeout = Some(secs(80.0));
    let hung = || {
        let mut machine = running(Policy { model: model(), max_restarts: 0, hang_timeout, ..with_store() });
        let (now, _) = silence(&mut machine, 0.1);
        feed(&mut machine, now, [ended(0), Event::TreeEmpty]);
        machine
    };
    assert_eq!(outcome(hung().step(secs(251.0), SAFE)).exit_code, 201);
    let lost = Event::Flushed(Flushed::Failed("no rights there".into()));
    let end = outcome(hung().step(secs(251.0), lost));
    assert_eq!((end.reason, end.exit_code), (Reason::Hung, 201));
    assert!(end.detail.contains("no rights there"), "{}", end.detail);
}

#[test]
fn a_notice_while_the_model_is_copied_sets_a_deadline() {
    let mut machine = leaving(true);
    feed(&mut machine, 9.0, [ended(0), Event::TreeEmpty, SAFE]);
    let actions = machine
        .step(secs(9.1), Event::Preempted { id: String::new(), source: "gce preempted".into(), lead: secs(30.0) });
    assert!(actions.contains(&Action::SetCommitDeadline { deadline: secs(37.1) }), "{actions:?}");
    assert_eq!(outcome(machine.step(secs(9.9), Event::Flushed(Flushed::Done { step: None }))).exit_code, 0);
}

#[test]
fn a_copy_of_the_model_that_is_cut_short_is_not_reported_as_a_lost_checkpoint() {
    let signal = |signal| Event::Signal { signal, sender: Some(0) };
    let notice = Event::Preempted { id: String::new(), source: "gce preempted".into(), lead: secs(30.0) };
    let limit = || Event::Due(Timer::FlushLimit);
    for (store, cut_short, expected) in [
        (false, vec![signal(Signal::INT)], "the copy of the model to s3://b/m was interrupted by SIGINT; "),
        (true, vec![signal(Signal::INT)], "the copy of the model to s3://b/m was interrupted by SIGINT; "),
        (true, vec![limit()], "the copy of the model to s3://b/m transferred nothing for 300 s: "),
        (
            true,
            vec![notice, limit()],
            "preempted (gce preempted) before the copy of the model to s3://b/m was complete: ",
        ),
    ] {
        let mut machine = leaving(store);
        feed(&mut machine, 9.0, [ended(0), Event::TreeEmpty]);
        if store {
            machine.step(secs(9.0), SAFE);
        }
        let mut actions = Vec::new();
        for (at, event) in [10.0, 400.0].into_iter().zip(cut_short) {
            actions = machine.step(secs(at), event);
        }
        let end = outcome(actions);
        assert_eq!((end.reason, end.exit_code), (Reason::Store, 204));
        assert!(end.detail.starts_with(expected), "{}", end.detail);
        assert!(end.detail.ends_with(COPY_AGAIN) && !end.detail.contains("checkpoint"), "{}", end.detail);
    }
}

#[test]
fn an_interrupted_last_commit_says_what_to_do_with_or_without_a_model() {
    let mut machine = leaving(true);
    feed(&mut machine, 9.0, [ended(0), Event::TreeEmpty]);
    let end = outcome(machine.step(secs(9.5), Event::Signal { signal: Signal::INT, sender: Some(0) }));
    assert!(end.detail.starts_with("the last commit was interrupted by SIGINT; "), "{}", end.detail);
    assert!(end.detail.contains("start the job again"), "{}", end.detail);
}
