//! The demands of a job on its GPUs before it starts: `--require-gpus`, `--min-driver`, `--min-gpu-memory`.
//!
//! The job does not start with an unmet demand. The failure is permanent if the GPUs are missing, and can be retried on
//! another machine if they are broken or the driver fails. Deliberately absent: waiting.

use super::{Discovery, Gpu, Health};

/// The advice if there is no GPU.
const NO_GPU: &str = "; give the container GPUs (docker run --gpus all; in Kubernetes nvidia.com/gpu in its limits, and the \
                      device plugin on the node); trainit gpus lists the GPUs";

/// A number of GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    /// At least one.
    Any,
    /// At least this many.
    AtLeast(usize),
}

/// All demands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Demands {
    /// `--require-gpus`
    pub number: Option<Number>,
    /// `--min-driver` as numbers.
    pub driver: Option<Vec<u64>>,
    /// `--min-gpu-memory` for each GPU.
    pub memory_bytes: Option<u64>,
}

impl Demands {
    /// Whether there is a demand, so that the probe must be awaited.
    pub fn any(&self) -> bool {
        *self != Demands::default()
    }

    /// Whether a number of GPUs is demanded.
    pub fn demands_number(&self) -> bool {
        !matches!(self.number, None | Some(Number::AtLeast(0)))
    }

    /// Every unmet demand, on one line with what was found. `visible` is `CUDA_VISIBLE_DEVICES`: a GPU that the trainer
    /// cannot see does not count, and neither does a broken one. A failing driver meets no demand.
    pub fn unmet(&self, found: &Discovery, visible: Option<&str>) -> Vec<String> {
        let (flags, unmet_by_gpus) = (self.flags(), self.unmet_by_gpus(found, visible));
        // A driver without an answer may only be slow to start (without persistence mode), so other evidence of GPUs
        // counts.
        let meets = unmet_by_gpus.is_empty() && found.driver != Health::Bad;
        match failing(found).filter(|_| !meets && !flags.is_empty() && self.unmet_by_faults(found, visible)) {
            Some(failing) => vec![format!("{}: {failing}", flags.join(", "))],
            None => unmet_by_gpus,
        }
    }

