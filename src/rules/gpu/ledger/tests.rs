use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn ledger(several: bool) -> Ledger {
    Ledger { several, ..Ledger::default() }
}

/// The classes of the findings after this XID, including later decisions.
fn classes(several: bool, xid: u64, action: Option<u32>) -> Vec<Class> {
    let mut ledger = ledger(several);
    let mut findings = ledger.xid(SECOND, 0, xid, action);
    findings.extend(ledger.due(10 * SECOND));
    findings.into_iter().map(|finding| finding.class).collect()
}

fn died(ledger: &mut Ledger, now: Duration) -> Option<Class> {
    ledger.death(now).map(|finding| finding.class)
}

#[test]
fn an_xid_gets_the_class_of_its_row_at_once() {
    for (xid, class) in [(79, Class::Leave), (94, Class::Restart), (43, Class::Note), (13, Class::Restart)] {
        let findings = ledger(false).xid(SECOND, 0, xid, None);
        assert_eq!(findings.len(), 1, "{xid}");
        assert_eq!(findings[0].class, class, "{xid}");
        assert!(findings[0].text.starts_with(&format!("GPU 0: XID {xid}, ")), "{}", findings[0].text);
    }
}

#[test]
fn the_drivers_own_verdict_wins_over_the_row() {
    assert_eq!(classes(false, 43, Some(1)), [Class::Leave, Class::Leave]);
    assert_eq!(classes(false, 79, Some(3)), [Class::Note, Class::Note], "drain P2P with one GPU");
    assert_eq!(classes(true, 43, Some(3)), [Class::Leave, Class::Leave]);
    assert_eq!(classes(false, 79, Some(0)), [Class::Leave], "a 0 directly after it does not clear the GPU");
}

#[test]
fn an_action_that_comes_two_seconds_later_still_decides() {
    let mut ledger = ledger(true);
    assert_eq!(ledger.xid(SECOND, 0, 145, Some(0)), []);
    assert_eq!(ledger.action(3 * SECOND, 0, Some(2)).len(), 2);
    assert_eq!(died(&mut ledger, 4 * SECOND), Some(Class::Leave));
}

#[test]
fn link_errors_follow_the_action_and_else_the_number_of_gpus() {
    assert_eq!(classes(true, 145, None), [Class::Leave]);
    assert_eq!(classes(false, 145, None), [Class::Note]);
    assert_eq!(classes(true, 145, Some(0)), [Class::Note]);
    assert_eq!(classes(true, 74, None), [Class::Leave]);
    assert_eq!(classes(false, 74, None), [Class::Note]);
    assert_eq!(classes(true, 154, Some(0)), [Class::Note]);
}

#[test]
fn a_double_bit_error_is_decided_by_its_accompanying_xids() {
    let with = |other: u64| {
        let mut ledger = ledger(false);
        assert_eq!(ledger.xid(SECOND, 0, 48, None), [], "too early to decide");
        let findings = ledger.xid(2 * SECOND, 0, other, None);
        findings.iter().find(|finding| finding.text.contains("XID 48")).map(|finding| finding.class)
    };
    assert_eq!(with(94), Some(Class::Restart));
    assert_eq!(with(64), Some(Class::Leave));
    assert_eq!(with(95), Some(Class::Leave));
    assert_eq!(with(63), None);
    let mut alone = ledger(false);
    alone.xid(SECOND, 0, 48, None);
    assert_eq!(alone.deadline(), Some(6 * SECOND));
    assert_eq!(alone.due(6 * SECOND)[0].class, Class::Leave);
    assert_eq!(alone.deadline(), None);
    let mut dead_at_once = ledger(false);
    dead_at_once.xid(SECOND, 0, 48, None);
    assert_eq!(died(&mut dead_at_once, SECOND), Some(Class::Leave));
}

#[test]
fn a_death_soon_after_is_attributed_to_the_gpu_and_a_later_one_is_not() {
    let mut ledger = ledger(false);
    ledger.xid(SECOND, 0, 94, None);
    assert_eq!(died(&mut ledger, 62 * SECOND), None);
    ledger.xid(100 * SECOND, 0, 43, None);
    assert_eq!(died(&mut ledger, 101 * SECOND), None, "a note is not a cause");
    ledger.xid(200 * SECOND, 0, 94, None);
    assert_eq!(died(&mut ledger, 260 * SECOND), Some(Class::Restart));
}

