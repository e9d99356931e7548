//! The bucket's side of a connection: HTTP/1.1, and its misbehaviour.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering::Relaxed;

use super::dialect::{CHECKSUM, respond};
use super::{Answer, Fault, NAME, Request, Shared, answer, error, xml};

/// The limit in bytes of an endless answer.
const MOST_BABBLE: usize = 400 << 20;

pub(super) fn serve(stream: &TcpStream, shared: &Shared) {
    let _ = stream.set_nodelay(true);
    let mut reader = BufReader::new(stream);
    while let Some((mut request, length)) = receive(&mut reader) {
        let rule = shared.rule.lock().unwrap().clone();
        let fault = rule.and_then(|rule| rule(&request));
        if let Some(Fault::Cut) = fault {
            // Half closed and then reset while the body arrives, so that the client writes into a closed connection.
            let _ = reader.read_exact(&mut [0; 4096]);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            return;
        }
        request.body = vec![0; length];
        if reader.read_exact(&mut request.body).is_err() {
            return;
        }
        let is_head = request.method == "HEAD";
        shared.state.lock().unwrap().asked.push(Request { body: Vec::new(), ..request.clone() });
        let mut half = false;
        let answer = match fault {
            None => respond(request, shared),
            Some(Fault::Refuse(status, code)) => error(status, code),
            Some(Fault::Afterwards(status)) => {
                respond(request, shared);
                error(status, "InternalError")
            }
            Some(Fault::Close | Fault::Cut) => return,
            Some(Fault::Lose) => {
                respond(request, shared);
                return;
            }
            Some(fault @ (Fault::Hang | Fault::Mute)) => {
                if matches!(fault, Fault::Mute) {
                    respond(request, shared);
                }
                loop {
                    std::thread::park();
                }
            }
            Some(Fault::Pretend) => Answer { headers: vec![("ETag", "\"x\"".into())], ..answer("200 OK") },
            Some(Fault::LosePage) => {
                xml("<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>".into())
            }
            Some(Fault::Tell(body)) => Answer { body: body.into(), ..answer("200 OK") },
            Some(Fault::Say(body)) => Answer { body: body.into(), ..answer("200 OK") },
            Some(Fault::Endless(status, words)) => {
                let _ = babble(stream, status, words, shared);
                return;
            }
            Some(Fault::Half) => {
                half = true;
                respond(request, shared)
            }
            Some(Fault::Short) => {
                let mut answer = respond(request, shared);
                answer.body.truncate(answer.body.len() / 2);
                answer
            }
            Some(Fault::Flip) => {
                let mut request = request;
                // S3 checks before the damage.
                request.headers.remove(CHECKSUM);
                if let Some(byte) = request.body.first_mut() {
                    *byte ^= 1;
                }
                let mut answer = respond(request, shared);
                if let Some(byte) = answer.body.first_mut() {
                    *byte ^= 1;
                }
                answer
            }
        };
        if send(stream, &answer, is_head, half).is_err() || half {
            return;
        }
    }
}

fn babble(mut stream: &TcpStream, status: &str, words: &str, shared: &Shared) -> std::io::Result<()> {
    write!(stream, "HTTP/1.1 {status}\r\nConnection: close\r\n\r\n{words}")?;
    let block = [b'x'; 1 << 16];
    // A test must end even if its client never closes the connection.
    for _ in 0..MOST_BABBLE / block.len() {
        stream.write_all(&block)?;
        shared.babbled.fetch_add(block.len(), Relaxed);
    }
    Ok(())
}

fn send(mut stream: &TcpStream, answer: &Answer, is_head: bool, half: bool) -> std::io::Result<()> {
    let headers: String = answer.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let known = answer.headers.iter().any(|(name, _)| *name == "Content-Length");
    let length = if known { String::new() } else { format!("Content-Length: {}\r\n", answer.body.len()) };
    let date = "Sat, 21 Nov 2026 17:00:00 GMT"; // an hour after every object was made
    let head = format!("HTTP/1.1 {}\r\nDate: {date}\r\n{headers}{length}\r\n", answer.status);
    let end = if half { answer.body.len() / 2 } else { answer.body.len() };
    let body = if is_head { &[] } else { &answer.body[..end] };
    stream.write_all(&[head.as_bytes(), body].concat())
}

/// A request without its body, and how many bytes that has.
fn receive(reader: &mut BufReader<&TcpStream>) -> Option<(Request, usize)> {
    let mut line = || {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
        Some(line.trim_end().to_owned())
    };
    let first = line()?;
    let mut headers = BTreeMap::new();
    while let Some((name, value)) = line()?.split_once(':') {
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let mut words = first.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pairs = query.split('&').filter(|p| !p.is_empty()).map(|p| p.split_once('=').unwrap_or((p, "")));
    let query = pairs.map(|(name, value)| (decode(name), decode(&value.replace('+', " ")))).collect();
    let (bucket, key) = path.trim_start_matches('/').split_once('/').unwrap_or((path.trim_start_matches('/'), ""));
    let length = headers.get("content-length").and_then(|l| l.parse().ok()).unwrap_or(0);
    // A request for another bucket finds nothing.
    let is_ours = decode(bucket) == NAME;
    let key = if is_ours { decode(key) } else { "\0".to_owned() };
    Some((Request { method, key, query, headers, body: Vec::new() }, length))
}

pub(in crate::support) fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let hex = (*first == b'%').then(|| std::str::from_utf8(&after[..2]).unwrap());
        bytes.push(hex.map_or(*first, |digits| u8::from_str_radix(digits, 16).unwrap()));
        rest = if hex.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).unwrap()
}
