//! `--status-addr`: serves HTTP requests on the background thread. The content is state of the event loop, so the loop
//! answers each request between two turns, as on the status socket.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};

use tokio::sync::oneshot;

use crate::edge::net::http_server;
use crate::rules::status::page::{self, Shown};
use crate::supervisor::background::Teller;

/// The open listening socket.
#[derive(Debug)]
pub struct Page(TcpListener);

/// A request that the loop answers.
#[derive(Debug)]
pub(in crate::supervisor) struct Question {
    page: page::Page,
    answer: oneshot::Sender<Shown>,
}

impl Page {
    /// Opens the address and logs it. If that fails, the job runs without the page.
    pub fn open(address: SocketAddr) -> Option<Page> {
        let open = http_server::listen(address).and_then(|listener| Ok((listener.local_addr()?, listener)));
        match open {
            Ok((at, listener)) => {
                tracing::info!("the status is at http://{at}: /metrics for Prometheus, /healthz");
                Some(Page(listener))
            }
            Err(error) => {
                let way_out = way_out(&error);
                tracing::warn!(
                    code = "status_addr",
                    "cannot listen on {address}: {error}; the status cannot be scraped, training goes on; {way_out}"
                );
                None
            }
        }
    }

    /// Serves requests until it is dropped.
    pub(in crate::supervisor) async fn serve(self, teller: Teller) {
        let show = |page| {
            let (answer, shown) = oneshot::channel();
            teller.ask(Question { page, answer });
            async { shown.await.ok() }
        };
        let error = http_server::serve(self.0, show).await;
        tracing::warn!(code = "status_addr", "the status cannot be scraped: {error}; training goes on");
    }
}

impl Question {
    /// Sends the present content of the page.
    pub(in crate::supervisor) fn answer(self, show: impl FnOnce(page::Page) -> Shown) {
        // The client may have closed the connection.
        let _ = self.answer.send(show(self.page));
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
