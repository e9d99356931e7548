//! One HTTP/1.1 request to a metadata server: no redirects, no proxy, no TLS, a small body.

use std::io;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::edge::clock;
use crate::edge::net::names::addresses;
use crate::rules::preempt::{Answer, Method, Question};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const BODY_LIMIT: usize = 64 * 1024;
/// Some servers send a byte order mark first; JSON readers refuse it.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Asks `endpoint`: `host:port`, or `host:port/path` with a prefix for every path. Errors: any failure, a time-out
/// included, as text for a debug line.
pub async fn ask(endpoint: &str, question: &Question) -> Result<Answer, String> {
    timeout(question.timeout, exchange(endpoint, question))
        .await
        .unwrap_or_else(|_| Err(format!("no answer within {} s", question.timeout.as_secs())))
}

async fn exchange(endpoint: &str, question: &Question) -> Result<Answer, String> {
    let text = |error: io::Error| error.to_string();
    let (host, base) = endpoint.split_once('/').map_or((endpoint, String::new()), |(h, b)| (h, format!("/{b}")));
    let connected = async {
        let (name, port) = host.rsplit_once(':').unwrap_or((host, "80"));
        let port = port.parse().map_err(io::Error::other)?;
        TcpStream::connect(&addresses(name.trim_matches(['[', ']']), port).await?[..]).await
    };
    let stream = timeout(CONNECT_TIMEOUT, connected)
        .await
        .map_err(|_| format!("no connection within {} s", CONNECT_TIMEOUT.as_secs()))?
        .map_err(text)?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
    let method = match question.method {
        Method::Get => hyper::Method::GET,
        Method::Put => hyper::Method::PUT,
    };
    let path = format!("{base}{}", question.path);
    let mut request = Request::builder().method(method).uri(path).header("Host", host);
    if question.method == Method::Put {
        request = request.header("Content-Length", "0");
    }
    for (name, value) in &question.headers {
        request = request.header(*name, value.as_str());
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(|e| e.to_string())?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(|e| e.to_string())?;
        let status = response.status().as_u16();
        let headers = response
            .headers()
            .iter()
            .map(|(name, value)| (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
            .collect();
        let body = Limited::new(response.into_body(), BODY_LIMIT).collect().await.map_err(|e| e.to_string())?;
        let received_unix = clock::wall().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs().cast_signed());
        let body = body.to_bytes();
        let body = body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&body);
        Ok(Answer { status, headers, body: String::from_utf8_lossy(body).into_owned(), received_unix })
    };
    tokio::pin!(exchange);
    // The connection is polled together with the request; if it ends first, the request fails.
    let connection = async {
        let _ = connection.await;
    };
    tokio::select! {
        answer = &mut exchange => answer,
        () = connection => exchange.await,
    }
}
