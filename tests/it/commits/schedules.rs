//! Several runs of one job against one store, in one process. A seed interleaves their steps: between any two waits of
//! one run, another run may act, be killed, or begin. Trainers delete and rewrite files that are being committed, and
//! users pull and prune. Invariants are checked after each turn. `TRAINIT_SCHEDULES=1000` runs more schedules,
//! `TRAINIT_SCHEDULE_SEED=N` only this one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::future::{Future, poll_fn};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use trainit::rules::checkpoint::Options;
use trainit::rules::store::address::Address;
use trainit::rules::store::names::{CommitName, Stamp};
use trainit::rules::store::plan::Retention;
use trainit::supervisor::checkpoints::commit::outcome::{Ask, Outcome};
use trainit::supervisor::checkpoints::config::{Config, Role};
use trainit::supervisor::checkpoints::mirror::{Mirror, Resume};

/// Runs of one job in a schedule.
const LIVES: u32 = 4;
/// Checkpoints that each run tries to commit.
const SAVES: u64 = 3;
/// The trainers write while there are commits, so two looks must agree.
const SETTLE: Duration = Duration::from_millis(1);
/// How often a trainer repeats a save that it damaged itself during the commit.
const SPOILT: u32 = 3;

/// xorshift, which gives the same numbers on every machine.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// The record of a schedule's runs, for the checks.
#[derive(Default)]
struct Book {
    /// Commits that were acknowledged, and what was saved in them.
    committed: BTreeMap<Stamp, String>,
    /// The highest attempt that was claimed so far.
    claimed: u64,
    /// Every object ever seen, by path: inode, size, and whether it still exists.
    objects: BTreeMap<PathBuf, (u64, u64, bool)>,
}

impl Book {
    fn newest(&self) -> Option<Stamp> {
        self.committed.last_key_value().map(|(stamp, _)| stamp.clone())
    }

