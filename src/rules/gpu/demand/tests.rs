use super::super::Evidence;
use super::*;

fn found(count: u32) -> Discovery {
    let gpu = |index| Gpu {
        index,
        name: Some("T4".into()),
        uuid: Some(format!("GPU-{index}")),
        memory_total_bytes: Some(15 << 30),
        health: Health::Ok,
        cuda_visible: Some(true),
        ..Gpu::default()
    };
    let driver_version = Some("535.104.05".to_owned());
    let gpus = (0..count).map(gpu).collect();
    Discovery {
        gpus,
        driver_version,
        cuda_version: None,
        source: Evidence::Nvml,
        problem: None,
        absence: None,
        unusable: None,
        driver: Health::Ok,
    }
}

fn demands(number: Option<Number>, driver: Option<&str>, memory: Option<&str>) -> Demands {
    let driver = driver.map(|text| parse_driver(text).unwrap());
    Demands { number, driver, memory_bytes: memory.map(|text| parse_bytes(text).unwrap()) }
}

#[test]
fn met_demands_have_no_text() {
    let demands = demands(Some(Number::AtLeast(2)), Some("535.104"), Some("15GiB"));
    assert!(demands.any() && demands.unmet(&found(2), None).is_empty());
    assert!(!Demands::default().any());
}

#[test]
fn each_unmet_demand_names_what_was_found() {
    let demands = demands(Some(Number::AtLeast(4)), Some("550"), Some("40GB"));
    let unmet = demands.unmet(&found(2), None);
    assert_eq!(
        unmet[0],
        "--require-gpus: 4 needed, 2 found: T4, T4; give the container more of them, or require fewer; trainit gpus lists the GPUs"
    );
    let (driver, memory) = (
        "--min-driver: 550 needed, the driver is 535.104.05; the driver belongs to the host",
        "--min-gpu-memory: 37.3 GiB needed, GPU 0 (GPU-0) has 15.0 GiB; use a machine with larger GPUs",
    );
    assert!(unmet[1].starts_with(driver) && unmet[2].starts_with(memory), "{unmet:?}");
    assert_eq!(unmet.len(), 4);
}

#[test]
fn the_problem_explains_why_nothing_was_found() {
    let mut none = found(0);
    (none.problem, none.driver_version) = (Some("nvmlInit_v2 did not return".into()), None);
    let unmet = demands(Some(Number::Any), Some("1"), Some("1")).unmet(&none, None);
    assert!(unmet[0].starts_with("--require-gpus: 1 needed, none was found (nvmlInit_v2 did not return); give"));
    assert_eq!(unmet.len(), 3);
    assert_eq!(unmet.iter().filter(|demand| demand.contains("docker run --gpus all")).count(), 1, "once is enough");
    for alone in [demands(None, Some("1"), None), demands(None, None, Some("1"))] {
        let unmet = alone.unmet(&none, None);
        assert!(unmet[0].contains("docker run --gpus all") && unmet[0].ends_with("trainit gpus lists the GPUs"));
    }
}

#[test]
fn zero_demands_nothing() {
    for memory in ["0", "0GiB"] {
        let none = demands(Some(Number::AtLeast(0)), None, Some(memory)).unmet(&found(0), None);
        assert!(none.is_empty(), "{none:?}");
    }
}

#[test]
fn hidden_gpus_have_their_own_advice() {
    let mut hidden = found(2);
    hidden.gpus.iter_mut().for_each(|gpu| gpu.cuda_visible = Some(false));
    for demand in demands(Some(Number::Any), None, Some("1GiB")).unmet(&hidden, Some("")) {
        assert!(demand.contains("to CUDA_VISIBLE_DEVICES"), "{demand}");
    }
    let none = &demands(Some(Number::Any), None, None).unmet(&hidden, Some(""))[0];
    assert!(none.contains("1 needed, 0 usable of 2 (CUDA_VISIBLE_DEVICES);"), "{none}");
}

