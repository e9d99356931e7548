//! `TAG=REGEX`, trainit's own form. The first `=` ends the tag. An example: `val_acc=val_acc: ([0-9.eE+-]+)`.

use crate::metric::output::pattern::Pattern;

/// `None` for a text without `=`.
pub(in crate::metric) fn read(text: &str) -> Option<Result<Vec<Pattern>, String>> {
    let (tag, regex) = text.split_once('=')?;
    Some(Pattern::named(tag.trim(), regex).map(|pattern| vec![pattern]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_equals_sign_ends_the_tag() {
        let pattern = read(" f1 =f1=(.*)").expect("this form").expect("a pattern").remove(0);
        let mut values = Vec::new();
        pattern.find(b"f1=0.5", |found| values.extend(found.map(|f| f.value)));
        assert_eq!((pattern.tag(), values), (Some("f1"), vec![0.5]));
        assert!(read("loss").is_none());
    }
}
