//! A build without an HTTP server shows nothing: there is no [`Page`] to be had, and so nobody who asks. `settings` says so
//! to whoever wants one.

use std::net::SocketAddr;

use super::background::Teller;
use crate::rules::status::page::{self, Shown};

/// Where scrapers ask: nowhere.
#[derive(Debug)]
pub enum Page {}

/// Asked by nobody.
#[derive(Debug)]
pub(super) enum Question {}

impl Page {
    /// There is none.
    pub fn open(_: SocketAddr) -> Option<Page> {
        None
    }

    pub(super) async fn serve(self, _: Teller) {
        match self {}
    }
}

impl Question {
    pub(super) fn answer(self, _: impl FnOnce(page::Page) -> Shown) {
        match self {}
    }
}