#[test]
fn a_gpu_that_is_hidden_or_broken_does_not_count() {
    let demands = demands(Some(Number::AtLeast(2)), None, None);
    assert_eq!(demands.unmet(&found(2), Some("0")).len(), 1);
    assert!(demands.unmet(&found(2), Some("1,0")).is_empty());
    let mut broken = found(2);
    broken.gpus[1].health = Health::Bad;
    broken.gpus[1].health_reason = Some("lost".into());
    let unmet = demands.unmet(&broken, None);
    assert_eq!(unmet, ["--require-gpus: 2 needed, 1 usable of 2, 1 broken: GPU 1 (GPU-1): lost"]);
    broken.gpus[0].cuda_visible = Some(false);
    assert_eq!(self::demands(Some(Number::Any), None, None).unmet(&broken, Some("1")).len(), 1, "the only visible GPU");
    broken.gpus[0].cuda_visible = Some(true);
    broken.gpus[1].health = Health::Unknown;
    assert!(demands.unmet(&broken, None).is_empty(), "an unknown state never stops a job");
}

#[test]
fn demands_that_are_unmet_because_of_faults_may_be_met_on_another_machine() {
    let by_faults = |number, memory, visible: Option<&str>, of: u32| {
        let mut found = found(of);
        found.gpus[0].health = Health::Bad;
        found.gpus[0].memory_total_bytes = None;
        let demands = demands(Some(Number::AtLeast(number)), None, memory);
        assert!(!demands.unmet(&found, visible).is_empty());
        demands.unmet_by_faults(&found, visible)
    };
    assert!(by_faults(2, None, None, 2) && by_faults(1, None, None, 1));
    assert!(by_faults(1, Some("15GiB"), None, 1), "the memory of a lost GPU is unknown");
    assert!(!by_faults(3, None, None, 2), "there are too few, including broken ones");
    assert!(!by_faults(2, None, Some("0"), 2), "one is hidden");
    assert!(!by_faults(2, Some("40GiB"), None, 2), "the other GPU is too small");
}

#[test]
fn a_driver_that_fails_meets_no_demand_and_another_machine_may() {
    let failing = |count, driver| {
        let mut found = found(count);
        found.gpus.iter_mut().for_each(|gpu| (gpu.health, gpu.memory_total_bytes) = (Health::Unknown, None));
        (found.driver, found.driver_version) = (driver, None);
        found.problem = Some("nvmlInit_v2 failed".into());
        found
    };
    let all = demands(Some(Number::AtLeast(2)), Some("550"), Some("40GB"));
    for (count, driver) in [(0, Health::Bad), (2, Health::Bad), (0, Health::Unknown), (2, Health::Unknown)] {
        let found = failing(count, driver);
        let unmet = all.unmet(&found, None);
        assert!(unmet.len() == 1 && all.unmet_by_faults(&found, None), "{unmet:?}");
        assert!(unmet[0].starts_with("--require-gpus, --min-driver, --min-gpu-memory: the NVIDIA driver fails here"));
        assert!(unmet[0].contains("nvmlInit_v2 failed; another machine may succeed"), "{unmet:?}");
        assert_eq!(unmet[0].contains("--gpu-timeout"), driver == Health::Unknown);
        let nothing = demands(Some(Number::AtLeast(0)), None, Some("0"));
        assert!(nothing.unmet(&found, None).is_empty() && super::failing(&found).is_some());
    }
    let slow = failing(2, Health::Unknown);
    assert!(demands(Some(Number::AtLeast(2)), None, None).unmet(&slow, None).is_empty());
    let few = failing(1, Health::Bad);
    assert!(!all.unmet_by_faults(&few, None) && all.unmet(&few, None)[0].contains("2 needed, 1 found"));
    assert_eq!(super::failing(&found(2)), None);
}

#[test]
fn the_refusal_says_that_a_gpu_is_split_into_mig_instances() {
    let mut split = found(1);
    split.gpus[0].mig = Some(true);
    let unmet = |visible: Option<&str>| demands(Some(Number::AtLeast(4)), None, None).unmet(&split, visible);
    let whole = unmet(None);
    assert!(whole[0].contains("4 needed, 1 found") && whole[0].contains("is split into MIG instances"), "{whole:?}");
    let listed = unmet(Some("MIG-1,MIG-2"));
    assert!(listed[0].contains("4 needed, CUDA_VISIBLE_DEVICES lists 2 MIG instances"), "{listed:?}");
}

