use super::super::report::Report;
use super::super::{platforms, seats};
use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

/// A job on this platform with one worker and these faults, just started.
fn started(platform: &str, faults: Vec<Fault>) -> Simulation {
    let platform = platforms().find(|known| known.name == platform).expect("a platform");
    let plan = Plan {
        platform,
        notice_by: platform.notice,
        seats: seats::seats(1, 0, 0),
        faults,
        notice: seconds(30),
        lose_disk: true,
        replace_after: seconds(5),
        limit: seconds(600),
    };
    let mut simulation = Simulation::new(plan);
    assert_eq!(simulation.step(Duration::ZERO, Event::Begin), [Action::Start(0, 0), Action::Start(1, 0)]);
    simulation
}

fn fault(kind: Kind, at: u64, replica: usize) -> Fault {
    Fault { kind, when: When::At(seconds(at)), replica, is_random: false }
}

/// The actions without the messages.
fn step(simulation: &mut Simulation, now: u64, event: Event<'_>) -> Vec<Action> {
    let mut actions = simulation.step(seconds(now), event);
    actions.retain(|action| !matches!(action, Action::Say(_)));
    actions
}

#[test]
fn a_preempted_replica_is_notified_then_killed_and_restarted_with_an_empty_disk() {
    let mut job = started("vertex", vec![fault(Kind::Preempt, 40, 1)]);
    assert_eq!(job.next_due(), Some(seconds(40)));
    assert_eq!(step(&mut job, 40, Event::Due), [Action::Announce(1, seconds(30))]);
    assert_eq!(job.next_due(), Some(seconds(70)));
    assert_eq!(step(&mut job, 70, Event::Due), [Action::Kill(1)]);
    assert_eq!(step(&mut job, 71, Event::Ended(1, 137, None)), []);
    assert_eq!(job.next_due(), Some(seconds(76)));
    assert_eq!(step(&mut job, 76, Event::Due), [Action::EmptyDisk(1), Action::Start(1, 0)]);
}

#[test]
fn a_replica_that_leaves_in_time_is_not_killed() {
    let mut job = started("vertex", vec![fault(Kind::Preempt, 40, 1)]);
    step(&mut job, 40, Event::Due);
    step(&mut job, 45, Event::Ended(1, 143, None));
    assert_eq!(job.next_due(), Some(seconds(50)), "only the replacement");
}

#[test]
fn a_platform_without_a_metadata_server_sends_sigterm() {
    let mut job = started("tf_config", vec![fault(Kind::Preempt, 40, 1)]);
    assert_eq!(step(&mut job, 40, Event::Due), [Action::Signal(1, Signal::TERM)]);
}

#[test]
fn vertex_starts_a_replica_five_times_again_and_then_the_job_has_failed() {
    let mut job = started("vertex", Vec::new());
    for restart in 0..5 {
        assert_eq!(step(&mut job, 10 * restart + 1, Event::Ended(1, 3, None)), []);
        assert_eq!(step(&mut job, 10 * restart + 9, Event::Due), [Action::Start(1, 0)]);
    }
    assert_eq!(step(&mut job, 60, Event::Ended(1, 3, None)), [Action::Signal(0, Signal::TERM)]);
    assert!(matches!(job.outcome(), Some(Outcome::Failed(why)) if why.contains("worker-0 ended with 3")));
    assert_eq!(step(&mut job, 61, Event::Ended(0, 143, None)), [Action::Over]);
}

#[test]
fn when_the_chief_succeeds_the_job_does_and_the_others_are_stopped_and_then_killed() {
    let mut job = started("vertex", Vec::new());
    assert_eq!(step(&mut job, 10, Event::Ended(0, 0, None)), [Action::Signal(1, Signal::TERM)]);
    assert_eq!(job.outcome(), Some(&Outcome::Succeeded));
    assert_eq!(step(&mut job, 40, Event::Due), [Action::Kill(1)]);
    assert_eq!(step(&mut job, 41, Event::Ended(1, 137, None)), [Action::Over]);
}

