//! The progress of a long transfer, as text and as a bar.

use std::time::Duration;

/// The interval between two log lines about one transfer.
pub const LINE_EVERY: Duration = Duration::from_secs(10);
/// The interval between two updates of a bar.
pub const BAR_EVERY: Duration = Duration::from_millis(100);
const BAR_WIDTH: u64 = 30;

/// Decides when to report the progress of a transfer again.
#[derive(Debug, Clone, Copy)]
pub struct Cadence {
    every: Duration,
    said: Duration,
}

impl Cadence {
    /// The first report is due after one interval.
    pub fn new(every: Duration) -> Cadence {
        Cadence { every, said: Duration::ZERO }
    }

    /// Whether a report is due, `took` after the transfer began.
    pub fn is_time(&mut self, took: Duration) -> bool {
        let is_time = took.saturating_sub(self.said) >= self.every;
        if is_time {
            self.said = took;
        }
        is_time
    }
}

/// `1.5 of 6.0 GiB (25 %), 512 MiB/s, 9 s left`. The time left is omitted until 1 % is done: many small files are read
/// before the first byte is sent, so an early estimate would be weeks.
pub fn words(done: u64, all: u64, took: Duration) -> String {
    let (unit, name) = unit(all);
    let rate = done as f64 / took.as_secs_f64().max(1e-3);
    let (rate_unit, rate_name) = self::unit(rate as u64);
    let left = (all.saturating_sub(done)) as f64 / rate.max(1.0);
    let left = if percent(done, all) == 0 { String::new() } else { format!(", {left:.0} s left") };
    format!(
        "{:.1} of {:.1} {name} ({} %), {:.0} {rate_name}/s{left}",
        done as f64 / unit,
        all as f64 / unit,
        percent(done, all),
        rate / rate_unit,
    )
}

/// `[######............]`.
pub fn bar(done: u64, all: u64) -> String {
    let full = BAR_WIDTH * percent(done, all) / 100;
    format!("[{}{}]", "#".repeat(full as usize), ".".repeat((BAR_WIDTH - full) as usize))
}

fn percent(done: u64, all: u64) -> u64 {
    if all == 0 { 100 } else { (u128::from(done.min(all)) * 100 / u128::from(all)) as u64 }
}

fn unit(bytes: u64) -> (f64, &'static str) {
    let names = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    names.into_iter().find(|(size, _)| bytes >= *size).map_or((1.0, "bytes"), |(size, name)| (size as f64, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_printed_in_the_unit_of_the_total() {
        let gib = 1u64 << 30;
        assert_eq!(words(gib * 3 / 2, gib * 6, Duration::from_secs(3)), "1.5 of 6.0 GiB (25 %), 512 MiB/s, 9 s left");
        assert_eq!(words(0, 10, Duration::ZERO), "0.0 of 10.0 bytes (0 %), 0 bytes/s");
        assert_eq!(words(30, 5 << 20, Duration::from_secs(10)), "0.0 of 5.0 MiB (0 %), 3 bytes/s", "not 20 days");
        words(u64::MAX, u64::MAX, Duration::MAX);
    }

    #[test]
    fn a_bar_always_has_the_same_width() {
        for (done, all, full) in [(0, 9, 0), (9, 9, 30), (10, 9, 30), (0, 0, 30), (u64::MAX / 2, u64::MAX, 14)] {
            assert_eq!(bar(done, all).matches('#').count(), full, "{done} of {all}");
            assert_eq!(bar(done, all).len(), 32);
        }
    }

    #[test]
    fn reports_are_due_at_the_interval() {
        let mut pace = Cadence::new(Duration::from_secs(10));
        let said: Vec<u64> = (0..35).filter(|s| pace.is_time(Duration::from_secs(*s))).collect();
        assert_eq!(said, [10, 20, 30]);
    }
}