#[test]
fn the_second_death_on_the_same_gpu_leaves_until_the_budget_refills() {
    let mut ledger = ledger(true);
    let die = |ledger: &mut Ledger, at: u32, gpu| {
        ledger.xid(at * 100 * SECOND, gpu, 94, None);
        ledger.xid(at * 100 * SECOND, gpu, 94, None);
        died(ledger, at * 100 * SECOND)
    };
    assert_eq!(die(&mut ledger, 1, 0), Some(Class::Restart), "one death counts once, for any number of XIDs");
    assert_eq!(die(&mut ledger, 2, 1), Some(Class::Restart));
    ledger.refill();
    assert_eq!(die(&mut ledger, 3, 0), Some(Class::Restart));
    assert_eq!(die(&mut ledger, 4, 0), Some(Class::Leave));
}

#[test]
fn a_fault_on_every_gpu_is_attributed_to_the_program() {
    let mut ledger = ledger(true);
    for attempt in 1..4 {
        let now = attempt * 100 * SECOND;
        ledger.xid(now, 0, 13, None);
        ledger.xid(now, 1, 31, None);
        assert_eq!(died(&mut ledger, now), Some(Class::Restart), "attempt {attempt}");
    }
    let mut one = Ledger { several: true, ..Ledger::default() };
    for (attempt, class) in [(1, Class::Restart), (2, Class::Leave)] {
        one.xid(attempt * 100 * SECOND, 1, 31, None);
        assert_eq!(died(&mut one, attempt * 100 * SECOND), Some(class));
    }
}

#[test]
fn an_unclear_xid_with_a_dead_trainer_restarts_once_and_then_leaves() {
    let mut ledger = ledger(false);
    for (attempt, class) in [(1, Class::Restart), (2, Class::Leave)] {
        let now = attempt * 100 * SECOND;
        assert_eq!(ledger.xid(now, 0, 170, None)[0].class, Class::Note);
        assert_eq!(died(&mut ledger, now), Some(class));
    }
    ledger.refill();
    ledger.xid(300 * SECOND, 0, 170, None);
    assert_eq!(died(&mut ledger, 300 * SECOND), Some(Class::Restart), "the budget was refilled");
}

#[test]
fn the_worst_of_several_gpus_at_a_death_decides() {
    for (first, second) in [(94, 79), (79, 94)] {
        let mut ledger = ledger(true);
        ledger.xid(SECOND, 0, first, None);
        ledger.xid(SECOND, 1, second, None);
        assert_eq!(died(&mut ledger, 2 * SECOND), Some(Class::Leave), "{first} and {second}");
    }
}

#[test]
fn a_flood_of_notes_is_reported_once_a_minute_and_counted_completely() {
    let mut ledger = ledger(false);
    let reports: usize = (0..11_760).map(|n| ledger.xid(Duration::from_millis(n), 0, 45, None).len()).sum();
    assert_eq!(reports, 1);
    assert_eq!(ledger.history(), [XidCount { gpu: "GPU 0".into(), xid: 45, count: 11_760 }]);
    assert_eq!(died(&mut ledger, 12 * SECOND), None);
}

#[test]
fn a_flood_after_an_xid_does_not_displace_it() {
    for flood in [45, 13] {
        let mut ledger = ledger(false);
        ledger.xid(SECOND, 0, 48, None);
        (0..300).for_each(|n| drop(ledger.xid(SECOND + Duration::from_millis(n), 0, flood, None)));
        assert_eq!(ledger.due(6 * SECOND).iter().map(|f| f.class).max(), Some(Class::Leave), "after XID {flood}");
    }
    let mut ledger = ledger(false);
    for (attempt, class) in [(1, Class::Restart), (2, Class::Leave)] {
        let now = attempt * 100 * SECOND;
        ledger.xid(now, 0, 94, None);
        (0..300).for_each(|_| drop(ledger.xid(now, 0, 45, None)));
        assert_eq!(died(&mut ledger, now), Some(class));
    }
}

#[test]
fn a_repeated_program_error_is_reported_once_until_the_trainer_dies_of_it() {
    let mut ledger = ledger(false);
    let reports = |ledger: &mut Ledger| (0..500).map(|_| ledger.xid(SECOND, 0, 13, None).len()).sum::<usize>();
    assert_eq!(reports(&mut ledger), 1);
    assert_eq!(died(&mut ledger, 2 * SECOND), Some(Class::Restart));
    assert_eq!(reports(&mut ledger), 1);
    assert_eq!((0..3).map(|_| ledger.xid(SECOND, 0, 79, None)[0].class).max(), Some(Class::Leave));
}

#[test]
fn a_repeated_xid_is_decided_in_time() {
    let mut ledger = ledger(false);
    for second in 1..6 {
        assert_eq!(ledger.xid(second * SECOND, 0, 48, None), []);
    }
    assert_eq!(ledger.xid(6 * SECOND, 0, 48, None)[0].class, Class::Leave);
}

