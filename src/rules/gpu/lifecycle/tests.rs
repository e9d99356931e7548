use super::*;
use crate::gpu::xid::Class;
use crate::process::signal::Signal;

const SECOND: Duration = Duration::from_secs(1);

const ROUND: &[u8] =
    b"{\"t\":\"hello\"}\n{\"t\":\"driver\",\"count\":1}\n{\"t\":\"gpu\",\"index\":0,\"uuid\":\"GPU-0\"}\n\
    {\"t\":\"driver\",\"count\":1}\n{\"t\":\"gpu\",\"index\":0,\"uuid\":\"GPU-0\",\"sampled\":true}\n\
    {\"t\":\"call\",\"fn\":\"nvmlEventSetWait_v2\",\"wait_ms\":2000}\n";

fn lifecycle(control_node: bool) -> Lifecycle {
    let site = Site { control_node, ..Site::default() };
    Lifecycle::new(5 * SECOND, 60 * SECOND, site, WatchPolicy::default())
}

fn running(now: Duration) -> Lifecycle {
    let mut lifecycle = lifecycle(true);
    assert_eq!(lifecycle.order(now), Some(Order::Spawn));
    lifecycle.started(now, Ok(7));
    assert_eq!(lifecycle.order(now), None);
    lifecycle
}

/// The finding with class leave.
fn leave(events: &[GpuEvent]) -> Option<&Finding> {
    events.iter().find_map(|event| match event {
        GpuEvent::Finding(finding) if finding.class == Class::Leave => Some(finding),
        _ => None,
    })
}

fn sigkill() -> End {
    End::Signal(Signal::new(9).unwrap())
}

#[test]
fn a_complete_round_is_reported_once_with_its_gpus() {
    let mut lifecycle = running(Duration::ZERO);
    let events = lifecycle.feed(SECOND, ROUND);
    let [GpuEvent::Found(found), GpuEvent::Round] = &events[..] else { panic!("{events:?}") };
    assert_eq!((found.gpus.len(), found.problem.as_ref()), (1, None));
    assert_eq!(lifecycle.feed(2 * SECOND, ROUND), [GpuEvent::Round]);
    let wait = b"{\"t\":\"call\",\"fn\":\"nvmlEventSetWait_v2\",\"wait_ms\":2000}\n";
    assert_eq!(lifecycle.feed(3 * SECOND, wait), [], "a second wait within one round");
}

#[test]
fn a_hanging_probe_is_killed_once_and_replaced_only_after_it_was_reaped() {
    let mut lifecycle = running(Duration::ZERO);
    lifecycle.feed(SECOND, b"{\"t\":\"call\",\"fn\":\"nvmlInit_v2\"}\n");
    assert_eq!(lifecycle.deadline(), Some(6 * SECOND));
    assert_eq!(lifecycle.order(6 * SECOND), Some(Order::Kill));
    for later in [7, 100, 100_000] {
        assert_eq!(lifecycle.order(later * SECOND), None, "only one probe at a time");
    }
    let events = lifecycle.reaped(1000 * SECOND, sigkill(), String::new());
    let [GpuEvent::Unavailable(reason)] = &events[..] else { panic!("{events:?}") };
    assert!(reason.starts_with("nvmlInit_v2 did not return in 5 s"), "{reason}");
    assert_eq!(lifecycle.order(1009 * SECOND), None);
    assert_eq!(lifecycle.order(1010 * SECOND), Some(Order::Spawn));
}

#[test]
fn a_killed_probe_that_survives_is_reported_once_and_no_other_is_started() {
    for paused in [false, true] {
        let mut lifecycle = running(Duration::ZERO);
        lifecycle.feed(SECOND, b"{\"t\":\"call\",\"fn\":\"nvmlInit_v2\"}\n");
        let killed = if paused { lifecycle.pause(6 * SECOND) } else { lifecycle.order(6 * SECOND) };
        assert_eq!((killed, lifecycle.deadline()), (Some(Order::Kill), Some(8 * SECOND)));
        assert_eq!(lifecycle.due(7 * SECOND), []);
        let events = lifecycle.due(8 * SECOND);
        let [GpuEvent::Unavailable(reason)] = &events[..] else { panic!("{events:?}") };
        assert!(reason.ends_with("stuck in the kernel and cannot be killed"), "{reason}");
        assert_eq!(reason.starts_with("nvmlInit_v2 did not return in 5 s"), !paused, "{reason}");
        assert_eq!(
            (lifecycle.deadline(), lifecycle.due(9 * SECOND), lifecycle.order(9 * SECOND)),
            (None, vec![], None)
        );
        assert_eq!(lifecycle.reaped(10 * SECOND, sigkill(), String::new()), [], "it was reported");
        assert_eq!(lifecycle.order(20 * SECOND), Some(Order::Spawn));
    }
}

