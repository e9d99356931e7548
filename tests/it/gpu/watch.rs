//! The watch over a running job's GPUs: a real probe process in a loop like the supervisor's, with a driver that changes
//! while it runs.

use std::os::fd::RawFd;
use std::time::Duration;

use crate::support::fake_nvml::{Driver, FakeNvml};
use crate::support::{TIMEOUT, binary, is_alive};
use trainit::edge::clock::Clock;
use trainit::edge::io::eventfd::wait_readable;
use trainit::rules::gpu::ledger::Finding;
use trainit::rules::gpu::lifecycle::GpuEvent;
use trainit::rules::gpu::watch::WatchPolicy;
use trainit::rules::gpu::xid::Class;
use trainit::rules::process::env::Env;
use trainit::rules::process::exit::End;
use trainit::rules::process::signal::Signal;
use trainit::supervisor::gpu::watch::GpuWatch;

/// A watch with its loop. The probe is reaped by its own pid, because these tests share a process.
struct Loop {
    clock: Clock,
    watch: GpuWatch,
    /// All events so far.
    events: Vec<GpuEvent>,
}

impl Loop {
    fn new(fake: &FakeNvml, interval_ms: u64) -> Loop {
        let env = Env::from_pairs([
            ("TRAINIT_GPU_PROBE", binary().to_str().unwrap().to_owned()),
            ("TRAINIT_NVML_LIBRARY", fake.dir_of_library().join("libnvidia-ml.so.1").to_str().unwrap().to_owned()),
            ("FAKE_NVML", fake.path("scenario").to_str().unwrap().to_owned()),
        ]);
        let interval = Duration::from_millis(interval_ms);
        let watch = GpuWatch::new(Duration::from_millis(700), interval, WatchPolicy::default(), &env);
        Loop { clock: Clock::start(), watch, events: Vec::new() }
    }

    /// Runs the loop until the condition holds for the events so far.
    #[track_caller]
    fn until<T>(&mut self, what: &str, mut found: impl FnMut(&[GpuEvent]) -> Option<T>) -> T {
        loop {
            if let Some(found) = found(&self.events) {
                return found;
            }
            assert!(self.clock.now() < TIMEOUT, "never heard: {what}; heard: {:#?}", self.events);
            self.turn();
        }
    }

    fn turn(&mut self) {
        let now = self.clock.now();
        let left = self.watch.deadline().map_or(Duration::from_millis(20), |at| at.saturating_sub(now));
        let fds: Vec<RawFd> = self.watch.fd().into_iter().collect();
        wait_readable(&fds, Some(left.min(Duration::from_millis(20))));
        let now = self.clock.now();
        if let Some(pid) = self.watch.pid()
            && let Some(end) = try_reap(pid)
        {
            self.events.extend(self.watch.ended(now, pid, end).unwrap());
        }
        self.events.extend(self.watch.pump(now));
    }

    #[track_caller]
    fn until_found(&mut self) -> usize {
        self.until("the GPUs", |events| {
            events.iter().find_map(|event| match event {
                GpuEvent::Found(found) => Some(found.gpus.len()),
                _ => None,
            })
        })
    }

    #[track_caller]
    fn until_finding(&mut self, text: &str) -> Finding {
        self.until(text, |events| findings(events).find(|finding| finding.text.contains(text)).cloned())
    }

