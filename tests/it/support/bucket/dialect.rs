//! The dialects of Cloud Storage and S3: objects, multipart uploads, conditions, checksums and listings.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::{Answer, NAME, Request, Shared, State, answer, error, xml};

pub(super) fn respond(request: Request, shared: &Shared) -> Answer {
    let mut state = shared.state.lock().unwrap();
    let upload = request.query.get("uploadId").cloned();
    let known = upload.as_ref().is_none_or(|id| state.uploads.contains_key(id));
    match request.method.as_str() {
        _ if request.key == "\0" => error("404 Not Found", "NoSuchBucket"),
        _ if request.headers.contains_key("x-ms-version") => crate::support::blobs::respond(&mut state, request),
        _ if !known => error("404 Not Found", "NoSuchUpload"),
        "GET" if request.key.is_empty() => list(&state, &request.query),
        "GET" | "HEAD" => get(&state, &request),
        "PUT" => put(&mut state, request, upload, shared.ignores_conditions),
        "POST" if request.query.contains_key("uploads") => {
            let id = format!("upload-{}", state.asked.len());
            state.uploads.insert(id.clone(), BTreeMap::new());
            let (bucket, key) = (NAME, escape(&request.key));
            xml(format!(
                "<InitiateMultipartUploadResult><Bucket>{bucket}</Bucket><Key>{key}</Key><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
            ))
        }
        "POST" if upload.is_none() => error("501 Not Implemented", "NotImplemented"),
        "POST" => {
            let parts = state.uploads.remove(&upload.unwrap_or_default()).unwrap_or_default();
            let bytes: Vec<u8> = parts.into_values().flatten().collect();
            let hash = hash_of(&bytes);
            let generation = state.put(&request.key, bytes);
            let mut answer = xml(format!(
                "<CompleteMultipartUploadResult><ETag>\"g{generation}\"</ETag></CompleteMultipartUploadResult>"
            ));
            answer.headers = vec![("x-goog-hash", hash), ("x-goog-generation", generation.to_string())];
            answer
        }
        "DELETE" => match upload {
            Some(id) => {
                state.uploads.remove(&id);
                answer("204 No Content")
            }
            None if state.objects.remove(&request.key).is_some() => answer("204 No Content"),
            None => error("404 Not Found", "NoSuchKey"),
        },
        _ => error("405 Method Not Allowed", "MethodNotAllowed"),
    }
}

pub(in crate::support) fn hash_of(bytes: &[u8]) -> String {
    format!("crc32c={}", base64(&crc32c::crc32c(bytes).to_be_bytes()))
}

pub(super) const CHECKSUM: &str = "x-amz-checksum-crc64nvme";

/// CRC-64/NVME in S3's form; the bits of the polynomial are reversed.
fn crc64_of(bytes: &[u8]) -> String {
    static TABLE: LazyLock<Vec<u64>> = LazyLock::new(|| {
        let step = |state: u64, _| state >> 1 ^ if state & 1 == 1 { 0x9a6c_9329_ac4b_c9b5 } else { 0 };
        (0..256).map(|byte| (0..8).fold(byte, step)).collect()
    });
    let table = &**TABLE;
    let crc = bytes.iter().fold(u64::MAX, |crc, byte| table[(crc as u8 ^ byte) as usize] ^ crc >> 8);
    base64(&(!crc).to_be_bytes())
}

pub fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for digit in 0..4 {
            let is_there = digit <= three.len();
            text.push(if is_there { DIGITS[(bits >> (18 - 6 * digit) & 63) as usize] as char } else { '=' });
        }
    }
    text
}