    /// Checks that the restored content was saved.
    fn check(&self, resume: &Resume, by: &str) {
        let mark = mark_of(&resume.from);
        if let Some(committed) = resume.commit.as_ref().and_then(|stamp| self.committed.get(stamp)) {
            assert_eq!(*committed, mark, "{by} restored {:?}", resume.commit);
        }
    }
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// `--keep` and `--keep-every`.
#[derive(Clone, Copy)]
pub struct Kept {
    pub last: u64,
    pub every: Option<u64>,
}

pub fn config(dir: &Path, store: &Path, kept: Kept, claim: bool) -> Config {
    let store = Address::parse(&format!("file://{}", store.display())).unwrap();
    let mut config = Config {
        role: if claim { Role::Keeps } else { Role::Looks },
        settle: SETTLE,
        retention: Retention { last: kept.last, every: kept.every, orphan_age: Duration::from_secs(86_400) },
        ..Config::new(dir.to_owned(), Some(store))
    };
    // One save in each commit, so that the book of a schedule names it.
    config.options = Arc::new(Options { keep_saves: Some(1), ..(*config.options).clone() });
    config
}

/// Two files that belong to this save only, and one that all saves share, which is sent once.
pub fn save(dir: &Path, step: u64, mark: &str) {
    let unit = dir.join(format!("step-{step}"));
    fs::create_dir_all(&unit).unwrap();
    fs::write(unit.join("vocabulary.txt"), "the same").unwrap();
    for name in ["a.bin", "b.bin"] {
        let file = unit.join(name);
        let _ = fs::remove_file(&file);
        fs::write(file, text(mark)).unwrap();
    }
}

fn text(mark: &str) -> String {
    format!("{mark} {}", "x".repeat(300))
}

/// The mark of a unit, which all its files share.
pub fn mark_of(unit: &Path) -> String {
    let marks = ["a.bin", "b.bin"].map(|name| {
        let text = fs::read_to_string(unit.join(name)).unwrap_or_else(|e| panic!("{} {name}: {e}", unit.display()));
        text.split_once(' ').unwrap().0.to_owned()
    });
    assert_eq!(marks[0], marks[1], "{} is mixed", unit.display());
    marks[0].clone()
}

/// A trainer's change to its checkpoint during the commit.
fn spoil(unit: &Path, mark: &str, rewrites: bool) {
    if rewrites {
        ["a.bin", "b.bin"].iter().for_each(|name| fs::write(unit.join(name), text(&format!("{mark}-again"))).unwrap());
    } else {
        fs::remove_dir_all(unit).unwrap();
    }
}

/// The mark of the save that was just acknowledged; `None` if it was deleted again.
fn mark_in_store(store: &Path, step: u64, stamp: &Stamp) -> Option<String> {
    let unit = store.join(format!("step-{step}/{stamp}"));
    let is_there = ["a.bin", "b.bin"].iter().all(|name| unit.join(name).exists());
    is_there.then(|| mark_of(&unit))
}

/// How often a run has committed a step.
fn commits_of(store: &Path, attempt: u64, step: u64) -> usize {
    let names = fs::read_dir(store.join(".trainit/commits")).unwrap().map(|e| e.unwrap().file_name());
    let commits = names.filter_map(|name| CommitName::from_key(&format!(".trainit/commits/{}", name.to_str()?)));
    commits.filter(|name| name.stamp.attempt.number == attempt && name.step == step).count()
}

/// Commits files that no longer change. With a `limit` the first commit is cut off there, and tried again.
async fn settled(mirror: &mut Mirror, mut limit: Option<Duration>, progress: &dyn Fn(u64, u64)) -> Outcome {
    loop {
        match mirror.commit(&Ask::running(SETTLE, limit), progress).await {
            Outcome::Waiting { again: Some(again), .. } => tokio::time::sleep(again).await,
            Outcome::OutOfTime { .. } if limit.is_some() => limit = None,
            outcome => return outcome,
        }
    }
}

/// One run: claims, restores, trains, commits, until it has saved enough or is fenced.
async fn life(book: Rc<RefCell<Book>>, number: u32, dir: PathBuf, store: PathBuf, kept: Kept, mut dice: Dice) {
    let mut mirror = Mirror::open(config(&dir, &store, kept, true)).await.unwrap();
    let attempt = mirror.incarnation().unwrap();
    let newest = {
        let mut book = book.borrow_mut();
        book.claimed = book.claimed.max(attempt);
        book.newest()
    };
    let mut resume = mirror.restore().await.unwrap_or_else(|error| panic!("attempt {attempt}: {error}"));
    if let Some(newest) = newest {
        let stamp = resume.as_ref().and_then(|r| r.commit.clone());
        assert!(
            stamp.as_ref().is_none_or(|s| *s >= newest) && resume.is_some(),
            "attempt {attempt} restored {stamp:?} although {newest} was committed before"
        );
    }
    if dice.below(6) == 0 {
        // The trainer fails from this commit.
        let older = mirror.fall_back().await.unwrap_or_else(|error| panic!("attempt {attempt}: {error}"));
        resume = older.or(resume);
    }
    let mut step = 0;
    if let Some(resume) = &resume {
        book.borrow().check(resume, &format!("attempt {attempt}"));
        step = resume.step.unwrap();
    }
    for _ in 0..SAVES {
        step += 1;
        let mark = format!("life-{number}-step-{step}");
        for time in 0.. {
            save(&dir, step, &mark);
            if dice.below(3) == 0 {
                // Frameworks keep the last few checkpoints.
                let _ = fs::remove_dir_all(dir.join(format!("step-{}", step - 1)));
            }
            let overtaken = book.borrow().claimed > attempt;
            // The number of files in the store at that time; at most three.
            let (when, rewrites) = (if time < SPOILT { dice.below(9) } else { u64::MAX }, dice.below(2) == 0);
            let (unit, pieces) = (dir.join(format!("step-{step}")), Cell::new(0));
            let progress = |_, _| {
                pieces.set(pieces.get() + 1);
                if pieces.get() == when {
                    spoil(&unit, &mark, rewrites);
                }
            };
            let limit = (dice.below(4) == 0).then(|| Duration::from_micros(dice.below(20_000)));
            let outcome = settled(&mut mirror, limit, &progress).await;
            match outcome {
                Outcome::Committed { .. } | Outcome::UpToDate { .. }
                    if mirror
                        .committed()
                        .is_some_and(|(done, stamp)| done == Some(step) && stamp.attempt.number == attempt) =>
                {
                    assert!(!overtaken, "attempt {attempt} began a commit after a newer one had claimed the store");
                    let stamp = mirror.committed().unwrap().1.clone();
                    let saved = mark_in_store(&store, step, &stamp).unwrap_or_else(|| mark.clone());
                    assert!(saved.starts_with(&mark), "{stamp} is of {saved}, not of {mark}");
                    if time == 0 && saved == mark {
                        assert_eq!(commits_of(&store, attempt, step), 1, "{stamp} appears twice");
                    }
                    book.borrow_mut().committed.insert(stamp, saved);
                    break;
                }
                // The save was spoilt, and a deletion made a commit of the save before it.
                Outcome::Committed { step: Some(done), .. } if time < 2 * SPOILT && done < step => {
                    let stamp = mirror.committed().unwrap().1.clone();
                    if let Some(saved) = mark_in_store(&store, done, &stamp) {
                        book.borrow_mut().committed.insert(stamp, saved);
                    }
                }
                Outcome::Fenced { by } => {
                    assert!(by.number > attempt);
                    return;
                }
                // As above: the checkpoint was deleted before a scan, and the previous one is in the store.
                Outcome::Changed { .. } | Outcome::Empty | Outcome::Waiting { .. } | Outcome::UpToDate { .. }
                    if time < SPOILT => {}
                other => panic!("attempt {attempt}: {other:?}"),
            }
        }
    }
}

/// A user pulls into another directory, or prunes.
async fn by_hand(book: Rc<RefCell<Book>>, dir: PathBuf, store: PathBuf, kept: Kept, prunes: bool) {
    let newest = book.borrow().newest();
    let mut mirror = Mirror::open(config(&dir, &store, kept, false)).await.unwrap();
    if prunes {
        // The command may fail, because a run prunes at the same time. It must never delete too much.
        let _ = mirror.prune(false).await;
        return;
    }
    match mirror.restore().await.unwrap_or_else(|error| panic!("pulled by hand: {error}")) {
        Some(resume) => {
            book.borrow().check(&resume, "pulled by hand");
            assert!(resume.commit >= newest, "pulled {:?} although {newest:?} was there", resume.commit);
        }
        None => assert_eq!(newest, None),
    }
}

/// The waker of a run.
#[derive(Default)]
struct Ready {
    is: AtomicBool,
    scheduler: Mutex<Option<Waker>>,
}

impl Wake for Ready {
    fn wake(self: Arc<Self>) {
        self.is.store(true, Ordering::SeqCst);
        if let Some(scheduler) = self.scheduler.lock().unwrap().take() {
            scheduler.wake();
        }
    }
}

/// A run that the scheduler continues from one wait to the next.
pub struct Running {
    dir: PathBuf,
    ready: Arc<Ready>,
    life: Pin<Box<dyn Future<Output = ()>>>,
}

impl Running {
    pub fn new(dir: PathBuf, life: impl Future<Output = ()> + 'static) -> Running {
        let ready = Arc::new(Ready { is: AtomicBool::new(true), ..Ready::default() });
        Running { dir, ready, life: Box::pin(life) }
    }

