//! The number in a piece of a trainer's text, as a value or as a step: `0.25,`, `93.2%]`, `5.0it/s`, `np.float64(0.5)`.
//!
//! Used for the groups of a pattern, and for the text after a name in a record. [`crate::metric::foreign_text::number`] is for text that is
//! only a number. Deliberately absent: conversion. `93%` is 93, and `12ms` is 12.

use crate::metric::foreign_text::number::{parse_any_step, parse_float};

/// Characters around a name or a value that are not part of it.
pub(in crate::metric) const OPENING: &[char] = &['(', '[', '{', '<'];
pub(in crate::metric) const CLOSING: &[char] = &[')', ']', '}', '>'];
pub(in crate::metric) const QUOTES: &[char] = &['"', '\'', '`'];
const PUNCTUATION: &[char] = &[',', ';', ':', '.', '|', '!'];

/// Letters that scale a number: `1.2k` is not 1.2.
const SCALES: &[&str] = &["k", "K", "M", "G", "T", "B"];

/// The value of a text: one number in the form of Python's `float()`, followed at most by a unit (letters, `%` and
/// `/`), a deviation (`+0.02`, `±0.02`), or punctuation. Surrounding brackets, quotes and a call (`tensor(0.5)`) are
/// ignored. `None` if there is no number, several numbers (`3/10`, `1,234`, `12:30`), or a scaled number (`1.2k`).
pub fn value(text: &str) -> Option<f64> {
    let (number, rest) = number_in(text)?;
    let is_alone = rest.is_empty() || is_unit(rest) || is_deviation(rest);
    is_alone.then(|| parse_float(number)).flatten()
}

/// The step in a field that the user named, as decimal text; a fraction is truncated. As [`value`], but `3/10` is 3.
pub fn step(text: &str) -> Option<String> {
    step_number(text).and_then(parse_any_step)
}

/// The step of a text, which is a whole number in any notation: `10`, `1e1`, `10.0`, `10/100`.
pub fn whole_step(text: &str) -> Option<String> {
    let number = step_number(text)?;
    let is_whole = parse_float(number).is_some_and(|number| number.fract() == 0.0);
    is_whole.then(|| parse_any_step(number)).flatten()
}

fn step_number(text: &str) -> Option<&str> {
    let (number, rest) = number_in(text)?;
    let goes_on = |rest: &str| rest.starts_with([',', '.', '_']) || rest.starts_with(char::is_alphanumeric);
    (is_unit(rest) || !goes_on(rest)).then_some(number)
}

/// A name without surrounding brackets, quotes and punctuation.
pub fn name(text: &str) -> &str {
    text.trim_matches(|c: char| {
        c.is_whitespace() || [OPENING, CLOSING, QUOTES, PUNCTUATION, &['=']].iter().any(|set| set.contains(&c))
    })
}

/// The number at the beginning of a text, and the text after it up to a bracket, a quote, or trailing punctuation.
fn number_in(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start_matches(|c: char| c.is_whitespace() || OPENING.contains(&c) || QUOTES.contains(&c));
    let (text, is_call) = match call_argument(text) {
        Some(inside) => (inside.trim_start_matches(QUOTES), true),
        None => (text, false),
    };
    let length = length_of_number(text)?;
    let (number, rest) = text.split_at(length);
    let is_end = |c: char| OPENING.contains(&c) || CLOSING.contains(&c) || QUOTES.contains(&c) || (is_call && c == ',');
    let rest = rest.split(is_end).next().unwrap_or_default();
    Some((number, rest.trim_end_matches(|c: char| c.is_whitespace() || PUNCTUATION.contains(&c))))
}

/// The text in the brackets of a call, such as `np.float64(` or `tensor(`.
pub(in crate::metric) fn call_argument(text: &str) -> Option<&str> {
    let (callee, inside) = text.split_once('(')?;
    let is_name = |c: char| c.is_alphanumeric() || c == '.' || c == '_';
    let is_callee = callee.starts_with(|c: char| c.is_alphabetic() || c == '_') && callee.chars().all(is_name);
    // `nan(ind)` is a form of nan in C.
    (is_callee && length_of_number(callee).is_none()).then_some(inside)
}

/// The length of the number at the beginning, in bytes.
pub(in crate::metric) fn length_of_number(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let sign = usize::from(matches!(bytes.first(), Some(b'+' | b'-')));
    for word in ["infinity", "inf", "nan"] {
        let end = sign + word.len();
        let is_word = text.get(sign..end).is_some_and(|t| t.eq_ignore_ascii_case(word));
        if is_word && !text[end..].starts_with(|c: char| c.is_alphanumeric() || c == '_') {
            return Some(end);
        }
    }
    let digits = |from: usize| from + bytes[from..].iter().take_while(|b| b.is_ascii_digit() || **b == b'_').count();
    let mut end = digits(sign);
    let mut has_digits = end > sign;
    if bytes.get(end) == Some(&b'.') {
        let after = digits(end + 1);
        has_digits |= after > end + 1;
        end = after;
    }
    if !has_digits {
        return None;
    }
    if let Some(b'e' | b'E') = bytes.get(end) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        let after = digits(end + 1 + sign);
        if after > end + 1 + sign {
            end = after;
        }
    }
    Some(end)
}

