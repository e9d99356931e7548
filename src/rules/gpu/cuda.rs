//! Applies `CUDA_VISIBLE_DEVICES` to NVML's GPUs, joined by UUID, because CUDA's indices differ from NVML's.
//!
//! The variable is a list of indices, of `GPU-…` UUIDs (a prefix suffices) or of `MIG-…`. The first invalid entry ends
//! the list, and an empty list hides all GPUs. NVML does not read it. Deliberately absent: MIG instances, which are not
//! GPUs.

use std::collections::BTreeSet;

use super::Gpu;

/// Sets [`Gpu::cuda_visible`] for each GPU. `order` is `CUDA_DEVICE_ORDER`.
///
/// Indices are CUDA's: the fastest GPU comes first unless the order is `PCI_BUS_ID`. So an index identifies a GPU only in
/// these cases: the order is `PCI_BUS_ID`; all GPUs are of one model, because equally fast GPUs stay in PCI order; there are
/// as many indices as GPUs.
pub fn mark(gpus: &mut [Gpu], visible: Option<&str>, order: Option<&str>) {
    let Some(list) = visible else {
        for gpu in gpus {
            gpu.cuda_visible = Some(true);
        }
        return;
    };
    let alike = gpus.iter().all(|gpu| gpu.name.is_some() && gpu.name == gpus[0].name);
    let ordered = alike || order == Some("PCI_BUS_ID");
    let mut seen = vec![Some(false); gpus.len()];
    let mut numbers = BTreeSet::new();
    for entry in list.split(',').map(str::trim) {
        if let Ok(number) = entry.parse::<usize>() {
            numbers.insert(number);
            match (number < gpus.len(), ordered) {
                (false, _) => break,
                (true, true) => seen[number] = Some(true),
                (true, false) if numbers.len() == gpus.len() => seen.fill(Some(true)),
                (true, false) => {
                    seen.iter_mut().filter(|s| **s == Some(false)).for_each(|s| *s = None);
                }
            }
        } else if entry.starts_with("MIG-") && gpus.len() == 1 {
            seen[0] = Some(true);
        } else if entry.starts_with("MIG-") {
            seen.iter_mut().filter(|s| **s == Some(false)).for_each(|s| *s = None);
        } else {
            let named: Vec<usize> = (0..gpus.len()).filter(|at| matches_prefix(&gpus[*at], entry)).collect();
            match named[..] {
                [at] => seen[at] = Some(true),
                _ => break,
            }
        }
    }
    for (gpu, seen) in gpus.iter_mut().zip(seen) {
        gpu.cuda_visible = seen;
    }
}

fn matches_prefix(gpu: &Gpu, entry: &str) -> bool {
    entry.len() > "GPU-".len() && gpu.uuid.as_ref().is_some_and(|uuid| uuid.starts_with(entry))
}

/// The number of GPUs that the trainer will see: the valid entries, in any order.
pub fn visible_count(gpus: &[Gpu], visible: Option<&str>) -> usize {
    let Some(list) = visible else { return gpus.len() };
    let names_one = |entry: &&str| match entry.parse::<usize>() {
        Ok(number) => number < gpus.len(),
        Err(_) => entry.starts_with("MIG-") || gpus.iter().filter(|gpu| matches_prefix(gpu, entry)).count() == 1,
    };
    list.split(',').map(str::trim).take_while(names_one).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(names: &[&str]) -> Vec<Gpu> {
        let gpu = |(index, name): (usize, &&str)| Gpu {
            index: index as u32,
            name: Some((*name).to_owned()),
            uuid: Some(format!("GPU-{index}{index}-x")),
            ..Gpu::default()
        };
        names.iter().enumerate().map(gpu).collect()
    }

    fn marked(names: &[&str], visible: Option<&str>, order: Option<&str>) -> Vec<Option<bool>> {
        let mut gpus = gpus(names);
        mark(&mut gpus, visible, order);
        gpus.into_iter().map(|gpu| gpu.cuda_visible).collect()
    }

    #[test]
    fn without_the_variable_all_are_visible_and_with_an_empty_one_none() {
        assert_eq!(marked(&["A", "A"], None, None), [Some(true), Some(true)]);
        assert_eq!(marked(&["A", "A"], Some(""), None), [Some(false), Some(false)]);
        assert_eq!(visible_count(&gpus(&["A"]), Some("")), 0);
    }

    #[test]
    fn uuids_match_in_any_order_and_by_prefix() {
        assert_eq!(marked(&["A", "B"], Some("GPU-11"), None), [Some(false), Some(true)]);
        assert_eq!(marked(&["A", "B"], Some("GPU-"), None), [Some(false), Some(false)]);
    }

    #[test]
    fn indices_of_mixed_models_identify_no_gpu_but_still_count() {
        assert_eq!(marked(&["A", "B"], Some("1"), None), [None, None]);
        assert_eq!(visible_count(&gpus(&["A", "B"]), Some("1")), 1);
        assert_eq!(marked(&["A", "B"], Some("1"), Some("PCI_BUS_ID")), [Some(false), Some(true)]);
        assert_eq!(marked(&["A", "A"], Some("1"), None), [Some(false), Some(true)]);
        assert_eq!(marked(&["A", "B"], Some("1,0"), None), [Some(true), Some(true)], "all GPUs, in any order");
        assert_eq!(marked(&["A", "B"], Some("1,1"), None), [None, None]);
    }

    #[test]
    fn a_mig_instance_belongs_to_the_only_gpu_or_to_an_unknown_one() {
        assert_eq!(marked(&["A"], Some("MIG-x"), None), [Some(true)]);
        assert_eq!(marked(&["A", "A"], Some("MIG-x"), None), [None, None]);
    }

    #[test]
    fn the_first_invalid_entry_ends_the_list() {
        assert_eq!(marked(&["A", "A"], Some("-1,0"), None), [Some(false), Some(false)]);
        assert_eq!(marked(&["A", "A"], Some("0,9,1"), None), [Some(true), Some(false)]);
        assert_eq!(visible_count(&gpus(&["A", "A"]), Some("1,7,0")), 1);
        assert_eq!(visible_count(&gpus(&["A", "A"]), Some("0,GPU-11")), 2);
    }
}
