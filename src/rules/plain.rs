//! Text where a person reads it: that of others, and how many there are.

/// On one line, and without what could move a terminal's cursor.
pub fn plain(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => safe.push_str("\\n"),
            '\r' => safe.push_str("\\r"),
            c if c.is_control() => safe.push('\u{fffd}'),
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

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn what_is_foreign_stays_on_its_line_and_moves_no_cursor() {
        assert_eq!(plain("step\u{1b}[2J\r\nü"), "step\u{fffd}[2J\\r\\nü");
    }
}
