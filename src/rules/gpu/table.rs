//! The GPUs as a table for people. Deliberately absent: colours, and values for scripts, which use `--json`.

use super::ledger::XidCount;
use super::{Discovery, Evidence, Gpu, Health, throttle_names};
use crate::text::safe_text::printable;

const HEADER: [&str; 12] =
    ["GPU", "NAME", "UUID", "MEMORY", "UTIL", "TEMP", "POWER", "ECC", "THROTTLE", "MIG", "NVLINK", "HEALTH"];

/// Aligned columns with one line for each GPU; then the driver, and the problem.
pub fn render(discovery: &Discovery) -> String {
    let mut lines = Vec::new();
    if !discovery.gpus.is_empty() {
        let mut rows = vec![HEADER.map(str::to_owned)];
        rows.extend(discovery.gpus.iter().map(row));
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..HEADER.len()).map(width).collect();
        for row in &rows {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            lines.push(cells.collect::<Vec<_>>().join("  ").trim_end().to_owned());
        }
    }
    let driver = discovery.driver_version.as_ref().map(|version| format!("driver {}", printable(version)));
    let cuda = discovery.cuda_version.as_ref().map(|version| format!("CUDA {}", printable(version)));
    let about: Vec<String> = [driver, cuda].into_iter().flatten().collect();
    match (discovery.gpus.len(), discovery.source) {
        (0, _) => {
            let why = discovery.problem.as_ref().or(discovery.absence.as_ref());
            lines.push(why.map_or("no GPUs".to_owned(), |why| format!("no GPUs: {}", printable(why))));
        }
        (_, Evidence::Procfs) => lines.push("from the device nodes, without NVML".to_owned()),
        _ => {}
    }
    if !about.is_empty() {
        lines.push(about.join(", "));
    }
    for gpu in &discovery.gpus {
        if let Some(reason) = gpu.health_reason.as_ref().filter(|reason| Some(*reason) != discovery.problem.as_ref()) {
            lines.push(format!("GPU {}: {}", gpu.index, printable(reason)));
        }
    }
    if let Some(problem) = discovery.problem.as_ref().filter(|_| !discovery.gpus.is_empty()) {
        lines.push(format!("problem: {}", printable(problem)));
    }
    lines.join("\n") + "\n"
}

/// A line for each XID on a GPU.
pub fn xids(xids: &[XidCount]) -> String {
    xids.iter().map(|count| format!("XID {} x {} on {}\n", count.xid, count.count, printable(&count.gpu))).collect()
}

fn row(gpu: &Gpu) -> [String; 12] {
    let mib = |bytes: Option<u64>| bytes.map_or("-".to_owned(), |bytes| (bytes >> 20).to_string());
    let memory = match gpu.memory_total_bytes {
        Some(_) => format!("{}/{} MiB", mib(gpu.memory_used_bytes), mib(gpu.memory_total_bytes)),
        None => "-".to_owned(),
    };
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let power = gpu.power_watts.map(|watts| match gpu.power_limit_watts {
        Some(limit) => format!("{watts:.0}/{limit:.0} W"),
        None => format!("{watts:.0} W"),
    });
    let throttle = gpu.throttle_reasons.map(|bits| match throttle_names(bits) {
        names if names.is_empty() => "no".to_owned(),
        names => names.join("+"),
    });
    let health = match gpu.health {
        Health::Ok => "ok",
        Health::Warn => "warn",
        Health::Bad => "bad",
        Health::Unknown => "unknown",
    };
    [
        gpu.index.to_string(),
        or_dash(gpu.name.as_deref().map(printable)),
        or_dash(gpu.uuid.as_deref().map(printable)),
        memory,
        or_dash(gpu.utilization_percent.map(|percent| format!("{percent}%"))),
        or_dash(gpu.temperature_celsius.map(|celsius| format!("{celsius}C"))),
        or_dash(power),
        or_dash(gpu.ecc_uncorrected.map(|errors| errors.to_string())),
        or_dash(throttle),
        or_dash(gpu.mig.map(|mig| if mig { "on" } else { "off" }.to_owned())),
        or_dash(gpu.nvlinks_active.map(|links| links.to_string())),
        health.to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn discovery(gpus: Vec<Gpu>, problem: Option<&str>) -> Discovery {
        let problem = problem.map(str::to_owned);
        Discovery {
            gpus,
            driver_version: Some("550.54".into()),
            cuda_version: None,
            source: Evidence::Nvml,
            problem,
            unusable: None,
            absence: None,
            driver: Health::Ok,
        }
    }

    #[test]
    fn the_columns_are_aligned_and_an_unknown_value_is_a_dash() {
        let gpu = |index, name: &str| Gpu { index, name: Some(name.to_owned()), ..Gpu::default() };
        let text = render(&discovery(vec![gpu(0, "T4"), gpu(1, "A100-SXM4-40GB")], None));
        let lines: Vec<&str> = text.lines().collect();
        let column = lines[0].find("UUID").unwrap();
        assert!(lines[1..3].iter().all(|line| line[column..].starts_with('-')), "{text}");
        assert_eq!(lines[3], "driver 550.54");
    }

    #[test]
    fn a_hostile_name_cannot_move_the_cursor_or_add_a_line() {
        let gpu = Gpu { name: Some("a\x1b[2J\nb\r".into()), ..Gpu::default() };
        let text = render(&discovery(vec![gpu], Some("x\ny")));
        assert_eq!(text.lines().count(), 4, "{text:?}");
        assert!(!text.contains('\x1b') && !text.contains('\r'));
    }

    #[test]
    fn no_gpu_is_reported_in_words() {
        assert_eq!(render(&discovery(Vec::new(), None)), "no GPUs\ndriver 550.54\n");
    }

    #[test]
    fn no_gpu_is_reported_on_one_line_with_the_reason() {
        let refused = discovery(Vec::new(), Some("nvmlInit_v2 failed with 9"));
        assert_eq!(render(&refused), "no GPUs: nvmlInit_v2 failed with 9\ndriver 550.54\n");
        let none = Discovery { absence: Some("no driver library".into()), ..discovery(Vec::new(), None) };
        assert_eq!(render(&none), "no GPUs: no driver library\ndriver 550.54\n");
    }
}
