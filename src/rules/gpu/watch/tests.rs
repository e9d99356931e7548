use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn gpu(index: u32) -> Gpu {
    Gpu { index, uuid: Some(format!("GPU-{index}")), name: Some("A".into()), ..Gpu::default() }
}

fn sample(watch: &mut Watch, now: Duration, gpu: Gpu) -> Vec<Finding> {
    watch.line(now, &Line::Gpu { sampled: true, gpu: Box::new(gpu) })
}

fn started(count: u32, policy: WatchPolicy) -> Watch {
    let mut watch = Watch::new(policy);
    for index in 0..count {
        assert_eq!(sample(&mut watch, Duration::ZERO, gpu(index)), []);
    }
    watch
}

fn xid(index: u32, data: u64, action: Option<u32>) -> Line {
    Line::Event { index: Some(index), kind: event::XID, data, gpu_instance: None, recovery_action: action }
}

fn lost(index: u32, code: u32) -> Line {
    Line::GpuError { index, uuid: None, function: "nvmlX".into(), code }
}

#[test]
fn a_finding_names_the_gpu_by_uuid() {
    let mut watch = started(2, WatchPolicy::default());
    let findings = watch.line(SECOND, &xid(1, 79, None));
    assert_eq!(
        findings,
        [Finding { class: Class::Leave, text: "GPU 1 (GPU-1): XID 79, GPU has fallen off the bus".into() }]
    );
    assert_eq!(watch.gpus()[1].health, Health::Bad);
    assert_eq!(watch.gpus()[1].health_reason.as_deref(), Some("XID 79, GPU has fallen off the bus"));
}

#[test]
fn an_undecided_xid_is_reported_at_once_and_only_once() {
    for (number, by) in [(48, "64, 94, 95"), (145, "recovery action")] {
        let mut watch = started(2, WatchPolicy::default());
        let findings = watch.line(SECOND, &xid(1, number, Some(0)));
        assert!(findings[0].class == Class::Note && findings.len() == 1, "{findings:?}");
        let text = &findings[0].text;
        assert!(text.starts_with(&format!("GPU 1 (GPU-1): XID {number}, ")), "{text}");
        assert!(text.contains("within 5 s") && text.contains(by), "{text}");
        assert_eq!(watch.line(2 * SECOND, &xid(1, number, Some(0))), [], "a repeated XID is not reported");
        assert_eq!(watch.due(6 * SECOND).len(), 1, "the decision still follows");
        assert_eq!(
            watch.line(7 * SECOND, &xid(0, 79, None)).len(),
            1,
            "an XID that is decided at once is reported once"
        );
    }
}

#[test]
fn a_lost_gpu_leaves_at_once_and_is_reported_once() {
    let mut watch = started(2, WatchPolicy::default());
    assert_eq!(watch.line(SECOND, &lost(1, 15))[0].class, Class::Leave);
    assert_eq!(watch.line(11 * SECOND, &lost(1, 15)), []);
    assert_eq!(watch.line(SECOND, &lost(0, 16))[0].class, Class::Leave);
    assert_eq!(watch.line(SECOND, &lost(7, 15)), [], "a GPU of another container");
}

#[test]
fn a_gpu_that_the_next_probe_does_not_list_is_lost() {
    let restarted = |visible: Option<&str>, left: Gpu| {
        let cuda_visible = visible.map(str::to_owned);
        let mut watch = started(2, WatchPolicy { cuda_visible, ..WatchPolicy::default() });
        watch.begin();
        sample(&mut watch, SECOND, left);
        let findings = watch.listed();
        assert_eq!(watch.listed(), []);
        findings
    };
    let gone = restarted(None, gpu(0));
    assert!(gone[0].class == Class::Leave && gone[0].text.starts_with("GPU 1 (GPU-1): lost"), "{gone:?}");
    let moved_up = restarted(None, Gpu { index: 0, ..gpu(1) });
    assert!(moved_up[0].class == Class::Leave && moved_up[0].text.starts_with("GPU 0 (GPU-0)"), "{moved_up:?}");
    assert_eq!(restarted(Some("0"), gpu(0))[0].class, Class::Note, "the trainer never saw it");
    let mut refused = started(1, WatchPolicy::default());
    refused.begin();
    refused.line(SECOND, &lost(0, 4));
    assert_eq!(refused.listed(), [], "it exists, but cannot be queried");
}

