//! The progress of a long transfer, as text.

use std::time::Duration;

/// The interval between two log lines about one transfer.
pub const LINE_EVERY: Duration = Duration::from_secs(10);

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

/// `6.0 GiB in 12 s (512 MiB/s)`.
pub fn summary(bytes: u64, took: Duration) -> String {
    let (rate_unit, rate_name) = unit((bytes as f64 / took.as_secs_f64().max(1e-3)) as u64);
    let rate = bytes as f64 / took.as_secs_f64().max(1e-3) / rate_unit;
    format!("{} in {:.1} s ({rate:.0} {rate_name}/s)", amount(bytes), took.as_secs_f64())
}

/// `6.0 GiB`.
pub fn amount(bytes: u64) -> String {
    let (unit, name) = unit(bytes);
    if unit > 1.0 { format!("{:.1} {name}", bytes as f64 / unit) } else { format!("{bytes} {name}") }
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
    fn a_summary_has_the_amount_and_the_rate() {
        assert_eq!(summary(6 << 30, Duration::from_secs(12)), "6.0 GiB in 12.0 s (512 MiB/s)");
        assert_eq!(summary(0, Duration::ZERO), "0 bytes in 0.0 s (0 bytes/s)");
    }
}