    /// Runs it up to its next wait. True if it has ended.
    pub async fn turn(&mut self) -> bool {
        poll_fn(|context| {
            *self.ready.scheduler.lock().unwrap() = Some(context.waker().clone());
            if !self.ready.is.swap(false, Ordering::SeqCst) {
                return Poll::Pending;
            }
            let waker = Waker::from(Arc::clone(&self.ready));
            Poll::Ready(self.life.as_mut().poll(&mut Context::from_waker(&waker)).is_ready())
        })
        .await
    }
}

/// No object changes, no deleted object returns, and after the first commit there is always a commit.
fn check_store(book: &mut Book, store: &Path) {
    fn visit(at: &Path, found: &mut BTreeMap<PathBuf, (u64, u64)>) {
        let Ok(entries) = fs::read_dir(at) else { return };
        for entry in entries.flatten() {
            let path = entry.path();
            let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
            if metadata.is_dir() {
                visit(&path, found);
            } else if !path.to_string_lossy().contains('#') {
                found.insert(path, (metadata.ino(), metadata.len()));
            }
        }
    }
    let mut found = BTreeMap::new();
    visit(store, &mut found);
    for (path, (inode, size)) in &found {
        if let Some((was, long, exists)) = book.objects.get(path) {
            assert!(exists, "{} was deleted and came back", path.display());
            assert_eq!((was, long), (inode, size), "{} was overwritten", path.display());
        }
        book.objects.insert(path.clone(), (*inode, *size, true));
    }
    for (path, object) in &mut book.objects {
        object.2 = found.contains_key(path);
    }
    let commits = found.keys().filter(|p| p.to_string_lossy().contains("/.trainit/commits/")).count();
    assert!(commits > 0 || book.committed.is_empty(), "no commit is left");
}

async fn schedule(seed: u64) {
    let place = match Path::new("/dev/shm") {
        memory if memory.is_dir() => tempfile::tempdir_in(memory),
        _ => tempfile::tempdir(),
    };
    let place = place.unwrap();
    let store = place.path().join("store");
    fs::create_dir(&store).unwrap();
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let kept = Kept { last: 1 + dice.below(2), every: [None, Some(2)][dice.below(2) as usize] };
    let book = Rc::new(RefCell::new(Book::default()));
    let (mut begun, mut running, mut free): (u32, Vec<Running>, Vec<PathBuf>) = (0, Vec::new(), Vec::new());
    let mut hands = 0;
    while begun < LIVES || !running.is_empty() {
        if begun < LIVES && (running.is_empty() || dice.below(6) == 0) {
            // On another machine, or on one whose run has ended.
            let fresh = place.path().join(format!("machine-{begun}"));
            let at = dice.below(free.len() as u64 + 1) as usize;
            let dir = if at < free.len() { free.remove(at) } else { fresh };
            let luck = Dice(dice.below(u64::MAX) | 1);
            let life = life(Rc::clone(&book), begun, dir.clone(), store.clone(), kept, luck);
            running.push(Running::new(dir, life));
            begun += 1;
        }
        if !running.is_empty() && dice.below(20) == 0 {
            let dir = place.path().join(format!("hand-{hands}"));
            let life = by_hand(Rc::clone(&book), dir.clone(), store.clone(), kept, dice.below(2) == 0);
            running.push(Running::new(dir, life));
            hands += 1;
        }
        let at = dice.below(running.len() as u64) as usize;
        if dice.below(25) == 0 {
            // Killed; its pending disk operations may still complete.
            running.remove(at);
            continue;
        }
        for _ in 0..=dice.below(60) {
            if running[at].turn().await {
                free.push(running.remove(at).dir);
                break;
            }
        }
        check_store(&mut book.borrow_mut(), &store);
    }
    let last = place.path().join("last");
    life(Rc::clone(&book), LIVES, last, store.clone(), kept, dice).await;
    check_store(&mut book.borrow_mut(), &store);
    let reader = Mirror::open(config(&place.path().join("reader"), &store, kept, false)).await.unwrap();
    let reported = Cell::new((0, 0));
    let judged = reader.verified(&|done, all| reported.set((done, all))).await.unwrap();
    assert_eq!(reported.get().0, reported.get().1, "every byte is reported");
    assert!(judged.iter().all(|j| j.problems.is_empty()), "{judged:?}");
    assert_eq!(judged[0].manifest.as_ref().map(|m| m.stamp()).as_ref(), book.borrow().committed.keys().last());
}

#[test]
fn a_save_without_time_left_does_not_count_as_committed() {
    let place = tempfile::tempdir().unwrap();
    let (dir, store) = (place.path().join("checkpoints"), place.path().join("store"));
    let runtime = runtime();
    runtime.block_on(async {
        let mut mirror = Mirror::open(config(&dir, &store, Kept { last: 2, every: None }, true)).await.unwrap();
        save(&dir, 1, "first");
        let outcome = mirror.commit(&Ask::at_rest(), &|_, _| {}).await;
        assert!(matches!(outcome, Outcome::Committed { step: Some(1), .. }), "{outcome:?}");
        save(&dir, 2, "second");
        // The time is over before the checkpoint has settled.
        let (settle, limit) = (Duration::from_secs(60), Duration::from_millis(50));
        let outcome = mirror.commit(&Ask::running(settle, Some(limit)), &|_, _| {}).await;
        assert!(matches!(outcome, Outcome::Waiting { .. } | Outcome::OutOfTime { .. }), "{outcome:?}");
    });
}

#[test]
fn in_any_schedule_of_several_runs_no_checkpoint_is_mixed_lost_or_overwritten() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("TRAINIT_SCHEDULE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..number("TRAINIT_SCHEDULES").unwrap_or(40) + 1,
    };
    let runtime = runtime();
    for seed in seeds {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| runtime.block_on(schedule(seed))));
        if let Err(panic) = done {
            eprintln!("at TRAINIT_SCHEDULE_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