#[test]
fn an_unknown_error_after_a_good_start_matters_only_at_the_trainers_death() {
    let mut watch = started(1, WatchPolicy::default());
    assert_eq!(watch.line(SECOND, &lost(0, 999))[0].class, Class::Note);
    assert_eq!(watch.death(100 * SECOND).unwrap().class, Class::Leave);
    let mut watch = started(1, WatchPolicy::default());
    assert_eq!(watch.refused("nvmlInit_v2", 999)[0].class, Class::Note);
    assert_eq!(watch.death(SECOND).unwrap().class, Class::Leave);
    assert_eq!(started(1, WatchPolicy::default()).refused("nvmlInit_v2", 9), []);
}

#[test]
fn unavailable_events_are_reported_once_and_blame_no_gpu() {
    let deaf = |code| Line::EventsUnavailable { function: "nvmlEventSetWait_v2".into(), code };
    for code in [999, 17, 18, 2, 1] {
        let mut watch = started(1, WatchPolicy::default());
        let findings = watch.line(SECOND, &deaf(code));
        assert_eq!(findings[0].class, Class::Note);
        let text = &findings[0].text;
        assert!(text.starts_with(&format!("XIDs cannot be seen: nvmlEventSetWait_v2 failed with {code}")), "{text}");
        assert_eq!(watch.line(2 * SECOND, &deaf(code)), []);
        assert_eq!(watch.death(3 * SECOND), None, "{code}: the GPUs themselves respond");
    }
    let mut watch = started(1, WatchPolicy::default());
    assert_eq!(watch.line(SECOND, &deaf(3)), [], "an old driver, not an error");
}

#[test]
fn a_loss_that_only_the_wait_for_events_detects_is_class_leave() {
    let deaf = |code| Line::EventsUnavailable { function: "nvmlEventSetWait_v2".into(), code };
    for code in [15, 16] {
        let mut watch = started(2, WatchPolicy::default());
        let findings = watch.line(SECOND, &deaf(code));
        assert_eq!(findings.iter().map(|f| f.class).collect::<Vec<_>>(), [Class::Leave, Class::Leave]);
        assert!(findings[0].text.contains("does not say which"), "{findings:?}");
        let mut watch = started(2, WatchPolicy::default());
        watch.line(SECOND, &lost(1, code));
        assert_eq!(watch.line(SECOND, &deaf(code)), [], "the GPU itself was reported");
    }
}

#[test]
fn the_recovery_action_of_a_sample_decides_like_an_events() {
    let mut watch = started(1, WatchPolicy::default());
    let findings = sample(&mut watch, SECOND, Gpu { recovery_action: Some(1), ..gpu(0) });
    assert_eq!(findings[0].class, Class::Leave);
    assert!(findings[0].text.contains("GPU reset"), "{findings:?}");
    assert_eq!(sample(&mut watch, 2 * SECOND, Gpu { recovery_action: Some(1), ..gpu(0) }), []);
    let event = |recovery_action| Line::Event {
        index: Some(0),
        kind: event::RECOVERY_ACTION,
        data: 0,
        gpu_instance: None,
        recovery_action,
    };
    assert_eq!(watch.line(3 * SECOND, &event(Some(2)))[0].class, Class::Leave);
}

#[test]
fn drain_p2p_matters_only_to_a_job_with_several_gpus() {
    let mut one = started(1, WatchPolicy::default());
    assert_eq!(sample(&mut one, SECOND, Gpu { recovery_action: Some(3), ..gpu(0) })[0].class, Class::Note);
    let mut two = started(2, WatchPolicy::default());
    assert_eq!(sample(&mut two, SECOND, Gpu { recovery_action: Some(3), ..gpu(0) })[0].class, Class::Leave);
    let visible = WatchPolicy { cuda_visible: Some("GPU-0".into()), ..WatchPolicy::default() };
    let mut hidden = started(2, visible);
    assert_eq!(sample(&mut hidden, SECOND, Gpu { recovery_action: Some(1), ..gpu(1) })[0].class, Class::Note);
    assert_eq!(sample(&mut hidden, SECOND, Gpu { recovery_action: Some(3), ..gpu(0) })[0].class, Class::Note);
}

