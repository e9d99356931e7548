//! A small HTTP/1.1 server for the status pages: GET and HEAD, one request a connection, a few connections at once, each
//! for a few seconds: no client, slow or hostile, holds up more than itself. Deliberately absent: TLS, what is said.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http_body_util::Full;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::rules::status::page::{NOWHERE, Page, Shown};

/// Connections at once; who comes then waits.
const CONNECTIONS: usize = 8;
/// A connection's whole life.
const PATIENCE: Duration = Duration::from_secs(5);
/// Before the next try where no connection can be had, as without descriptors.
const PAUSE: Duration = Duration::from_secs(1);
/// Of a request's head; hyper takes no less.
const HEAD_BYTES: usize = 8 << 10;

/// Errors: as bind(2).
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Answers until it is dropped; comes back only where the runtime does not take the listener. `show` makes a page; `None`:
/// there is nobody left to make it.
pub async fn serve<S, F>(listener: TcpListener, show: S) -> io::Error
where
    S: Fn(Page) -> F,
    F: Future<Output = Option<Shown>>,
{
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return error,
    };
    let mut open = FuturesUnordered::new();
    loop {
        tokio::select! {
            stream = next(&listener), if open.len() < CONNECTIONS => open.push(timeout(PATIENCE, talk(stream, &show))),
            Some(_) = open.next(), if !open.is_empty() => {}
        }
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

async fn talk<S, F>(stream: TcpStream, show: &S)
where
    S: Fn(Page) -> F,
    F: Future<Output = Option<Shown>>,
{
    let service = service_fn(|request: Request<_>| async move {
        Ok::<_, Infallible>(answer(request.method(), request.uri().path(), show).await)
    });
    let mut http = http1::Builder::new();
    // The whole connection has a limit: none of its parts needs one.
    http.keep_alive(false).header_read_timeout(None).max_buf_size(HEAD_BYTES);
    // Who hangs up or talks rubbish is no concern of ours: the latter has been told 400.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

async fn answer<S, F>(method: &Method, path: &str, show: &S) -> Response<Full<Bytes>>
where
    S: Fn(Page) -> F,
    F: Future<Output = Option<Shown>>,
{
    const TEXT: &str = "text/plain; charset=utf-8";
    let Some(page) = Page::at(path) else { return response(StatusCode::NOT_FOUND, TEXT, NOWHERE.to_owned()) };
    if method != Method::GET && method != Method::HEAD {
        let mut refusal = response(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n".to_owned());
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    match show(page).await {
        Some(Shown { is_well: true, text }) => response(StatusCode::OK, page.media_type(), text),
        Some(Shown { is_well: false, text }) => response(StatusCode::SERVICE_UNAVAILABLE, page.media_type(), text),
        None => response(StatusCode::SERVICE_UNAVAILABLE, TEXT, "unhealthy: the run is over\n".to_owned()),
    }
}

fn response(status: StatusCode, media_type: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}
