//! Reads metrics from files that a trainer writes: TensorBoard event files, and a file of records. A thread polls them
//! once a second, and once more at the end of an attempt, so that nothing is missed.
//!
//! Measurements that one poll finds in event files are reported in the order of their steps, across files; a file of
//! records keeps its own order. Deliberately absent: data from before the run, which belongs to another run.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use crate::edge::clock::Clock;
use crate::edge::fs::follow::{Folder, Id, Named, Part, Seen};
use crate::edge::io::eventfd::{EventFd, NotifyOnDrop};
use crate::edge::process::signals;
use crate::rules::checkpoint::listing::parent_of;
use crate::rules::metric::files::event::{self, Scalar};
use crate::rules::metric::files::names::{Choice, Names};
use crate::rules::metric::files::records::{Lines, Reader};
use crate::rules::metric::files::tfrecord::{Record, Records};
use crate::rules::metric::output::pattern::Found;
use crate::rules::metric::sources::{self, Sources};
use crate::rules::text::quoted::shown;
use crate::supervisor::metrics::reporter::Sink;

/// The shortest pause between two polls, and the pause after a slow poll as a multiple of its length.
const PAUSE: Duration = Duration::from_secs(1);
const REST: u32 = 50;
/// Rounds over the files in one poll, each of some MiB per file. The limit keeps a fast writer from delaying an order.
const ROUNDS: usize = 4;
/// The same at the end of an attempt, when the rest is read. More would exceed the time limit.
const MOST_ROUNDS: usize = 256;

/// The names of event files contain this.
const EVENT_FILE: &str = "tfevents";

/// The places of metrics, for warnings.
const EVENT_FILES: &str = "the event files";
const RECORDS: &str = "the file of --metric-file";

/// The files to follow.
#[derive(Debug, Clone, Default)]
pub struct Files {
    /// The directory of TensorBoard event files, and the tags that are measurements; empty for all.
    pub events: Option<(PathBuf, Vec<Choice>)>,
    /// A file of records.
    pub records: Option<PathBuf>,
    /// The name of the step in a record, if it is not one of the usual names.
    pub step: Option<String>,
    /// Tags that another part of trainit needs.
    pub asked: Vec<String>,
}

impl Files {
    /// Whether there is a file to follow.
    pub fn any(&self) -> bool {
        self.events.is_some() || self.records.is_some()
    }
}

/// The thread that polls.
#[derive(Debug)]
pub(in crate::supervisor) struct Follower {
    /// Requests a poll. The eventfd is notified when the poll is done, or when the thread has ended.
    asks: mpsc::Sender<NotifyOnDrop>,
}

impl Follower {
    /// Starts the thread. The caller requests the first poll, of the content that exists before the trainer starts.
    /// Errors: as pthread_create(3).
    pub(in crate::supervisor) fn start(files: Files, sink: Sink) -> io::Result<Follower> {
        let (asks, asked) = mpsc::channel::<NotifyOnDrop>();
        let mut eyes = FileReader::new(files, sink);
        signals::thread_without_signals("follow", move || {
            let clock = Clock::start();
            let mut pause = PAUSE;
            loop {
                let farewell = match asked.recv_timeout(pause) {
                    Ok(farewell) => Some(farewell),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => return,
                };
                let begin = clock.now();
                let is_more = eyes.look(if farewell.is_some() { MOST_ROUNDS } else { ROUNDS });
                if farewell.is_some() {
                    eyes.finish();
                }
                drop(farewell);
                pause = if is_more { Duration::ZERO } else { PAUSE.max(clock.now().saturating_sub(begin) * REST) };
            }
        })?;
        Ok(Follower { asks })
    }

    /// Reads the data written so far, an unfinished last line included. The eventfd is notified when that is done.
    /// Errors: as eventfd(2).
    pub(in crate::supervisor) fn look(&self) -> io::Result<EventFd> {
        let done = EventFd::new()?;
        // After the thread has ended, the rejected request notifies the eventfd when it is dropped.
        let _ = self.asks.send(NotifyOnDrop(done.clone()));
        Ok(done)
    }
}