#[test]
fn a_slowdown_in_most_of_a_minute_is_reported_once() {
    let mut watch = started(1, WatchPolicy::default());
    let reported_at: Vec<u32> = (1..=30)
        .filter(|n| {
            let bits = if *n <= 12 || *n % 3 == 0 { 0x40 } else { 0 } | 0x4;
            !sample(&mut watch, 10 * *n * SECOND, Gpu { throttle_reasons: Some(bits), ..gpu(0) }).is_empty()
        })
        .collect();
    assert_eq!(reported_at, [6], "a power cap does not count, and a slowdown is reported once");
}

#[test]
fn only_rising_counters_are_reported() {
    let mut watch = Watch::new(WatchPolicy::default());
    let with = |errors| Gpu { ecc_uncorrected: Some(errors), remap_pending: Some(errors > 2), ..gpu(0) };
    assert_eq!(sample(&mut watch, SECOND, with(2)), []);
    assert_eq!(sample(&mut watch, 2 * SECOND, with(2)), []);
    let findings = sample(&mut watch, 3 * SECOND, with(3));
    assert_eq!(findings.len(), 2, "{findings:?}");
    assert!(findings[0].text.contains("1 more uncorrectable"), "{findings:?}");
    assert_eq!(sample(&mut watch, 4 * SECOND, with(3)), []);
}

#[test]
fn a_failed_remap_waits_for_the_next_restart() {
    let mut watch = started(1, WatchPolicy::default());
    let findings = sample(&mut watch, SECOND, Gpu { remap_failed: Some(true), ..gpu(0) });
    assert_eq!(findings[0].class, Class::Note);
    assert_eq!(watch.death(1000 * SECOND).unwrap().class, Class::Leave);
}

#[test]
fn memory_used_by_others_is_reported_only_at_the_start() {
    let mut watch = Watch::new(WatchPolicy::default());
    let with = |used| Gpu { memory_used_bytes: Some(used), ..gpu(0) };
    assert!(sample(&mut watch, SECOND, with(2 << 30))[0].text.contains("2048 MiB"));
    assert_eq!(sample(&mut watch, SECOND, with(9 << 30)), []);
}

#[test]
fn at_most_the_samples_of_an_hour_are_kept() {
    let mut watch = started(1, WatchPolicy::default());
    for n in 0..1000 {
        sample(&mut watch, n * SECOND, Gpu { utilization_percent: Some(n), ..gpu(0) });
    }
    let kept: Vec<u32> = watch.samples(0).filter_map(|sample| sample.utilization_percent).collect();
    assert_eq!((kept.len(), kept[0], kept[MOST_SAMPLES - 1]), (MOST_SAMPLES, 640, 999));
}

#[test]
fn a_gpu_that_is_lost_from_the_start_explains_the_death_of_a_trainer_that_may_need_it() {
    let died = |visible: Option<&str>, code: u32| {
        let cuda_visible = visible.map(str::to_owned);
        let mut watch = started(1, WatchPolicy { cuda_visible, ..WatchPolicy::default() });
        assert_eq!(watch.line(SECOND, &lost(1, code)), [], "the discovery has reported it");
        watch.death(100 * SECOND)
    };
    for (visible, code) in [(None, 15), (None, 16), (Some("0,1"), 15), (Some("GPU-1"), 15)] {
        let found = died(visible, code).unwrap();
        let why = format!("GPU 1: unfit for training from the start, nvmlX failed with {code}, ");
        assert!(found.class == Class::Leave && found.text.starts_with(&why), "{visible:?}: {found:?}");
    }
    for (visible, code) in
        [(Some("0"), 15), (Some("GPU-0"), 15), (Some(""), 15), (Some("-1"), 15), (Some("NoDevFiles"), 15), (None, 4)]
    {
        assert_eq!(died(visible, code), None, "{visible:?} {code}");
    }
    let mut back = started(1, WatchPolicy::default());
    back.line(SECOND, &lost(1, 15));
    sample(&mut back, 2 * SECOND, gpu(1));
    assert_eq!(back.death(3 * SECOND), None, "it responds again");
}

#[test]
fn an_xid_of_no_gpu_is_a_warning() {
    let mut watch = started(1, WatchPolicy::default());
    let stray = Line::Event { index: None, kind: event::XID, data: 79, gpu_instance: None, recovery_action: None };
    assert_eq!(watch.line(SECOND, &stray)[0].class, Class::Note);
    assert_eq!(watch.xids().len(), 1);
}
