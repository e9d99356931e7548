//! Single faults in a known order, and random ones by seeds.

use super::*;

/// Runs a gang with random faults. After them the job must finish, unless it gave up for a good reason, and its trainers must
/// end.
pub(super) fn check_seed(seed: u64, plan: &Plan, faults: u64) {
    let run = |traced: bool| {
        let mut world = World::new(seed, plan.clone());
        world.traced = traced;
        world.faults(faults, 200 * SECOND);
        world.run(9_000 * SECOND);
        (violation(&world), world)
    };
    if run(false).0.is_some() {
        let (violation, world) = run(true);
        world.fail(seed, &violation.unwrap_or_default());
    }
}

fn violation(world: &World) -> Option<String> {
    let too_fast = |leave: &Leave| matches!(leave, Leave::GaveUp { why, .. } if why.contains("within a minute") || why.contains("was lost"));
    // Without a store, the information that the job started without checkpoints is lost if all agents are replaced.
    let no_common_step = |leave: &Leave| {
        let is_lost = matches!(leave, Leave::GaveUp { no_common_step: true, .. });
        is_lost && !world.plan.store && !world.a_step_is_common()
    };
    let gives_up = |leave: &Leave| too_fast(leave) || no_common_step(leave);
    let gave_up = world.agents.iter().any(|agent| agent.left.as_ref().is_some_and(|(_, leave)| gives_up(leave)));
    let late = || {
        (world.finished.is_none() && !gave_up).then(|| "the job has not finished long after the last fault".to_owned())
    };
    let trains = world.finished.is_some() && world.plan.store && world.agents.iter().any(|agent| agent.run.is_some());
    let still_trains = || trains.then(|| "a trainer runs long after the end".to_owned());
    // An agent that the platform has started after the end may wait for the others of a next run.
    let stays = |agent: &Agent| agent.alive && !matches!(agent.left, Some((_, Leave::Finished)));
    let staying = world.agents.iter().position(stays).filter(|_| world.end_written.is_some());
    let has_stayed = || staying.map(|agent| format!("agent {agent} has not left with 0 although the job has finished"));
    world.violation.clone().or_else(late).or_else(still_trains).or_else(has_stayed)
}

#[test]
fn a_gang_without_faults_trains_and_ends_together() {
    let plans = [1, 2, 3, 16].map(|trainers| Plan::of(trainers, Mode::Each));
    for plan in plans.into_iter().chain([Plan::of(3, Mode::Chief).with(Role::Ps, 2).with(Role::Evaluator, 1)]) {
        let mut world = World::new(7, plan);
        world.run(600 * SECOND);
        if let Some(violation) = &world.violation {
            world.fail(7, violation);
        }
        assert!(world.finished.is_some());
        assert_eq!(world.started.len(), 1, "one generation is enough");
        if !world.agents.iter().all(|agent| matches!(agent.left, Some((_, Leave::Finished)))) {
            world.fail(7, "an agent has not left with 0");
        }
        let own =
            world.agents.iter().find(|agent| agent.leader.is_some()).and_then(|agent| agent.left.as_ref()).unwrap().0;
        assert!(
            world.agents.iter().all(|agent| agent.left.as_ref().unwrap().0 <= own),
            "the leader's agent leaves last"
        );
    }
}

#[test]
fn one_death_stops_all_within_a_second_and_all_start_again_from_one_step() {
    let mut world = World::new(11, Plan::of(3, Mode::Each));
    world.run(70 * SECOND);
    assert!(world.agents.iter().all(|agent| agent.run.is_some()), "they train");
    world.fault(Fault::TrainerDies(seat_of(2)));
    let died = world.now;
    world.run(died + SECOND);
    if world.agents.iter().any(|agent| agent.run.as_ref().is_some_and(|run| run.generation == 1)) {
        world.fail(11, "a trainer runs a second after another's death");
    }
    world.run(died + 100 * SECOND);
    let generations: BTreeSet<Generation> = world.started.keys().copied().collect();
    assert_eq!(generations, BTreeSet::from([1, 2]), "{:?}", world.trace);
    assert_eq!(world.charges, 1, "one cause is charged once");
}

