//! Extends a pattern whose value is digits only, such as `loss: ([0-9.]+)`, so that it also finds `nan` and `inf`.
//!
//! Deliberately absent: changes to a group that accepts other characters, such as `(\\S+)`, because it finds them
//! already.

use regex_syntax::ast::{self, Ast, GroupKind};
use regex_syntax::hir::{Class, Hir, HirKind};

/// The words for non-finite numbers. `\b` is ASCII's, because only that one is fast.
const NON_FINITE: &str = r"[+-]?(?-u:\b)(?:[nN][aA][nN]|[iI][nN][fF](?:[iI][nN][iI][tT][yY])?)(?-u:\b)";

/// The characters of a number. Some patterns escape the point twice.
const NUMBER_BYTES: &[u8] = b"0123456789+-.,eE_\\";

/// The pattern with `group` extended; `None` if the group accepts more than digits, or the pattern cannot be parsed.
pub(in crate::metric) fn with_nan(regex: &str, group: usize) -> Option<String> {
    let tree = ast::parse::Parser::new().parse(regex).ok()?;
    let inside = group_range(&tree, u32::try_from(group).ok()?)?;
    let text = &regex[inside.clone()];
    let hir = regex_syntax::ParserBuilder::new().utf8(false).build().parse(text).ok()?;
    is_digits_only(&hir).then(|| {
        let (before, after) = (&regex[..inside.start], &regex[inside.end..]);
        format!("{before}(?:{NON_FINITE}|{text}){after}")
    })
}

/// The range of the content of a capturing group.
fn group_range(tree: &Ast, wanted: u32) -> Option<std::ops::Range<usize>> {
    match tree {
        Ast::Group(group) => {
            let index = match &group.kind {
                GroupKind::CaptureIndex(index) => Some(*index),
                GroupKind::CaptureName { name, .. } => Some(name.index),
                GroupKind::NonCapturing(_) => None,
            };
            if index == Some(wanted) {
                let span = group.ast.span();
                return Some(span.start.offset..span.end.offset);
            }
            group_range(&group.ast, wanted)
        }
        Ast::Repetition(repeated) => group_range(&repeated.ast, wanted),
        Ast::Alternation(all) => all.asts.iter().find_map(|part| group_range(part, wanted)),
        Ast::Concat(all) => all.asts.iter().find_map(|part| group_range(part, wanted)),
        _ => None,
    }
}

/// Whether it matches only characters of numbers, including digits.
fn is_digits_only(hir: &Hir) -> bool {
    fn fits(hir: &Hir, has_digits: &mut bool) -> bool {
        let mut all = |from: u32, to: u32| {
            *has_digits |= (from..=to).contains(&u32::from(b'5'));
            (from..=to).take_while(|c| *c < 128).all(|c| NUMBER_BYTES.contains(&(c as u8)))
        };
        match hir.kind() {
            HirKind::Empty | HirKind::Look(_) => true,
            HirKind::Literal(literal) => literal.0.iter().all(|b| all(u32::from(*b), u32::from(*b))),
            // `\d` means the digits of all scripts, but only ASCII's matter.
            HirKind::Class(Class::Unicode(class)) => {
                class.iter().all(|range| all(u32::from(range.start()), u32::from(range.end())))
            }
            HirKind::Class(Class::Bytes(class)) => {
                class.iter().all(|range| all(u32::from(range.start()), u32::from(range.end())))
            }
            HirKind::Repetition(repeated) => fits(&repeated.sub, has_digits),
            HirKind::Capture(capture) => fits(&capture.sub, has_digits),
            HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().all(|part| fits(part, has_digits)),
        }
    }
    let mut has_digits = false;
    fits(hir, &mut has_digits) && has_digits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::output::pattern::Pattern;
    use proptest::prelude::*;

    #[track_caller]
    fn finds(pattern: &str, line: &str, expected: &str) {
        let mut values = Vec::new();
        let pattern = Pattern::parse(&format!("a={pattern}")).expect(pattern);
        pattern.find(line.as_bytes(), |found| values.extend(found.map(|found| found.value)));
        assert_eq!(format!("{values:?}"), expected, "{line}");
    }

    #[test]
    fn a_value_of_digits_may_be_nan_or_infinite() {
        for pattern in [
            "loss: ([0-9.]+)",
            r"loss: (\d+\.\d+)",
            r"loss: ([+-]?\d*(\.\d+)?([Ee][+-]?\d+)?)",
            "loss: ((?<value>[0-9.eE+-]+))",
            r"loss: (?P<value>-?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)",
            r"loss: (\d{1,3})",
        ] {
            finds(pattern, "loss: nan", "[NaN]");
            finds(pattern, "loss: -inf, and", "[-inf]");
            finds(pattern, "loss: Infinity%", "[inf]");
            finds(pattern, "loss: nano", "[]");
        }
        finds("([0-9.]+)", "banana info 0.5 nan", "[0.5, NaN]");
    }

    #[test]
    fn a_group_of_other_characters_stays_as_it_is() {
        for pattern in
            ["a(.)", r"a(\S+)", "a([^ ]*)", "a([a-z0-9]+)", "a(x)", "a()", "a([^0-9])", "(?<step>[0-9]+)a(-)"]
        {
            let group = if pattern.contains("step") { 2 } else { 1 };
            assert_eq!(with_nan(pattern, group), None, "{pattern}");
        }
        assert_eq!(with_nan("(", 1).or(with_nan("a", 1)).or(with_nan("(1)", 2)), None);
    }

    proptest! {
        #[test]
        fn every_earlier_match_is_still_found(line in "[a-z:=]{0,4}[ ]?[0-9.e+-]{0,6}[ ,%]?[0-9]{0,2}") {
            for text in [r"([0-9.]+)", r"[:=] ?([-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)", r"^([0-9]+)"] {
                let wide = regex::Regex::new(&with_nan(text, 1).expect("digits")).expect("a pattern");
                let narrow = regex::Regex::new(text).expect("a pattern");
                let of = |regex: &regex::Regex| -> Vec<String> {
                    regex.captures_iter(&line).map(|found| found[1].to_owned()).collect()
                };
                let finite = |all: Vec<String>| -> Vec<String> {
                    all.into_iter().filter(|text| !text.contains('n')).collect()
                };
                prop_assert_eq!(finite(of(&wide)), of(&narrow));
            }
        }
    }
}
