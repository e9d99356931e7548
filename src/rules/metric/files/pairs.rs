//! Finds `name=value` and `name: value` in a line of text, between other words. An example: a progress bar's `5/10
//! [00:01<00:01, 5.0it/s, step=5, loss=0.500]` has `step` and `loss`.
//!
//! A name is the word before `=`, or before a `:` that white space or a fraction follows, with a letter in it. Text in
//! brackets between name and sign (`time (s): 3`) is ignored. White space, commas, semicolons, `|`, brackets and quotes
//! end a word. Deliberately absent: whether a value is a number ([`crate::metric::foreign_text::value`]).

use crate::metric::foreign_text::value::{CLOSING, OPENING, QUOTES, call_argument, length_of_number};

/// A name and the text after its sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::metric) struct Pair<'a> {
    pub(in crate::metric) name: &'a str,
    pub(in crate::metric) value: &'a str,
    /// An unquoted word after `=`, which is certainly meant as a value.
    pub(in crate::metric) is_assigned: bool,
}

/// All pairs of a line, in order.
pub(in crate::metric) fn pairs(line: &str) -> Vec<Pair<'_>> {
    let mut pairs = Vec::new();
    let mut from = 0;
    for (at, sign) in line.match_indices(['=', ':']) {
        let Some(before) = line.get(from..at) else { continue };
        let after = &line[at + 1..];
        let is_sign = match sign {
            "=" => !after.starts_with('=') && !before.ends_with(['=', '!', '<', '>', ':']),
            _ => after.is_empty() || after.starts_with(char::is_whitespace) || is_fraction(after),
        };
        let name = name_before(before);
        // In `2026-11-27T10:24:07.5` a time begins with a digit.
        let is_time = sign == ":" && is_fraction(after) && name.starts_with(|c: char| c.is_ascii_digit());
        if is_time || !is_sign || !name.contains(char::is_alphabetic) {
            continue;
        }
        let (value, end) = value_after(after);
        // In `x= y=1` the word after the sign is itself a name.
        if value.is_empty() || after[end..].starts_with('=') {
            continue;
        }
        // `train:  20%|##   |` is a progress bar behind its title.
        if sign == ":" && value.ends_with('%') && after[end..].starts_with('|') {
            continue;
        }
        let is_quoted = after.trim_start().starts_with(QUOTES);
        pairs.push(Pair { name, value, is_assigned: sign == "=" && !is_quoted });
        from = at + 1 + end;
    }
    pairs
}

/// Whether a number with a fraction begins here: XGBoost's `rmse:0.5` has a value, `file.py:12` and `cuda:0` have none.
fn is_fraction(text: &str) -> bool {
    let number = length_of_number(text).map(|length| &text[..length]);
    number.is_some_and(|number| !number.bytes().all(|b| b.is_ascii_digit() || b == b'_'))
}

/// The last word with a letter in it. If the text ends with a bracket, the word before the bracket is preferred.
fn name_before(text: &str) -> &str {
    let text = text.trim_end().trim_end_matches(QUOTES);
    if let Some(inside) = text.strip_suffix(CLOSING) {
        let (outside, inside) = inside.rfind(OPENING).map_or(("", inside), |open| inside.split_at(open));
        let name = last_word(outside.trim_end());
        return if name.contains(char::is_alphabetic) { name } else { last_word(inside) };
    }
    last_word(text)
}

fn last_word(text: &str) -> &str {
    let word = text.rsplit(is_between).next().unwrap_or_default();
    if word.contains("://") { "" } else { word.trim_matches(|c: char| !c.is_alphanumeric() && c != '_') }
}

/// The text after a sign, and the position of its end.
fn value_after(text: &str) -> (&str, usize) {
    let start = text.find(|c: char| !c.is_whitespace()).unwrap_or(text.len());
    let rest = &text[start..];
    let is_list = rest.starts_with(OPENING);
    let length = if is_list {
        rest.find(CLOSING).map_or(rest.len(), |end| end + 1)
    } else if call_argument(rest).is_some() {
        rest.find(')').map_or(rest.len(), |end| end + 1)
    } else {
        let quotes = rest.len() - rest.trim_start_matches(QUOTES).len();
        quotes + word_length(&rest[quotes..], quotes > 0)
    };
    (&rest[..length], start + length)
}

/// A comma between digits is part of a number (`1,234.5`), unless a name follows before the next space.
fn word_length(text: &str, is_quoted: bool) -> usize {
    if is_quoted {
        return text.find(QUOTES).map_or(text.len(), |end| end + 1);
    }
    let end = text.find(is_between).unwrap_or(text.len());
    let word = text.split(|c: char| c.is_whitespace() || c == ';').next().unwrap_or_default();
    let goes_on = text[end..].strip_prefix(',').is_some_and(|more| more.starts_with(|c: char| c.is_ascii_digit()));
    if goes_on && !word.contains(['=', ':']) { word.trim_end_matches(is_between).len() } else { end }
}

