use super::*;
use crate::rules::signal::Signal;

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
        stuck: false,
        saved: false,
    }
}

fn after(answer: Answer) -> u64 {
    match answer {
        Answer::After(pause) => pause.as_secs(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_pause_doubles_up_to_its_maximum() {
    let (policy, mut memory) = (policy(20), Memory::default());
    let pauses: Vec<u64> = (0..8).map(|n| after(memory.judge(&policy, crash(n + 10, None, 100)))).collect();
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
}

#[test]
fn two_restarts_mean_at_most_three_starts() {
    let (policy, mut memory) = (policy(2), Memory::default());
    after(memory.judge(&policy, crash(1, None, 100)));
    after(memory.judge(&policy, crash(3, None, 100)));
    assert!(matches!(memory.judge(&policy, crash(4, None, 100)), Answer::No(why) if why.contains("budget")));
}

#[test]
fn a_newer_checkpoint_refills_the_budget_and_an_old_one_does_not() {
    let (policy, mut memory) = (policy(1), Memory::default());
    memory.starts_from(Some(10));
    after(memory.judge(&policy, crash(1, Some(10), 100)));
    memory.progressed(Some(15));
    assert_eq!(after(memory.judge(&policy, crash(1, Some(15), 100))), 1);
    memory.progressed(Some(15));
    assert!(matches!(memory.judge(&policy, crash(9, Some(15), 100)), Answer::No(_)));
}

#[test]
fn without_steps_a_newer_checkpoint_refills_the_budget_after_ten_minutes_and_one_saved_at_once_does_not() {
    let saved = |seconds| Failure { saved: true, ..crash(1, None, seconds) };
    let (policy, mut memory) = (policy(1), Memory::default());
    for _ in 0..9 {
        after(memory.judge(&policy, saved(600)));
    }
    assert!(matches!(memory.judge(&policy, saved(599)), Answer::No(why) if why.contains("budget")));
}

#[test]
fn the_same_failure_twice_at_one_step_is_not_tried_a_third_time() {
    let (policy, mut memory) = (policy(5), Memory::default());
    after(memory.judge(&policy, crash(1, Some(10), 100)));
    assert!(matches!(memory.judge(&policy, crash(1, Some(10), 100)), Answer::No(why) if why.contains("step 10")));
}

#[test]
fn who_asks_for_a_restart_or_says_that_it_passes_is_tried_again_at_one_step_as_long_as_the_budget_lasts() {
    for code in [42, 75, 130, 143] {
        let (policy, mut memory) = (policy(3), Memory::default());
        for _ in 0..3 {
            after(memory.judge(&policy, crash(code, Some(10), 100)));
        }
        assert!(matches!(memory.judge(&policy, crash(code, Some(10), 100)), Answer::No(why) if why.contains("budget")));
        let hung = Failure { hung: true, ..crash(code, Some(10), 100) };
        let mut memory = Memory::default();
        after(memory.judge(&policy, hung));
        assert!(matches!(memory.judge(&policy, hung), Answer::No(why) if why.contains("twice at step 10")));
    }
}

#[test]
fn being_killed_from_outside_twice_at_one_step_is_no_failure_of_the_program() {
    let (policy, mut memory) = (policy(5), Memory::default());
    let killed = Failure { end: End::Signal(Signal::KILL), ..crash(0, Some(10), 100) };
    after(memory.judge(&policy, killed));
    after(memory.judge(&policy, killed));
    for of_a_shell_or_a_launcher in [137, 247] {
        let passed_on = crash(of_a_shell_or_a_launcher, Some(10), 100);
        let mut memory = Memory::default();
        after(memory.judge(&policy, passed_on));
        after(memory.judge(&policy, passed_on));
        let hung = Failure { hung: true, ..passed_on };
        after(memory.judge(&policy, hung));
        assert!(matches!(memory.judge(&policy, hung), Answer::No(why) if why.contains("twice at step 10")));
    }
}

#[test]
fn out_of_memory_is_tried_once_more_and_no_further() {
    let (policy, mut memory) = (policy(5), Memory::default());
    let oom = Failure { end: End::Signal(Signal::KILL), oom: true, ..crash(0, None, 100) };
    after(memory.judge(&policy, oom));
    assert!(matches!(memory.judge(&policy, oom), Answer::No(why) if why.contains("memory")));
}

#[test]
fn three_quick_failures_without_a_checkpoint_are_a_crash_loop() {
    let (policy, mut memory) = (policy(50), Memory::default());
    after(memory.judge(&policy, crash(7, None, 1)));
    after(memory.judge(&policy, crash(7, None, 1)));
    assert!(matches!(memory.judge(&policy, crash(7, None, 1)), Answer::No(why) if why.contains("in a row")));
}

#[test]
fn pauses_are_spread_by_a_fifth_and_never_beyond() {
    let mut pauses: Vec<Duration> = Vec::new();
    for seed in 0..200 {
        let policy = Policy { seed: Some(seed), ..policy(5) };
        match Memory::default().judge(&policy, crash(1, None, 100)) {
            Answer::After(pause) => pauses.push(pause),
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
    let (policy, mut memory) = (policy(5), Memory::default());
    assert_eq!(memory.judge(&policy, crash(1, None, 600)), Answer::After(Duration::ZERO));
    assert_eq!(after(memory.judge(&policy, crash(3, None, 600))), 2);
}

#[test]
fn a_bus_error_is_tried_once_more_and_then_blamed_on_shared_memory() {
    for end in [End::Code(135), End::Signal(Signal::new(7).expect("BUS"))] {
        let (policy, mut memory) = (policy(5), Memory::default());
        let bus = Failure { end, ..crash(0, None, 100) };
        after(memory.judge(&policy, bus));
        after(memory.judge(&policy, crash(1, None, 100)));
        assert!(matches!(memory.judge(&policy, bus), Answer::No(why) if why.contains("/dev/shm")));
    }
}

#[test]
fn who_saved_and_asks_for_a_restart_is_not_charged_for_it() {
    let (policy, mut memory) = (policy(1), Memory::default());
    for step in 1..20 {
        memory.progressed(Some(step));
        after(memory.judge(&policy, crash(42, Some(step), 100)));
    }
    after(memory.judge(&policy, crash(1, Some(19), 100)));
    assert!(matches!(memory.judge(&policy, crash(42, Some(19), 100)), Answer::No(_)));
}

#[test]
fn two_deaths_soon_after_the_same_checkpoint_fall_back_to_an_older_one_once() {
    let (policy, mut memory) = (policy(9), Memory::default());
    let stuck = |step| Failure { stuck: true, ..crash(1, Some(step), 100) };
    after(memory.judge(&policy, stuck(20)));
    assert!(matches!(memory.judge(&policy, stuck(20)), Answer::Older(_)));
    after(memory.judge(&policy, stuck(10)));
    assert!(matches!(memory.judge(&policy, stuck(10)), Answer::No(why) if why.contains("step 10")));
}

#[test]
fn the_death_after_the_save_does_not_acquit_the_checkpoint_where_there_is_an_older_one() {
    let stuck = |step| Failure { stuck: true, ..crash(1, Some(step), 20) };
    let of_steps = |steps: &[u64]| {
        let (policy, mut memory) = (policy(3), Memory::default());
        steps.iter().for_each(|step| memory.progressed(Some(*step)));
        let first = memory.judge(&policy, crash(1, Some(20), 20));
        (first, memory.judge(&policy, stuck(20)), memory.judge(&policy, stuck(20)))
    };
    let (first, second, third) = of_steps(&[10, 20]);
    assert!(matches!((first, second, third), (Answer::After(_), Answer::After(_), Answer::Older(_))));
    let (_, second, _) = of_steps(&[20]);
    assert!(matches!(second, Answer::No(why) if why.contains("twice at step 20")), "there is none to go back to");
}

#[test]
fn of_several_checkpoints_that_were_first_seen_when_the_attempt_was_over_the_newest_is_not_the_only_one() {
    let stuck = Failure { stuck: true, ..crash(1, Some(20), 20) };
    let (policy, mut memory) = (policy(3), Memory::default());
    memory.progressed(Some(20));
    memory.sees_older(true);
    after(memory.judge(&policy, crash(1, Some(20), 20)));
    memory.sees_older(false);
    after(memory.judge(&policy, stuck));
    assert!(matches!(memory.judge(&policy, stuck), Answer::Older(_)));
}

#[test]
fn an_attempt_that_saved_is_none_of_three_quick_failures_without_a_checkpoint() {
    let (policy, mut memory) = (policy(9), Memory::default());
    memory.progressed(Some(5));
    for code in [3, 4, 5] {
        after(memory.judge(&policy, crash(code, Some(5), 1)));
    }
    assert!(matches!(memory.judge(&policy, crash(6, Some(5), 1)), Answer::No(why) if why.contains("3 failures")));
}

#[test]
fn the_checkpoint_that_the_job_began_with_is_no_progress() {
    let (policy, mut memory) = (policy(9), Memory::default());
    memory.starts_from(Some(100));
    let mut crashes = |code: u8| {
        memory.progressed(Some(100));
        memory.judge(&policy, crash(code, Some(100), 1))
    };
    assert!(matches!([crashes(7), crashes(8)], [Answer::After(_), Answer::After(_)]));
    assert!(matches!(crashes(9), Answer::No(why) if why.contains("in a row")));
}

#[test]
fn who_went_back_makes_progress_from_there_and_goes_back_again_only_from_beyond() {
    let (policy, mut memory) = (policy(2), Memory::default());
    let stuck = |step, code| Failure { stuck: true, ..crash(code, Some(step), 100) };
    memory.progressed(Some(20));
    after(memory.judge(&policy, stuck(20, 1)));
    assert!(matches!(memory.judge(&policy, stuck(20, 1)), Answer::Older(_)));
    memory.goes_back_to(Some(10));
    memory.progressed(Some(15));
    after(memory.judge(&policy, stuck(15, 1)));
    after(memory.judge(&policy, stuck(15, 3)));
    memory.progressed(Some(25));
    after(memory.judge(&policy, stuck(25, 1)));
    assert!(matches!(memory.judge(&policy, stuck(25, 1)), Answer::Older(_)));
}

#[test]
fn who_hung_is_restarted_whatever_code_it_left_with() {
    let hung = Failure { hung: true, ..crash(127, None, 100) };
    assert!(matches!(Memory::default().judge(&policy(1), hung), Answer::After(_)));
}

#[test]
fn who_asks_for_a_restart_or_fails_of_what_passes_does_not_blame_the_checkpoint() {
    for end in [42, 75, 130, 143].map(End::Code).into_iter().chain([End::Signal(Signal::TERM)]) {
        let (policy, mut memory) = (policy(9), Memory::default());
        let stuck = Failure { end, stuck: true, ..crash(0, Some(20), 100) };
        for _ in 0..4 {
            after(memory.judge(&policy, stuck));
        }
        // A hung one did not ask for anything.
        let hung = Failure { hung: true, ..stuck };
        after(memory.judge(&policy, hung));
        assert!(matches!(memory.judge(&policy, hung), Answer::Older(_)), "{end:?}");
    }
}

#[test]
fn a_late_death_or_one_from_outside_does_not_blame_the_checkpoint() {
    let (policy, mut memory) = (policy(9), Memory::default());
    let late = Failure { stuck: true, ..crash(1, Some(20), 301) };
    let killed = Failure { end: End::Signal(Signal::KILL), lasted: Duration::from_secs(1), ..late };
    let [by_a_shell, by_a_launcher] = [137, 247].map(|code| Failure { end: End::Code(code), ..killed });
    for failure in [late, killed, by_a_shell, late, by_a_launcher, Failure { end: End::Code(3), ..late }] {
        after(memory.judge(&policy, failure));
    }
}

#[test]
fn what_a_restart_cannot_cure_is_not_restarted() {
    for code in [2, 125, 126, 127] {
        let answer = Memory::default().judge(&policy(5), crash(code, None, 100));
        assert!(matches!(answer, Answer::No(why) if why.contains(&code.to_string())));
    }
}