    #[track_caller]
    fn until_blind(&mut self) -> String {
        self.until("a warning", |events| {
            events.iter().find_map(|event| match event {
                GpuEvent::Unavailable(reason) => Some(reason.clone()),
                _ => None,
            })
        })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let pid = self.watch.pid();
        self.watch.pause(self.clock.now());
        while let Some(pid) = pid.filter(|pid| try_reap(*pid).is_none()) {
            assert!(is_alive(pid) || try_reap(pid).is_some());
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
}

fn findings(events: &[GpuEvent]) -> impl Iterator<Item = &Finding> {
    events.iter().filter_map(|event| match event {
        GpuEvent::Finding(finding) => Some(finding),
        _ => None,
    })
}

fn try_reap(pid: i32) -> Option<End> {
    use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
    match waitpid(nix::unistd::Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG)) {
        Ok(WaitStatus::Exited(_, code)) => Some(End::Code(code as u8)),
        Ok(WaitStatus::Signaled(_, signal, _)) => Signal::new(signal as i32).map(End::Signal),
        Ok(_) => None,
        Err(_) => Some(End::Code(0)),
    }
}

#[test]
fn the_gpus_are_found_and_sampled_again_and_again() {
    let fake = FakeNvml::new(&["gpu0.util 11"]);
    let mut turns = Loop::new(&fake, 20);
    assert_eq!(turns.until_found(), 2);
    fake.play(&["gpu0.util 77"]);
    while !turns.watch.watch().samples(0).any(|sample| sample.utilization_percent == Some(77)) {
        turns.turn();
    }
    assert!(turns.watch.watch().samples(0).next().unwrap().utilization_percent == Some(11));
    assert!(findings(&turns.events).next().is_none(), "{:?}", turns.events);
}

#[test]
fn an_xid_is_reported_at_once_with_its_class_and_the_gpus_uuid() {
    let fake = FakeNvml::new(&[]);
    let mut turns = Loop::new(&fake, 60_000);
    turns.until_found();
    fake.play(&["event-1 1 8 79"]);
    let finding = turns.until_finding("XID 79");
    assert_eq!(finding.class, Class::Leave);
    assert!(finding.text.contains("GPU-00000001") && finding.text.contains("00000000:05:00.0"), "{finding:?}");
    assert_eq!(turns.watch.watch().xids()[0].xid, 79);
}

#[test]
fn an_event_of_a_driver_with_only_the_first_event_wait_is_reported() {
    let fake = FakeNvml::of(Driver::Ancient, &[]);
    let mut turns = Loop::new(&fake, 60_000);
    turns.until_found();
    fake.play(&["event-1 0 8 43"]);
    assert_eq!(turns.until_finding("XID 43").class, Class::Note);
}

#[test]
fn an_application_error_restarts_once_and_the_second_death_leaves() {
    let fake = FakeNvml::new(&[]);
    let mut turns = Loop::new(&fake, 60_000);
    turns.until_found();
    fake.play(&["event-1 0 8 94"]);
    turns.until_finding("XID 94");
    assert!(findings(&turns.events).all(|finding| finding.class != Class::Leave));
    let now = turns.clock.now();
    assert_eq!(turns.watch.watch().death(now).unwrap().class, Class::Restart);
    turns.events.clear();
    fake.play(&["event-1 0 8 94", "event-2 0 8 94"]);
    turns.until_finding("XID 94");
    let now = turns.clock.now();
    assert_eq!(turns.watch.watch().death(now).unwrap().class, Class::Leave);
}

#[test]
fn a_changed_recovery_action_is_read_and_applied() {
    let fake = FakeNvml::new(&["gpu0.recovery 0"]);
    let mut turns = Loop::new(&fake, 60_000);
    turns.until_found();
    fake.play(&["gpu0.recovery 2", "event-1 0 32768 0"]);
    let finding = turns.until_finding("node reboot");
    assert_eq!(finding.class, Class::Leave);
}

#[test]
fn a_recovery_action_that_follows_its_xid_is_read_two_seconds_later() {
    let fake = FakeNvml::new(&["gpu0.recovery 0"]);
    let mut turns = Loop::new(&fake, 60_000);
    turns.until_found();
    fake.play(&["gpu0.recovery 0", "event-1 0 8 43"]);
    assert_eq!(turns.until_finding("XID 43").class, Class::Note);
    fake.play(&["gpu0.recovery 1", "event-1 0 8 43"]);
    assert_eq!(turns.until_finding("GPU reset").class, Class::Leave);
}

#[test]
fn the_recovery_actions_of_several_gpus_are_read_again_each_in_its_time() {
    let fake = FakeNvml::new(&["gpu0.recovery 0"]);
    let mut turns = Loop::new(&fake, 60_000);
    turns.until_found();
    let events = ["event-1 0 8 43", "event-2 1 8 43"];
    fake.play(&[&["gpu0.recovery 0"], &events[..]].concat());
    turns.until("both XIDs", |heard| findings(heard).nth(1).map(drop));
    fake.play(&[&["gpu0.recovery 1"], &events[..]].concat());
    let finding = turns.until_finding("GPU reset");
    assert!(finding.text.contains("GPU-00000000"), "{finding:?}");
}

#[test]
fn a_driver_that_counts_without_end_or_never_waits_does_not_keep_the_watch_busy() {
    let fake = FakeNvml::new(&["count 4294967295", "nvmlEventSetWait_v2 return 10"]);
    let mut turns = Loop::new(&fake, 60_000);
    assert_eq!(turns.until_found(), 2);
    let until = turns.clock.now() + Duration::from_millis(500);
    while turns.clock.now() < until {
        turns.turn();
    }
    let waits = fake.calls().into_iter().filter(|(_, call)| call == "nvmlEventSetWait_v2").count();
    assert!(waits < 5, "{waits} waits in half a second");
}

#[test]
fn a_failed_event_channel_is_reported_once_and_blames_no_responding_gpu() {
    for line in [
        "nvmlEventSetWait_v2 return 999",
        "nvmlEventSetWait_v2 return 2",
        "nvmlEventSetCreate return 999",
        "nvmlDeviceRegisterEvents return 2",
        "nvmlDeviceGetSupportedEventTypes return 999",
    ] {
        let fake = FakeNvml::new(&[line]);
        let mut turns = Loop::new(&fake, 50);
        let call = line.split(' ').next().unwrap();
        let finding = turns.until_finding(&format!("XIDs cannot be seen: {call} failed with"));
        assert_eq!(finding.class, Class::Note);
        let rounds = |events: &[GpuEvent]| events.iter().filter(|event| **event == GpuEvent::Round).count();
        let before = rounds(&turns.events);
        turns.until("more rounds", |events| (rounds(events) > before + 5).then_some(()));
        assert_eq!(findings(&turns.events).count(), 1, "{:?}", turns.events);
        let now = turns.clock.now();
        assert_eq!(turns.watch.watch().death(now), None, "{line}");
    }
}

#[test]
fn a_loss_found_by_the_wait_for_events_is_a_reason_to_leave_and_names_the_gpu_if_known() {
    for code in [15, 16] {
        let fake = FakeNvml::new(&[]);
        let mut turns = Loop::new(&fake, 50);
        turns.until_found();
        fake.play(&[&format!("nvmlEventSetWait_v2 return {code}")]);
        assert_eq!(turns.until_finding("does not say which").class, Class::Leave);
    }
    // The next round of samples is far away, so the wait requests one.
    let fake = FakeNvml::new(&[]);
    let mut turns = Loop::new(&fake, 600_000);
    turns.until_found();
    fake.play(&["nvmlEventSetWait_v2 return 15", "nvmlDeviceGetTemperature@1 return 15"]);
    let finding = turns.until_finding("lost");
    assert!(finding.class == Class::Leave && finding.text.contains("GPU-00000001"), "{finding:?}");
}

#[test]
fn removed_devices_are_found_by_the_failing_wait() {
    let fake = FakeNvml::new(&[]);
    let mut turns = Loop::new(&fake, 600_000);
    turns.until_found();
    let calls = ["nvmlEventSetWait_v2", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"];
    let lines = calls.map(|call| format!("{call} return 999"));
    fake.play(&lines.each_ref().map(String::as_str));
    assert_eq!(turns.until_finding("GPU-00000000").class, Class::Note);
    assert_eq!(turns.watch.watch().death(TIMEOUT).unwrap().class, Class::Leave);
}

#[test]
fn a_gpu_that_is_gone_when_the_probe_is_replaced_is_a_reason_to_leave() {
    let fake = FakeNvml::new(&[]);
    let mut turns = Loop::new(&fake, 50);
    turns.until_found();
    fake.play(&["nvmlDeviceGetTemperature segv"]);
    turns.until_blind();
    fake.play(&["gpus 1"]);
    let finding = turns.until_finding("no longer lists it");
    assert!(finding.class == Class::Leave && finding.text.contains("GPU-00000001"), "{finding:?}");
}

#[test]
fn a_gpu_that_is_lost_while_training_is_a_reason_to_leave() {
    for lines in [["nvmlDeviceGetTemperature@1 return 15", ""], ["gpus 1", ""]] {
        let fake = FakeNvml::new(&[]);
        let mut turns = Loop::new(&fake, 20);
        turns.until_found();
        fake.play(&lines);
        let finding = turns.until_finding("lost after a good start");
        assert_eq!(finding.class, Class::Leave);
        assert!(finding.text.contains("GPU-00000001"), "{finding:?}");
    }
}

#[test]
fn an_unknown_error_after_a_good_start_leaves_when_the_trainer_dies() {
    for code in [999, 17, 18] {
        let fake = FakeNvml::new(&[]);
        let mut turns = Loop::new(&fake, 20);
        turns.until_found();
        let calls =
            ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"].map(|call| format!("{call} return {code}"));
        fake.play(&calls.each_ref().map(String::as_str));
        assert_eq!(turns.until_finding(&format!("failed with {code}")).class, Class::Note);
        assert_eq!(turns.watch.watch().death(TIMEOUT).unwrap().class, Class::Leave);
    }
}

#[test]
fn a_hanging_watch_is_killed_reported_once_and_replaced() {
    let fake = FakeNvml::new(&[]);
    let mut turns = Loop::new(&fake, 50);
    turns.until_found();
    fake.play(&["nvmlEventSetWait_v2 hang"]);
    let reason = turns.until_blind();
    assert!(reason.starts_with("nvmlEventSetWait_v2 did not return in 0.7 s"), "{reason}");
    let first = fake.calls()[0].0;
    assert!(!is_alive(first) && turns.watch.pid().is_none());
    // The next probe is due after the pause; the test sets the clock.
    fake.play(&[]);
    let later = turns.watch.deadline().unwrap();
    turns.events.extend(turns.watch.pump(later));
    assert!(turns.watch.pid().is_some_and(|pid| pid != first));
}

#[test]
fn a_driver_that_crashes_during_the_watch_only_ends_the_readings() {
    for (action, signal) in [("segv", "SIGSEGV"), ("abort", "SIGABRT")] {
        let fake = FakeNvml::new(&[]);
        let mut turns = Loop::new(&fake, 50);
        turns.until_found();
        fake.play(&[&format!("nvmlDeviceGetUtilizationRates {action}")]);
        let reason = turns.until_blind();
        assert!(reason.contains(signal) && reason.contains("nvmlDeviceGetUtilizationRates"), "{reason}");
        assert!(findings(&turns.events).next().is_none(), "{:?}", turns.events);
    }
}

#[test]
fn a_flood_of_one_xid_is_one_finding_and_a_true_count() {
    let lines: Vec<String> = (1..=300).map(|n| format!("event-{n} 0 8 45")).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let fake = FakeNvml::new(&lines);
    let mut turns = Loop::new(&fake, 60_000);
    while turns.watch.watch().xids().first().is_none_or(|xid| xid.count < 300) {
        assert!(turns.clock.now() < TIMEOUT);
        turns.turn();
    }
    assert_eq!(findings(&turns.events).count(), 1);
}