#[test]
fn an_indexed_job_succeeds_when_all_have_and_gives_up_after_six_failures() {
    let mut job = started("k8s_indexed", Vec::new());
    assert_eq!(step(&mut job, 10, Event::Ended(0, 0, None)), []);
    assert_eq!(step(&mut job, 11, Event::Ended(1, 0, None)), [Action::Over]);
    assert_eq!(job.outcome(), Some(&Outcome::Succeeded));
    let mut job = started("k8s_indexed", Vec::new());
    for failure in 0..6 {
        step(&mut job, 10 * failure, Event::Ended(1, 1, None));
        assert_eq!(step(&mut job, 10 * failure + 5, Event::Due), [Action::Start(1, 0)]);
    }
    step(&mut job, 70, Event::Ended(1, 1, None));
    assert!(matches!(job.outcome(), Some(Outcome::Failed(_))));
}

#[test]
fn kubeflow_starts_nothing_again_after_a_code_below_128() {
    for (code, is_final) in [(1, true), (127, true), (137, false), (203, false)] {
        let mut job = started("torch_env", Vec::new());
        step(&mut job, 10, Event::Ended(1, code, None));
        assert_eq!(job.outcome().is_some(), is_final, "{code}");
    }
}

#[test]
fn slurm_stops_all_after_a_loss_and_starts_all_again_with_a_count() {
    let mut job = started("slurm", vec![fault(Kind::Kill, 40, 1)]);
    assert_eq!(step(&mut job, 40, Event::Due), [Action::Kill(1), Action::Signal(0, Signal::TERM)]);
    step(&mut job, 41, Event::Ended(1, 137, None));
    step(&mut job, 42, Event::Ended(0, 0, None));
    assert_eq!(job.outcome(), None, "a task that ends with 0 after the requeue is started again, too");
    let again = [Action::Start(0, 1), Action::EmptyDisk(1), Action::Start(1, 1)];
    assert_eq!(step(&mut job, 47, Event::Due), again);
}

#[test]
fn on_slurm_and_sagemaker_a_failure_without_a_loss_ends_the_job() {
    for platform in ["slurm", "sagemaker"] {
        let mut job = started(platform, Vec::new());
        assert_eq!(step(&mut job, 10, Event::Ended(1, 143, None)), [Action::Signal(0, Signal::TERM)]);
        assert!(matches!(job.outcome(), Some(Outcome::Failed(_))), "{platform}");
    }
}

#[test]
fn a_frozen_replica_is_thawed_and_its_time_is_booked_as_stopped() {
    let mut job = started("vertex", vec![fault(Kind::Freeze(seconds(10)), 20, 0)]);
    step(&mut job, 5, Event::Line(0, "step=1 loss=2"));
    step(&mut job, 15, Event::Line(0, "step=2 loss=1"));
    assert_eq!(step(&mut job, 20, Event::Due), [Action::Freeze(0)]);
    assert_eq!(step(&mut job, 30, Event::Due), [Action::Thaw(0)]);
    step(&mut job, 31, Event::Line(0, "step=3 loss=0.5"));
    let time = job.replicas()[0].account.seconds();
    assert_eq!((time.start, time.training, time.stopped), (5.0, 16.0, 10.0));
}

#[test]
fn a_fault_at_a_step_happens_once_and_a_fault_of_a_stopped_replica_is_missed() {
    let at_step = Fault { kind: Kind::Kill, when: When::Step(3), replica: 1, is_random: false };
    let mut job = started("vertex", vec![at_step, fault(Kind::Kill, 12, 1)]);
    assert_eq!(step(&mut job, 3, Event::Line(0, "step=3 loss=1")), [], "another replica's");
    assert_eq!(step(&mut job, 4, Event::Line(1, "step=2 loss=1")), []);
    assert_eq!(step(&mut job, 5, Event::Line(1, "step=4 loss=1")), [Action::Kill(1)]);
    step(&mut job, 10, Event::Ended(1, 137, None));
    assert_eq!(step(&mut job, 12, Event::Due), []);
    assert!(job.fault_records()[1].is_missed && !job.fault_records()[0].is_missed);
    step(&mut job, 15, Event::Due);
    assert_eq!(step(&mut job, 20, Event::Line(1, "step=3 loss=1")), [], "only once");
}

