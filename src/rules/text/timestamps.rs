//! Reads the time formats that clouds use, as seconds since 1970: `2017-09-18T08:22:00Z` (RFC 3339, in UTC), `Mon, 11
//! Apr 2026 22:26:58 GMT` (HTTP) and `21 Jan 2019 09:00:43 GMT` (EC2's scheduled events).
//!
//! Deliberately absent: zones other than UTC, which no cloud writes.

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

/// Reads a time in any of the formats.
pub fn any(text: &str) -> Option<i64> {
    rfc3339(text).or_else(|| http_date(text))
}

/// `2017-09-18T08:22:00Z`; a fraction of a second is dropped.
fn rfc3339(text: &str) -> Option<i64> {
    let text = text.trim();
    let (date, time) = text.split_once(['T', 't'])?;
    let time = time.strip_suffix(['Z', 'z']).or_else(|| time.strip_suffix("+00:00"))?;
    let mut date = date.splitn(3, '-').map(number);
    seconds(date.next()??, date.next()??, date.next()??, time.split('.').next()?)
}

/// The day of the week before it is optional.
pub fn http_date(text: &str) -> Option<i64> {
    let text = text.split_once(',').map_or(text, |(_, rest)| rest);
    let mut words = text.split_whitespace();
    let day = number(words.next()?)?;
    let month = words.next()?.to_ascii_lowercase();
    let month = MONTHS.iter().position(|m| *m == month)? as i64 + 1;
    let (year, time) = (number(words.next()?)?, words.next()?);
    let zone = words.next()?;
    if !matches!(zone, "GMT" | "UTC") || words.next().is_some() {
        return None;
    }
    seconds(year, month, day, time)
}

fn number(text: &str) -> Option<i64> {
    let is_plain = !text.is_empty() && text.len() <= 4 && text.bytes().all(|b| b.is_ascii_digit());
    if is_plain { text.parse().ok() } else { None }
}

fn seconds(year: i64, month: i64, day: i64, time: &str) -> Option<i64> {
    let mut parts = time.split(':').map(number);
    let (hour, minute, second) = (parts.next()??, parts.next()??, parts.next()??);
    let is_time = hour < 24 && minute < 60 && second <= 60 && parts.next().is_none();
    if !is_time || !(1..=12).contains(&month) || !(1..=31).contains(&day) || year < 1970 {
        return None;
    }
    // Days since 1970 in the proleptic Gregorian calendar, with years that begin in March (Howard Hinnant's formula).
    let shifted = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (shifted / 400, shifted % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    Some(days * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_clouds_form_is_read() {
        assert_eq!(any("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(any("2017-09-18T08:22:00Z"), Some(1_505_722_920));
        assert_eq!(any("2017-09-18T08:22:00.123Z"), Some(1_505_722_920));
        assert_eq!(any("Mon, 18 Sep 2017 08:22:00 GMT"), Some(1_505_722_920));
        assert_eq!(any("21 Jan 2019 09:00:43 GMT"), Some(1_548_061_243));
        assert_eq!(any("2024-02-29T12:00:00Z"), Some(1_709_208_000), "a leap day");
    }

    #[test]
    fn an_invalid_time_is_none() {
        let strange = [
            "",
            "soon",
            "2017-09-18",
            "2017-13-01T00:00:00Z",
            "2017-09-18T25:00:00Z",
            "2017-09-18T08:22:00",
            "99999999999-01-01T00:00:00Z",
            "18 Foo 2017 08:22:00 GMT",
            "18 Sep 2017 08:22:00 CET",
            "-1-1-1T1:1:1Z",
        ];
        for text in strange {
            assert_eq!(any(text), None, "{text}");
        }
    }
}