/// The state of the thread.
struct FileReader {
    events: Option<Events>,
    records: Option<RecordFile>,
    sink: Sink,
    /// The sources at the end of the previous attempt.
    before: Sources,
    /// The warnings about files without metrics of an attempt.
    warned: BTreeSet<String>,
    logged: LoggedComplaints,
}

/// The logged complaints, by file. Each kind is logged once per file: a file that is damaged throughout would fill the
/// log.
#[derive(Default)]
struct LoggedComplaints(HashMap<PathBuf, Vec<Complaint>>);

#[derive(Clone, Copy, PartialEq)]
enum Complaint {
    /// The file or directory cannot be read.
    Unreadable,
    /// A record is skipped.
    Record,
    /// The rest of the file is skipped.
    Rest,
}

impl LoggedComplaints {
    /// Logs the complaint unless it was logged before.
    fn log(&mut self, path: &Path, complaint: Complaint, text: impl FnOnce() -> String) {
        if self.0.get(path).is_some_and(|logged| logged.contains(&complaint)) {
            return;
        }
        self.0.entry(path.to_owned()).or_default().push(complaint);
        tracing::warn!("{}", text());
    }
}

/// A file of records.
struct RecordFile {
    file: Named,
    lines: Lines,
    reader: Reader,
    exists: bool,
}

struct Events {
    folder: Folder,
    names: Names,
    seen: sources::Events,
    files: HashMap<Id, Records>,
    is_first: bool,
}

impl FileReader {
    fn new(files: Files, sink: Sink) -> FileReader {
        let events = files.events.map(|(dir, choices)| Events {
            seen: sources::Events::new(shown(&dir.to_string_lossy()).into_owned()),
            folder: Folder::new(dir, |name| name.contains(EVENT_FILE)),
            names: Names::new(choices),
            files: HashMap::new(),
            is_first: true,
        });
        let records = files.records.map(|path| RecordFile {
            reader: Reader::new(shown(&path.to_string_lossy()).into_owned(), files.step.as_deref(), files.asked),
            file: Named::new(path),
            lines: Lines::default(),
            exists: false,
        });
        let (before, warned, logged) = Default::default();
        FileReader { events, records, sink, before, warned, logged }
    }

    /// Reads at most `rounds` rounds; returns whether there is more.
    fn look(&mut self, rounds: usize) -> bool {
        let (sink, logged) = (&self.sink, &mut self.logged);
        let events = self.events.as_mut();
        let is_more = events.is_some_and(|events| (0..rounds).all(|_| events.look(sink, logged)));
        let records = self.records.as_mut();
        let is_more = records.is_some_and(|records| records.look(sink, logged, rounds)) || is_more;
        self.note();
        is_more
    }

    /// An attempt has ended: treats an unfinished last line as complete.
    fn finish(&mut self) {
        if let Some(records) = &mut self.records {
            records.finish(&self.sink);
        }
        self.note();
        let now = self.sources();
        for warning in now.without_new_metrics(&self.before) {
            if self.warned.insert(warning.clone()) {
                tracing::warn!("{warning}");
            }
        }
        self.before = now;
    }

    fn sources(&self) -> Sources {
        let events = self.events.as_ref().map(|events| events.seen.clone());
        Sources { output: None, events, file: self.records.as_ref().map(RecordFile::seen) }
    }

    fn note(&self) {
        let now = self.sources();
        self.sink.note(|sources| *sources = Sources { output: sources.output, ..now });
    }
}