#[test]
fn repeated_steps_and_waiting_are_counted_and_every_second_has_one_cause() {
    let mut job = started("vertex", vec![fault(Kind::Kill, 30, 1)]);
    for (at, line) in [(10, "step=1 loss=3"), (20, "step=2 loss=2")] {
        step(&mut job, at, Event::Line(1, line));
    }
    step(&mut job, 30, Event::Due);
    step(&mut job, 31, Event::Ended(1, 137, None));
    step(&mut job, 36, Event::Due);
    for (at, line) in [(40, "step=1 loss=3"), (50, "step=2 loss=2"), (60, "step=3 loss=1")] {
        step(&mut job, at, Event::Line(1, line));
    }
    step(&mut job, 70, Event::Ended(0, 0, None));
    step(&mut job, 71, Event::Ended(1, 143, None));
    let report = Report::of(&job, seconds(71));
    let (worker, time) = (&report.replicas[1], &report.replicas[1].time);
    assert_eq!((worker.starts, worker.repeated_steps, worker.step, worker.loss), (2, 2, Some(3), Some(1.0)));
    assert_eq!((time.waiting, time.start, time.training, time.repeated, time.stopped), (5.0, 14.0, 20.0, 10.0, 22.0));
    assert_eq!(time.total(), 71.0);
    assert!(report.succeeded && report.table().contains("worker-0"), "{}", report.table());
    assert!(report.page().contains("<th scope=\"row\">worker-0</th>"));
}

#[test]
fn the_time_of_a_restore_is_taken_from_the_verdict_and_out_of_the_start() {
    let mut job = started("vertex", Vec::new());
    step(&mut job, 20, Event::Line(0, "step=1 loss=1"));
    let verdict = serde_json::json!({ "goodput": { "restore": 5.0, "peers": 2.0 }, "committed_step": 7 });
    step(&mut job, 30, Event::Ended(0, 0, Some(verdict)));
    let time = job.replicas()[0].account.seconds();
    assert_eq!((time.start, time.restore, time.waiting, time.total()), (13.0, 5.0, 2.0, 30.0));
    assert_eq!(Report::of(&job, seconds(30)).replicas[0].committed_step, Some(7));
}

#[test]
fn a_trainer_that_is_started_again_within_its_replica_repeats_steps_after_a_start() {
    let mut job = started("vertex", Vec::new());
    for (at, line) in [(10, "step=6 loss=3"), (20, "step=7 loss=2"), (35, "step=6 loss=3"), (40, "step=7 loss=2")] {
        step(&mut job, at, Event::Line(0, line));
    }
    let time = job.replicas()[0].account.seconds();
    assert_eq!((time.start, time.training, time.repeated), (25.0, 10.0, 5.0));
    assert_eq!(job.replicas()[0].repeated_steps, 2);
}

#[test]
fn at_the_time_limit_the_job_has_failed_and_a_second_request_kills_at_once() {
    let mut job = started("vertex", Vec::new());
    let stop = [Action::Signal(0, Signal::TERM), Action::Signal(1, Signal::TERM)];
    assert_eq!(step(&mut job, 600, Event::Due), stop);
    assert!(matches!(job.outcome(), Some(Outcome::Failed(why)) if why.contains("600s")));
    let mut job = started("vertex", vec![fault(Kind::Kill, 30, 1)]);
    assert_eq!(step(&mut job, 10, Event::Stop(Signal::INT)), stop);
    assert_eq!(job.next_due(), Some(40 * SECOND), "no fault is left");
    assert_eq!(step(&mut job, 11, Event::Stop(Signal::INT)), [Action::Kill(0), Action::Kill(1)]);
    step(&mut job, 12, Event::Ended(0, 137, None));
    assert_eq!(step(&mut job, 12, Event::Ended(1, 137, None)), [Action::Over]);
    assert_eq!(job.outcome(), Some(&Outcome::Interrupted(Signal::INT)));
}
