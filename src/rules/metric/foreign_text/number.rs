//! Reads and prints numbers like Python: `float(text)`, `repr(float)` and `int(text)`, for the metrics file.
//! `repr(1e-5)` is `1e-05`.
//!
//! Deliberately absent: non-ASCII digits, which Python also reads.

use std::borrow::Cow;

/// `float(text)`: surrounding white space, single `_` between digits, `.5`, `5.`, exponents, `inf`, `infinity` and
/// `nan` in any case. A number that is too large is infinite. `None` if Python raises ValueError.
pub fn parse_float(text: &str) -> Option<f64> {
    without_underscores(text.trim())?.parse().ok()
}

/// `str(int(text) if text else 0)`, as decimal text because its size has no limit. `None` if Python raises ValueError.
pub fn parse_step(text: &str) -> Option<String> {
    if text.is_empty() {
        return Some("0".to_owned());
    }
    let text = without_underscores(text.trim())?;
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(&text)),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let digits = digits.trim_start_matches('0');
    Some(if digits.is_empty() { "0".to_owned() } else { format!("{sign}{digits}") })
}

/// The step in a trainer's own line, in any notation: `100`, `1e2` and `100.0` are equal, and a fraction is truncated.
/// [`parse_step`] is for text that the library would get.
pub fn parse_any_step(text: &str) -> Option<String> {
    match text.trim() {
        "" => None,
        text => parse_step(text).or_else(|| whole(parse_float(text)?)),
    }
}

/// `str(int(number))`: truncated, with every digit. `None` for NaN and infinities, for which Python raises an error.
pub fn whole(number: f64) -> Option<String> {
    number.is_finite().then(|| match number.trunc() {
        0.0 => "0".to_owned(),
        whole => format!("{whole:.0}"),
    })
}

/// `repr(value)`: the shortest digits that read back as the same number; of those the nearest, with ties to even.
pub fn repr(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value < 0.0 { "-inf".to_owned() } else { "inf".to_owned() };
    }
    let shortest = format!("{value:e}");
    let count = shortest.bytes().take_while(|b| *b != b'e').filter(u8::is_ascii_digit).count();
    // Rust's shortest form rounds exact ties up. With a given number of digits it rounds them to even, like Python.
    let nearest = format!("{value:.*e}", count - 1);
    let text = if nearest.parse() == Ok(value) { nearest } else { shortest };
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (sign, mantissa) = match mantissa.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", mantissa),
    };
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    match exponent {
        -4..0 => format!("{sign}0.{}{digits}", "0".repeat((-exponent - 1) as usize)),
        0..16 if digits.len() <= exponent as usize + 1 => {
            format!("{sign}{digits:0<width$}.0", width = exponent as usize + 1)
        }
        0..16 => {
            let (before, after) = digits.split_at(exponent as usize + 1);
            format!("{sign}{before}.{after}")
        }
        _ => {
            let direction = if exponent < 0 { '-' } else { '+' };
            format!("{sign}{mantissa}e{direction}{:02}", exponent.abs())
        }
    }
}

/// Python's `time.time()` for a time since 1970: CPython divides the count of nanoseconds, except for whole seconds.
pub fn timestamp(since_1970: std::time::Duration) -> f64 {
    match since_1970.subsec_nanos() {
        0 => since_1970.as_secs() as f64,
        _ => since_1970.as_nanos() as f64 / 1e9,
    }
}

