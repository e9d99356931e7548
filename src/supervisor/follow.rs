//! Metrics out of the files that a trainer writes: TensorBoard's event files, and a file of records. A thread of its own
//! looks at them once a second; at the end of an attempt it looks once more, so that nothing is left behind.
//!
//! Of what one look finds in event files, measurements come in the order of their steps, whichever file they are in; a file of
//! records has an order of its own. Deliberately absent: what was in the files before the run; it belongs to another one.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use super::reporter::Sink;
use crate::edge::clock::Clock;
use crate::edge::follow::{Folder, Id, Named, Part, Seen};
use crate::edge::signals;
use crate::edge::wake::{Bell, Farewell};
use crate::rules::checkpoint::listing::parent_of;
use crate::rules::metric::event::{self, Scalar};
use crate::rules::metric::names::{Choice, Names};
use crate::rules::metric::pattern::Found;
use crate::rules::metric::records::{self, Lines};
use crate::rules::metric::tfrecord::{Record, Records};

/// Between two looks, at least; a look that takes long is followed by so many times its length.
const PAUSE: Duration = Duration::from_secs(1);
const REST: u32 = 50;

/// Event files have this in their names.
const EVENT_FILE: &str = "tfevents";

/// Which files are followed.
#[derive(Debug, Clone, Default)]
pub struct Files {
    /// The folder of TensorBoard's event files, and which of their tags are measurements; none: all.
    pub events: Option<(PathBuf, Vec<Choice>)>,
    /// A file of records.
    pub records: Option<PathBuf>,
}

impl Files {
    /// Whether there is anything to follow.
    pub fn any(&self) -> bool {
        self.events.is_some() || self.records.is_some()
    }
}

/// The thread that looks.
#[derive(Debug)]
pub(super) struct Follower {
    /// Asks for a look; rings when it is done, or when there is nobody left to do it.
    asks: mpsc::Sender<Farewell>,
}

impl Follower {
    /// The first look, at what is there before the trainer starts, has to be asked for. Errors: as pthread_create(3).
    pub(super) fn start(files: Files, sink: Sink) -> io::Result<Follower> {
        let (asks, asked) = mpsc::channel::<Farewell>();
        let mut eyes = Eyes::new(files, sink);
        signals::deaf_thread("follow", move || {
            let clock = Clock::start();
            let mut pause = PAUSE;
            loop {
                let farewell = match asked.recv_timeout(pause) {
                    Ok(farewell) => Some(farewell),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => return,
                };
                let begin = clock.now();
                eyes.look();
                if farewell.is_some() {
                    eyes.finish();
                }
                drop(farewell);
                pause = PAUSE.max(clock.now().saturating_sub(begin) * REST);
            }
        })?;
        Ok(Follower { asks })
    }

    /// Takes what was written so far, an unfinished last line too; rings when that is done. Errors: as eventfd(2).
    pub(super) fn look(&self) -> io::Result<Bell> {
        let done = Bell::new()?;
        // Where the thread has gone, what is not taken rings.
        let _ = self.asks.send(Farewell(done.clone()));
        Ok(done)
    }
}

/// What the thread knows.
struct Eyes {
    events: Option<Events>,
    records: Option<(Named, Lines)>,
    sink: Sink,
    told: Told,
}

/// What was complained of, by file. One of a kind: a file that is damaged throughout would fill the log.
#[derive(Default)]
struct Told(HashMap<PathBuf, Vec<Complaint>>);

#[derive(Clone, Copy, PartialEq)]
enum Complaint {
    /// What lies there cannot be read.
    Unreadable,
    /// A line is left out: this one, such as `a long line`.
    Line(&'static str),
    /// A record is left out.
    Record,
    /// What follows is left out.
    Rest,
}

impl Told {
    /// Tells of it, unless that was done before.
    fn tell(&mut self, path: &Path, complaint: Complaint, text: impl FnOnce() -> String) {
        if self.0.get(path).is_some_and(|told| told.contains(&complaint)) {
            return;
        }
        self.0.entry(path.to_owned()).or_default().push(complaint);
        tracing::warn!("{}", text());
    }
}

struct Events {
    folder: Folder,
    names: Names,
    files: HashMap<Id, Records>,
    is_first: bool,
}

impl Eyes {
    fn new(files: Files, sink: Sink) -> Eyes {
        let events = files.events.map(|(dir, choices)| Events {
            folder: Folder::new(dir, |name| name.contains(EVENT_FILE)),
            names: Names::new(choices),
            files: HashMap::new(),
            is_first: true,
        });
        let records = files.records.map(|path| (Named::new(path), Lines::default()));
        Eyes { events, records, sink, told: Told::default() }
    }

