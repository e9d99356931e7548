//! Removes names that cannot be keys of trainit (`a//b`, `./a`, `a/`, control characters) from a page of a bucket's listing.
//! The crate refuses the whole page because of one such name, and other programs may keep such objects in the bucket.

use std::borrow::Cow;

use bytes::Bytes;
use object_store::path::Path as Key;

/// An object in a page, and its name in that: of Cloud Storage and S3, of Azure.
const OBJECTS: [(&str, &str); 2] = [("Contents", "Key"), ("Blob", "Name")];

/// `note` hears each of them, but for those that stand for directories (`a/`). What is not spelt as expected stays as it is.
pub(in crate::edge::store) fn without_odd_names(page: Bytes, note: &mut dyn FnMut(&str)) -> Bytes {
    let Ok(text) = std::str::from_utf8(&page) else { return page };
    let is_there = |(object, _): &&(&str, &str)| text.contains(&format!("<{object}>"));
    let Some((object, name)) = OBJECTS.iter().find(is_there) else { return page };
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, object, after)) = next(rest, object, name, note) {
        kept.push_str(before);
        kept.push_str(object);
        rest = after;
    }
    kept.push_str(rest);
    kept.into()
}

/// What stands before the next object, the object if its name can be a key, and what stands behind it.
fn next<'a>(
    text: &'a str,
    object: &str,
    name: &str,
    note: &mut dyn FnMut(&str),
) -> Option<(&'a str, &'a str, &'a str)> {
    let from = text.find(&format!("<{object}>"))?;
    let close = format!("</{object}>");
    let end = from + text[from..].find(&close)? + close.len();
    let whole = &text[from..end];
    let named = whole.split_once(&format!("<{name}>")).and_then(|(_, rest)| rest.split_once(&format!("</{name}>")));
    let odd = named.map(|(key, _)| unescaped(key)).filter(|key| !is_key(key));
    if let Some(key) = odd.as_ref().filter(|key| !key.strip_suffix('/').is_some_and(is_key)) {
        note(key);
    }
    let is_odd = odd.is_some();
    Some((&text[..from], if is_odd { "" } else { whole }, &text[end..]))
}

fn is_key(text: &str) -> bool {
    Key::parse(text).is_ok_and(|key| key.as_ref() == text)
}

/// With the characters that are given by their number; those that have a name make no key odd.
fn unescaped(text: &str) -> Cow<'_, str> {
    let mut parts = text.split("&#");
    let (Some(first), true) = (parts.next(), text.contains("&#")) else { return text.into() };
    let mut plain = first.to_owned();
    for part in parts {
        let (number, rest) = part.split_once(';').unwrap_or((part, ""));
        let code = number.strip_prefix('x').map_or_else(|| number.parse(), |hex| u32::from_str_radix(hex, 16));
        plain.push(code.ok().and_then(char::from_u32).unwrap_or('?'));
        plain.push_str(rest);
    }
    plain.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_comes_without_the_names_that_are_no_keys() {
        for (object, name) in OBJECTS {
            let of = |keys: &[&str]| {
                let objects =
                    keys.iter().map(|key| format!("<{object}><{name}>{key}</{name}><Size>1</Size></{object}>\n"));
                format!(
                    "<?xml version='1.0'?><List><Prefix>a//b</Prefix>{}<Next>t</Next></List>",
                    objects.collect::<String>()
                )
            };
            let good = ["a/b", "it&#39;s&#x41;", "&amp;/\u{fc}%2F&lt;", "c"];
            let odd = ["a//b", "/a", "a/", "./a", "a/../b", "a\nb", "a&#10;b", "a&#xA;b", "\u{7f}"];
            let mixed: Vec<&str> = odd.iter().chain(&good).chain(&odd).copied().collect();
            let mut noted = Vec::new();
            let page = without_odd_names(of(&mixed).into(), &mut |key: &str| noted.push(key.to_owned()));
            assert_eq!(noted.len(), 2 * (odd.len() - 1), "all but a/: {noted:?}");
            let objects = |text: &str| text.matches(&format!("<{object}>")).count();
            let text = std::str::from_utf8(&page).expect("UTF-8");
            assert_eq!(objects(text), good.len(), "{text}");
            assert_eq!(text.replace('\n', ""), of(&good).replace('\n', ""));
            assert_eq!(without_odd_names(of(&good).into(), &mut |_| ()), of(&good));
        }
        for other in ["", "<Contents><Key>a//b", "<Contents><Key a='1'>a//b</Key></Contents>", "no XML"] {
            assert_eq!(without_odd_names(other.into(), &mut |_| ()), other);
        }
        assert_eq!(without_odd_names(Bytes::from_static(b"<Key>\xff"), &mut |_| ()), b"<Key>\xff".as_slice());
    }
}