#[test]
fn the_pause_doubles_and_the_loss_and_the_return_are_reported_once() {
    let mut lifecycle = running(Duration::ZERO);
    let mut now = Duration::ZERO;
    let mut warnings = 0;
    let mut pauses = Vec::new();
    for _ in 0..8 {
        warnings += lifecycle.reaped(now, End::Signal(Signal::new(11).unwrap()), String::new()).len();
        let next = lifecycle.deadline().unwrap();
        pauses.push((next - now).as_secs());
        now = next;
        assert_eq!(lifecycle.order(now), Some(Order::Spawn));
        lifecycle.started(now, Ok(8));
    }
    assert_eq!(warnings, 1);
    assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 600, 600]);
    assert!(matches!(lifecycle.feed(now, ROUND)[..], [GpuEvent::Found(_), GpuEvent::Round]));
    assert_eq!(lifecycle.feed(now, ROUND), [GpuEvent::Available, GpuEvent::Round]);
    lifecycle.reaped(now, sigkill(), String::new());
    assert_eq!(lifecycle.deadline(), Some(now + FIRST_BACKOFF), "a complete round resets the pause");
}

#[test]
fn a_wait_for_events_that_never_returns_causes_one_warning() {
    let mut lifecycle = running(Duration::ZERO);
    let (mut now, mut events) = (Duration::ZERO, Vec::new());
    for _ in 0..4 {
        events.extend(lifecycle.feed(now, ROUND));
        now = lifecycle.deadline().unwrap();
        assert_eq!(lifecycle.order(now), Some(Order::Kill));
        events.extend(lifecycle.reaped(now, sigkill(), String::new()));
        now = lifecycle.deadline().unwrap();
        assert_eq!(lifecycle.order(now), Some(Order::Spawn));
        lifecycle.started(now, Ok(7));
    }
    events.retain(|event| !matches!(event, GpuEvent::Found(_) | GpuEvent::Round));
    assert!(
        matches!(&events[..], [GpuEvent::Unavailable(why)] if why.starts_with("nvmlEventSetWait_v2")),
        "{events:?}"
    );
}

#[test]
fn the_first_pause_is_no_longer_than_the_interval() {
    let mut lifecycle =
        Lifecycle::new(SECOND, SECOND, Site { control_node: true, ..Site::default() }, WatchPolicy::default());
    lifecycle.order(Duration::ZERO);
    lifecycle.started(Duration::ZERO, Ok(7));
    lifecycle.reaped(Duration::ZERO, sigkill(), String::new());
    assert_eq!(lifecycle.deadline(), Some(SECOND));
}

#[test]
fn a_machine_without_gpus_is_probed_once() {
    let mut lifecycle = lifecycle(false);
    lifecycle.order(Duration::ZERO);
    lifecycle.started(Duration::ZERO, Ok(7));
    lifecycle.feed(SECOND, b"{\"t\":\"error\",\"fn\":\"dlopen\",\"code\":12}\n");
    let events = lifecycle.reaped(SECOND, End::Code(0), String::new());
    let [GpuEvent::Found(found)] = &events[..] else { panic!("{events:?}") };
    assert!(found.gpus.is_empty() && found.problem.is_none());
    assert_eq!((lifecycle.deadline(), lifecycle.order(9999 * SECOND)), (None, None));
}

#[test]
fn devices_taken_from_the_container_matter_only_at_the_trainers_death() {
    let mut lifecycle = running(Duration::ZERO);
    lifecycle.feed(SECOND, ROUND);
    lifecycle.reaped(2 * SECOND, End::Signal(Signal::new(11).unwrap()), String::new());
    lifecycle.order(20 * SECOND);
    lifecycle.started(20 * SECOND, Ok(9));
    lifecycle.feed(21 * SECOND, b"{\"t\":\"error\",\"fn\":\"nvmlInit_v2\",\"code\":999}\n");
    let events = lifecycle.reaped(21 * SECOND, End::Code(0), String::new());
    assert!(leave(&events).is_none(), "{events:?}");
    assert_eq!(lifecycle.watch().death(22 * SECOND).unwrap().class, Class::Leave);
}

#[test]
fn a_paused_probe_is_not_a_failure_and_the_next_one_detects_lost_gpus() {
    let mut lifecycle = running(Duration::ZERO);
    lifecycle.feed(SECOND, ROUND);
    assert_eq!((lifecycle.pause(SECOND), lifecycle.pause(SECOND)), (Some(Order::Kill), None));
    assert_eq!(lifecycle.order(2 * SECOND), None);
    assert_eq!(lifecycle.reaped(2 * SECOND, sigkill(), String::new()), []);
    assert_eq!(lifecycle.order(2 * SECOND), Some(Order::Spawn));
    lifecycle.started(2 * SECOND, Ok(8));
    let none = b"{\"t\":\"driver\",\"count\":0}\n{\"t\":\"call\",\"fn\":\"sleep\",\"wait_ms\":2000}\n";
    let events = lifecycle.feed(3 * SECOND, none);
    assert!(leave(&events).is_some_and(|finding| finding.text.starts_with("GPU 0 (GPU-0): lost")), "{events:?}");
}
