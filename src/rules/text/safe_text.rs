//! Text for people: foreign text made safe to print, counts, short lists.

/// Characters that change the direction or the order of the text around them (Unicode's Bidi_Control), and the separators
/// that some programs show as a new line.
fn reorders(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Puts foreign text on one line and replaces everything that could move a terminal's cursor or reorder the line.
pub fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => safe.push_str("\\n"),
            '\r' => safe.push_str("\\r"),
            c if c.is_control() || reorders(c) => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// `1 file`, `2 files`.
pub fn counted(count: usize, what: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {what}{s}")
}

/// `a, b, ...`: at most `most` items, then `...` if there are more; `None` for no items.
pub fn named(items: impl IntoIterator<Item = String>, most: usize) -> Option<String> {
    let mut items = items.into_iter();
    let first: Vec<String> = items.by_ref().take(most).collect();
    let more = if items.next().is_some() { ", ..." } else { "" };
    (!first.is_empty()).then(|| first.join(", ") + more)
}

/// `a`, or `a and 2 more`; `count` includes the first.
pub fn and_more(first: &str, count: usize) -> String {
    if count > 1 { format!("{first} and {} more", count - 1) } else { first.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::{named, printable};

    #[test]
    fn a_long_list_is_cut_after_the_first_items() {
        let of = |count: usize| named((1..=count).map(|number| number.to_string()), 2);
        assert_eq!(
            [of(0), of(1), of(2), of(3)],
            [None, Some("1".into()), Some("1, 2".into()), Some("1, 2, ...".into())]
        );
    }

    #[test]
    fn foreign_text_stays_on_one_line_and_moves_no_cursor() {
        assert_eq!(printable("step\u{1b}[2J\r\nü"), "step\u{fffd}[2J\\r\\nü");
        assert_eq!(
            printable("a\u{202e}b\u{2066}c\u{61c}d\u{9b}e\u{2028}f"),
            "a\u{fffd}b\u{fffd}c\u{fffd}d\u{fffd}e\u{fffd}f"
        );
    }
}