fn is_between(c: char) -> bool {
    c.is_whitespace() || ",;|=".contains(c) || [OPENING, CLOSING, QUOTES].iter().any(|set| set.contains(&c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn finds(line: &str, expected: &[(&str, &str)]) {
        let found: Vec<_> = pairs(line).iter().map(|pair| (pair.name, pair.value)).collect();
        assert_eq!(found, expected, "{line}");
    }

    #[test]
    fn both_signs_are_read_between_other_words() {
        finds("epoch 1: loss=0.5, acc = 0.75; step=12", &[("loss", "0.5"), ("acc", "0.75"), ("step", "12")]);
        finds("12:30:00 INFO iter: 239  total_loss: 3.5", &[("iter", "239"), ("total_loss", "3.5")]);
        finds("50/50 - loss : 0.5 - acc: 93%", &[("loss", "0.5"), ("acc", "93%")]);
        finds("{'loss': 2.5, 'epoch': 1.0}", &[("loss", "2.5"), ("epoch", "1.0")]);
        finds("at http://host:80/a?x=1 C:\\dir file.py:12", &[]);
    }

    #[test]
    fn a_colon_is_a_sign_before_a_fraction_but_not_before_a_whole_number() {
        // As XGBoost 3.2 prints its evaluation.
        finds("[0]\ttrain-logloss:0.45470\ttest-auc:1.00000", &[("train-logloss", "0.45470"), ("test-auc", "1.00000")]);
        finds(
            "test-rmse:0.25+0.02 a:1e-05 b:nan c:-0.5",
            &[("test-rmse", "0.25+0.02"), ("a", "1e-05"), ("b", "nan"), ("c", "-0.5")],
        );
        finds("2026-11-27T10:24:07.123Z file.py:12 cuda:0 host:8080 10:24:07.5 info:no", &[]);
    }

    #[test]
    fn the_percentage_of_a_progress_bar_is_not_a_value() {
        // As tqdm 4.70 draws it.
        finds("train:  20%|##        | 1/5 [00:00<00:00, loss=0.5]", &[("loss", "0.5")]);
        finds("acc: 93% | loss: 0.5", &[("acc", "93%"), ("loss", "0.5")]);
    }

    #[test]
    fn brackets_belong_to_neither_name_nor_value() {
        finds("Epoch 0: 50%|##  | 5/10 [00:01<00:01, 5.0it/s, loss=0.5]", &[("loss", "0.5")]);
        finds("(acc=0.5) [step=3] (f1)=1", &[("acc", "0.5"), ("step", "3"), ("f1", "1")]);
        finds("iter time (s): 0.5, acc (%)=93", &[("time", "0.5"), ("acc", "93")]);
        finds("Epoch: [0]  [ 10/100]  loss: 0.5 (0.6)", &[("Epoch", "[0]"), ("loss", "0.5")]);
    }

    #[test]
    fn a_list_a_call_and_a_quoted_text_are_one_value_each() {
        finds("betas=[0.9, 0.99] x=1", &[("betas", "[0.9, 0.99]"), ("x", "1")]);
        finds(
            "'loss': np.float64(0.5), 'a': 'b c=1', d=2",
            &[("loss", "np.float64(0.5)"), ("a", "'b c=1'"), ("d", "2")],
        );
        finds("loss=tensor(0.5, device='cuda:0') x=1", &[("loss", "tensor(0.5, device='cuda:0')"), ("x", "1")]);
    }

    #[test]
    fn a_comma_in_a_number_is_part_of_it() {
        finds("a=1,b=2,5shot=3", &[("a", "1"), ("b", "2"), ("5shot", "3")]);
        finds("a=1,234.5, b=0,5;c=1", &[("a", "1,234.5"), ("b", "0,5"), ("c", "1")]);
    }

    #[test]
    fn a_sign_without_a_name_or_a_value_is_ignored() {
        finds("a==1 =2 b<=3 c!=4 3: 4 x= y=z 12=5 d=", &[("y", "z")]);
        finds("--lr=0.1 **acc**: 1", &[("lr", "0.1"), ("acc", "1")]);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "\\PC*", odd in "[ab1=:,;|()\\[\\]{}'\". é]{0,24}") {
            for pair in pairs(&text).into_iter().chain(pairs(&odd)) {
                prop_assert!(!pair.name.is_empty() && !pair.value.is_empty());
            }
        }
    }
}