fn put(state: &mut State, request: Request, upload: Option<String>, ignores_conditions: bool) -> Answer {
    if request.header("x-goog-hash").is_some_and(|sent| sent != hash_of(&request.body)) {
        return error("400 Bad Request", "BadDigest");
    }
    // S3 checks and reports the checksum of every object and every part.
    let checksum = request.header(CHECKSUM).map(|sent| (CHECKSUM, sent.to_owned()));
    if checksum.as_ref().is_some_and(|(_, sent)| *sent != crc64_of(&request.body)) {
        return error("400 Bad Request", "BadDigest");
    }
    if let Some(id) = upload {
        let number = request.query["partNumber"].parse().unwrap();
        state.uploads.get_mut(&id).unwrap().insert(number, request.body);
        let headers = [("ETag", format!("\"p{number}\""))].into_iter().chain(checksum).collect();
        return Answer { headers, ..answer("200 OK") };
    }
    let only_new =
        request.header("if-none-match") == Some("*") || request.header("x-goog-if-generation-match") == Some("0");
    if only_new && !ignores_conditions && state.objects.contains_key(&request.key) {
        return error("412 Precondition Failed", "PreconditionFailed");
    }
    let hash = hash_of(&request.body);
    let generation = state.put(&request.key, request.body);
    let headers = vec![
        ("ETag", format!("\"g{generation}\"")),
        ("x-goog-generation", generation.to_string()),
        ("x-goog-hash", hash),
    ];
    Answer { headers: headers.into_iter().chain(checksum).collect(), ..answer("200 OK") }
}

pub(in crate::support) fn get(state: &State, request: &Request) -> Answer {
    let Some(object) = state.objects.get(&request.key) else { return error("404 Not Found", "NoSuchKey") };
    let mut headers = vec![
        ("ETag", format!("\"g{}\"", object.generation)),
        ("x-goog-generation", object.generation.to_string()),
        ("x-goog-hash", hash_of(&object.bytes)),
        ("Last-Modified", format!("Sat, 21 Nov 2026 {}:00:00 GMT", hour(&request.key))),
    ];
    let all = object.bytes.len();
    if request.method == "HEAD" {
        headers.push(("Content-Length", all.to_string()));
        return Answer { headers, ..answer("200 OK") };
    }
    let Some(range) = request.header("range").and_then(|r| r.strip_prefix("bytes=")) else {
        return Answer { headers, body: object.bytes.clone(), ..answer("200 OK") };
    };
    let (from, to) = range.split_once('-').unwrap();
    let from: usize = from.parse().unwrap();
    let end = to.parse().map_or(all, |last: usize| (last + 1).min(all));
    if from >= all {
        return error("416 Requested Range Not Satisfiable", "InvalidRange");
    }
    headers.push(("Content-Range", format!("bytes {from}-{}/{all}", end - 1)));
    Answer { headers, body: object.bytes[from..end].to_vec(), ..answer("206 Partial Content") }
}

/// When an object was created: a probe just now, all others an hour ago.
fn hour(key: &str) -> u32 {
    if key.contains("/.trainit/probes/") { 17 } else { 16 }
}

/// Three keys on each page, so that every client must request more pages.
fn list(state: &State, query: &BTreeMap<String, String>) -> Answer {
    const PAGE: usize = 3;
    assert_eq!(query.get("list-type").map(String::as_str), Some("2"));
    let prefix = query.get("prefix").cloned().unwrap_or_default();
    let after = ["start-after", "continuation-token"].iter().filter_map(|name| query.get(*name)).max().cloned();
    let after = after.unwrap_or_default();
    let mut matching = state.objects.iter().filter(|(key, _)| key.starts_with(&prefix) && **key > after);
    let page: Vec<_> = matching.by_ref().take(PAGE).collect();
    let more = matching.next().is_some();
    let contents: String = page
        .iter()
        .map(|(key, object)| {
            let (key, size, etag) = (escape(key), object.bytes.len(), object.generation);
            let time = format!("2026-11-21T{}:00:00.000Z", hour(&key));
            format!(
                "<Contents><Key>{key}</Key><LastModified>{time}</LastModified><ETag>\"g{etag}\"</ETag><Size>{size}</Size></Contents>"
            )
        })
        .collect();
    let next = page
        .last()
        .filter(|_| more)
        .map_or(String::new(), |(key, _)| format!("<NextContinuationToken>{}</NextContinuationToken>", escape(key)));
    xml(format!(
        "<ListBucketResult><Name>{NAME}</Name><IsTruncated>{more}</IsTruncated>{contents}{next}</ListBucketResult>"
    ))
}

pub(in crate::support) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
