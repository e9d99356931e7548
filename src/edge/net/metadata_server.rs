//! A metadata server on loopback, for simulations: HTTP/1.1 with requests that wait for a change of the state.
//! Deliberately absent: the content of the answers.

use std::convert::Infallible;
use std::net::TcpListener;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::sync::watch;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{sleep, timeout};

use crate::rules::simulate::metadata::{self, Reply, State};

/// The time that a request waits for a change, as Google's server does at most.
const LONGEST_WAIT: Duration = Duration::from_secs(120);
/// Connections of one server at once; later ones wait.
const CONNECTIONS: usize = 64;
/// Pause after a failed accept(2).
const PAUSE: Duration = Duration::from_secs(1);

/// Answers on all listeners, each with its own state, for as long as it is polled.
pub async fn serve_all<A>(servers: Vec<(TcpListener, watch::Receiver<State>)>, answer: A)
where
    A: Fn(&metadata::Request<'_>, State) -> Reply + Clone + 'static,
{
    let all = servers.into_iter().map(|(listener, state)| serve(listener, state, answer.clone()));
    LocalSet::new().run_until(join_all(all)).await;
}

async fn serve<A>(listener: TcpListener, state: watch::Receiver<State>, answer: A)
where
    A: Fn(&metadata::Request<'_>, State) -> Reply + Clone + 'static,
{
    let listener = listener.set_nonblocking(true).and_then(|()| tokio::net::TcpListener::from_std(listener));
    let Ok(listener) = listener else { return };
    let mut open = JoinSet::new();
    loop {
        while open.len() >= CONNECTIONS {
            open.join_next().await;
        }
        while open.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        let (state, answer) = (state.clone(), answer.clone());
        open.spawn_local(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let (state, answer) = (state.clone(), answer.clone());
                async move { Ok::<_, Infallible>(respond(&request, state, &answer).await) }
            });
            let _ =
                http1::Builder::new().header_read_timeout(None).serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn respond(
    request: &Request<Incoming>,
    mut state: watch::Receiver<State>,
    answer: &impl Fn(&metadata::Request<'_>, State) -> Reply,
) -> Response<Full<Bytes>> {
    let header = |name: &str| request.headers().get(name)?.to_str().ok().map(str::to_owned);
    let asked = metadata::Request {
        method: request.method().as_str(),
        path: request.uri().path(),
        query: request.uri().query().unwrap_or_default(),
        header: &header,
    };
    let waits = async {
        loop {
            let now = *state.borrow_and_update();
            match answer(&asked, now) {
                Reply::Answer(answer) => return answer,
                Reply::Hang(old) => {
                    if state.changed().await.is_err() {
                        return old;
                    }
                }
            }
        }
    };
    let answer = match timeout(LONGEST_WAIT, waits).await {
        Ok(answer) => answer,
        Err(_) => match answer(&asked, *state.borrow()) {
            Reply::Answer(answer) | Reply::Hang(answer) => answer,
        },
    };
    let mut response = Response::builder().status(answer.status);
    for (name, value) in &answer.headers {
        response = response.header(*name, value);
    }
    response.body(Full::new(Bytes::from(answer.body))).unwrap_or_default()
}
