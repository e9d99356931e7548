use super::*;
use crate::process::signal::Signal;

fn policy(max_restarts: u32) -> Policy {
    Policy { max_restarts, ..Policy::default() }
}

fn crash(code: u8, step: Option<u64>, seconds: u64) -> Failure {
    Failure {
        end: End::Code(code),
        oom: false,
        hung: false,
        lasted: Duration::from_secs(seconds),
        step,
        without_progress: false,
        with_progress: false,
    }
}

fn after(answer: Decision) -> u64 {
    match answer {
        Decision::Restart(pause) => pause.as_secs(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_pause_doubles_up_to_its_maximum() {
    let (policy, mut memory) = (policy(20), RestartBudget::default());
    let pauses: Vec<u64> = (0..8).map(|n| after(memory.decide(&policy, crash(n + 10, None, 100)))).collect();
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
}

#[test]
fn two_restarts_mean_at_most_three_starts() {
    let (policy, mut memory) = (policy(2), RestartBudget::default());
    after(memory.decide(&policy, crash(1, None, 100)));
    after(memory.decide(&policy, crash(3, None, 100)));
    assert!(matches!(memory.decide(&policy, crash(4, None, 100)), Decision::GiveUp(why) if why.contains("budget")));
}

#[test]
fn new_content_refills_the_budget_whatever_its_step() {
    let (policy, mut memory) = (policy(1), RestartBudget::default());
    memory.starts_from(Some(10));
    after(memory.decide(&policy, crash(1, Some(10), 100)));
    for step in [Some(15), Some(7), None] {
        memory.progressed(step);
        assert_eq!(after(memory.decide(&policy, crash(1, step, 100))), 1);
    }
    assert!(matches!(memory.decide(&policy, crash(9, Some(15), 100)), Decision::GiveUp(_)));
}

#[test]
fn the_same_failure_at_the_same_step_with_new_content_between_is_retried() {
    let (policy, mut memory) = (policy(5), RestartBudget::default());
    let with_progress = Failure { with_progress: true, ..crash(1, Some(42), 100) };
    for _ in 0..9 {
        memory.progressed(Some(42));
        after(memory.decide(&policy, with_progress));
    }
    assert!(
        matches!(memory.decide(&policy, crash(1, Some(42), 100)), Decision::GiveUp(why) if why.contains("twice at step 42"))
    );
}

#[test]
fn the_same_failure_twice_at_one_step_is_not_retried() {
    let (policy, mut memory) = (policy(5), RestartBudget::default());
    after(memory.decide(&policy, crash(1, Some(10), 100)));
    assert!(
        matches!(memory.decide(&policy, crash(1, Some(10), 100)), Decision::GiveUp(why) if why.contains("step 10"))
    );
}

#[test]
fn a_requested_restart_or_transient_failure_is_retried_at_one_step_while_the_budget_lasts() {
    for code in [42, 75, 130, 143] {
        let (policy, mut memory) = (policy(3), RestartBudget::default());
        for _ in 0..3 {
            after(memory.decide(&policy, crash(code, Some(10), 100)));
        }
        assert!(
            matches!(memory.decide(&policy, crash(code, Some(10), 100)), Decision::GiveUp(why) if why.contains("budget"))
        );
        let hung = Failure { hung: true, ..crash(code, Some(10), 100) };
        let mut memory = RestartBudget::default();
        after(memory.decide(&policy, hung));
        assert!(matches!(memory.decide(&policy, hung), Decision::GiveUp(why) if why.contains("twice at step 10")));
    }
}

#[test]
fn two_kills_from_outside_at_one_step_are_retried() {
    let (policy, mut memory) = (policy(5), RestartBudget::default());
    let killed = Failure { end: End::Signal(Signal::KILL), ..crash(0, Some(10), 100) };
    after(memory.decide(&policy, killed));
    after(memory.decide(&policy, killed));
    for of_a_shell_or_a_launcher in [137, 247] {
        let passed_on = crash(of_a_shell_or_a_launcher, Some(10), 100);
        let mut memory = RestartBudget::default();
        after(memory.decide(&policy, passed_on));
        after(memory.decide(&policy, passed_on));
        let hung = Failure { hung: true, ..passed_on };
        after(memory.decide(&policy, hung));
        assert!(matches!(memory.decide(&policy, hung), Decision::GiveUp(why) if why.contains("twice at step 10")));
    }
}

#[test]
fn out_of_memory_is_retried_once() {
    let (policy, mut memory) = (policy(5), RestartBudget::default());
    let oom = Failure { end: End::Signal(Signal::KILL), oom: true, ..crash(0, None, 100) };
    after(memory.decide(&policy, oom));
    assert!(matches!(memory.decide(&policy, oom), Decision::GiveUp(why) if why.contains("memory")));
}

#[test]
fn three_quick_failures_without_a_checkpoint_are_a_crash_loop() {
    let (policy, mut memory) = (policy(50), RestartBudget::default());
    after(memory.decide(&policy, crash(7, None, 1)));
    after(memory.decide(&policy, crash(7, None, 1)));
    assert!(matches!(memory.decide(&policy, crash(7, None, 1)), Decision::GiveUp(why) if why.contains("in a row")));
}

#[test]
fn pauses_vary_by_at_most_a_fifth() {
    let mut pauses: Vec<Duration> = Vec::new();
    for seed in 0..200 {
        let policy = Policy { seed: Some(seed), ..policy(5) };
        match RestartBudget::default().decide(&policy, crash(1, None, 100)) {
            Decision::Restart(pause) => pauses.push(pause),
            other => panic!("{other:?}"),
        }
    }
    pauses.sort();
    let (least, most) = (pauses[0], pauses[199]);
    assert!(least >= Duration::from_millis(800) && least < Duration::from_millis(830), "{least:?}");
    assert!(most <= Duration::from_millis(1200) && most > Duration::from_millis(1170), "{most:?}");
}

#[test]
fn after_ten_healthy_minutes_the_first_restart_comes_at_once() {
    let (policy, mut memory) = (policy(5), RestartBudget::default());
    assert_eq!(memory.decide(&policy, crash(1, None, 600)), Decision::Restart(Duration::ZERO));
    assert_eq!(after(memory.decide(&policy, crash(3, None, 600))), 2);
}

#[test]
fn a_bus_error_is_retried_once_and_then_blamed_on_shared_memory() {
    for end in [End::Code(135), End::Signal(Signal::new(7).expect("BUS"))] {
        let (policy, mut memory) = (policy(5), RestartBudget::default());
        let bus = Failure { end, ..crash(0, None, 100) };
        after(memory.decide(&policy, bus));
        after(memory.decide(&policy, crash(1, None, 100)));
        assert!(matches!(memory.decide(&policy, bus), Decision::GiveUp(why) if why.contains("twice without progress")));
    }
}

#[test]
fn a_requested_restart_after_a_save_does_not_use_the_budget() {
    let (policy, mut memory) = (policy(1), RestartBudget::default());
    for step in 1..20 {
        memory.progressed(Some(step));
        after(memory.decide(&policy, crash(42, Some(step), 100)));
    }
    after(memory.decide(&policy, crash(1, Some(19), 100)));
    assert!(matches!(memory.decide(&policy, crash(42, Some(19), 100)), Decision::GiveUp(_)));
}

#[test]
fn two_deaths_soon_after_the_same_checkpoint_fall_back_to_an_older_one_once() {
    let (policy, mut memory) = (policy(9), RestartBudget::default());
    let without_progress = |step| Failure { without_progress: true, ..crash(1, Some(step), 100) };
    after(memory.decide(&policy, without_progress(20)));
    assert!(matches!(memory.decide(&policy, without_progress(20)), Decision::FallBack(_)));
    after(memory.decide(&policy, without_progress(10)));
    assert!(matches!(memory.decide(&policy, without_progress(10)), Decision::GiveUp(why) if why.contains("step 10")));
}

#[test]
fn a_death_after_a_save_still_leads_to_the_older_checkpoint() {
    let without_progress = |step| Failure { without_progress: true, ..crash(1, Some(step), 20) };
    let where_there_is = |an_older_one| {
        let (policy, mut memory) = (policy(3), RestartBudget::default());
        memory.progressed(Some(20));
        memory.note_older_commit(an_older_one);
        let first = memory.decide(&policy, crash(1, Some(20), 20));
        (first, memory.decide(&policy, without_progress(20)), memory.decide(&policy, without_progress(20)))
    };
    let (first, second, third) = where_there_is(true);
    assert!(matches!((first, second, third), (Decision::Restart(_), Decision::Restart(_), Decision::FallBack(_))));
    let (_, second, _) = where_there_is(false);
    assert!(
        matches!(second, Decision::GiveUp(why) if why.contains("twice at step 20")),
        "there is no older checkpoint"
    );
}

#[test]
fn several_checkpoints_found_after_the_attempt_leave_an_older_one_to_fall_back_to() {
    let without_progress = Failure { without_progress: true, ..crash(1, Some(20), 20) };
    let (policy, mut memory) = (policy(3), RestartBudget::default());
    memory.progressed(Some(20));
    memory.note_older_commit(true);
    after(memory.decide(&policy, crash(1, Some(20), 20)));
    memory.note_older_commit(false);
    after(memory.decide(&policy, without_progress));
    assert!(matches!(memory.decide(&policy, without_progress), Decision::FallBack(_)));
}

#[test]
fn an_attempt_that_saved_does_not_count_as_a_quick_failure() {
    let (policy, mut memory) = (policy(9), RestartBudget::default());
    memory.progressed(Some(5));
    for code in [3, 4, 5] {
        after(memory.decide(&policy, crash(code, Some(5), 1)));
    }
    assert!(
        matches!(memory.decide(&policy, crash(6, Some(5), 1)), Decision::GiveUp(why) if why.contains("3 failures"))
    );
}

#[test]
fn after_a_fallback_progress_counts_from_there_and_a_second_fallback_needs_a_higher_step() {
    let (policy, mut memory) = (policy(2), RestartBudget::default());
    let without_progress = |step, code| Failure { without_progress: true, ..crash(code, Some(step), 100) };
    memory.progressed(Some(20));
    after(memory.decide(&policy, without_progress(20, 1)));
    assert!(matches!(memory.decide(&policy, without_progress(20, 1)), Decision::FallBack(_)));
    memory.fell_back_to(Some(10));
    memory.progressed(Some(15));
    after(memory.decide(&policy, without_progress(15, 1)));
    after(memory.decide(&policy, without_progress(15, 3)));
    memory.progressed(Some(25));
    after(memory.decide(&policy, without_progress(25, 1)));
    assert!(matches!(memory.decide(&policy, without_progress(25, 1)), Decision::FallBack(_)));
}

#[test]
fn a_hung_attempt_is_restarted_for_any_exit_code() {
    let hung = Failure { hung: true, ..crash(127, None, 100) };
    assert!(matches!(RestartBudget::default().decide(&policy(1), hung), Decision::Restart(_)));
}

#[test]
fn a_requested_restart_or_transient_failure_does_not_blame_the_checkpoint() {
    for end in [42, 75, 130, 143].map(End::Code).into_iter().chain([End::Signal(Signal::TERM)]) {
        let (policy, mut memory) = (policy(9), RestartBudget::default());
        let without_progress = Failure { end, without_progress: true, ..crash(0, Some(20), 100) };
        for _ in 0..4 {
            after(memory.decide(&policy, without_progress));
        }
        // A hung attempt did not ask for a restart.
        let hung = Failure { hung: true, ..without_progress };
        after(memory.decide(&policy, hung));
        assert!(matches!(memory.decide(&policy, hung), Decision::FallBack(_)), "{end:?}");
    }
}

#[test]
fn a_late_death_or_one_from_outside_does_not_blame_the_checkpoint() {
    let (policy, mut memory) = (policy(9), RestartBudget::default());
    let late = Failure { without_progress: true, ..crash(1, Some(20), 301) };
    let killed = Failure { end: End::Signal(Signal::KILL), lasted: Duration::from_secs(1), ..late };
    let [by_a_shell, by_a_launcher] = [137, 247].map(|code| Failure { end: End::Code(code), ..killed });
    for failure in [late, killed, by_a_shell, late, by_a_launcher, Failure { end: End::Code(3), ..late }] {
        after(memory.decide(&policy, failure));
    }
}

#[test]
fn an_exit_code_that_a_restart_cannot_cure_is_not_restarted() {
    for code in [2, 125, 126, 127] {
        let answer = RestartBudget::default().decide(&policy(5), crash(code, None, 100));
        assert!(matches!(answer, Decision::GiveUp(why) if why.contains(&code.to_string())));
    }
}
