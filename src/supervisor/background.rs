//! Long work on a thread of its own. To come with the checkpoint store.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use super::Job;
use crate::rules::job::Event;

#[derive(Debug, Default)]
pub(super) struct Background;

impl Background {
    pub(super) fn start(_: &Job) -> io::Result<Background> {
        Ok(Background)
    }
    pub(super) fn fd(&self) -> Option<RawFd> {
        None
    }
    pub(super) fn events(&mut self) -> Vec<Event> {
        Vec::new()
    }
    pub(super) fn restore(&mut self) {}
    pub(super) fn refresh(&mut self) {}
    pub(super) fn flush(&mut self, _: Option<Duration>) {}
    pub(super) fn incarnation(&self) -> Option<u64> {
        None
    }
}
