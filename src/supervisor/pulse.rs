//! Looks at the trainer when the machine asks whether it is alive, and says what happened since the last look. What that
//! means is `rules/job/hang.rs`'s.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::UNIX_EPOCH;

use crate::edge::descendants::Descendant;
use crate::edge::files;
use crate::edge::threads;
use crate::rules::job::{Event, Pulse, Sample, Uptime};

/// A heartbeat file is a few digits.
const HEARTBEAT_BYTES: usize = 4096;

/// What is known of the last look.
#[derive(Debug)]
pub(super) struct PulseDesk {
    heartbeat: Option<String>,
    /// Bytes of output so far.
    heard: Arc<AtomicU64>,
    last: Option<Sample>,
    /// It was said that the processes cannot be seen.
    told_blind: bool,
}

impl PulseDesk {
    pub(super) fn new(heartbeat: Option<String>, heard: Arc<AtomicU64>) -> PulseDesk {
        PulseDesk { heartbeat, heard, last: None, told_blind: false }
    }

    /// An attempt is about to start: the last one's heart beats no more.
    pub(super) fn begin(&mut self) {
        if let Some(path) = &self.heartbeat {
            let _ = fs::remove_file(path);
        }
        self.last = None;
    }

    /// Looks at the heartbeat file, the output and the processes. The first look of an attempt has nothing to compare the
    /// processes with.
    pub(super) fn feel(&mut self, now: Uptime, tree: Option<Vec<Descendant>>) -> Event {
        if tree.is_none() && !std::mem::replace(&mut self.told_blind, true) {
            tracing::warn!(
                "without a /proc of its own PID namespace, the hang watch sees neither a thread at work nor reading or \
                 writing: only heartbeats, output and commits are signs of life; mount /proc, or let the trainer touch \
                 TRAINIT_HEARTBEAT_FILE"
            );
        }
        let (beat, step) = self.beat();
        let output = self.heard.load(Ordering::Relaxed);
        let mut sample = Sample { at: now, beat, step, output, ..Sample::default() };
        for process in tree.unwrap_or_default() {
            let vitals = threads::vitals(process.pid);
            let busy = vitals.busy_ns.into_iter().map(|(tid, ns)| ((process.pid, tid, process.started), ns));
            sample.threads.extend(busy);
            sample.moved.insert((process.pid, process.started), vitals.moved_bytes);
            sample.stopped |= vitals.is_stopped;
        }
        let first =
            || Sample { at: now, output, moved: sample.moved.clone(), threads: BTreeMap::new(), ..Sample::default() };
        let pulse = sample.since(self.last.as_ref().unwrap_or(&first()));
        self.last = Some(sample);
        Event::Pulse(pulse)
    }

    /// The step that the last heartbeat of an attempt named, which nobody may have looked at.
    pub(super) fn last_step(&self) -> Option<Event> {
        let (_, step) = self.beat();
        step.map(|_| Event::Pulse(Pulse { step, ..Pulse::default() }))
    }

    /// The heartbeat file's modification time and the step in it: `{"step": 12}`. The trainer may be another user than we: we
    /// follow no link of theirs.
    fn beat(&self) -> (Option<i128>, Option<u64>) {
        let Some(path) = &self.heartbeat else { return (None, None) };
        let file = fs::symlink_metadata(path).ok().filter(Metadata::is_file);
        let Some(modified) = file.and_then(|file| file.modified().ok()) else { return (None, None) };
        let nanos = match modified.duration_since(UNIX_EPOCH) {
            Ok(since) => since.as_nanos() as i128,
            Err(before) => -(before.duration().as_nanos() as i128),
        };
        let text = files::read_small_itself(path, HEARTBEAT_BYTES).ok().flatten().unwrap_or_default();
        let step = serde_json::from_str::<serde_json::Value>(&text).ok().and_then(|v| v.get("step")?.as_u64());
        (Some(nanos), step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_no_heartbeat() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
        fs::write(path("file"), "{\"step\": 3}").expect("a file");
        std::os::unix::fs::symlink(path("file"), path("link")).expect("a link");
        let beat = |name: &str| PulseDesk::new(Some(path(name)), Arc::default()).beat();
        assert!(matches!(beat("file"), (Some(_), Some(3))));
        assert_eq!((beat("link"), beat("absent")), ((None, None), (None, None)));
    }
}
