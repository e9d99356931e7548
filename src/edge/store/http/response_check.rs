//! Answers that are read whole before the crate sees them, since it takes any XML for a listing. And no refusal may repeat
//! the secrets that it was sent.

use bytes::Bytes;
use hyper::Method;
use hyper::header::CONTENT_TYPE;
use object_store::client::HttpRequest;

use crate::edge::store::clouds::access::SHORTEST_SECRET;
use crate::edge::store::error;

/// The root elements of which the answer that this request must have is one; `None`: the crate may read it piece by piece.
pub(in crate::edge::store) fn owed(request: &HttpRequest) -> Option<&'static [&'static str]> {
    let query = request.uri().query().unwrap_or_default();
    let has = |pair: &str| query.split('&').any(|there| there == pair);
    match *request.method() {
        Method::GET if has("list-type=2") => Some(&["ListBucketResult"]),
        Method::GET if has("comp=list") => Some(&["EnumerationResults"]),
        // The second is what rclone's server says.
        Method::POST if has("uploads=") || has("uploads") => {
            Some(&["InitiateMultipartUploadResult", "InitiateMultipartUpload"])
        }
        _ => None,
    }
}

/// The answer, if an element of such a name ends it: an error, the page of a portal or half an answer would look like a
/// listing of nothing.
pub(in crate::edge::store) fn whole(
    host: &str,
    roots: &[&str],
    answer: Bytes,
    sent: &[String],
) -> Result<Bytes, String> {
    let text = String::from_utf8_lossy(&answer);
    // `</ListBucketResult>`, `</s3:ListBucketResult >`, `<ListBucketResult/>`
    let tag = text.trim_end().strip_suffix('>').map(|text| text.trim_end().trim_end_matches('/'));
    if tag.and_then(|tag| tag.rsplit(['<', '/', ':']).next()).is_some_and(|name| roots.contains(&name)) {
        return Ok(answer);
    }
    if roots.iter().any(|root| text.contains(root)) {
        return Err(format!("the answer of {host} breaks off"));
    }
    let words = error::in_words(&without(sent, text.into_owned()));
    Err(format!("the answer of {host} is no {}: {words}", roots.join(" or ")))
}

/// A page of a listing without the objects that stand for directories (`a/`), as consoles make them: the crate would take
/// each for a file. An object and its name are spelt so by S3 and Cloud Storage, and by Azure.
pub(in crate::edge::store) fn without_directories(page: Bytes) -> Bytes {
    let Ok(text) = std::str::from_utf8(&page) else { return page };
    let kept = [("Contents", "Key"), ("Blob", "Name")].iter().fold(text.to_owned(), |text, (object, name)| {
        let (start, end, directory) = (format!("<{object}>"), format!("</{object}>"), format!("/</{name}>"));
        let pieces = text.split_inclusive(&end).map(|piece| match piece.rsplit_once(&start) {
            Some((before, object)) if object.contains(&directory) => before,
            _ => piece,
        });
        pieces.collect()
    });
    kept.into()
}

/// Parameters that are secrets.
const PARAMETERS: [&str; 5] = ["sig", "WebIdentityToken", "client_assertion", "client_secret", "refresh_token"];
/// Parts of the names of headers that are.
const HEADERS: [&str; 4] = ["authorization", "token", "identity-header", "customer-key"];

/// What of a request must never come back in a message: tokens, signatures, keys.
pub(in crate::edge::store) fn secrets(request: &HttpRequest) -> Vec<String> {
    let headers = request.headers().iter().filter(|(name, _)| HEADERS.iter().any(|part| name.as_str().contains(part)));
    let values = headers.filter_map(|(_, value)| value.to_str().ok());
    // `Bearer TOKEN`, `SharedKey account:SIGNATURE`, `AWS4-HMAC-SHA256 ..., Signature=SIGNATURE`
    let parts =
        |value: &str| [" ", ":", "Signature="].map(|mark| value.rsplit(mark).next().unwrap_or(value).to_owned());
    let mut secrets: Vec<String> = values.flat_map(|v| [&[v.to_owned()][..], &parts(v)].concat()).collect();
    let is_form = request.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "application/x-www-form-urlencoded");
    let form = request.body().as_bytes().filter(|_| is_form).and_then(|form| std::str::from_utf8(form).ok());
    for pair in [request.uri().query(), form].into_iter().flatten().flat_map(|text| text.split('&')) {
        if let Some((_, raw)) = pair.split_once('=').filter(|(name, _)| PARAMETERS.contains(name)) {
            secrets.push(raw.to_owned());
            secrets.extend(url::form_urlencoded::parse(pair.as_bytes()).map(|(_, value)| value.into_owned()));
        }
    }
    secrets
}

pub(in crate::edge::store) fn without(secrets: &[String], text: String) -> String {
    secrets.iter().filter(|s| s.len() >= SHORTEST_SECRET).fold(text, |text, secret| text.replace(secret, "..."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_that_was_sent_is_recognised_anywhere() {
        let request = hyper::Request::post("http://h/p?prefix=harmless&sig=abcdefgh%2Bijk%3D")
            .header("authorization", "AWS4-HMAC-SHA256 Credential=AK/x, SignedHeaders=host, Signature=0123456789abcdef")
            .header("x-amz-security-token", "of-the-session")
            .header("content-type", "application/x-www-form-urlencoded")
            .body("client_id=harmless&client_assertion=federated.jwt".to_owned().into())
            .expect("a request");
        let text = "harmless abcdefgh+ijk= abcdefgh%2Bijk%3D of-the-session federated.jwt 0123456789abcdef";
        assert_eq!(without(&secrets(&request), text.to_owned()), "harmless ... ... ... ... ...");
        let bearer =
            hyper::Request::get("http://h").header("authorization", "Bearer ya29.token").body(String::new().into());
        assert_eq!(without(&secrets(&bearer.expect("a request")), "no ya29.token".to_owned()), "no ...");
    }

    #[test]
    fn a_listing_is_one_that_does_not_break_off() {
        let read = |text: &str| whole("h", &["ListBucketResult", "List"], Bytes::from(text.to_owned()), &[]);
        for good in [
            "<?xml version='1.0'?>\n<ListBucketResult xmlns='x'>\n</ListBucketResult>\n",
            "<s3:ListBucketResult></s3:ListBucketResult >",
            "<ListBucketResult/>",
            "<List><Name>b</Name></List>",
        ] {
            assert!(read(good).is_ok(), "{good}");
        }
        let error = "<?xml version='1.0'?><Error><Code>InternalError</Code><Message>Try again.</Message></Error>";
        let told = "the answer of h is no ListBucketResult or List: InternalError: Try again.";
        assert_eq!(read(error), Err(told.to_owned()));
        for bad in ["<NoListBucketResult></NoListBucketResult>", "<ListBucketResult><Contents/>"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
