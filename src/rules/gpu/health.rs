//! Derives the health of a sampled GPU: first from the driver's own verdict, then from counters.
//!
//! Deliberately absent: history ([`super::watch`]), and lost GPUs ([`super::answer`]).

use super::{Gpu, Health, throttle_names};

/// Whether a value of field 230 asks for an action that this version of trainit knows.
pub fn is_known(action: u32) -> bool {
    (1..=7).contains(&action)
}

/// A value of field 230: its name, and whether the GPU is unfit for training. `several` says whether the job uses more
/// than one GPU.
pub fn recovery(action: u32, several: bool) -> (Health, String) {
    let (health, name) = match action {
        0 => return (Health::Ok, String::new()),
        1 => (Health::Bad, "GPU reset"),
        2 => (Health::Bad, "node reboot"),
        3 if several => (Health::Bad, "drain P2P"),
        3 => (Health::Warn, "drain P2P"),
        4 => (Health::Bad, "drain and reset"),
        5 => (Health::Bad, "recover IMEX domain"),
        6 => (Health::Bad, "bus reset"),
        7 => (Health::Bad, "system reboot"),
        _ => (Health::Warn, "unknown to this version of trainit"),
    };
    (health, format!("the driver asks for recovery action {action}, {name}"))
}

/// A sampled GPU's health: first from the driver's own verdict, then from counters.
pub fn health(gpu: &Gpu) -> (Health, Option<String>) {
    let mut found: Vec<(Health, String)> = Vec::new();
    if let Some(action) = gpu.recovery_action.filter(|action| *action != 0) {
        found.push(recovery(action, true));
    }
    if gpu.remap_failed == Some(true) {
        found.push((Health::Bad, "a faulty memory row could not be replaced".to_owned()));
    }
    if gpu.remap_pending == Some(true) {
        found.push((Health::Warn, "memory repairs wait for a GPU reset".to_owned()));
    }
    if let Some(errors) = gpu.ecc_uncorrected.filter(|errors| *errors > 0) {
        found.push((Health::Warn, format!("{errors} uncorrectable memory errors since the driver was loaded")));
    }
    found.extend(gpu.fabric_fault().map(|why| (Health::Warn, why)));
    let slow: Vec<&str> = throttle_names(gpu.throttle_reasons.unwrap_or(0) & SLOWDOWN);
    if !slow.is_empty() {
        found.push((Health::Warn, format!("slowed down: {}", slow.join(", "))));
    }
    let worst = if found.iter().any(|(health, _)| *health == Health::Bad) { Health::Bad } else { Health::Warn };
    match found.is_empty() {
        true => (Health::Ok, None),
        false => (worst, Some(found.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join("; "))),
    }
}

/// Throttle bits that cause a warning: HW slowdown, SW thermal, HW thermal, power brake.
pub const SLOWDOWN: u64 = 0x8 | 0x20 | 0x40 | 0x80;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_own_verdict_wins_over_clean_counters() {
        let gpu = |action| Gpu { recovery_action: action, ecc_uncorrected: Some(0), ..Gpu::default() };
        for action in [1, 2, 3, 4, 5, 6, 7] {
            assert_eq!(health(&gpu(Some(action))).0, Health::Bad, "{action}");
        }
        assert_eq!(health(&gpu(Some(0))), (Health::Ok, None));
        assert_eq!(health(&gpu(None)).0, Health::Ok);
        let (newer, text) = health(&gpu(Some(42)));
        assert!(newer == Health::Warn && text.unwrap().contains("42"));
        assert_eq!(recovery(3, false).0, Health::Warn);
    }

    #[test]
    fn failed_memory_repairs_are_bad_and_pending_repairs_or_counted_errors_are_a_warning() {
        let failed = Gpu { remap_failed: Some(true), ..Gpu::default() };
        let pending = Gpu { remap_pending: Some(true), ..Gpu::default() };
        let errors = Gpu { ecc_uncorrected: Some(2), ..Gpu::default() };
        assert_eq!([&failed, &pending, &errors].map(|gpu| health(gpu).0), [Health::Bad, Health::Warn, Health::Warn]);
        let all = Gpu { remap_failed: Some(true), ecc_uncorrected: Some(2), ..pending };
        let (worst, why) = health(&all);
        let why = why.expect("there is a reason");
        assert!(
            worst == Health::Bad && ["replaced", "GPU reset", "2 uncorrectable"].iter().all(|w| why.contains(w)),
            "{why}"
        );
    }

    #[test]
    fn a_power_cap_is_normal_and_a_thermal_slowdown_is_not() {
        let gpu = |bits| Gpu { throttle_reasons: Some(bits), ..Gpu::default() };
        assert_eq!(health(&gpu(0x4)).0, Health::Ok);
        assert_eq!(health(&gpu(0x20)).0, Health::Warn);
    }
}