/// Removes `_`, which must be between two digits.
fn without_underscores(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('_') {
        return Some(Cow::Borrowed(text));
    }
    let bytes = text.as_bytes();
    let is_digit = |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_digit);
    let between_digits = |at: usize| is_digit(at.checked_sub(1)) && is_digit(Some(at + 1));
    let fits = (0..bytes.len()).filter(|at| bytes[*at] == b'_').all(between_digits);
    fits.then(|| Cow::Owned(text.replace('_', "")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn every_row_of_the_table_is_printed_like_python() {
        let rows = [
            ("1", "1.0"),
            ("1e15", "1000000000000000.0"),
            ("9999999999999998", "9999999999999998.0"),
            ("1e16", "1e+16"),
            ("1e22", "1e+22"),
            ("123456789012345680", "1.2345678901234568e+17"),
            ("0.0001", "0.0001"),
            ("1e-5", "1e-05"),
            ("1.5e-7", "1.5e-07"),
            ("1e100", "1e+100"),
            ("-0", "-0.0"),
            ("nan", "nan"),
            ("-nan", "nan"),
            ("inf", "inf"),
            ("-Infinity", "-inf"),
            ("-0.00012", "-0.00012"),
            ("1462468587316101.25", "1462468587316101.2"),
            ("9007199254740993", "9007199254740992.0"),
            ("5e-324", "5e-324"),
            ("1.7976931348623157e308", "1.7976931348623157e+308"),
            ("123.456", "123.456"),
            ("0.1", "0.1"),
            ("1e23", "1e+23"),
        ];
        for (text, printed) in rows {
            assert_eq!(parse_float(text).map(repr).as_deref(), Some(printed), "{text}");
        }
    }

    #[test]
    fn a_float_is_read_exactly_if_python_reads_it() {
        for (text, value) in [
            (" 2.5\t", 2.5),
            ("\u{b}1\u{a0}\u{2003}", 1.0),
            ("1_000.5_0", 1000.5),
            ("1e1_0", 1e10),
            (".5", 0.5),
            ("5.", 5.0),
            ("+3", 3.0),
            ("INF", f64::INFINITY),
            ("-1e400", f64::NEG_INFINITY),
        ] {
            assert_eq!(parse_float(text), Some(value), "{text:?}");
        }
        for text in [
            "", " ", "\u{1f}1", "abc", "0x10", "1,5", "--1", "1__0", "_1", "1_", "1_.5", "1._5", "1e_5", "i_nf", ".",
            "e5", "1e", "1 2", "nan(1)", "1.5f",
        ] {
            assert_eq!(parse_float(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_step_is_an_integer_of_any_size() {
        for (text, step) in [
            ("", "0"),
            ("0", "0"),
            ("-0", "0"),
            (" 12 ", "12"),
            ("+7", "7"),
            ("007", "7"),
            ("1_000", "1000"),
            ("-3", "-3"),
            ("0_0", "0"),
            ("9223372036854775808", "9223372036854775808"),
        ] {
            assert_eq!(parse_step(text).as_deref(), Some(step), "{text:?}");
        }
        for text in [" ", "\u{1f}1", "1.5", "1e3", "0x10", "abc", "-", "+", "--1", "1__0", "1_", "_1", "- 1", "١"] {
            assert_eq!(parse_step(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_trainers_step_is_read_in_any_notation() {
        for (text, step) in
            [("100", "100"), ("1e2", "100"), ("100.0", "100"), ("1.9", "1"), (" -1.9", "-1"), ("007", "7")]
        {
            assert_eq!(parse_any_step(text).as_deref(), Some(step), "{text}");
        }
        for text in ["", " ", "soon", "nan", "1e999", "1,000"] {
            assert_eq!(parse_any_step(text), None, "{text}");
        }
    }

    #[test]
    fn a_float_step_is_truncated_with_every_digit() {
        for (number, step) in [(3.9, "3"), (-3.9, "-3"), (0.5, "0"), (-0.5, "0"), (1e20, "100000000000000000000")] {
            assert_eq!(whole(number).as_deref(), Some(step));
        }
        assert_eq!(whole(f64::NAN).or(whole(f64::INFINITY)), None);
    }

    #[test]
    fn a_timestamp_is_the_count_of_nanoseconds_divided_once() {
        assert_eq!(repr(timestamp(Duration::new(1_700_000_000, 0))), "1700000000.0");
        assert_eq!(repr(timestamp(Duration::new(1_700_000_000, 123_456_789))), "1700000000.1234567");
    }

    proptest! {
        #[test]
        fn a_printed_number_reads_back_as_the_same_number(bits in any::<u64>()) {
            let value = f64::from_bits(bits);
            let back = parse_float(&repr(value)).expect("repr is readable");
            prop_assert!(back.to_bits() == value.to_bits() || (back.is_nan() && value.is_nan()));
        }

        #[test]
        fn no_shorter_text_reads_back_as_the_same_number(value in any::<f64>().prop_filter("finite", |v| v.is_finite())) {
            let text = repr(value);
            let digits = text.split('e').next().unwrap_or(&text).trim_start_matches('-');
            let count = digits.replace('.', "").trim_matches('0').len();
            if count > 1 {
                let shorter = format!("{value:.*e}", count - 2);
                prop_assert_ne!(shorter.parse::<f64>(), Ok(value), "{} is shorter than {}", shorter, text);
            }
        }

        #[test]
        fn the_notation_is_pythons(value in any::<f64>().prop_filter("finite", |v| v.is_finite() && *v != 0.0)) {
            let text = repr(value);
            match text.split_once('e') {
                None => {
                    prop_assert!(text.contains('.') && !text.ends_with('.'));
                    prop_assert!((1e-4..1e16).contains(&value.abs()));
                }
                Some((mantissa, exponent)) => {
                    prop_assert!(!(1e-4..1e16).contains(&value.abs()));
                    prop_assert!(exponent.starts_with(['+', '-']) && exponent.len() >= 3);
                    prop_assert!(!mantissa.ends_with(".0"));
                }
            }
        }

        #[test]
        fn no_text_makes_the_parsers_panic(text in "\\PC*") {
            let _ = (parse_float(&text), parse_step(&text));
        }
    }
}