#[test]
fn a_seat_that_is_never_replaced_ends_the_job_and_is_named() {
    let mut plan = Plan::of(3, Mode::Each);
    plan.timing.wait = Duration::from_secs(300);
    let mut world = World::new(5, plan);
    world.run(70 * SECOND);
    world.fault(Fault::AgentDies { seat: seat_of(1), after: None });
    world.run(1_000 * SECOND);
    let of = |agent: &&Agent| agent.seat != seat_of(1);
    for agent in world.agents.iter().filter(of) {
        let Some((_, Leave::GaveUp { why, no_common_step: false, .. })) = &agent.left else {
            world.fail(5, "a member waits for ever")
        };
        assert!(why.contains("worker/0"), "{why}");
    }
}

#[test]
fn a_lasting_contradiction_between_settings_ends_all_before_the_first_start_and_is_named() {
    for seed in 0..20 {
        let mut world = World::new(seed, Plan::of(3, Mode::Each));
        world.misconfigured = Some((seat_of(1), Millis::MAX));
        world.run(200 * SECOND);
        let is_named =
            |agent: &Agent| matches!(&agent.left, Some((_, Leave::Contradiction(why))) if why.contains("worker/0"));
        if !world.started.is_empty() || !world.agents.iter().all(is_named) {
            world.fail(seed, "an agent has started, or has not left");
        }
    }
}

#[test]
fn if_the_platform_restarts_all_a_notice_ends_all_and_the_next_run_continues() {
    let mut plan = Plan::of(3, Mode::Each);
    plan.on_notice = OnNotice::Leave;
    let mut world = World::new(3, plan);
    world.run(70 * SECOND);
    world.fault(Fault::Notice { seat: seat_of(1), lead: 10 * SECOND });
    world.run(100 * SECOND);
    if world.agents.iter().any(|agent| agent.alive && agent.seat != seat_of(1)) {
        world.fail(3, "an agent has not left");
    }
    world.run(1_000 * SECOND);
    if world.finished.is_none() || world.violation.is_some() {
        world.fail(3, world.violation.as_deref().unwrap_or("the job does not continue"));
    }
}

/// The seeds: ten, or a failed one with `GANG_SEED=339`, or `GANG_SEEDS=2000` of them from `GANG_FIRST=18000` on.
#[allow(clippy::disallowed_methods, reason = "a test's own switch")]
fn seeds() -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("GANG_FIRST").unwrap_or(0);
    let many = first..first + number("GANG_SEEDS").unwrap_or(10);
    number("GANG_SEED").map_or(many, |seed| seed..seed + 1)
}

/// Three replicas that have trained for a minute.
fn trained(plan: Plan) -> World {
    let mut world = World::new(11, plan);
    world.run(60 * SECOND);
    assert!(world.agents.iter().all(|agent| agent.run.is_some()), "they train");
    world
}

#[test]
fn the_end_of_a_machine_kills_the_agent_with_the_notice_and_not_its_replacement() {
    let mut world = trained(Plan::of(3, Mode::Each));
    let noticed = world.holder(seat_of(1)).unwrap();
    world.fault(Fault::Notice { seat: seat_of(1), lead: 10 * SECOND });
    world.fault(Fault::SecondAgent(seat_of(1)));
    let replacement = world.holder(seat_of(1)).unwrap();
    // The platform would end the old agent later, too.
    world.events.retain(|_, what| !matches!(what, WorldEvent::Dies(_)));
    world.run(world.now + 11 * SECOND);
    assert!(!world.agents[noticed].alive && world.agents[replacement].alive);
}

#[test]
fn a_hang_before_the_first_step_is_detected_by_the_trainers_own_agent() {
    let mut plan = Plan::of(3, Mode::Each);
    plan.step = 1_000 * SECOND;
    let mut world = trained(plan);
    world.fault(Fault::TrainerHangs { seat: seat_of(1), is_reported: false });
    world.run(world.now + 120 * SECOND);
    assert_eq!((world.started.len(), &world.violation), (2, &None), "it starts again");
}

#[test]
fn an_agent_with_an_outdated_agreement_poisons_no_commit_of_another() {
    let mut world = trained(Plan::of(3, Mode::Each));
    let (seat, late) = (seat_of(1), world.holder(seat_of(1)).unwrap());
    let commits = world.commits[&seat].clone();
    assert!(!commits.is_empty());
    world.agents[late].offered = vec![Step { step: Some(10), hash: hash_of(10, 1), is_stored: true }];
    world.commits.get_mut(&seat).unwrap().insert(10, 1);
    world.restore(late, Choice::Start);
    assert_eq!(world.commits[&seat], commits, "only its own offers are poisoned");
}

