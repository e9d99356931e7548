//! Translates a regular expression for Katib (Go's RE2) or SageMaker (Python) into the syntax of the regex crate. An
//! example is Katib's default: `{metricName: ([\w|-]+), metricValue: ((-?\d+)(\.\d+)?)}`.
//!
//! In the crate `{` always begins a repetition, and `[` within a class begins a nested set; in the other syntaxes only
//! if the rest fits. Deliberately absent: look-around and back-references, which a search in one pass cannot support.

/// Translates it. Errors: the unsupported part, and what to write instead.
pub(in crate::metric) fn translated(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len() + 8);
    let mut rest = text;
    // Set within a class: whether the class has content, so that `]` ends it.
    let mut class = None;
    while let Some(c) = rest.chars().next() {
        let taken = match (c, class) {
            ('\\', _) => escape(rest, class.is_some(), &mut out)?,
            ('[', Some(_)) => match rest.starts_with("[:").then(|| rest.find(":]")).flatten() {
                Some(end) => keep(&rest[..end + 2], &mut out),
                None => literal(c, &mut out),
            },
            (']', Some(true)) => {
                class = None;
                keep("]", &mut out)
            }
            // Two of them would be a set operator.
            ('&' | '~', Some(_)) => literal(c, &mut out),
            ('[', None) => {
                class = Some(false);
                let begin = if rest.starts_with("[^") { "[^" } else { "[" };
                rest = &rest[keep(begin, &mut out)..];
                continue;
            }
            ('{', None) if !repeats(rest) => literal(c, &mut out),
            ('(', None) => {
                if ["(?=", "(?!", "(?<=", "(?<!"].iter().any(|look| rest.starts_with(look)) {
                    return Err(unsupported(text, "look-around"));
                }
                if rest.starts_with("(?P=") {
                    return Err(unsupported(text, "a back-reference"));
                }
                keep("(", &mut out)
            }
            _ => keep(&rest[..c.len_utf8()], &mut out),
        };
        class = class.map(|_| true);
        rest = &rest[taken..];
    }
    Ok(out)
}

/// Translates an escape sequence.
fn escape(rest: &str, in_class: bool, out: &mut String) -> Result<usize, String> {
    let Some(c) = rest[1..].chars().next() else { return Ok(keep(rest, out)) };
    let both = 1 + c.len_utf8();
    match c {
        // Python's end of the text.
        'Z' if !in_class => out.push_str("\\z"),
        // These are ends of words only in the crate.
        '<' | '>' => out.push(c),
        '1'..='9' | 'k' if !in_class => return Err(unsupported(&rest[..both], "a back-reference")),
        'x' | 'u' | 'U' | 'p' | 'P' if rest[both..].starts_with('{') => {
            return Ok(keep(&rest[..rest.find('}').map_or(rest.len(), |end| end + 1)], out));
        }
        _ => out.push_str(&rest[..both]),
    }
    Ok(both)
}

/// Whether `{` begins a repetition: `{n}`, `{n,}`, `{n,m}`.
fn repeats(rest: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let Some(end) = rest.find('}') else { return false };
    match rest[1..end].split_once(',') {
        None => is_number(&rest[1..end]),
        Some((least, most)) => is_number(least) && (most.is_empty() || is_number(most)),
    }
}

fn keep(text: &str, out: &mut String) -> usize {
    out.push_str(text);
    text.len()
}

fn literal(c: char, out: &mut String) -> usize {
    out.extend(['\\', c]);
    c.len_utf8()
}

fn unsupported(text: &str, what: &str) -> String {
    format!(
        "{text:?} has {what}, which is not supported, so nothing would be found; use RE2's syntax: let the pattern match \
         the text around the value too, and put only the value in parentheses, as in loss: ([0-9.]+)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn reads(text: &str, expected: &str) {
        assert_eq!(translated(text).as_deref(), Ok(expected), "{text}");
    }

    #[test]
    fn a_brace_that_begins_no_repetition_is_literal() {
        reads(r"{a: (\d+)}", r"\{a: (\d+)}");
        reads(r"({|x{)", r"(\{|x\{)");
        reads(r"a{,3}b{1,x}c{1 }d{}", r"a\{,3}b\{1,x}c\{1 }d\{}");
        reads(r"a{", r"a\{");
    }

    #[test]
    fn repetitions_escapes_and_classes_stay_as_they_are() {
        for text in
            [r"a{2}b{2,}c{2,3}(d){4}?", r"\{a\\\}", r"[{}]{2}", r"[^]{]{1}[]{]", r"\x{41}[\x{41}]", "é{3}", "\\"]
        {
            reads(text, text);
        }
    }

    #[test]
    fn a_class_contains_no_class_and_no_operator() {
        reads(r"[^[]+[[:alpha:]_[]", r"[^\[]+[[:alpha:]_\[]");
        reads(r"[&&~~]&&", r"[\&\&\~\~]&&");
    }

    #[test]
    fn pythons_end_of_the_text_is_supported_and_an_escaped_angle_is_literal() {
        reads(r"a\Z\\Z[\Z]", r"a\z\\Z[\Z]");
        reads(r"\<a\>", "<a>");
    }

    #[test]
    fn an_unsupported_part_is_named_with_advice() {
        for text in ["(?=a)", "(?!a)", "(?<=a)", "(?<!a)", "(a)\\1", "(?P<n>a)(?P=n)", "\\k<n>"] {
            let error = translated(text).expect_err(text);
            assert!(error.contains("is not supported") && error.contains("RE2"), "{error}");
        }
        reads(r"(?P<value>a)(?<step>b)[(?=\]]\(?=", r"(?P<value>a)(?<step>b)[(?=\]]\(?=");
    }

    proptest! {
        #[test]
        fn no_text_causes_a_panic_and_common_syntax_is_unchanged(text in "[a{}\\[\\]\\\\(?=<,1Zxpé&^:-]{0,16}", plain in "[a-z0-9.*+?|()]{0,12}") {
            let _ = translated(&text);
            if regex::Regex::new(&plain).is_ok() {
                prop_assert_eq!(translated(&plain), Ok(plain));
            }
        }
    }
}
