//! A small HTTP/1.1 server for the status pages: GET and HEAD, one request a connection, a few connections at once, each for
//! a few seconds. A slow or hostile client delays only itself. A connection without a request is closed when others wait.
//! Deliberately absent: TLS, the content of the pages.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http_body_util::Full;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::rules::status::page::{NOT_FOUND, Page, Shown};

/// The limit of connections, with one more that displaces an idle one; later ones wait.
const CONNECTIONS: usize = 8;
/// A connection's whole life.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The time in which a connection must send its request; later it may be closed to make room.
const HEAD_PATIENCE: Duration = Duration::from_millis(100);
/// Pause after a failed accept(2), for example without free descriptors.
const PAUSE: Duration = Duration::from_secs(1);
/// The largest request head; hyper accepts no smaller limit.
const HEAD_BYTES: usize = 8 << 10;

/// Errors: as bind(2).
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Answers until it is dropped; returns only if the runtime does not accept the listener. `show` makes a page; `None`: the run
/// has ended.
pub async fn serve<S, F>(listener: TcpListener, show: S) -> io::Error
where
    S: Fn(Page) -> F,
    F: Future<Output = Option<Shown>>,
{
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return error,
    };
    let open_connections = OpenConnections::default();
    let mut open = FuturesUnordered::new();
    loop {
        tokio::select! {
            stream = next(&listener), if open.len() <= CONNECTIONS => {
                open.push(timeout(TIMEOUT, serve_connection(stream, &show, &open_connections)));
            }
            Some(_) = open.next(), if !open.is_empty() => {}
        }
        open_connections.is(open.len() > CONNECTIONS);
    }
}

/// Whether there are too many connections, and the queue of those without a request, the oldest first.
#[derive(Default)]
struct OpenConnections {
    is_too_large: AtomicBool,
    turns: Notify,
}

impl OpenConnections {
    fn is(&self, too_large: bool) {
        if !self.is_too_large.swap(too_large, Ordering::Relaxed) && too_large {
            self.turns.notify_one();
        }
    }

    /// Returns when this connection has to close because it sent no request.
    async fn makes_room(&self, has_asked: &AtomicBool) {
        sleep(HEAD_PATIENCE).await;
        while !has_asked.load(Ordering::Relaxed) {
            self.turns.notified().await;
            match (self.is_too_large.load(Ordering::Relaxed), has_asked.load(Ordering::Relaxed)) {
                (true, false) => return,
                // Another connection may have to close.
                (true, true) => self.turns.notify_one(),
                (false, _) => {}
            }
        }
        std::future::pending().await
    }
}

async fn next(listener: &tokio::net::TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(_) => sleep(PAUSE).await,
        }
    }
}

async fn serve_connection<S, F>(stream: TcpStream, show: &S, open_connections: &OpenConnections)
where
    S: Fn(Page) -> F,
    F: Future<Output = Option<Shown>>,
{
    let has_asked = AtomicBool::new(false);
    let service = service_fn(|request: Request<_>| {
        has_asked.store(true, Ordering::Relaxed);
        async move { Ok::<_, Infallible>(answer(request.method(), request.uri().path(), show).await) }
    });
    let mut http = http1::Builder::new();
    // The whole connection has a time limit, so no part of it needs one. A client may close its side after the request
    // (`nc -N`).
    http.half_close(true).keep_alive(false).header_read_timeout(None).max_buf_size(HEAD_BYTES);
    // A client that hangs up needs no answer, and one with a bad request has received 400.
    tokio::select! {
        _ = http.serve_connection(TokioIo::new(stream), service) => {}
        () = open_connections.makes_room(&has_asked) => {}
    }
}

async fn answer<S, F>(method: &Method, path: &str, show: &S) -> Response<Full<Bytes>>
where
    S: Fn(Page) -> F,
    F: Future<Output = Option<Shown>>,
{
    const TEXT: &str = "text/plain; charset=utf-8";
    let Some(page) = Page::at(path) else { return response(StatusCode::NOT_FOUND, TEXT, NOT_FOUND.to_owned()) };
    if method != Method::GET && method != Method::HEAD {
        let mut refusal = response(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n".to_owned());
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    match show(page).await {
        Some(Shown { is_well, text }) => {
            let status = if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            let mut answer = response(status, page.media_type(), text);
            let headers = [
                (CONTENT_SECURITY_POLICY, page.policy()),
                (X_CONTENT_TYPE_OPTIONS, "nosniff"),
                (CACHE_CONTROL, "no-store"),
            ];
            answer.headers_mut().extend(headers.map(|(name, value)| (name, HeaderValue::from_static(value))));
            answer
        }
        None => response(StatusCode::SERVICE_UNAVAILABLE, TEXT, "unhealthy: the run is over\n".to_owned()),
    }
}

fn response(status: StatusCode, media_type: &'static str, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}