#[test]
fn mig_instances_count_separately_and_their_memory_is_unknown() {
    let mut split = found(1);
    split.gpus[0].mig = Some(true);
    let unmet = |demands: Demands, split: &Discovery| demands.unmet(split, Some("MIG-1,MIG-2,MIG-3"));
    assert!(unmet(demands(Some(Number::AtLeast(3)), None, None), &split).is_empty());
    assert_eq!(unmet(demands(Some(Number::AtLeast(4)), None, None), &split).len(), 1);
    let memory = unmet(demands(None, None, Some("10GiB")), &split);
    assert!(memory[0].contains("GPU 0 (GPU-0) is split into MIG instances"), "{memory:?}");
    assert!(unmet(demands(None, None, Some("40GiB")), &split)[0].contains("has 15.0 GiB"));
    split.gpus[0].health = Health::Bad;
    assert_eq!(unmet(demands(Some(Number::Any), None, None), &split).len(), 1, "they share its faults");
}

#[test]
fn a_gpu_that_shares_the_machines_memory_is_not_too_small() {
    let mut shared = found(1);
    (shared.gpus[0].memory_total_bytes, shared.gpus[0].memory_shared) = (None, Some(true));
    let demands = demands(Some(Number::Any), None, Some("40GiB"));
    assert_eq!(demands.unmet(&shared, None), [""; 0]);
    shared.gpus[0].memory_shared = None;
    assert!(demands.unmet(&shared, None)[0].contains("an unknown amount"), "without that property it is unknown");
}

#[test]
fn gpus_that_cuda_cannot_use_do_not_count_and_are_a_permanent_failure() {
    let mut found = found(2);
    found.unusable = Some("no /dev/nvidia-uvm".into());
    let any = demands(Some(Number::Any), None, None);
    assert_eq!(any.unmet(&found, None), ["--require-gpus: no /dev/nvidia-uvm"]);
    assert!(!any.unmet_by_faults(&found, None));
    assert!(demands(None, Some("535"), Some("1GiB")).unmet(&found, None).is_empty());
}

#[test]
fn a_gpu_without_configured_nvlinks_does_not_count_and_another_machine_may_succeed() {
    for (state, status, is_fine) in [(1, 0, false), (2, 0, false), (3, 999, false), (3, 0, true), (0, 0, true)] {
        let mut found = found(2);
        (found.gpus[1].fabric_state, found.gpus[1].fabric_status) = (Some(state), Some(status));
        let two = demands(Some(Number::AtLeast(2)), None, None);
        let unmet = two.unmet(&found, None);
        assert_eq!(unmet.is_empty(), is_fine, "{state} {status}: {unmet:?}");
        assert!(is_fine || unmet[0].contains("1 broken: GPU 1 (GPU-1): ") && unmet[0].contains("nvidia-fabricmanager"));
        assert!(is_fine || two.unmet_by_faults(&found, None));
    }
}

#[test]
fn versions_compare_as_numbers() {
    let unmet = |text| !demands(None, Some(text), None).unmet(&found(1), None).is_empty();
    assert!(!unmet("535") && !unmet("99.9") && !unmet("535.104.5"));
    assert!(unmet("535.104.06") && unmet("536"));
    assert!(!unmet("535.104.05.0") && unmet("535.104.05.1"));
}

#[test]
fn sizes_are_read_with_their_units() {
    let sizes = [("1", 1), ("40GiB", 40 << 30), ("80 GB", 80_000_000_000), ("1.5g", 3 << 29), ("16384mib", 16 << 30)];
    for (text, bytes) in sizes {
        assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
    }
    for wrong in ["", "GiB", "40 apples", "-1", "1e400", "99999999999TB", "1.2.3G"] {
        assert!(parse_bytes(wrong).unwrap_err().contains("40GiB"), "{wrong}");
    }
    assert!(parse_number("two").is_err() && parse_number("any") == Ok(Number::Any));
    assert!(parse_driver("R550").is_err());
}