/// Letters, `%`, `/` and the like directly after a number; no digit, no scale, and not the beginning of an exponent.
fn is_unit(rest: &str) -> bool {
    if rest.trim_start() == "%" {
        return true;
    }
    let is_of_unit = |c: char| c.is_alphabetic() || "%/°".contains(c);
    rest.starts_with(|c: char| c.is_alphabetic() || c == '%' || c == '°')
        && rest.chars().all(is_of_unit)
        && !SCALES.contains(&rest)
        && !rest.eq_ignore_ascii_case("e")
}

/// The deviation that cross validation writes after a mean.
fn is_deviation(rest: &str) -> bool {
    let rest = rest.trim_start();
    let behind = ["+/-", "+-", "±", "+"].iter().find_map(|sign| rest.strip_prefix(sign)).map(str::trim_start);
    behind.is_some_and(|behind| length_of_number(behind) == Some(behind.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn brackets_units_and_punctuation_are_not_part_of_a_value() {
        for text in [
            "0.5",
            " 0.5 ",
            "0.5,",
            "0.5;",
            "0.5.",
            "0.5]",
            "(0.5)",
            "[0.5",
            "'0.5'",
            "\"0.5\",",
            "0.5s",
            "0.5ms",
            "0.5it/s",
            "0.5s/it",
            "0.5%",
            "0.5 %",
            "+0.5",
            ".5",
            "5e-1",
            "0.5MB",
            "0.5GiB/s",
            "0.5|",
            "0.5+0.02",
            "0.5±0.1",
            "0.5 + 0.02",
            "0.5 +/- 0.02",
            "np.float64(0.5)",
            "tensor(0.5, device='cuda:0')",
            "0.5 (0.6)",
        ] {
            assert_eq!(value(text), Some(0.5), "{text}");
        }
    }

    #[test]
    fn text_without_exactly_one_number_is_not_a_value() {
        for text in [
            "",
            " ",
            "x",
            "n/a",
            "None",
            "1,234",
            "1,234.5",
            "0,5",
            "3/10",
            "0:09:09",
            "1.2.3",
            "1.2k",
            "3M",
            "0x10",
            "1e",
            "1e-",
            "3f2a",
            "2024-01-01",
            "224x224",
            "[0.5, 0.4]",
            "0.5 acc",
            "nano",
            "info",
            "- 1",
            "1__0",
            "0.5 and on",
        ] {
            assert_eq!(value(text), None, "{text}");
        }
    }

    #[test]
    fn nan_and_infinities_are_values_in_a_trainers_forms() {
        for text in ["nan", "NaN", "-nan", "nan,", "nan]", "nan(ind)", "tensor(nan)", "np.float32(nan)", "NaN%"] {
            assert!(value(text).is_some_and(f64::is_nan), "{text}");
        }
        assert_eq!(
            [value("inf,"), value("-Infinity"), value("1e999")],
            [Some(f64::INFINITY), Some(f64::NEG_INFINITY), Some(f64::INFINITY)]
        );
    }

    #[test]
    fn a_step_may_be_followed_by_the_total() {
        for text in ["10", "10/100", "[10]", "10,", "10.9", "1e1", "10it", "10:", "(10/100)", "10)", "010"] {
            assert_eq!(step(text).as_deref(), Some("10"), "{text}");
        }
        for text in ["", "soon", "nan", "1,000", "1.2k", "10abc4", "1.2.3"] {
            assert_eq!(step(text), None, "{text}");
        }
    }

    #[test]
    fn a_fraction_is_not_a_whole_step() {
        for text in ["10", "10/100", "1e1", "10.0", "'10'"] {
            assert_eq!(whole_step(text).as_deref(), Some("10"), "{text}");
        }
        for text in ["0.25", "10.9", "1e-1", "nan", "inf", "1,000"] {
            assert_eq!(whole_step(text), None, "{text}");
        }
    }

    #[test]
    fn brackets_and_punctuation_are_not_part_of_a_name() {
        for text in ["loss", "(loss", "[loss]", "'loss'", "loss:", " loss="] {
            assert_eq!(name(text), "loss", "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "\\PC*", odd in "[-+.,_eEinfa0-9(\\[\\])%kM/:±' ]{0,16}") {
            for text in [text, odd] {
                let _ = (value(&text), step(&text), name(&text));
            }
        }

        #[test]
        fn a_number_is_read_like_python(number in any::<f64>()) {
            let text = format!("{number:?}");
            let read = value(&text).expect("a number");
            prop_assert!(read.to_bits() == number.to_bits() || read.is_nan() && number.is_nan());
        }
    }
}
