//! `--status-addr`: who scrapes asks over HTTP on the background thread. What stands there only the loop knows: it is asked
//! for each answer, and gives it between two of its turns, as on the status socket. A build without the feature
//! `status-page` has `page_left_out.rs` in this file's place.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};

use tokio::sync::oneshot;

use super::background::Teller;
use crate::edge::http_server;
use crate::rules::status::page::{self, Shown};

/// Where scrapers ask, open.
#[derive(Debug)]
pub struct Page(TcpListener);

/// Asked by a scraper, answered by the loop.
#[derive(Debug)]
pub(super) struct Question {
    page: page::Page,
    answer: oneshot::Sender<Shown>,
}

impl Page {
    /// Opens the address, and says where that is; where it cannot be, the job goes on without.
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
                    "cannot listen on {address}: {error}; there is nothing to scrape, training goes on; {way_out}"
                );
                None
            }
        }
    }

    /// Answers until it is dropped.
    pub(super) async fn serve(self, teller: Teller) {
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
    /// Hands out what the page shows now.
    pub(super) fn answer(self, show: impl FnOnce(page::Page) -> Shown) {
        // Who asked may have hung up.
        let _ = self.answer.send(show(self.page));
    }
}

fn way_out(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::AddrInUse => "end who listens there, or give another port in --status-addr (0: any that is free)",
        ErrorKind::AddrNotAvailable => "give an address of this host in --status-addr, or 0.0.0.0 for all of them",
        ErrorKind::PermissionDenied => "give a port from 1024 on in --status-addr",
        _ => "give another address in --status-addr",
    }
}
