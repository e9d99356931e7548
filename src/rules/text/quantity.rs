//! Numbers and durations as people read them.

use std::time::Duration;

/// A positive number with about three digits: `0.0125`, `2.5`, `1200`.
pub fn three_digits(number: f64) -> String {
    let decimals = (2 - number.log10().floor().clamp(-6.0, 2.0) as i32) as usize;
    let text = format!("{number:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// `3h 20m`: the two largest units.
pub fn span(seconds: f64) -> String {
    let seconds = if seconds.is_finite() { seconds.max(0.0) } else { 0.0 };
    if seconds < 60.0 {
        return format!("{seconds:.0}s");
    }
    let whole = Duration::from_secs(if seconds < 3600.0 { seconds as u64 } else { seconds as u64 / 60 * 60 });
    let text = humantime::format_duration(whole).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// [`span`], with a tenth of a second below ten seconds.
pub fn short_span(seconds: f64) -> String {
    if seconds < 10.0 { format!("{seconds:.1}s") } else { span(seconds) }
}