    /// The flags of the demands.
    fn flags(&self) -> Vec<&'static str> {
        let flags = [
            (self.demands_number(), "--require-gpus"),
            (self.driver.is_some(), "--min-driver"),
            (self.memory_bytes.is_some_and(|bytes| bytes > 0), "--min-gpu-memory"),
        ];
        flags.into_iter().filter(|(asks, _)| *asks).map(|(_, flag)| flag).collect()
    }

    /// Like [`Demands::unmet`], without the check of the driver.
    fn unmet_by_gpus(&self, found: &Discovery, visible: Option<&str>) -> Vec<String> {
        let problem = found
            .problem
            .as_ref()
            .or(found.absence.as_ref())
            .map(|problem| format!(" ({problem})"))
            .unwrap_or_default();
        let is_broken = |gpu: &&Gpu| gpu.health == Health::Bad || gpu.fabric_fault().is_some();
        let (broken, healthy): (Vec<&Gpu>, Vec<&Gpu>) = found.gpus.iter().partition(is_broken);
        let broken_seen = broken.iter().filter(|gpu| gpu.cuda_visible == Some(true)).count();
        let seen = super::cuda::visible_count(&found.gpus, visible);
        // Several MIG instances of one GPU count separately, as for --nproc gpu.
        let is_split = visible.is_some_and(|list| list.contains("MIG-")) && broken.is_empty() && !healthy.is_empty();
        let usable = if is_split { seen } else { seen.saturating_sub(broken_seen).min(healthy.len()) };
        let mut unmet = Vec::new();
        let wanted = match self.number {
            None => 0,
            Some(Number::Any) => 1,
            Some(Number::AtLeast(number)) => number,
        };
        if usable < wanted {
            let listed = match (found.gpus.len(), broken.len()) {
                (0, _) => "none was found".to_owned(),
                (all, 0) if all > usable => format!("{usable} usable of {all} (CUDA_VISIBLE_DEVICES)"),
                (all, 0) => format!("{all} found: {}", names(&found.gpus)),
                (all, bad) => format!("{usable} usable of {all}, {bad} broken: {}", fault_list(&broken)),
            };
            // Each fault is listed with its GPU.
            let problem = if broken.is_empty() { problem.as_str() } else { "" };
            let way_out = match (found.gpus.len(), broken.len()) {
                (0, _) => NO_GPU,
                (all, 0) if all > usable && all >= wanted => "; add more of them to CUDA_VISIBLE_DEVICES",
                (_, 0) => "; give the container more of them, or require fewer; trainit gpus lists the GPUs",
                _ => "",
            };
            unmet.push(format!("--require-gpus: {wanted} needed, {listed}{problem}{way_out}"));
        }
        if wanted > 0
            && let Some(why) = &found.unusable
        {
            unmet.push(format!("--require-gpus: {why}"));
        }
        if let Some(wanted) = &self.driver {
            let needed = wanted.iter().map(u64::to_string).collect::<Vec<_>>().join(".");
            // 550.0 means the same as 550.
            let floor = &wanted[..wanted.iter().rposition(|number| *number > 0).map_or(0, |last| last + 1)];
            match found.driver_version.as_deref().map(|version| (version, numbers(version))) {
                Some((_, Ok(version))) if *version >= *floor => {}
                Some((version, _)) => unmet.push(format!(
                    "--min-driver: {needed} needed, the driver is {version}; the driver belongs to the host, not to the image: update it there, \
                     use another node, or an image with an older CUDA"
                )),
                None => unmet.push(format!(
                    "--min-driver: {needed} needed, the driver's version is unknown{problem}{}",
                    match found.gpus.is_empty() {
                        true if unmet.is_empty() => NO_GPU,
                        true => "",
                        false => "; trainit gpus lists the GPUs",
                    }
                )),
            }
        }
        unmet.extend(self.unmet_memory(&healthy, found.gpus.is_empty(), unmet.is_empty(), &problem));
        unmet
    }

    /// The unmet part of `--min-gpu-memory`. `is_none`: there is no GPU. `is_first`: no other demand has reported that.
    fn unmet_memory(&self, healthy: &[&Gpu], is_none: bool, is_first: bool, problem: &str) -> Vec<String> {
        let Some(wanted) = self.memory_bytes.filter(|bytes| *bytes > 0) else { return Vec::new() };
        let mut unmet = Vec::new();
        let seen: Vec<&&Gpu> = healthy.iter().filter(|gpu| gpu.cuda_visible != Some(false)).collect();
        if seen.is_empty() {
            let (lack, way_out) = match (is_none, healthy.is_empty()) {
                (true, _) if is_first => ("there is no GPU", NO_GPU),
                (true, _) => ("there is no GPU", ""),
                (_, true) => ("no GPU is healthy", ""),
                _ => ("no GPU is visible", "; add one to CUDA_VISIBLE_DEVICES"),
            };
            unmet.push(format!("--min-gpu-memory: {} needed, but {lack}{problem}{way_out}", size(wanted)));
        }
        for gpu in seen {
            // NVML reports the memory of the whole GPU.
            if gpu.mig == Some(true) && gpu.memory_total_bytes.is_some_and(|bytes| bytes >= wanted) {
                unmet.push(format!(
                    "--min-gpu-memory: {} needed, {} is split into MIG instances, whose memory is unknown; \
                     omit --min-gpu-memory, and request instances of that size from the platform",
                    size(wanted),
                    gpu.label()
                ));
                continue;
            }
            // It uses the machine's memory, and the job must find out how much is available.
            if gpu.memory_shared == Some(true) {
                continue;
            }
            let has = gpu.memory_total_bytes.map_or("an unknown amount".to_owned(), size);
            if gpu.memory_total_bytes.is_none_or(|bytes| bytes < wanted) {
                let label = gpu.label();
                unmet.push(format!(
                    "--min-gpu-memory: {} needed, {label} has {has}{problem}; use a machine with larger GPUs, or require less",
                    size(wanted)
                ));
            }
        }
        unmet
    }

    /// Whether only broken GPUs or a failing driver cause the unmet demands, so that a healthy machine of the same kind
    /// would meet them.
    pub fn unmet_by_faults(&self, found: &Discovery, visible: Option<&str>) -> bool {
        let fails = found.driver != Health::Ok;
        if fails && found.gpus.is_empty() {
            return true;
        }
        let mut mended = found.clone();
        mended.unusable = mended.unusable.filter(|_| !fails);
        let is_broken = |gpu: &Gpu| gpu.health == Health::Bad || gpu.fabric_fault().is_some();
        for gpu in mended.gpus.iter_mut().filter(|gpu| fails || is_broken(gpu)) {
            gpu.health = Health::Ok;
            gpu.fabric_state = None;
            gpu.memory_total_bytes.get_or_insert(u64::MAX);
        }
        let driver = self.driver.clone().filter(|_| !fails || found.driver_version.is_some());
        Demands { driver, ..self.clone() }.unmet_by_gpus(&mended, visible).is_empty()
    }
}