    fn look(&mut self) {
        let (sink, told) = (&self.sink, &mut self.told);
        if let Some(events) = &mut self.events {
            while events.look(sink, told) {}
        }
        let Some((file, lines)) = &mut self.records else { return };
        let path = file.path().to_owned();
        let shown = path.display();
        loop {
            let mut found = Vec::new();
            let mut read = |line: &[u8]| {
                let (all, left_out) = records::read(line);
                found.extend(all);
                if let Some((what, why)) = left_out {
                    told.tell(&path, Complaint::Line(what), || format!("{what} of {shown} is left out: {why}"));
                }
            };
            let more = file.look(|seen| match seen {
                Seen::Bytes(bytes) => lines.feed(bytes, &mut read),
                Seen::End => lines.finish(&mut read),
            });
            sink.take(found.into_iter().map(|found| (None, found)));
            match more {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    let text = || format!("{shown} cannot be followed, its metrics are missing: {error}");
                    return told.tell(&path, Complaint::Unreadable, text);
                }
            }
        }
    }

    /// An unfinished last line is a line.
    fn finish(&mut self) {
        if let Some((_, lines)) = &mut self.records {
            let mut found = Vec::new();
            // What is no object yet may go on in the next attempt.
            lines.finish(|line| found.extend(records::read(line).0));
            self.sink.take(found.into_iter().map(|found| (None, found)));
        }
    }
}

impl Events {
    /// Reads on; returns whether there is more.
    fn look(&mut self, sink: &Sink, told: &mut Told) -> bool {
        let mut found: Vec<(i64, Found)> = Vec::new();
        let dir = self.folder.path().to_owned();
        let (names, files) = (&mut self.names, &mut self.files);
        let more = self.folder.look(|Part { id, path, passed_over, seen }| {
            let Seen::Bytes(bytes) = seen else {
                files.remove(&id);
                return;
            };
            let mut complain = |complaint, what: &str| {
                let at = dir.join(path);
                told.tell(&at, complaint, || format!("{}: {what}", at.display()));
            };
            files.entry(id).or_default().feed(bytes, |record| match record {
                Record::Whole { end, .. } if end <= passed_over => {}
                Record::Whole { data, .. } => match event::scalars(data) {
                    Ok(scalars) => {
                        for Scalar { tag, value, step, wall_time } in scalars {
                            let (name, warning) = names.name(parent_of(path), &tag);
                            if let Some(warning) = warning {
                                tracing::warn!("{warning}");
                            }
                            if let Some(name) = name {
                                let tag = Some(name.into_owned());
                                let time = Some(wall_time).filter(|time| time.is_finite() && *time > 0.0);
                                found.push((step, Found { tag, value, step: Some(step.to_string()), time }));
                            }
                        }
                    }
                    Err(error) => {
                        complain(Complaint::Record, &format!("a record is left out, it is {error}"));
                    }
                },
                Record::Damaged => complain(Complaint::Record, "a record is left out, its checksum is wrong"),
                Record::Lost => complain(
                    Complaint::Rest,
                    "the rest of this event file is left out, the length of a record is damaged",
                ),
            });
        });
        if std::mem::take(&mut self.is_first) && self.folder.count() > 0 {
            tracing::info!(
                "{} event files under {} were there before this run; what they hold is not reported",
                self.folder.count(),
                self.folder.path().display()
            );
        }
        found.sort_by_key(|(step, _)| *step);
        sink.take(found.into_iter().map(|(_, found)| (None, found)));
        more.unwrap_or_else(|error| {
            let folder = self.folder.path();
            let text = || format!("{} cannot be read, metrics of it are missing: {error}", folder.display());
            told.tell(folder, Complaint::Unreadable, text);
            false
        })
    }
}