#[test]
fn a_number_that_is_used_again_without_a_store_has_no_earlier_timeline() {
    let mut world = trained(Plan::of(3, Mode::Each).without_store());
    world.timelines.insert(2, 1);
    world.starts(world.holder(seat_of(0)).unwrap(), 2);
    assert!(world.timelines.is_empty());
}

#[test]
fn trainers_that_hang_have_time_for_their_stacks_even_if_another_dies() {
    let mut world = trained(Plan::of(3, Mode::Each));
    world.hung.insert(1);
    world.check_halt(1, world.now - 22 * SECOND, false);
    assert_eq!(world.violation, None);
    world.check_halt(1, world.now - 34 * SECOND, false);
    assert!(world.violation.is_some());
}

#[test]
fn a_seat_is_filled_only_after_the_lease_of_an_agent_that_was_cut_off_whatever_the_clocks() {
    for seed in 0..40 {
        let mut world = World::new(seed, Plan::of(2, Mode::Each));
        world.run(60 * SECOND);
        // A slow restore may not be complete.
        if !world.agents.iter().all(|agent| agent.run.is_some()) {
            continue;
        }
        let (leader, cut) = (world.holder(seat_of(0)).unwrap(), world.holder(seat_of(1)).unwrap());
        // The leader's clock is as fast, and the member's as slow as possible.
        for (agent, excess) in [(leader, 500), (cut, -500)] {
            let clock = world.clock(agent).as_millis() as u64;
            let rate = (100_000 + excess) as u64;
            world.agents[agent].clock_excess = excess;
            world.agents[agent].offset = clock - world.now * rate / 100_000;
        }
        // Nothing arrives on the connection any more, and the platform starts another agent.
        let link = world.agents[cut].link.unwrap();
        world.links.get_mut(&link).unwrap().open = [false; 2];
        world.fault(Fault::SecondAgent(seat_of(1)));
        world.events.retain(|_, what| !matches!(what, WorldEvent::Dies(_)));
        world.run(world.now + 200 * SECOND);
        if let Some(violation) = &world.violation {
            world.fail(seed, violation);
        }
        assert!(world.started.len() > 1, "the other agent trains");
    }
}

#[test]
fn the_loss_of_the_leader_after_the_end_does_not_keep_an_agent() {
    for seed in 0..20 {
        let mut world = World::new(seed, Plan::of(3, Mode::Each).with(Role::Evaluator, 1));
        let mut until = 0;
        while world.end_written.is_none() && until < 400 * SECOND {
            until += 100;
            world.run(until);
        }
        let after = world.random.below(3 * SECOND);
        world.run(world.now + after);
        world.fault(Fault::AgentDies { seat: seat_of(0), after: Some(10 * SECOND) });
        world.run(world.now + 1_500 * SECOND);
        if let Some(violation) = violation(&world) {
            world.fail(seed, &violation);
        }
    }
}

#[test]
fn two_runs_of_one_seed_give_the_same_trace() {
    let trace = || {
        let mut world = World::new(12, Plan::of(5, Mode::Each));
        world.traced = true;
        world.faults(6, 200 * SECOND);
        world.run(1_000 * SECOND);
        (world.milestones, world.trace, world.now)
    };
    assert_eq!(trace(), trace());
}

#[test]
fn random_faults_never_break_a_promise() {
    for seed in seeds() {
        check_seed(seed, &Plan::of(2, Mode::Each), 6);
        check_seed(seed, &Plan::of(3, Mode::Chief).without_job_id(), 6);
        check_seed(seed, &Plan::of(5, Mode::Each).with_from_scratch(seed % 2 == 1), 6);
        check_seed(seed, &Plan::of(3, Mode::Each).with(Role::Ps, 1).with(Role::Evaluator, 1), 6);
        check_seed(seed, &Plan::of(3, Mode::Each).without_store(), 6);
        check_seed(
            seed,
            &Plan::of(3, [Mode::Each, Mode::Chief, Mode::Shared][seed as usize % 3]).with_mode_detection(),
            6,
        );
        if seed.is_multiple_of(10) {
            check_seed(seed, &Plan::of(16, Mode::Each), 12);
        }
    }
}
