//! Answers that are read whole before the crate sees them: it takes any XML for a listing, and makes headers and addresses
//! of what a metadata server says. One that breaks off is asked for again, as the crate does for what never came.

use bytes::Bytes;
use hyper::Method;
use object_store::client::HttpRequest;

use super::error;

/// The root element of the answer that this request must have; `None`: the crate may read it piece by piece.
pub(super) fn owed(request: &HttpRequest) -> Option<&'static str> {
    let query = request.uri().query().unwrap_or_default();
    let has = |pair: &str| query.split('&').any(|there| there == pair);
    match *request.method() {
        Method::GET if has("list-type=2") => Some("ListBucketResult"),
        Method::GET if has("comp=list") => Some("EnumerationResults"),
        Method::POST if has("uploads=") || has("uploads") => Some("InitiateMultipartUploadResult"),
        _ => None,
    }
}

/// The answer, if it is an element of this name from its beginning to its end: an error, the page of a portal or half an
/// answer would look like a listing of nothing.
pub(super) fn whole(host: &str, root: &str, answer: Bytes) -> Result<Bytes, String> {
    let text = String::from_utf8_lossy(&answer);
    let mut rest = text.trim_start_matches('\u{feff}').trim();
    while let Some((_, after)) = rest.strip_prefix("<?").and_then(|prolog| prolog.split_once("?>")) {
        rest = after.trim_start();
    }
    let named = |tag: &str| tag.split([':', '<', '/']).next_back().is_some_and(|name| name == root);
    let first = rest.strip_prefix('<').and_then(|tag| tag.split([' ', '\t', '\r', '\n', '>', '/']).next());
    let is_it = first.is_some_and(named);
    let last = rest.strip_suffix('>').unwrap_or_default();
    let is_ended = last.ends_with('/') && last.matches('<').count() == 1 || named(last.trim_end());
    if is_it && is_ended {
        return Ok(answer);
    }
    let what = if is_it { "breaks off".to_owned() } else { format!("is no {root}: {}", error::in_words(rest)) };
    Err(format!("the answer of {host} {what}"))
}

/// A metadata server's answer. Errors: the crate would panic at it, as it makes headers and addresses of such.
pub(super) fn usable(host: &str, answer: &Bytes) -> Result<Bytes, String> {
    let text = answer.trim_ascii();
    let is_usable = match serde_json::from_slice(text) {
        Ok(serde_json::Value::Object(fields)) => {
            fields.values().filter_map(|value| value.as_str()).all(|value| !value.chars().any(char::is_control))
        }
        _ => text.iter().all(|byte| byte.is_ascii_graphic() && !b"<>`".contains(byte)),
    };
    let odd = || format!("the answer of {host} is not that of a metadata server");
    if is_usable { Ok(answer.slice_ref(text)) } else { Err(odd()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_is_one_from_its_first_element_to_its_last() {
        let read = |text: &str| whole("h", "ListBucketResult", Bytes::from(text.to_owned()));
        for good in [
            "<ListBucketResult><Name>b</Name></ListBucketResult>",
            "<?xml version='1.0'?>\n<ListBucketResult xmlns='x'>\n</ListBucketResult>\n",
            "\u{feff}<?xml version='1.0'?><s3:ListBucketResult></s3:ListBucketResult >",
            "<ListBucketResult/>",
        ] {
            assert!(read(good).is_ok(), "{good}");
        }
        let error = "<?xml version='1.0'?><Error><Code>InternalError</Code><Message>Try again.</Message></Error>";
        assert_eq!(read(error), Err("the answer of h is no ListBucketResult: InternalError: Try again.".to_owned()));
        for bad in [
            "",
            "<html><body>Sign in</body></html>",
            "<!DOCTYPE html><ListBucketResult></ListBucketResult>",
            "<NoListBucketResult></NoListBucketResult>",
            "<ListBucketResult><Name>b</Name>",
            "<ListBucketResult><Contents/>",
            "{}",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
