//! Azure's dialect for the bucket: blobs, blocks, listings with markers, deletions in batches.

use super::bucket::{Answer, Request, State, answer, base64, error, escape, get, hash_of, xml};

/// The account's key. A request must be signed with it or carry a SAS token.
pub const KEY: &str = "bm90LWEtcmVhbC1rZXktYnV0LWxvbmctZW5vdWdo";

pub(super) fn respond(state: &mut State, request: Request) -> Answer {
    let comp = request.query.get("comp").map(String::as_str);
    match (request.method.as_str(), comp) {
        ("GET", Some("list")) => list(state, &request),
        ("POST", Some("batch")) => delete_batch(state, &request),
        ("GET" | "HEAD", _) => get(state, &request),
        ("PUT", Some("block")) => {
            let id = request.query["blockid"].clone();
            state.blocks.insert((request.key, id), request.body);
            answer("201 Created")
        }
        ("PUT", Some("blocklist")) => {
            let text = String::from_utf8(request.body).unwrap();
            let ids = text.split("<Uncommitted>").skip(1).map(|rest| rest.split('<').next().unwrap().to_owned());
            let keys: Vec<_> = ids.map(|id| (request.key.clone(), id)).collect();
            let bytes = keys.iter().flat_map(|key| state.blocks.remove(key).unwrap()).collect();
            created(state, &request.key, bytes)
        }
        ("PUT", _) => {
            assert_eq!(request.headers["x-ms-blob-type"], "BlockBlob");
            if request.headers.get("if-none-match").is_some_and(|v| v == "*") && state.has(&request.key) {
                return error("409 Conflict", "BlobAlreadyExists");
            }
            created(state, &request.key, request.body)
        }
        _ => error("400 Bad Request", "UnsupportedHttpVerb"),
    }
}

fn created(state: &mut State, key: &str, bytes: Vec<u8>) -> Answer {
    let etag = format!("\"{}\"", base64(hash_of(&bytes).as_bytes()));
    state.put(key, bytes);
    Answer { headers: vec![("ETag", etag)], ..answer("201 Created") }
}

/// Three names on each page.
fn list(state: &State, request: &Request) -> Answer {
    let prefix = request.query.get("prefix").cloned().unwrap_or_default();
    let after = request.query.get("marker").cloned().unwrap_or_default();
    let mut matching = state.sizes().filter(|(key, _)| key.starts_with(&prefix) && *key > after);
    let page: Vec<_> = matching.by_ref().take(3).collect();
    let next = if matching.next().is_some() { escape(&page[page.len() - 1].0) } else { String::new() };
    let blobs: String = page
        .iter()
        .map(|(key, size)| {
            format!(
                "<Blob><Name>{}</Name><Properties><Last-Modified>Sat, 21 Nov 2026 16:00:00 GMT</Last-Modified>\
                 <Etag>0x1</Etag><Content-Length>{size}</Content-Length>\
                 <Content-Type>application/octet-stream</Content-Type></Properties></Blob>",
                escape(key)
            )
        })
        .collect();
    xml(format!("<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker>{next}</NextMarker></EnumerationResults>"))
}

fn delete_batch(state: &mut State, request: &Request) -> Answer {
    let text = String::from_utf8(request.body.clone()).unwrap();
    let targets = text.lines().filter_map(|l| l.strip_prefix("DELETE ")?.split([' ', '?']).next());
    let mut body = String::new();
    for (id, target) in targets.enumerate() {
        let key = super::bucket::decode(target.trim_start_matches('/').split_once('/').unwrap().1);
        let status = if state.remove(&key) { "202 Accepted" } else { "404 The specified blob does not exist." };
        body.push_str(&format!(
            "--batch\r\nContent-Type: application/http\r\nContent-ID: {id}\r\n\r\nHTTP/1.1 {status}\r\nx-ms-version: 1\r\n\r\n"
        ));
    }
    body.push_str("--batch--\r\n");
    let headers = vec![("Content-Type", "multipart/mixed; boundary=batch".to_owned())];
    Answer { headers, body: body.into_bytes(), ..answer("202 Accepted") }
}
