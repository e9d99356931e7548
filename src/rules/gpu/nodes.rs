//! GPUs without NVML: the names of device nodes and the text of `/proc/driver/nvidia/gpus/<bus>/information`.
//!
//! ```text
//! Model:    Tesla T4
//! IRQ:      33
//! GPU UUID:   GPU-1f8c5f5c-0c2e-7f2b-9d3c-6c8f1a2b3c4d
//! Bus Location:   0000:00:04.0
//! Device Minor:   0
//! ```
//! `/proc` may list GPUs of other containers; only those with an accessible device node count. Deliberately absent:
//! opening them.

use super::Gpu;

/// The N of a device node `nvidiaN`; `None` for any other name.
pub fn minor_of(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("nvidia")?;
    (digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok()).flatten()
}

/// Reads an `information` file; the index is unknown. `Unknown` and question marks are not a model or UUID.
pub fn read_information(text: &str) -> Gpu {
    let value = |key: &str| {
        let found = text.lines().filter_map(|line| line.split_once(':')).find(|(name, _)| name.trim() == key);
        found.map(|(_, value)| value.trim()).filter(|v| !v.is_empty() && *v != "Unknown" && !v.contains('?'))
    };
    Gpu {
        name: value("Model").map(str::to_owned),
        uuid: value("GPU UUID").map(str::to_owned),
        pci_bus_id: value("Bus Location").map(str::to_owned),
        minor: value("Device Minor").and_then(|minor| minor.parse().ok()),
        ..Gpu::default()
    }
}

/// The GPUs with accessible nodes and their data from `/proc`, in PCI order like NVML (by minor number if the bus is
/// unknown).
pub fn join(minors: &[u32], mut known: Vec<Gpu>) -> Vec<Gpu> {
    let mut gpus: Vec<Gpu> = minors
        .iter()
        .map(|minor| match known.iter().position(|gpu| gpu.minor == Some(*minor)) {
            Some(at) => known.swap_remove(at),
            None => Gpu { minor: Some(*minor), ..Gpu::default() },
        })
        .collect();
    gpus.sort_by(|a, b| match (&a.pci_bus_id, &b.pci_bus_id) {
        (Some(a), Some(b)) => a.cmp(b),
        _ => a.minor.cmp(&b.minor),
    });
    for (index, gpu) in (0..).zip(&mut gpus) {
        gpu.index = index;
    }
    gpus
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Model: \t\t Tesla T4\nIRQ:   \t\t 33\nGPU UUID: \t GPU-1f8c\nVideo BIOS: \t 90.04.a7.00.01\n\
                        Bus Type: \t PCIe\nBus Location: \t 0000:00:04.0\nDevice Minor: \t 3\n";

    #[test]
    fn the_information_text_is_read_by_its_keys() {
        let gpu = read_information(TEXT);
        assert_eq!(gpu.name.as_deref(), Some("Tesla T4"));
        assert_eq!(gpu.uuid.as_deref(), Some("GPU-1f8c"));
        assert_eq!(gpu.pci_bus_id.as_deref(), Some("0000:00:04.0"));
        assert_eq!(gpu.minor, Some(3));
    }

    #[test]
    fn values_unknown_to_the_driver_are_none() {
        let gpu = read_information("Model: \t Unknown\nGPU UUID: \t GPU-????????-????\nDevice Minor: x\njunk\n");
        assert_eq!(gpu, Gpu::default());
        assert_eq!(read_information(""), Gpu::default());
    }

    #[test]
    fn only_numbered_nodes_are_gpus() {
        assert_eq!(minor_of("nvidia12"), Some(12));
        for name in ["nvidia", "nvidiactl", "nvidia-uvm", "nvidia-caps", "nvidia0x", "nvidia+1", "xnvidia0"] {
            assert_eq!(minor_of(name), None, "{name}");
        }
        assert_eq!(minor_of("nvidia99999999999"), None);
    }

    #[test]
    fn the_device_node_decides_and_the_order_is_that_of_the_bus() {
        let information =
            |minor: u32, bus: &str| Gpu { minor: Some(minor), pci_bus_id: Some(bus.to_owned()), ..Gpu::default() };
        let known =
            vec![information(0, "0000:b0:00.0"), information(1, "0000:0a:00.0"), information(2, "0000:01:00.0")];
        let gpus = join(&[0, 1], known);
        let order: Vec<_> = gpus.iter().map(|gpu| (gpu.index, gpu.minor.unwrap())).collect();
        assert_eq!(order, [(0, 1), (1, 0)]);
        assert_eq!(join(&[5], Vec::new())[0].minor, Some(5));
    }
}