/// The text about a failing driver, if it fails. Another machine may meet the demands.
pub fn failing(found: &Discovery) -> Option<String> {
    let way_out = match found.driver {
        Health::Unknown => "; another machine may succeed; if the driver is only slow, raise --gpu-timeout",
        Health::Bad => "; another machine may succeed",
        Health::Ok | Health::Warn => return None,
    };
    let problem = found.problem.as_deref().unwrap_or("the cause is unknown");
    Some(format!("the NVIDIA driver fails here, so the GPUs are unreliable: {problem}{way_out}"))
}

/// Each broken GPU with its fault.
fn fault_list(broken: &[&Gpu]) -> String {
    let why = |gpu: &Gpu| gpu.health_reason.clone().or(gpu.fabric_fault()).unwrap_or_else(|| "broken".to_owned());
    let fault = |gpu: &&Gpu| format!("{}: {}", gpu.label(), why(gpu));
    broken.iter().map(fault).collect::<Vec<_>>().join("; ")
}

fn names(gpus: &[Gpu]) -> String {
    gpus.iter().map(|gpu| gpu.name.as_deref().unwrap_or("unnamed")).collect::<Vec<_>>().join(", ")
}

fn size(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

/// `N` or `any`. Errors: the expected form.
pub fn parse_number(text: &str) -> Result<Number, String> {
    match text.trim() {
        word if word.eq_ignore_ascii_case("any") => Ok(Number::Any),
        digits => {
            let number = digits.parse().map_err(|_| format!("expected a number of GPUs or any, found {text:?}"))?;
            Ok(Number::AtLeast(number))
        }
    }
}

/// `550.54.15` as numbers. Errors: the expected form.
pub fn parse_driver(text: &str) -> Result<Vec<u64>, String> {
    numbers(text).map_err(|()| format!("expected a driver version such as 535 or 550.54.15, found {text:?}"))
}

fn numbers(text: &str) -> Result<Vec<u64>, ()> {
    text.trim().split('.').map(|part| part.parse().map_err(|_| ())).collect()
}

/// `40GiB`, `80GB`, `16384MiB`, or bytes. Errors: the expected form.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 15] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("KB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        // In Kubernetes' form.
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("M", 1 << 20),
        ("G", 1 << 30),
        ("B", 1),
    ];
    let expected = || format!("expected a size such as 40GiB, 80GB or 16384MiB, found {text:?}");
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let unit = unit.trim();
    let factor = match UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)) {
        Some((_, factor)) => *factor,
        None if unit.is_empty() => 1,
        None => return Err(expected()),
    };
    let bytes = number.parse::<f64>().map_err(|_| expected())? * factor as f64;
    if bytes < u64::MAX as f64 { Ok(bytes as u64) } else { Err(expected()) }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(
            self::demands(Some(Number::Any), None, None).unmet(&broken, Some("1")).len(),
            1,
            "the only visible GPU"
        );
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
            assert!(
                unmet[0].starts_with("--require-gpus, --min-driver, --min-gpu-memory: the NVIDIA driver fails here")
            );
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
            assert!(
                is_fine || unmet[0].contains("1 broken: GPU 1 (GPU-1): ") && unmet[0].contains("nvidia-fabricmanager")
            );
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
        let sizes =
            [("1", 1), ("40GiB", 40 << 30), ("80 GB", 80_000_000_000), ("1.5g", 3 << 29), ("16384mib", 16 << 30)];
        for (text, bytes) in sizes {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "GiB", "40 apples", "-1", "1e400", "99999999999TB", "1.2.3G"] {
            assert!(parse_bytes(wrong).unwrap_err().contains("40GiB"), "{wrong}");
        }
        assert!(parse_number("two").is_err() && parse_number("any") == Ok(Number::Any));
        assert!(parse_driver("R550").is_err());
    }
}
