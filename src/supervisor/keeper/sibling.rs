//! Where a launcher starts one trainit for each process, the node's first keeps the checkpoints. The others wait here until
//! it has restored them, or their trainers would look too early and begin at another step than its. At its end it sees here
//! whether they still run: they may be saving.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::Value;

use super::lineage::{record, written};
use super::mirror::{Mirror, MirrorError, Resume, blocking};
use crate::edge::clock::Clock;
use crate::edge::control;
use crate::edge::files;
use crate::edge::places::real;
use crate::edge::run_dir::{self, KEPT, SOCKET};
use crate::rules::checkpoint::address::{Address, shown};
use crate::rules::status::parse;
use crate::rules::status::sibling::{First, From, Kept, Stage, first};

/// How long the trainit that keeps the node's checkpoints is looked for.
pub(super) const SEARCH: Duration = Duration::from_secs(20);
/// Between two questions.
const PAUSE: Duration = Duration::from_millis(100);
/// One that has not answered after this long is asked again.
const PATIENCE: Duration = Duration::from_secs(1);

/// Two paths, at most.
const KEPT_BYTES: usize = 65_536;

/// The one that keeps the checkpoints of this node.
#[derive(Debug, Clone)]
pub struct Sibling {
    /// What it is known by.
    pub kept: Kept,
    /// The checkpoint directory.
    pub dir: PathBuf,
    /// The store of all nodes.
    pub store: Address,
    /// The user's TMPDIR: one of the places where runs are found.
    pub tmp: Option<String>,
}

/// The others of this node, whose checkpoints this one keeps.
#[derive(Debug, Clone)]
pub struct Others {
    /// What they are known by.
    pub kept: Kept,
    /// The user's TMPDIR.
    pub tmp: Option<String>,
    /// When this run began: its launcher starts them all within [`SEARCH`].
    pub since: SystemTime,
}

/// What nodes have written down, by its place.
type Records = BTreeMap<String, Vec<u8>>;

/// Where it is, and what it said.
#[derive(Debug, Clone)]
struct Known {
    dir: PathBuf,
    /// When it began.
    since: SystemTime,
    first: First,
}

