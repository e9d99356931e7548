//! One run of trainit as an object of the store: `.trainit/runs/0000000007.json`. It has no secret, and nothing of the command.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::text::safe_text::printable;

/// The version of the object's form.
pub const SCHEMA: &str = "trainit.run/1";
/// The versions that this program does not know have this prefix, too.
const FAMILY: &str = "trainit.run/";
/// The prefix of the objects' keys.
pub const RUNS: &str = ".trainit/runs";
/// The longest object that is read, in bytes.
pub const LIMIT: u64 = 256 << 10;
/// The largest number of restores in an object: the newest.
pub const MOST_RESTORES: usize = 100;
/// Characters of a foreign name that are shown.
const SHOWN: usize = 60;

/// What does not change during a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The platform's id of the job; empty if it has none.
    #[serde(default)]
    pub job: String,
    /// `node/0`: the replica.
    pub seat: String,
    /// The name of the host.
    #[serde(default)]
    pub host: String,
    /// The platform, as in `--platform`.
    #[serde(default)]
    pub platform: String,
    /// The number of replicas.
    #[serde(default)]
    pub nodes: u32,
    /// The GPUs of this replica.
    #[serde(default)]
    pub gpus: u32,
}

/// A restore of a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Restored {
    /// Bytes from the store.
    pub bytes_store: u64,
    /// Bytes from other replicas.
    pub bytes_peers: u64,
    /// Its duration.
    pub seconds: f64,
}

/// What the runs before this one tell, so that a run can give advice without reading all of them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Earlier {
    /// The highest step.
    pub step: Option<u64>,
    /// Their faults.
    pub faults: u64,
    /// The sum of their durations.
    pub seconds: f64,
}

/// A run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`SCHEMA`].
    pub schema: String,
    /// Which replica, where.
    #[serde(flatten)]
    pub identity: Identity,
    /// Its number in the store, from 1.
    pub attempt: u64,
    /// Its start, in RFC 3339.
    pub started: String,
    /// When this object was written.
    pub last_seen: String,
    /// Its end; absent while it runs, and for ever if it was killed.
    #[serde(default)]
    pub ended: Option<String>,
    /// Why it ended, as in the verdict.
    #[serde(default)]
    pub reason: Option<String>,
    /// trainit's exit code.
    #[serde(default)]
    pub exit_code: Option<u8>,
    /// Its time by cause.
    pub seconds: BTreeMap<String, f64>,
    /// The step of the checkpoint that its first attempt resumed from.
    #[serde(default)]
    pub resumed_step: Option<u64>,
    /// Its first step.
    #[serde(default)]
    pub first_step: Option<u64>,
    /// Its highest step.
    #[serde(default)]
    pub last_step: Option<u64>,
    /// Steps that it, or an earlier run, had reached before.
    #[serde(default)]
    pub repeated_steps: u64,
    /// Starts of the command.
    #[serde(default)]
    pub starts: u32,
    /// Commits, their bytes and their duration.
    #[serde(default)]
    pub commits: u64,
    #[serde(default)]
    #[allow(missing_docs, reason = "see above")]
    pub commit_bytes: u64,
    #[serde(default)]
    #[allow(missing_docs, reason = "see above")]
    pub commit_seconds: f64,
    /// The newest restores.
    #[serde(default)]
    pub restores: Vec<Restored>,
    /// Failures of this replica after which the command was started again, by reason.
    #[serde(default)]
    pub failures: BTreeMap<String, u64>,
    /// The time for which a save stops the training.
    #[serde(default)]
    pub stall_seconds: Option<f64>,
    /// The time between two saves.
    #[serde(default)]
    pub save_interval_seconds: Option<f64>,
    /// The job's highest memory use.
    #[serde(default)]
    pub peak_memory_bytes: Option<u64>,
    /// The runs before.
    #[serde(default)]
    pub earlier: Earlier,
}

/// Why an object is not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unread {
    /// It is not whole.
    Half,
    /// A newer version has written it.
    Newer,
    /// It is no object of a run of this job.
    Foreign,
}

impl Run {
    /// Reads the object of this attempt. Errors: why it is not counted.
    pub fn read(attempt: u64, bytes: &[u8]) -> Result<Run, Unread> {
        let value: serde_json::Value = serde_json::from_slice(bytes).map_err(|_| Unread::Half)?;
        match value.get("schema").and_then(serde_json::Value::as_str) {
            Some(SCHEMA) => {}
            Some(other) if other.starts_with(FAMILY) => return Err(Unread::Newer),
            _ => return Err(Unread::Foreign),
        }
        let run: Run = serde_json::from_value(value).map_err(|_| Unread::Foreign)?;
        let has_times = [Some(&run.started), Some(&run.last_seen), run.ended.as_ref()];
        let has_times = has_times.into_iter().flatten().all(|text| since_1970(text).is_some());
        let is_sound = run.seconds.values().all(|seconds| *seconds >= 0.0 && *seconds < 1e11);
        (run.attempt == attempt && has_times && is_sound).then_some(run).ok_or(Unread::Foreign)
    }

    /// The object's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    /// The time of a cause, in seconds.
    pub fn of(&self, cause: &str) -> f64 {
        self.seconds.get(cause).copied().unwrap_or(0.0)
    }

    /// Its duration; of a killed run until its object was written last.
    pub fn duration(&self) -> f64 {
        self.seconds.values().sum()
    }

    /// Why it ended. A run without an end was killed, or runs now.
    pub fn why(&self) -> &str {
        match &self.ended {
            Some(_) => self.reason.as_deref().unwrap_or("unknown"),
            None => KILLED,
        }
    }