#[test]
fn one_xid_is_to_blame_for_one_death() {
    let mut ledger = ledger(false);
    ledger.xid(SECOND, 0, 94, None);
    ledger.xid(SECOND, 0, 170, None);
    assert_eq!(died(&mut ledger, 2 * SECOND), Some(Class::Restart));
    assert_eq!(died(&mut ledger, 4 * SECOND), None, "the second death has another cause");
}

#[test]
fn an_action_read_too_early_clears_no_gpu() {
    let mut linked = ledger(true);
    assert_eq!(linked.xid(SECOND, 0, 145, Some(0)), []);
    assert_eq!(linked.action(SECOND + Duration::from_millis(100), 0, Some(0)), [], "a sample, too soon");
    assert_eq!(died(&mut linked, 2 * SECOND), Some(Class::Leave));
    let mut alone = ledger(false);
    alone.xid(SECOND, 0, 145, Some(0));
    let finding = alone.death(2 * SECOND).expect("it is reported, because there is no later reading");
    assert!(finding.class == Class::Note && finding.text.contains("XID 145"), "{finding:?}");
    let mut asked_again = ledger(true);
    asked_again.xid(SECOND, 0, 145, Some(0));
    assert_eq!(asked_again.action(3 * SECOND, 0, Some(0))[0].class, Class::Note);
    assert_eq!(died(&mut asked_again, 4 * SECOND), None);
}

#[test]
fn an_unknown_action_clears_no_gpu() {
    for newer in [8, 42, u32::MAX] {
        let class = |xid, several: bool| {
            let mut ledger = ledger(several);
            let mut found = ledger.xid(SECOND, 0, xid, Some(newer));
            found.extend(ledger.due(10 * SECOND));
            found.iter().map(|finding| finding.class).max()
        };
        assert_eq!([class(79, false), class(145, true), class(48, false)], [Some(Class::Leave); 3], "{newer}");
        assert_eq!([class(154, false), class(145, false)], [Some(Class::Note); 2], "{newer}");
        let mut restarted = ledger(false);
        restarted.xid(SECOND, 0, 94, Some(newer));
        assert_eq!(died(&mut restarted, 2 * SECOND), Some(Class::Restart));
    }
}

#[test]
fn a_gpu_that_the_trainer_cannot_see_never_stops_it() {
    let mut ledger = ledger(true);
    ledger.set_gpu(3, "GPU 3 (GPU-x)".into(), false);
    assert_eq!(ledger.xid(SECOND, 3, 79, Some(1)).iter().map(|f| f.class).max(), Some(Class::Note));
    assert_eq!(ledger.mark_unfit(3, Class::Leave, "lost")[0].class, Class::Note);
    assert_eq!(died(&mut ledger, SECOND), None);
}

#[test]
fn an_override_changes_the_row_but_not_the_drivers_verdict() {
    let mut ledger = Ledger::new([(13, Class::Leave), (79, Class::Note)]);
    assert_eq!(ledger.xid(SECOND, 0, 13, None)[0].class, Class::Leave);
    assert_eq!(ledger.xid(SECOND, 1, 79, None)[0].class, Class::Note);
    assert_eq!(ledger.xid(SECOND, 2, 79, Some(2)).last().unwrap().class, Class::Leave);
}

#[test]
fn the_reason_against_a_gpu_is_reported_once_and_stays() {
    let mut ledger = ledger(false);
    assert_eq!(ledger.mark_unfit(0, Class::Note, "row remapping failed")[0].class, Class::Note);
    assert_eq!(ledger.mark_unfit(0, Class::Note, "row remapping failed"), []);
    assert_eq!(died(&mut ledger, 3600 * SECOND), Some(Class::Leave));
}

#[test]
fn an_xid_without_a_gpu_is_reported_and_counted_but_not_attributed() {
    let mut ledger = ledger(true);
    let findings = ledger.xid_without_gpu(SECOND, 79);
    assert_eq!(findings.iter().map(|f| f.class).collect::<Vec<_>>(), [Class::Note]);
    assert!(findings[0].text.starts_with("a GPU that the driver does not name: XID 79, "), "{findings:?}");
    ledger.xid_without_gpu(2 * SECOND, 79);
    let XidCount { gpu, xid, count } = &ledger.history()[0];
    assert_eq!((gpu.as_str(), *xid, *count), ("a GPU that the driver does not name", 79, 2));
    assert_eq!(died(&mut ledger, 3 * SECOND), None);
}
