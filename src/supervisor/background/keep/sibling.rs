//! If a launcher starts one trainit for each process, the first one of the node keeps the checkpoints. The others wait here
//! until it has restored them; otherwise their trainers would start from another step. At its end the first one checks here
//! whether the others still run, because they may be saving.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::edge::clock::Clock;
use crate::edge::fs::real_path::real;
use crate::edge::fs::run_dir::{self, KEPT, SOCKET};
use crate::edge::fs::small_file;
use crate::edge::net::status_socket;
use crate::edge::transfer::blocking::blocking;
use crate::rules::status::parse;
use crate::rules::status::sibling::{First, From, Kept, Stage, first};
use crate::rules::store::address::Address;
use crate::supervisor::checkpoints::directory::record::{path, written};
use crate::supervisor::checkpoints::failure::Failure;
use crate::supervisor::checkpoints::mirror::{Mirror, Resume};

/// The time limit for finding the trainit that keeps the node's checkpoints.
pub(crate) const SEARCH: Duration = Duration::from_secs(20);
/// The pause between two requests.
const PAUSE: Duration = Duration::from_millis(100);
/// A run that has not answered after this time is asked again.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The limit of the file with two paths, in bytes.
const KEPT_BYTES: usize = 65_536;

/// The run that keeps the checkpoints of this node.
#[derive(Debug, Clone)]
pub struct Sibling {
    /// The directory, store and launch that identify it.
    pub kept: Kept,
    /// The checkpoint directory.
    pub dir: PathBuf,
    /// The user's TMPDIR: one of the places where runs are found.
    pub tmp: Option<String>,
}

/// The other runs of this node, whose checkpoints this run keeps.
#[derive(Debug, Clone)]
pub struct Others {
    /// The directory, store and launch that identify them.
    pub kept: Kept,
    /// The user's TMPDIR.
    pub tmp: Option<String>,
    /// When this run began: its launcher starts them all within [`SEARCH`].
    pub since: SystemTime,
}

/// The restore records of the nodes, by path.
type Records = BTreeMap<String, Vec<u8>>;

/// A found run and its last status.
#[derive(Debug, Clone)]
struct Known {
    dir: PathBuf,
    /// When its run directory was created.
    since: SystemTime,
    first: First,
}

