//! A regular expression as it was written for Katib (Go's RE2) or SageMaker (Python) -> the same one as the regex crate reads
//! it. An example is Katib's own default: `{metricName: ([\w|-]+), metricValue: ((-?\d+)(\.\d+)?)}`.
//!
//! To the crate `{` always begins a repetition and `[` a set within a set; to the others only where the rest fits. Deliberately
//! absent: look-around and back-references, which no search in one pass has.

/// Writes it anew. Errors: what is in it that is not taken, and what to write instead.
pub(super) fn translated(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len() + 8);
    let mut rest = text;
    // In a class: whether something stands in it already, so that `]` ends it.
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
            // Twice they would be operators on sets.
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
                    return Err(not_taken(text, "look-around"));
                }
                if rest.starts_with("(?P=") {
                    return Err(not_taken(text, "a back-reference"));
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

/// What begins with a backslash.
fn escape(rest: &str, in_class: bool, out: &mut String) -> Result<usize, String> {
    let Some(c) = rest[1..].chars().next() else { return Ok(keep(rest, out)) };
    let both = 1 + c.len_utf8();
    match c {
        // Python's end of the text.
        'Z' if !in_class => out.push_str("\\z"),
        // Ends of words to the crate alone.
        '<' | '>' => out.push(c),
        '1'..='9' | 'k' if !in_class => return Err(not_taken(&rest[..both], "a back-reference")),
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

fn not_taken(text: &str, what: &str) -> String {
    format!(
        "{text:?} has {what}, which is not taken, so nothing would be found; write it in RE2's syntax: have the pattern match \
         what stands around the value too, and put the value alone in parentheses, as in loss: ([0-9.]+)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn reads(text: &str, as_one_of_ours: &str) {
        assert_eq!(translated(text).as_deref(), Ok(as_one_of_ours), "{text}");
    }

    #[test]
    fn a_brace_that_begins_no_repetition_stands_for_itself() {
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
    fn a_class_holds_no_class_and_no_operator() {
        reads(r"[^[]+[[:alpha:]_[]", r"[^\[]+[[:alpha:]_\[]");
        reads(r"[&&~~]&&", r"[\&\&\~\~]&&");
    }

    #[test]
    fn the_end_of_the_text_is_pythons_too_and_an_escaped_angle_is_no_end_of_a_word() {
        reads(r"a\Z\\Z[\Z]", r"a\z\\Z[\Z]");
        reads(r"\<a\>", "<a>");
    }

    #[test]
    fn what_is_not_taken_is_said_with_what_to_write_instead() {
        for text in ["(?=a)", "(?!a)", "(?<=a)", "(?<!a)", "(a)\\1", "(?P<n>a)(?P=n)", "\\k<n>"] {
            let error = translated(text).expect_err(text);
            assert!(error.contains("is not taken") && error.contains("RE2"), "{error}");
        }
        reads(r"(?P<value>a)(?<step>b)[(?=\]]\(?=", r"(?P<value>a)(?<step>b)[(?=\]]\(?=");
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic_and_what_both_read_alike_stays(text in "[a{}\\[\\]\\\\(?=<,1Zxpé&^:-]{0,16}", plain in "[a-z0-9.*+?|()]{0,12}") {
            let _ = translated(&text);
            if regex::Regex::new(&plain).is_ok() {
                prop_assert_eq!(translated(&plain), Ok(plain));
            }
        }
    }
}
