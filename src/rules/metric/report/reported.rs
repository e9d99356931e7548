//! Reads lines of the metrics file ([`super::line`]) as the processes of a job also send them to its run. A line without
//! a metric says only which step the trainer has reached.
//!
//! Deliberately absent: mistakes. A line that is no report is ignored.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::metric::foreign_text::number::{parse_float, parse_step};
use crate::metric::output::pattern::Found;
use crate::metric::report::line::KEYS;

/// A report with its time.
#[derive(Debug, PartialEq)]
pub struct Reported {
    /// Seconds since 1970.
    pub time: f64,
    /// The step. 0 counts as none, because the library writes it where none was given.
    pub step: Option<u64>,
    /// The training's last step.
    pub total: Option<u64>,
    /// The metrics, each with its name.
    pub metrics: Vec<Found>,
}

/// The reports in these lines.
pub fn reports(lines: &[u8]) -> Vec<Reported> {
    lines.split(|b| *b == b'\n').filter_map(one).collect()
}

fn one(line: &[u8]) -> Option<Reported> {
    let object: BTreeMap<String, Value> = serde_json::from_slice(line).ok()?;
    let time = object.get("timestamp")?.as_f64()?;
    let total = object.get("total_steps").and_then(Value::as_u64);
    let step = object.get("global_step").and_then(Value::as_str).and_then(parse_step).filter(|step| step != "0");
    let metric = |(name, value): (&String, &Value)| {
        let value = parse_float(value.as_str().filter(|_| !KEYS.contains(&name.as_str()))?)?;
        Some(Found { tag: Some(name.clone()), value, step: step.clone(), time: Some(time) })
    };
    let metrics = object.iter().filter_map(metric).collect();
    Some(Reported { time, total, step: step.as_ref().and_then(|step| step.parse().ok()), metrics })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::report::line::Report;
    use proptest::prelude::*;

    #[test]
    fn a_written_report_is_read_back() {
        let mut lines = Vec::new();
        for (tag, value, step) in [("loss", 0.25, "7"), ("acc", f64::INFINITY, "0")] {
            Report::new(tag, value, step.into(), "a").expect("a report").write(12.5, "3", &mut lines);
        }
        lines.extend(
            b"{\"global_step\": \"9\", \"timestamp\": 13.5, \"total_steps\": 90}\nnothing\n{\"loss\": \"1\"}\n",
        );
        let found = |tag: &str, value, step: Option<&str>| {
            vec![Found { tag: Some(tag.into()), value, step: step.map(str::to_owned), time: Some(12.5) }]
        };
        let expected = [
            Reported { time: 12.5, step: Some(7), total: None, metrics: found("loss", 0.25, Some("7")) },
            Reported { time: 12.5, step: None, total: None, metrics: found("acc", f64::INFINITY, None) },
            Reported { time: 13.5, step: Some(9), total: Some(90), metrics: Vec::new() },
        ];
        assert_eq!(reports(&lines), expected);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in any::<Vec<u8>>(), text in "[{}\":,a1 \n]{0,30}") {
            let _ = (reports(&bytes), reports(text.as_bytes()));
        }
    }
}
