//! The one function for a value that a message or a page shows: what may be a secret is cut.
//!
//! A value may hold a secret in the wrong place: a password in a URL, the JSON of a service account or a token where the name
//! of a file belongs.

use std::borrow::Cow;

/// A shorter word is not taken for a token.
const TOKEN_CHARS: usize = 12;

/// The value without secrets: of a URL the user and the query are cut, and a text that is neither a path nor a word that a
/// person would write is named by its length.
pub fn shown(value: &str) -> Cow<'_, str> {
    match without_credentials(value) {
        text if is_opaque(&text) => format!("a text of {} characters", value.chars().count()).into(),
        text => text,
    }
}

/// A message about a value, without the value's secrets: the part about what was found is replaced.
pub fn about(message: String, value: &str) -> String {
    let shown = shown(value);
    if shown == value {
        return message;
    }
    let expected = message.split(", found ").next().filter(|expected| expected.len() < message.len());
    format!("{}, found {shown}", expected.unwrap_or("expected another value"))
}

/// Whether the value has a user or a query in a URL, or is a JSON object.
pub fn has_secret_place(value: &str) -> bool {
    value.trim_start().starts_with('{') || matches!(without_credentials(value), Cow::Owned(_))
}

fn without_credentials(value: &str) -> Cow<'_, str> {
    let Some((scheme, rest)) = value.split_once("://") else { return value.into() };
    let scheme_word = scheme.to_ascii_lowercase();
    let rest_without_user = match rest.rsplit_once('@') {
        // A key may contain slashes. An @ behind a slash without a colon before it is part of a path.
        Some((user, host)) if user.contains(':') || !user.contains('/') => {
            // Azure writes CONTAINER@ACCOUNT in this place.
            if scheme_word.contains("abfs") && !user.contains(':') { rest } else { host }
        }
        _ => rest,
    };
    // In the path of a file these signs are letters as others.
    let query = if scheme_word == "file" { None } else { rest_without_user.find(['?', '#']) };
    let kept = &rest_without_user[..query.unwrap_or(rest_without_user.len())];
    if kept == rest { value.into() } else { format!("{scheme}://{kept}").into() }
}

/// JSON, a key file, or a token.
fn is_opaque(text: &str) -> bool {
    let has = |is: fn(&char) -> bool| text.chars().any(|c| is(&c));
    let is_json = text.contains('{') && text.contains('"');
    let is_word = text.chars().all(|c| c.is_ascii_alphanumeric() || "-_+=".contains(c));
    let is_mixed = has(char::is_ascii_uppercase) && has(char::is_ascii_lowercase) && has(char::is_ascii_digit);
    is_json || has(|c| c.is_control()) || (is_word && is_mixed && text.len() >= TOKEN_CHARS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_person_writes_is_shown_as_it_is() {
        for value in [
            "",
            "25s",
            "/mnt/Llama2Checkpoints/run-7",
            "ckpt",
            "gs://bucket/job-1",
            "gs://b/a@b:c",
            "file:///a?b#c@d",
            "abfss://container@account.dfs.core.windows.net/x",
            "loss=loss: ([0-9.]{1,5})",
            "[::1]:9464",
            "step-0000012345",
            "ResNet50",
        ] {
            assert_eq!(shown(value), value);
        }
    }

    #[test]
    fn the_user_and_the_query_of_a_url_are_cut() {
        for value in ["https://user:s3cret@host/x", "https://host/x?sig=s3cret", "https://s3cret@host/x#s3cret"] {
            assert_eq!(shown(value), "https://host/x");
            assert!(has_secret_place(value));
        }
        for (value, expected) in [
            ("file://user:s3cret@host/p", "file://host/p"),
            ("s3://AKIA:s3/cret@b/x", "s3://b/x"),
            ("az://c#s3cret?x@y", "az://y"),
        ] {
            assert_eq!(shown(value), expected);
        }
    }

    #[test]
    fn what_is_no_path_is_named_by_its_length() {
        for value in ["{\"private_key\": \"s3cret\"}", "-----BEGIN KEY-----\ns3cret\n", "ghp_S3cretS3cretS3cret"] {
            assert_eq!(shown(value), format!("a text of {} characters", value.len()));
        }
    }

    #[test]
    fn a_message_keeps_what_was_expected() {
        let message = "expected a duration such as 25s, found \"https://user:s3cret@host\"".to_owned();
        assert_eq!(about(message, "https://user:s3cret@host"), "expected a duration such as 25s, found https://host");
        let message = "s3cretS3CRET1 is no name".to_owned();
        assert_eq!(about(message, "s3cretS3CRET1"), "expected another value, found a text of 13 characters");
        assert_eq!(about("odd, found \"x\"".to_owned(), "x"), "odd, found \"x\"");
    }
}
