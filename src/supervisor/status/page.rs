//! `--status-addr`: serves HTTP requests on the background thread. The facts are state of the event loop, so the loop gives
//! them between two turns, as on the status socket. The background thread renders the page from these facts.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::edge::clock::Clock;
use crate::edge::net::http_server;
use crate::rules::status::history as rules;
use crate::rules::status::html::RunView;
use crate::rules::status::page::{self, Shown};
use crate::supervisor::background::orders::EventSender;
use crate::supervisor::status::history::History;

/// The run's page is rendered at most once in this time, for any number of readers.
const FRESH: Duration = Duration::from_secs(1);

/// The open listening socket.
#[derive(Debug)]
pub struct Page(TcpListener);

/// A request that the loop answers.
#[derive(Debug)]
pub(in crate::supervisor) struct Question(pub(super) oneshot::Sender<RunView>);

impl Page {
    /// Opens the address and logs it. If that fails, the job runs without the page.
    pub fn open(address: SocketAddr) -> Option<Page> {
        let open = http_server::listen(address).and_then(|listener| Ok((listener.local_addr()?, listener)));
        match open {
            Ok((at, listener)) => {
                tracing::info!("the status is at http://{at}: / shows the run, /metrics for Prometheus, /healthz");
                Some(Page(listener))
            }
            Err(error) => {
                let way_out = way_out(&error);
                tracing::warn!(
                    code = "status_addr",
                    "cannot listen on {address}: {error}; the status cannot be scraped, training continues; {way_out}"
                );
                None
            }
        }
    }

    /// Serves requests until it is dropped.
    pub(in crate::supervisor) async fn serve(self, events: EventSender, history: History) {
        let clock = Clock::start();
        let last = RefCell::new(None::<(Duration, Shown)>);
        let show = async |page| {
            let fresh = last.borrow().clone().filter(|(at, _)| page == page::Page::Run && clock.now() - *at < FRESH);
            if let Some((_, shown)) = fresh {
                return Some(shown);
            }
            let (answer, view) = oneshot::channel();
            events.ask(Question(answer));
            let shown = match page {
                page::Page::Run => page.show(&view.await.ok()?, &history.copy()),
                _ => page.show(&view.await.ok()?, &rules::History::default()),
            };
            if page == page::Page::Run {
                last.replace(Some((clock.now(), shown.clone())));
            }
            Some(shown)
        };
        let error = http_server::serve(self.0, show).await;
        tracing::warn!(code = "status_addr", "the status cannot be scraped: {error}; training continues");
    }
}

impl Question {
    /// Sends the present facts.
    pub(in crate::supervisor) fn answer(self, view: RunView) {
        // The client may have closed the connection.
        let _ = self.0.send(view);
    }
}

fn way_out(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::AddrInUse => {
            "stop the process that listens there, or give another port in --status-addr (0: any that is free)"
        }
        ErrorKind::AddrNotAvailable => "give an address of this host in --status-addr, or 0.0.0.0 for all of them",
        ErrorKind::PermissionDenied => "give a port from 1024 on in --status-addr",
        _ => "give another address in --status-addr",
    }
}
