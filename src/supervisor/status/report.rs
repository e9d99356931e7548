//! `--run-report`: the page about the run in a file, written at each commit and at the end. A thread of its own renders and
//! writes it, because a file system may hang.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use crate::edge::fs::replace;
use crate::edge::host::limits;
use crate::edge::process::signals;
use crate::rules::status::html::{self, RunView};
use crate::supervisor::status::history::History;

/// The thread that writes.
#[derive(Debug)]
pub(in crate::supervisor) struct Report {
    path: PathBuf,
    views: mpsc::Sender<RunView>,
    /// Disconnects when the thread has ended.
    gone: mpsc::Receiver<()>,
}

impl Report {
    /// Starts the thread. Without one the job runs without the report.
    pub(in crate::supervisor) fn start(path: PathBuf, history: History) -> Option<Report> {
        let (views, arrives) = mpsc::channel::<RunView>();
        let (going, gone) = mpsc::channel();
        let to = path.clone();
        let started = signals::thread_without_signals("report", move || {
            let _going = going;
            let mut logged = String::new();
            while let Ok(mut view) = arrives.recv() {
                // Only the newest page is written.
                while let Ok(newer) = arrives.try_recv() {
                    view = newer;
                }
                write(&to, &html::report(&view, &history.copy()), &mut logged);
            }
        });
        match started {
            Ok(()) => Some(Report { path, views, gone }),
            Err(error) => {
                tracing::warn!(
                    "no report is written to {}, because a thread could not be started: {error}; training continues",
                    path.display()
                );
                None
            }
        }
    }

    /// Writes the report soon.
    pub(in crate::supervisor) fn write(&self, view: RunView) {
        let _ = self.views.send(view);
    }

    /// Waits for the last report for a limited time.
    pub(in crate::supervisor) fn finish(self, limit: Duration) {
        drop(self.views);
        if self.gone.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(
                "the report could not be written to {} before the end of the run: an older one, or none, is there; check \
                 whether its file system hangs",
                self.path.display()
            );
        }
    }
}

/// Logs each kind of error once.
fn write(path: &Path, page: &str, logged: &mut String) {
    if let Err(error) = replace::replace(path, page.as_bytes()) {
        let complaint = error.to_string();
        if *logged != complaint {
            let way_out =
                limits::way_out(&error, "make its directory writable for this user, or name another --run-report");
            tracing::warn!(
                "the report could not be written to {}: {error}; training continues; {way_out}",
                path.display()
            );
            *logged = complaint;
        }
    }
}