impl RecordFile {
    /// Reads at most `rounds` rounds; returns whether there is more.
    fn look(&mut self, sink: &Sink, logged: &mut LoggedComplaints, rounds: usize) -> bool {
        let RecordFile { file, lines, reader, exists } = self;
        let path = file.path().to_owned();
        for _ in 0..rounds {
            let mut found = Vec::new();
            let more = file.look(|seen| match seen {
                Seen::Before(line) => reader.skip(line),
                Seen::Bytes(bytes) => lines.feed(bytes, |line| found.extend(read(reader, line))),
                Seen::End => {
                    lines.finish(|line| found.extend(read(reader, line)));
                    found.extend(logged_remarks(reader.finish()));
                    reader.start_again();
                }
            });
            *exists |= file.exists();
            sink.of(RECORDS).take(found.into_iter().map(|found| (None, found)));
            match more {
                Ok(true) => {}
                Ok(false) => return false,
                Err(error) => {
                    let text = || format!("{} cannot be followed, its metrics are missing: {error}", path.display());
                    logged.log(&path, Complaint::Unreadable, text);
                    return false;
                }
            }
        }
        true
    }

    fn finish(&mut self, sink: &Sink) {
        let (lines, reader, mut found) = (&mut self.lines, &mut self.reader, Vec::new());
        lines.finish(|line| found.extend(read(reader, line)));
        found.extend(logged_remarks(reader.finish()));
        sink.of(RECORDS).take(found.into_iter().map(|found| (None, found)));
    }

    fn seen(&self) -> sources::Records {
        let shown = shown(&self.file.path().to_string_lossy()).into_owned();
        sources::Records { shown, exists: self.exists, counts: self.reader.counts() }
    }
}

/// The measurements of a line. Logs a warning for each part that cannot be read.
fn read(reader: &mut Reader, line: &[u8]) -> Vec<Found> {
    logged_remarks(reader.read(line))
}

fn logged_remarks((found, remarks): (Vec<Found>, Vec<String>)) -> Vec<Found> {
    remarks.iter().for_each(|remark| tracing::warn!("{remark}"));
    found
}

impl Events {
    /// Reads on; returns whether there is more.
    fn look(&mut self, sink: &Sink, logged: &mut LoggedComplaints) -> bool {
        let mut found: Vec<(i64, Found)> = Vec::new();
        let dir = self.folder.path().to_owned();
        let (names, files, noted) = (&mut self.names, &mut self.files, &mut self.seen);
        let more = self.folder.look(|Part { id, path, passed_over, seen }| {
            let Seen::Bytes(bytes) = seen else {
                files.remove(&id);
                return;
            };
            let mut complain = |complaint, what: &str| {
                let at = dir.join(path);
                logged.log(&at, complaint, || format!("{}: {what}", at.display()));
            };
            files.entry(id).or_default().feed(bytes, |record| match record {
                Record::Whole { end, .. } if end <= passed_over => {}
                Record::Whole { data, .. } => match event::scalars(data) {
                    Ok(scalars) => {
                        for Scalar { tag, value, step, wall_time } in scalars {
                            noted.note(parent_of(path), &tag);
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
                        complain(Complaint::Record, &format!("a record is skipped, it is {error}"));
                    }
                },
                Record::Damaged => complain(Complaint::Record, "a record is skipped, its checksum is wrong"),
                Record::Lost => complain(
                    Complaint::Rest,
                    "the rest of this event file is skipped, the length of a record is damaged",
                ),
            });
        });
        if std::mem::take(&mut self.is_first) && self.folder.count() > 0 {
            tracing::info!(
                "{} event files under {} existed before this run; their content is not reported",
                self.folder.count(),
                self.folder.path().display()
            );
        }
        self.seen.files = self.folder.count();
        found.sort_by_key(|(step, _)| *step);
        sink.of(EVENT_FILES).take(found.into_iter().map(|(_, found)| (None, found)));
        more.unwrap_or_else(|error| {
            let folder = self.folder.path();
            let text = || format!("{} cannot be read, metrics of it are missing: {error}", folder.display());
            logged.log(folder, Complaint::Unreadable, text);
            false
        })
    }
}