fn began(dir: &Path) -> SystemTime {
    dir.join(KEPT).metadata().and_then(|kept| kept.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
}

fn kept_in(dir: &Path) -> Option<Kept> {
    let text = small_file::read_small(&dir.join(KEPT).to_string_lossy(), KEPT_BYTES).ok().flatten()?;
    Kept::parse(&text)
}

/// Whether the run with this socket keeps these checkpoints, or uses the run that keeps them.
pub(crate) fn is_of_its_keeper(socket: &Path, kept: &Kept) -> bool {
    let found = socket.parent().and_then(kept_in);
    found.is_some_and(|found| Kept { beside: kept.beside, ..found }.is(kept))
}

/// The directories of the runs with this identity.
fn runs(tmp: Option<&str>, kept: &Kept) -> Vec<PathBuf> {
    let is_one = |dir: &PathBuf| kept_in(dir).is_some_and(|found| found.is(kept));
    run_dir::own(tmp).into_iter().filter(is_one).collect()
}

/// The process of a run on this machine that commits to this store (0: of another PID namespace), as far as it can be seen
/// from here; `dir` is the checkpoint directory of the caller.
pub(crate) async fn committer(store: &Address, dir: PathBuf, tmp: Option<String>) -> Option<i32> {
    let store = store.to_string();
    let found = blocking(move || {
        let own = real(&dir).to_string_lossy().into_owned();
        let commits = |dir: &PathBuf| kept_in(dir).is_some_and(|kept| kept.commits_to(&store, &own));
        let answers = |dir: PathBuf| status_socket::ask(&dir.join(SOCKET), TIMEOUT).ok().map(|(pid, _)| pid);
        Ok(run_dir::all(tmp.as_deref()).into_iter().filter(commits).find_map(answers))
    });
    found.await.unwrap_or_default()
}

/// The status of that run. `None`: it has ended. Errors: it exists, but is too busy to answer.
fn ask(dir: &Path) -> Option<Result<Value, ()>> {
    match status_socket::ask(&dir.join(SOCKET), TIMEOUT) {
        Ok((_, answer)) => Some(answer.map_err(drop).and_then(|text| parse(&text).map_err(drop))),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => None,
        Err(_) => Some(Err(())),
    }
}

impl Others {
    /// Whether there is such a run, according to its status.
    pub(crate) async fn any(&self, which: fn(&Value) -> bool) -> bool {
        let this = self.clone();
        let looked = blocking(move || {
            // A run that started this long before has stopped waiting for this one.
            let is_early = |dir: &Path| this.since.duration_since(began(dir)).is_ok_and(|before| before > SEARCH);
            let is_one = |dir: &Path| ask(dir).is_some_and(|status| status.as_ref().map_or(true, which));
            Ok(runs(this.tmp.as_deref(), &this.kept).iter().any(|dir| !is_early(dir) && is_one(dir)))
        });
        looked.await.unwrap_or_default()
    }
}

impl Sibling {
    /// Waits until it has restored. Returns the node whose part of the store it keeps, and the checkpoint that it resumes
    /// from; `None` if it is not found within the limit. Errors: the run ended before it had restored.
    pub(crate) async fn restored(&self, limit: Duration) -> Result<Option<(u32, From)>, Failure> {
        let (clock, before, mut known) = (Clock::start(), self.records().await, None::<Known>);
        loop {
            let found = self.look(known.clone()).await.filter(|found| found.first.stage != Stage::Over);
            match (found, &known) {
                (Some(at), _) if at.first.stage == Stage::Restored => return Ok(Some((at.first.node, at.first.from))),
                (Some(at), None) => known = Some(at),
                (Some(_), Some(_)) => {}
                (None, at) => {
                    let node = at.as_ref().map(|at| at.first.node).or(self.kept.node_rank);
                    if let Some(node) = self.has_restored_since(&before, node).await {
                        return Ok(Some((node, From::Newest)));
                    }
                    if at.is_some() {
                        return Err(self.ended());
                    }
                    if clock.now() >= limit {
                        self.warn(limit);
                        return Ok(None);
                    }
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The known run, or else the youngest one, because an older run may still exist.
    async fn look(&self, known: Option<Known>) -> Option<Known> {
        let this = self.clone();
        let looked = blocking(move || {
            let all = match &known {
                Some(known) => vec![known.dir.clone()],
                None => runs(this.tmp.as_deref(), &this.kept),
            };
            let found = all.into_iter().filter_map(|dir| this.ask(dir, known.as_ref()));
            Ok(found.max_by_key(|found| (found.first.stage != Stage::Over, found.since)))
        });
        looked.await.ok().flatten()
    }

    fn ask(&self, dir: PathBuf, known: Option<&Known>) -> Option<Known> {
        let Ok(status) = ask(&dir)? else {
            return known.cloned();
        };
        Some(Known { since: began(&dir), dir, first: first(&status, &self.kept)? })
    }

    async fn records(&self) -> Records {
        let this = self.clone();
        blocking(move || Ok(written(&this.dir))).await.unwrap_or_default()
    }

    /// The node, if its first run has recorded its restore since then: that run may have ended already.
    async fn has_restored_since(&self, before: &Records, node: Option<u32>) -> Option<u32> {
        let (record, now) = (path(node?), self.records().await);
        node.filter(|_| now.get(&record) != before.get(&record))
    }

    fn ended(&self) -> Failure {
        Failure::store(format!(
            "the trainit of local rank 0 on this node ended before it had restored the checkpoints in {}; nothing was started; \
             its log says why",
            self.dir.display()
        ))
    }

    fn warn(&self, limit: Duration) {
        tracing::warn!(
            code = "no_keeper",
            "no trainit of local rank 0 that keeps the checkpoints in {} in this store was found on this node for {} s, so \
             this one keeps them itself; where all processes of a node share them, start one trainit a node (--nproc starts its \
             processes)",
            self.dir.display(),
            limit.as_secs()
        );
    }
}

impl Mirror {
    /// The checkpoint that the first run has restored into this directory. Errors: the directory cannot be read.
    pub(crate) async fn restore_like(&mut self, first: &From) -> Result<Option<Resume>, Failure> {
        match first {
            From::Newest => self.restore().await,
            From::Nothing => Ok(None),
            From::Checkpoint { path, step } => Ok(Some(Resume { from: path.into(), step: *step, commit: None })),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::edge::clock;
    use crate::edge::io::eventfd::wait_readable;
    use crate::edge::net::status_socket::Listener;
    use crate::rules::job::Snapshot;
    use crate::rules::status::{Facts, answer};

    const LIMIT: Duration = Duration::from_secs(60);
    const SECOND: Duration = Duration::from_secs(1);

    fn kept(node_rank: Option<u32>, beside: bool) -> Kept {
        Kept { directory: "/ck".into(), store: "gs://b/x".into(), node_rank, launch: None, beside }
    }

    /// Starts a run with this age that gives these answers, one to each caller, and then ends; `last` runs before its
    /// end.
    fn run(place: &Path, pid: u32, kept: Kept, ago: Duration, states: &'static [&'static str], last: fn(&Path)) {
        let uid = fs::metadata(place).expect("it is there").uid();
        let (dir, place) = (place.join(format!("trainit-{uid}-{pid}")), place.to_owned());
        fs::create_dir(&dir).expect("a directory");
        let listener = Listener::bind(&dir.join(SOCKET)).expect("a socket");
        fs::write(dir.join(KEPT), kept.text()).expect("a file");
        let file = fs::File::options().append(true).open(dir.join(KEPT)).expect("a file");
        file.set_modified(clock::wall() - ago).expect("an older stamp");
        std::thread::spawn(move || {
            for state in states {
                let caller = loop {
                    wait_readable(&[listener.as_raw_fd()], Some(LIMIT));
                    if let Some(caller) = listener.next().expect("no error") {
                        break caller;
                    }
                };
                let resumed_from = Some("/ck/step-7".into());
                let snapshot = Snapshot { state, has_store: true, resumed_from, ..Snapshot::default() };
                caller.tell(&answer(&snapshot, &Facts { kept: Some(kept.clone()), ..Facts::default() }));
            }
            last(&place);
        });
    }

    fn writes_its_record(place: &Path) {
        fs::create_dir(place.join(".trainit")).expect("a directory");
        fs::write(place.join(path(3)), "{}").expect("a record");
    }

    #[tokio::test]
    async fn the_youngest_run_is_awaited_and_its_end_before_its_restore_is_an_error() {
        type Run = (u32, u32, &'static [&'static str], fn(&Path));
        type Found = Result<(u32, From), &'static str>;
        let nothing: fn(&Path) = |_| {};
        let resumed = From::Checkpoint { path: "/ck/step-7".into(), step: None };
        let cases: [(&[Run], Found); 3] = [
            (&[(3, 9, &["restoring", "running"], nothing), (4, 10, &["running"], nothing)], Ok((3, resumed))),
            (&[(3, 0, &["restoring"], nothing)], Err("ended before it had")),
            (&[(3, 0, &["restoring"], writes_its_record)], Ok((3, From::Newest))),
        ];
        for (runs, expected) in cases {
            let place = tempfile::tempdir().expect("a directory");
            for (pid, (node, age, states, last)) in (7..).zip(runs) {
                run(place.path(), pid, kept(Some(*node), false), *age * SECOND, states, *last);
            }
            let sibling = Sibling {
                kept: kept(None, false),
                dir: place.path().to_owned(),
                tmp: place.path().to_str().map(str::to_owned),
            };
            let found = sibling.restored(LIMIT).await.map_err(|error| error.message);
            match expected {
                Ok(expected) => assert_eq!(found, Ok(Some(expected))),
                Err(why) => assert!(found.is_err_and(|found| found.contains(why)), "{why}"),
            }
        }
    }

    #[tokio::test]
    async fn the_end_waits_for_no_process_that_is_older_than_a_launch_takes() {
        for (before, is_waited_for) in [(SEARCH + 5 * SECOND, false), (SEARCH / 2, true)] {
            let place = tempfile::tempdir().expect("a directory");
            let beside = kept(Some(3), true);
            run(place.path(), 7, beside.clone(), before, &["running"], |_| {});
            let tmp = place.path().to_str().map(str::to_owned);
            let others = Others { kept: beside, tmp, since: clock::wall() };
            assert_eq!(others.any(|_| true).await, is_waited_for, "{before:?}");
        }
    }
}