/// When the run in this directory began.
fn began(dir: &Path) -> SystemTime {
    dir.join(KEPT).metadata().and_then(|kept| kept.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// What the run in this directory keeps.
fn kept_in(dir: &Path) -> Option<Kept> {
    let text = files::read_small(&dir.join(KEPT).to_string_lossy(), KEPT_BYTES).ok().flatten()?;
    Kept::parse(&text)
}

/// Whether the run that has this socket keeps these, or is beside the one that does.
pub fn is_of_its_keeper(socket: &Path, kept: &Kept) -> bool {
    let found = socket.parent().and_then(kept_in);
    found.is_some_and(|found| Kept { beside: kept.beside, ..found }.is(kept))
}

/// The directories of the runs that are known by this.
fn runs(tmp: Option<&str>, kept: &Kept) -> Vec<PathBuf> {
    let is_one = |dir: &PathBuf| kept_in(dir).is_some_and(|found| found.is(kept));
    run_dir::own(tmp).into_iter().filter(is_one).collect()
}

/// The process of a run on this machine that commits to this store (0: of another PID namespace), as far as it can be seen
/// from here; `dir` is whence we would.
pub async fn committer(store: &Address, dir: PathBuf, tmp: Option<String>) -> Option<i32> {
    let store = shown(&store.to_string());
    let found = blocking(move || {
        let ours = real(&dir).to_string_lossy().into_owned();
        let commits = |dir: &PathBuf| kept_in(dir).is_some_and(|kept| kept.commits_to(&store, &ours));
        let answers = |dir: PathBuf| control::ask(&dir.join(SOCKET), PATIENCE).ok().map(|(pid, _)| pid);
        Ok(run_dir::all(tmp.as_deref()).into_iter().filter(commits).find_map(answers))
    });
    found.await.unwrap_or_default()
}

/// How that run is. `None`: it is gone. Errors: it is there, and too busy for an answer.
fn ask(dir: &Path) -> Option<Result<Value, ()>> {
    match control::ask(&dir.join(SOCKET), PATIENCE) {
        Ok((_, answer)) => Some(answer.map_err(drop).and_then(|text| parse(&text).map_err(drop))),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => None,
        Err(_) => Some(Err(())),
    }
}

impl Others {
    /// Whether there is one of this kind, by its status.
    pub(super) async fn any(&self, which: fn(&Value) -> bool) -> bool {
        let this = self.clone();
        let looked = blocking(move || {
            // One that was there so long before has given us up.
            let is_early = |dir: &Path| this.since.duration_since(began(dir)).is_ok_and(|before| before > SEARCH);
            let is_one = |dir: &Path| ask(dir).is_some_and(|status| status.as_ref().map_or(true, which));
            Ok(runs(this.tmp.as_deref(), &this.kept).iter().any(|dir| !is_early(dir) && is_one(dir)))
        });
        looked.await.unwrap_or_default()
    }
}

impl Sibling {
    /// Waits until it has restored. Whose corner of the store it keeps, and what it goes on from; `None` where it cannot be
    /// found within the limit.
    /// Errors: it ended before it had restored.
    pub(super) async fn restored(&self, limit: Duration) -> Result<Option<(u32, From)>, MirrorError> {
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

    /// The one that is known, or else of all that are here the youngest: an older run may be there still.
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

    /// Where that node writes down what it has restored.
    fn record(&self, node: u32) -> String {
        record(node, &self.store.of_node(node)).1
    }

    async fn records(&self) -> Records {
        let this = self.clone();
        blocking(move || Ok(written(&this.dir, &this.store))).await.unwrap_or_default()
    }

    /// The node, if its first one has written down since then that it has restored: it may be through with all by now.
    async fn has_restored_since(&self, before: &Records, node: Option<u32>) -> Option<u32> {
        let (record, now) = (self.record(node?), self.records().await);
        node.filter(|_| now.get(&record) != before.get(&record))
    }

    fn ended(&self) -> MirrorError {
        MirrorError::store(format!(
            "the trainit of local rank 0 on this node ended before it had restored the checkpoints in {}; nothing was started; \
             its log says why",
            self.dir.display()
        ))
    }

    fn warn(&self, limit: Duration) {
        tracing::warn!(
            code = "no_keeper",
            "no trainit of local rank 0 that keeps the checkpoints in {} in this store was to be seen on this node for {} s, so \
             this one keeps them itself; where all processes of a node share them, start one trainit a node (--nproc starts its \
             processes)",
            self.dir.display(),
            limit.as_secs()
        );
    }
}

impl Mirror {
    /// What the first one goes on from: beside it the newest may be one that is being written. Errors: as [`Mirror::restore`].
    pub(super) async fn restore_like(&mut self, first: &From) -> Result<Option<Resume>, MirrorError> {
        let newest = self.restore().await?;
        let path = match first {
            From::Newest => return Ok(newest),
            From::Nothing => return Ok(None),
            From::Checkpoint(path) => Path::new(path),
        };
        let look = self.look(None).await.map_err(|error| self.unusable(&error))?;
        let named = look.ages.iter().filter(|(unit, _)| path.ends_with(unit)).max_by_key(|(unit, _)| unit.len());
        if let (None, Some(newest)) = (&named, &newest) {
            self.note(format!(
                "{} is gone, which local rank 0's process went on from: this one goes on from {}, which may be another step",
                path.display(),
                newest.unit
            ));
        }
        Ok(named.map(|(unit, age)| self.resume(unit, *age, None)).or(newest))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::edge::clock;
    use crate::edge::control::Listener;
    use crate::edge::wake::wait_readable;
    use crate::rules::job::Told;
    use crate::rules::status::{Facts, answer};

    const LIMIT: Duration = Duration::from_secs(60);

    fn sibling(place: &Path) -> Sibling {
        Sibling {
            kept: kept(None),
            dir: place.to_owned(),
            store: Address::Directory(place.join("store")),
            tmp: place.to_str().map(str::to_owned),
        }
    }

    fn kept(node_rank: Option<u32>) -> Kept {
        Kept { directory: "/ck".into(), store: "gs://b/x".into(), node_rank, launch: None, beside: false }
    }

    /// A run that answers so, one caller an answer, and is gone then; `last` is done before.
    fn keeper(place: &Path, states: &'static [&'static str], last: impl FnOnce() + Send + 'static) {
        run(place, 7, kept(Some(3)), Duration::ZERO, states, last);
    }

    /// The same with this PID, which began so long ago.
    fn run(
        place: &Path,
        pid: u32,
        kept: Kept,
        ago: Duration,
        states: &'static [&'static str],
        last: impl FnOnce() + Send + 'static,
    ) {
        let uid = fs::metadata(place).expect("it is there").uid();
        let dir = place.join(format!("trainit-{uid}-{pid}"));
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
                let told = Told { state, has_store: true, resumed_from, ..Told::default() };
                caller.tell(&answer(&told, &Facts { kept: Some(kept.clone()), ..Facts::default() }));
            }
            last();
        });
    }

    fn writes(place: &Path) -> impl FnOnce() + use<> {
        let (dir, record) = (place.to_owned(), sibling(place).record(3));
        move || {
            fs::create_dir(dir.join(".trainit")).expect("a directory");
            fs::write(dir.join(record), "{}").expect("a record");
        }
    }

    async fn waited(place: &Path) -> Result<Option<(u32, From)>, String> {
        sibling(place).restored(LIMIT).await.map_err(|error| error.message)
    }

    #[tokio::test]
    async fn who_restores_is_waited_for_and_then_gone_by() {
        let place = tempfile::tempdir().expect("a directory");
        keeper(place.path(), &["restoring", "restoring", "gathering"], || {});
        assert_eq!(waited(place.path()).await, Ok(Some((3, From::Checkpoint("/ck/step-7".into())))));
    }

    #[tokio::test]
    async fn nothing_is_started_where_it_ends_before_it_has_restored() {
        let place = tempfile::tempdir().expect("a directory");
        keeper(place.path(), &["restoring"], || {});
        let why = waited(place.path()).await.expect_err("it is gone");
        assert!(why.contains("ended before it had restored"), "{why}");
    }

    #[tokio::test]
    async fn one_that_was_through_with_all_between_two_looks_has_restored() {
        let place = tempfile::tempdir().expect("a directory");
        keeper(place.path(), &["restoring"], writes(place.path()));
        assert_eq!(waited(place.path()).await, Ok(Some((3, From::Newest))));
    }

    #[tokio::test]
    async fn who_keeps_other_checkpoints_is_not_asked() {
        let place = tempfile::tempdir().expect("a directory");
        let dir = place.path().join(format!("trainit-{}-8", fs::metadata(place.path()).expect("it is there").uid()));
        fs::create_dir(&dir).expect("a directory");
        let stranger = Listener::bind(&dir.join(SOCKET)).expect("a socket");
        for store in [None, Some("gs://b/y")] {
            if let Some(store) = store {
                let other = Kept { store: store.into(), ..kept(Some(3)) };
                fs::write(dir.join(KEPT), other.text()).expect("a file");
            }
            assert_eq!(sibling(place.path()).restored(Duration::ZERO).await.ok(), Some(None));
            assert!(stranger.next().expect("no error").is_none());
        }
    }

    #[tokio::test]
    async fn of_several_first_processes_the_youngest_is_gone_by() {
        let second = Duration::from_secs(1);
        for (ages, youngest) in [([9, 10], 3), ([10, 9], 4)] {
            let place = tempfile::tempdir().expect("a directory");
            for ((pid, node), age) in [(7, 3), (8, 4)].into_iter().zip(ages) {
                run(place.path(), pid, kept(Some(node)), age * second, &["running"], || {});
            }
            assert_eq!(waited(place.path()).await, Ok(Some((youngest, From::Checkpoint("/ck/step-7".into())))));
        }
    }

    #[tokio::test]
    async fn the_first_process_of_another_launch_is_not_asked() {
        let place = tempfile::tempdir().expect("a directory");
        let of = |launch: &str| Kept { launch: Some(launch.into()), ..kept(Some(3)) };
        run(place.path(), 7, of("76.0"), Duration::ZERO, &["running"], || {});
        let own = Sibling { kept: of("77.0"), ..sibling(place.path()) };
        assert_eq!(own.restored(Duration::ZERO).await.ok(), Some(None));
        let same = Sibling { kept: of("76.0"), ..own };
        assert_eq!(same.restored(LIMIT).await.ok(), Some(Some((3, From::Checkpoint("/ck/step-7".into())))));
    }

    #[tokio::test]
    async fn the_end_waits_for_nobody_who_began_longer_before_than_a_launch_takes() {
        for (before, is_waited_for) in [(SEARCH + Duration::from_secs(5), false), (SEARCH / 2, true)] {
            let place = tempfile::tempdir().expect("a directory");
            let beside = Kept { beside: true, ..kept(Some(3)) };
            run(place.path(), 7, beside.clone(), before, &["running"], || {});
            let tmp = place.path().to_str().map(str::to_owned);
            let others = Others { kept: beside, tmp, since: clock::wall() };
            assert_eq!(others.any(|_| true).await, is_waited_for, "{before:?}");
        }
    }

    #[tokio::test]
    async fn where_there_is_none_the_wait_ends() {
        let place = tempfile::tempdir().expect("a directory");
        assert_eq!(sibling(place.path()).restored(Duration::ZERO).await.ok(), Some(None));
    }
}
