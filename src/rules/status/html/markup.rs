//! Markup that escapes by type: what this program spells out is markup, and any other text is escaped.

use crate::text::safe_text::printable;

/// A part of a page. [`html`] adds to it.
#[derive(Debug, Default, Clone)]
pub(crate) struct Html(String);

impl Html {
    /// Markup of this program.
    pub(crate) fn of(markup: &'static str) -> Html {
        Html(markup.to_owned())
    }

    /// Adds markup of this program.
    pub(crate) fn literal(&mut self, markup: &'static str) {
        self.0.push_str(markup);
    }

    /// Adds a value.
    pub(crate) fn put(&mut self, piece: &(impl Piece + ?Sized)) {
        piece.add_to(&mut self.0);
    }

    /// The text of the page.
    pub(crate) fn text(self) -> String {
        self.0
    }
}

/// A value in markup.
pub(crate) trait Piece {
    /// Adds it, escaped if it is text.
    fn add_to(&self, page: &mut String);
}

impl Piece for Html {
    fn add_to(&self, page: &mut String) {
        page.push_str(&self.0);
    }
}

impl Piece for str {
    /// For an element or a quoted attribute. Control characters become visible.
    fn add_to(&self, page: &mut String) {
        for c in printable(self).chars() {
            match c {
                '&' => page.push_str("&amp;"),
                '<' => page.push_str("&lt;"),
                '>' => page.push_str("&gt;"),
                '"' => page.push_str("&quot;"),
                '\'' => page.push_str("&#39;"),
                c => page.push(c),
            }
        }
    }
}

impl Piece for String {
    fn add_to(&self, page: &mut String) {
        self.as_str().add_to(page);
    }
}

impl<T: Piece + ?Sized> Piece for &T {
    fn add_to(&self, page: &mut String) {
        (**self).add_to(page);
    }
}

impl Piece for usize {
    fn add_to(&self, page: &mut String) {
        page.push_str(&self.to_string());
    }
}

/// A coordinate of a drawing.
impl Piece for f64 {
    fn add_to(&self, page: &mut String) {
        page.push_str(&format!("{self:.1}"));
    }
}

/// Adds to a page: literals are markup, a value in braces is escaped by its type.
macro_rules! html {
    (@ $page:expr,) => {};
    (@ $page:expr, $markup:literal $($rest:tt)*) => { $page.literal($markup); html!(@ $page, $($rest)*); };
    (@ $page:expr, {$value:expr} $($rest:tt)*) => { $page.put(&$value); html!(@ $page, $($rest)*); };
    ($page:expr, $($rest:tt)*) => {{ html!(@ $page, $($rest)*); }};
}
pub(crate) use html;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_and_markup_is_not() {
        let (mut page, mut part) = (Html::default(), Html::default());
        html!(part, "<b>" {"a < b & \"c\" 'd'\u{202e}"} "</b>");
        html!(page, "<p>" {part} {String::from("\u{1b}[2J")} {3usize} {2.25} "</p>");
        let text = page.text();
        assert_eq!(text, "<p><b>a &lt; b &amp; &quot;c&quot; &#39;d&#39;\u{fffd}</b>\u{fffd}[2J32.2</p>");
    }
}
