//! Checks responses before the crate reads them, because it accepts any XML as a listing. Removes the secrets of a request
//! from refusals.

use bytes::Bytes;
use hyper::Method;
use hyper::header::CONTENT_TYPE;
use object_store::client::HttpRequest;

use crate::edge::store::clouds::access::SHORTEST_SECRET;
use crate::edge::store::error;

/// The possible root elements of the response; `None`: the crate may read it in pieces.
pub(in crate::edge::store) fn possible_roots(request: &HttpRequest) -> Option<&'static [&'static str]> {
    let query = request.uri().query().unwrap_or_default();
    let has = |pair: &str| query.split('&').any(|item| item == pair);
    match *request.method() {
        Method::GET if has("list-type=2") => Some(&["ListBucketResult"]),
        Method::GET if has("comp=list") => Some(&["EnumerationResults"]),
        // The second name is rclone's.
        Method::POST if has("uploads=") || has("uploads") => {
            Some(&["InitiateMultipartUploadResult", "InitiateMultipartUpload"])
        }
        _ => None,
    }
}

/// Returns the response if one of these elements ends it. An error, a portal's page or a truncated response would look like
/// an empty listing.
pub(in crate::edge::store) fn complete(
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
    let words = error::one_line(&redact(sent, text.into_owned()));
    Err(format!("the answer of {host} is no {}: {words}", roots.join(" or ")))
}

/// Removes the objects for directories (`a/`), which consoles create, from a page of a listing: the crate would treat them as
/// files. The elements are those of S3 and Cloud Storage, and of Azure.
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
/// Parts of the names of secret headers.
const HEADERS: [&str; 4] = ["authorization", "token", "identity-header", "customer-key"];

/// The secrets of a request: tokens, signatures, keys.
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

pub(in crate::edge::store) fn redact(secrets: &[String], text: String) -> String {
    secrets.iter().filter(|s| s.len() >= SHORTEST_SECRET).fold(text, |text, secret| text.replace(secret, "..."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secrets_of_a_request_are_removed_from_a_text() {
        let request = hyper::Request::post("http://h/p?prefix=harmless&sig=abcdefgh%2Bijk%3D")
            .header("authorization", "AWS4-HMAC-SHA256 Credential=AK/x, SignedHeaders=host, Signature=0123456789abcdef")
            .header("x-amz-security-token", "of-the-session")
            .header("content-type", "application/x-www-form-urlencoded")
            .body("client_id=harmless&client_assertion=federated.jwt".to_owned().into())
            .expect("a request");
        let text = "harmless abcdefgh+ijk= abcdefgh%2Bijk%3D of-the-session federated.jwt 0123456789abcdef";
        assert_eq!(redact(&secrets(&request), text.to_owned()), "harmless ... ... ... ... ...");
        let bearer =
            hyper::Request::get("http://h").header("authorization", "Bearer ya29.token").body(String::new().into());
        assert_eq!(redact(&secrets(&bearer.expect("a request")), "no ya29.token".to_owned()), "no ...");
    }

    #[test]
    fn a_truncated_listing_is_refused() {
        let read = |text: &str| complete("h", &["ListBucketResult", "List"], Bytes::from(text.to_owned()), &[]);
        for good in [
            "<?xml version='1.0'?>\n<ListBucketResult xmlns='x'>\n</ListBucketResult>\n",
            "<s3:ListBucketResult></s3:ListBucketResult >",
            "<ListBucketResult/>",
            "<List><Name>b</Name></List>",
        ] {
            assert!(read(good).is_ok(), "{good}");
        }
        let error = "<?xml version='1.0'?><Error><Code>InternalError</Code><Message>Try again.</Message></Error>";
        let message = "the answer of h is no ListBucketResult or List: InternalError: Try again.";
        assert_eq!(read(error), Err(message.to_owned()));
        for bad in ["<NoListBucketResult></NoListBucketResult>", "<ListBucketResult><Contents/>"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
