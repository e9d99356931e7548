use super::super::run::tests::run;
use super::*;

fn with_steps(mut run: Run, resumed: Option<u64>, steps: (u64, u64)) -> Run {
    (run.resumed_step, run.first_step, run.last_step) = (resumed, Some(steps.0), Some(steps.1));
    run
}

/// A run that was preempted, one that was killed, and one that finished.
fn life() -> Vec<Run> {
    let first = [("start", 1.0), ("first_step", 9.0), ("training", 90.0), ("stopped", 2.0)];
    let second = [("restore", 2.0), ("first_step", 3.0), ("repeated", 5.0), ("training", 40.0)];
    let third = [("restore", 4.0), ("first_step", 5.0), ("training", 50.0), ("commit", 1.0)];
    vec![
        with_steps(run(10, 1_190, &third, Some("finished")), Some(140), (141, 190)),
        with_steps(run(1, 1_000, &first, Some("preempted")), None, (1, 100)),
        with_steps(run(2, 1_110, &second, None), Some(95), (96, 140)),
    ]
}

#[test]
fn the_time_of_all_runs_and_of_the_waits_adds_up() {
    let life = Life::of(life()).expect("runs");
    assert_eq!(life.wall_seconds, 102.0 + 8.0 + 50.0 + 30.0 + 60.0);
    assert_eq!(life.seconds.values().sum::<f64>(), life.wall_seconds);
    assert_eq!((life.seconds["between"], life.seconds["training"]), (38.0, 180.0));
    assert_eq!(life.goodput, 0.72);
    assert_eq!(life.runs.iter().map(|run| run.attempt).collect::<Vec<_>>(), [1, 2, 10]);
    assert_eq!((life.runs[1].ended.as_deref(), &*life.runs[1].reason), (None, "killed"));
    assert_eq!(life.notes, [""; 0]);
}

#[test]
fn faults_recoveries_and_losses_are_those_of_the_runs_that_did_not_finish() {
    let life = Life::of(life()).expect("runs");
    assert_eq!((life.faults.count, life.faults.mtbf_seconds), (2, Some(106.0)));
    assert_eq!(life.faults.by_reason, [("killed".into(), 1), ("preempted".into(), 1)].into());
    let expected = Recovery { stop: Some(2.0), between: Some(19.0), restore: Some(3.0), first_step: Some(4.0) };
    assert_eq!(life.recovery, expected);
    assert_eq!((life.lost.steps, life.lost.machine_seconds), (5, 5.0 + 38.0 + 2.0 + 6.0 + 8.0));
    assert_eq!(life.advice, None, "no save");
}

#[test]
fn a_clock_that_was_set_back_makes_a_wait_of_nothing_and_one_note() {
    let mut runs = life();
    runs[2].started = "1969-12-31T23:59:59Z".replace("1969-12-31", "1970-01-01");
    let life = Life::of(runs).expect("runs");
    assert_eq!((life.notes.len(), life.runs[1].attempt), (1, 2));
    assert!((life.seconds.values().sum::<f64>() - life.wall_seconds).abs() < 0.001);
}

#[test]
fn seats_are_added_and_a_fault_of_all_seats_at_once_is_one() {
    let seats = ["node/0", "node/1", "node/2"];
    let runs = seats.iter().flat_map(|seat| {
        let of = |attempt, started, seconds, reason| {
            let mut run = run(attempt, started, &[("training", seconds)], reason);
            (run.identity.seat, run.identity.host) = ((*seat).to_owned(), format!("host-{seat}"));
            run
        };
        [of(1, 1_000, 100.0, Some("stopped")), of(2, 1_200, 100.0, None), of(3, 1_310, 50.0, Some("finished"))]
    });
    let life = Life::of(runs.collect()).expect("runs");
    assert_eq!((life.wall_seconds, life.seconds["between"]), (3.0 * 360.0, 3.0 * 110.0));
    assert_eq!((life.faults.count, life.faults.mtbf_seconds), (2, Some(125.0)));
    assert_eq!(life.runs.len(), 9);
}

#[test]
fn a_host_that_fails_more_than_its_share_is_suspect() {
    let on = |attempt: u64, host: &str, reason| {
        let mut run = run(attempt, attempt * 1000, &[("training", 100.0)], Some(reason));
        run.identity.host = host.to_owned();
        run
    };
    let bad = (1..=3).map(|attempt| on(attempt, "bad", "signalled"));
    let good = (4..=12).map(|attempt| on(attempt, "good", if attempt < 6 { "preempted" } else { "finished" }));
    let life = Life::of(bad.chain(good).collect()).expect("runs");
    let found: Vec<_> = life.hosts.iter().map(|host| (&*host.host, host.runs, host.faults, host.suspect)).collect();
    assert_eq!(found, [("bad", 3, 3, true), ("good", 9, 2, false)]);
    let alone = Life::of((1..=9).map(|attempt| on(attempt, "only", "failed")).collect()).expect("runs");
    assert!(!alone.hosts[0].suspect, "it had all the time");
}

#[test]
fn a_restart_within_a_run_is_a_fault_too() {
    let mut once = run(1, 1_000, &[("training", 100.0), ("restore", 4.0), ("stopped", 1.0)], Some("finished"));
    once.failures.insert("oom".into(), 1);
    once.starts = 2;
    let life = Life::of(vec![once]).expect("runs");
    assert_eq!((life.faults.count, life.faults.by_reason.get("oom")), (1, Some(&1)));
    assert_eq!((life.recovery.restore, life.recovery.stop, life.recovery.between), (Some(2.0), Some(1.0), None));
}

#[test]
fn a_run_of_another_job_that_resumed_from_nothing_here_is_left_out_with_a_note() {
    let mut runs = life();
    runs.iter_mut().for_each(|run| run.identity.job = "one".to_owned());
    let mut resubmitted = runs[0].clone();
    (resubmitted.attempt, resubmitted.identity.job) = (11, "two".to_owned());
    let mut foreign = resubmitted.clone();
    (foreign.attempt, foreign.resumed_step) = (12, None);
    runs.extend([resubmitted, foreign]);
    let life = Life::of(runs).expect("runs");
    assert_eq!(life.runs.iter().map(|run| run.attempt).collect::<Vec<_>>(), [1, 2, 10, 11]);
    assert!(life.notes.iter().any(|note| note.contains("another job")), "{:?}", life.notes);
    assert_eq!(Life::of(Vec::new()), None);
}

#[test]
fn the_advice_uses_the_measured_stall_and_the_time_between_faults() {
    let mut runs = life();
    (runs[0].commits, runs[0].commit_seconds) = (10, 40.0);
    let of = |runs: &[Run]| Life::of(runs.to_vec()).and_then(|life| life.advice).expect("advice");
    assert_eq!((of(&runs).stall_seconds, of(&runs).present_interval_seconds), (4.0, None));
    (runs[0].stall_seconds, runs[0].save_interval_seconds) = (Some(2.0), Some(60.0));
    let advice = of(&runs);
    assert_eq!((advice.save_interval_seconds, advice.present_interval_seconds), (20.591, Some(60.0)));
    runs[0].earlier = runs[2].tells();
    runs[0].earlier.faults += 1;
    assert!(runs[0].advice().is_some_and(|own| own.save_interval_seconds < 30.0), "a run knows the earlier faults");
}
