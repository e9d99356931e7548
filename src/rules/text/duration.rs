//! Durations as people write them: `25s`, `1m30s`, `500ms`, or a bare number of seconds.

use std::time::Duration;

/// The upper limit: a longer duration is cut to it, so that no sum of times overflows or leaves the calendar.
const LONGEST: Duration = Duration::from_secs(1000 * 365 * 86_400);

/// Reads a duration. Errors: the expected form, in one clause.
pub fn parse(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let expected = || format!("expected a duration such as 25s, 1m30s or 500ms, found {text:?}");
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).map_err(|_| expected()).map(|duration| duration.min(LONGEST));
    }
    humantime::parse_duration(text).map_err(|_| expected()).map(|duration| duration.min(LONGEST))
}

/// Reads a duration that has a least value. Errors: the expected form, in one clause.
pub fn at_least(least: Duration) -> impl Fn(&str) -> Result<Duration, String> {
    move |text| match parse(text)? {
        short if short < least => {
            Err(format!("expected at least {}, found {text:?}", humantime::format_duration(least)))
        }
        duration => Ok(duration),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_below_its_least_value_is_refused() {
        let read = at_least(Duration::from_millis(10));
        assert_eq!(read("10ms"), Ok(Duration::from_millis(10)));
        assert_eq!(read("0"), Err("expected at least 10ms, found \"0\"".to_owned()));
    }

    #[test]
    fn a_bare_number_is_seconds() {
        assert_eq!(parse("25"), Ok(Duration::from_secs(25)));
        assert_eq!(parse("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(parse(" 1m30s "), Ok(Duration::from_secs(90)));
    }

    #[test]
    fn a_duration_beyond_the_limit_becomes_the_limit() {
        for text in ["9000000000000000000s", "999999999999s", "1e18"] {
            assert_eq!(parse(text), Ok(LONGEST), "{text}");
        }
    }

    #[test]
    fn an_invalid_duration_is_quoted_with_an_example() {
        for text in ["", "fast", "-3", "1e400", "NaN", "5 parsecs"] {
            let error = parse(text).expect_err(text);
            assert!(error.contains("25s") && error.contains(text), "{error}");
        }
    }
}
