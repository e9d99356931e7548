//! The GPUs on the page.

use super::chart::{self, Names, Title, Unit};
use super::markup::{Html, html};
use super::sections::{cell, keyed};
use super::{bytes, table};
use crate::gpu::Gpu;
use crate::gpu::watch::Sample;
use crate::status::Facts;

/// GPUs with a line.
const GPUS: usize = 16;

/// A quantity of the GPUs.
struct Quantity {
    id: &'static str,
    name: &'static str,
    of: fn(&Sample) -> Option<f64>,
    unit: &'static str,
}

const QUANTITIES: [Quantity; 3] = [
    Quantity {
        id: "gpu-use",
        name: "GPU utilisation",
        of: |sample| sample.utilization_percent.map(f64::from),
        unit: "%",
    },
    Quantity {
        id: "gpu-memory",
        name: "GPU memory",
        of: |sample| sample.memory_used_bytes.map(|bytes| bytes as f64 / f64::from(1u32 << 30)),
        unit: "GiB",
    },
    Quantity {
        id: "gpu-heat",
        name: "GPU temperature",
        of: |sample| sample.temperature_celsius.map(f64::from),
        unit: "°C",
    },
];

/// The GPUs now, and their samples.
pub(super) fn section(page: &mut Html, facts: &Facts) {
    let Some(watched) = facts.gpus.as_ref().filter(|watched| !watched.gpus.is_empty()) else { return };
    html!(page, "<h2>GPUs</h2>\n");
    if let Some(why) = &watched.unavailable {
        html!(page, "<p class=\"bad\">No readings at present: " {why} "</p>\n");
    }
    let row = |(number, (gpu, _)): (usize, &(Gpu, Vec<Sample>))| {
        let text = |text: Option<String>| cell(text.unwrap_or_default());
        let memory = gpu.memory_used_bytes.map(|used| {
            format!("{} of {}", bytes(used), gpu.memory_total_bytes.map(bytes).unwrap_or_else(|| "?".to_owned()))
        });
        vec![
            keyed(number % 8 + 1, &gpu.index.to_string()),
            text(gpu.name.clone()),
            text(gpu.utilization_percent.map(|percent| format!("{percent} %"))),
            text(memory),
            text(gpu.temperature_celsius.map(|degrees| format!("{degrees} °C"))),
            text(gpu.power_watts.map(|watts| format!("{watts:.0} W"))),
            text(gpu.health_reason.clone().or_else(|| Some(format!("{:?}", gpu.health).to_lowercase()))),
        ]
    };
    let heads = ["GPU", "Name", "Utilisation", "Memory", "Temperature", "Power", "Health"];
    table(page, "The GPUs now", &heads, watched.gpus.iter().enumerate().map(row));
    html!(page, "<p></p><div class=\"charts\">\n");
    for Quantity { id, name, of, unit } in QUANTITIES {
        let line = |samples: &[Sample]| -> Vec<(f64, f64)> {
            samples.iter().filter_map(|sample| Some((sample.at.as_secs_f64(), of(sample)?))).collect()
        };
        let lines: Vec<Vec<(f64, f64)>> = watched.gpus.iter().take(GPUS).map(|(_, samples)| line(samples)).collect();
        if lines.iter().all(Vec::is_empty) {
            continue;
        }
        let text = format!("{name} in {unit} over the run time, a line for each of {} GPUs", lines.len());
        let title = Title { id, title: name, text: &text };
        let drawing = chart::lines(&title, &lines, &Names { x: "run time", y: unit, unit: Unit::Time });
        html!(page, "<figure><figcaption><span>" {name} "</span><span>" {unit} "</span></figcaption>" {drawing} "<details id=\"" {id}
            "-n\"><summary id=\"" {id} "-s\">Numbers of " {name} "</summary>\n");
        let rows = watched.gpus.iter().zip(&lines).filter(|(_, line)| !line.is_empty()).map(|((gpu, _), line)| {
            let values = || line.iter().map(|(_, value)| *value);
            let in_unit = |value: f64| format!("{value:.1} {unit}");
            let last = line.last().map_or(0.0, |(_, value)| *value);
            let (low, high) = (values().fold(f64::MAX, f64::min), values().fold(f64::MIN, f64::max));
            vec![gpu.index.to_string(), in_unit(low), in_unit(high), in_unit(last)]
        });
        table(page, "Of the drawn samples", &["GPU", "Lowest", "Highest", "Last"], rows);
        html!(page, "</details></figure>\n");
    }
    html!(page, "</div>\n");
    if !watched.xids.is_empty() {
        let xids = watched.xids.iter().map(|xid| vec![xid.xid.to_string(), xid.gpu.clone(), xid.count.to_string()]);
        table(page, "Errors that the driver reported", &["XID", "GPU", "Count"], xids);
    }
}