    /// Whether its end was a fault.
    pub fn is_fault(&self) -> bool {
        self.why() != FINISHED
    }

    /// Its start and its end, in seconds since 1970. The end follows from the duration, so that no change of the clock matters.
    pub fn span(&self) -> (f64, f64) {
        let started = since_1970(&self.started).unwrap_or_default().as_secs_f64();
        (started, started + self.duration())
    }

    /// What the runs up to this one tell the next one.
    pub fn tells(&self) -> Earlier {
        Earlier {
            step: self.last_step.max(self.resumed_step).max(self.earlier.step),
            faults: self.earlier.faults + self.failures.values().sum::<u64>() + u64::from(self.is_fault()),
            seconds: self.earlier.seconds + self.duration(),
        }
    }
}

/// The reason of a run without an end.
pub const KILLED: &str = "killed";
/// The reason of a run that is no fault.
const FINISHED: &str = "finished";

/// A time since 1970 in RFC 3339.
pub fn rfc3339(since_1970: Duration) -> String {
    let latest = Duration::from_secs(253_402_300_799);
    humantime::format_rfc3339_millis(UNIX_EPOCH + since_1970.min(latest)).to_string()
}

fn since_1970(text: &str) -> Option<Duration> {
    humantime::parse_rfc3339(text).ok()?.duration_since(UNIX_EPOCH).ok()
}

/// Lines about the objects that are not counted, one for each kind: the count, an example and the way out.
pub fn unread_lines(unread: &[(String, Unread)]) -> Vec<String> {
    let line = |kind: Unread, what: &str, way_out: &str| {
        let mut keys = unread.iter().filter(|(_, of)| *of == kind).map(|(key, _)| key);
        let first: String = printable(keys.next()?).chars().take(SHOWN).collect();
        let count = match keys.count() {
            0 => first,
            more => format!("{first} and {more} more"),
        };
        Some(format!("{count} {what}, so what it tells about its run is left out; {way_out}"))
    };
    [
        line(Unread::Half, "is not whole", "no run is affected; delete it if it stays so"),
        line(Unread::Newer, "is of a newer version of trainit", "use that version to see it"),
        line(
            Unread::Foreign,
            "does not tell about a run of this job",
            "if another job or program writes here, give each its own prefix",
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A run of this seat with a start in seconds, and seconds by cause.
    pub(in crate::life) fn run(attempt: u64, started: u64, seconds: &[(&str, f64)], reason: Option<&str>) -> Run {
        let seconds: BTreeMap<String, f64> = seconds.iter().map(|(cause, s)| ((*cause).to_owned(), *s)).collect();
        let end = started as f64 + seconds.values().sum::<f64>();
        let end = rfc3339(Duration::from_secs_f64(end));
        let identity = Identity { seat: "node/0".into(), host: "a".into(), nodes: 1, ..Identity::default() };
        Run {
            schema: SCHEMA.into(),
            identity,
            attempt,
            started: rfc3339(Duration::from_secs(started)),
            last_seen: end.clone(),
            ended: reason.map(|_| end),
            reason: reason.map(str::to_owned),
            exit_code: reason.map(|_| 0),
            seconds,
            starts: 1,
            ..Run::default()
        }
    }

    #[test]
    fn an_object_reads_back_as_it_was_written() {
        let mut run = run(7, 1_000_000, &[("training", 2.5), ("start", 0.25)], Some("preempted"));
        run.restores.push(Restored { bytes_store: 5, bytes_peers: 0, seconds: 0.5 });
        run.failures.insert("oom".into(), 2);
        assert_eq!(Run::read(7, &run.bytes()), Ok(run.clone()));
        assert_eq!((run.duration(), run.span()), (2.75, (1_000_000.0, 1_000_002.75)));
        assert_eq!(run.tells(), Earlier { step: None, faults: 3, seconds: 2.75 });
    }

    #[test]
    fn an_object_that_is_half_newer_or_foreign_is_not_counted() {
        let good = run(7, 1, &[("training", 1.0)], None);
        let text = String::from_utf8(good.bytes()).expect("UTF-8");
        assert_eq!(Run::read(7, text.as_bytes()).map(|run| run.why().to_owned()), Ok("killed".into()));
        for (from, to, expected) in [
            (SCHEMA, "trainit.run/2", Unread::Newer),
            (SCHEMA, "else", Unread::Foreign),
            ("\"attempt\":7", "\"attempt\":8", Unread::Foreign),
            ("1970-01-01T00:00:01", "1970-01-41T00:00:01", Unread::Foreign),
            ("\"training\":1.0", "\"training\":-1.0", Unread::Foreign),
            ("\"training\":1.0", "\"training\":1e300", Unread::Foreign),
        ] {
            assert!(text.contains(from), "{from}: {text}");
            assert_eq!(Run::read(7, text.replace(from, to).as_bytes()), Err(expected), "{to}");
        }
        for half in ["", "{", &text[..text.len() / 2], "\u{0}\u{0}"] {
            assert_eq!(Run::read(7, half.as_bytes()), Err(Unread::Half), "{half:?}");
        }
        assert_eq!(Run::read(7, b"{\"hello\": 1}"), Err(Unread::Foreign));
    }

    #[test]
    fn each_kind_of_unread_object_has_one_line() {
        let unread: Vec<_> = (0..1000).map(|n| (format!("{RUNS}/{n}\n"), Unread::Half)).collect();
        let lines = unread_lines(&[&unread[..], &[("x".into(), Unread::Newer)]].concat());
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("and 999 more") && !lines[0].contains('\n'), "{lines:?}");
        assert!(lines[1].contains("newer version"), "{lines:?}");
    }
}
