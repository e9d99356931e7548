//! Several runs of one job against one store, in one process, their steps interleaved as a seed says: between any two
//! waits of one, another may do anything, be killed, or begin. What must hold whatever the schedule is checked after each
//! turn. `TRAINIT_SCHEDULES=1000` for more of them, `TRAINIT_SCHEDULE_SEED=N` for that one alone.

use std::cell::RefCell;
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

use trainit::edge::fault::Faults;
use trainit::edge::store::Access;
use trainit::rules::checkpoint::Options;
use trainit::rules::checkpoint::address::Address;
use trainit::rules::checkpoint::names::Stamp;
use trainit::rules::checkpoint::pace::Pace;
use trainit::rules::checkpoint::plan::Retention;
use trainit::rules::env::Env;
use trainit::supervisor::keeper::commit::Outcome;
use trainit::supervisor::keeper::mirror::{Mirror, MirrorConfig, Restore};

/// Runs of one job in a schedule.
const LIVES: u32 = 4;
/// Checkpoints that each tries to commit.
const SAVES: u64 = 3;

/// xorshift: the same on every machine.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// What the lives of a schedule did, for the checks.
#[derive(Default)]
struct Book {
    /// Commits that were acknowledged, and what was saved in them.
    committed: BTreeMap<Stamp, String>,
    /// The highest attempt that was claimed so far.
    claimed: u64,
    /// Every object ever seen, by path: inode, size, and whether it is still there.
    objects: BTreeMap<PathBuf, (u64, u64, bool)>,
}

fn config(dir: &Path, store: &Path, keep: u64, claim: bool) -> MirrorConfig {
    MirrorConfig {
        dir: dir.to_owned(),
        store: Some(Address::parse(&format!("file://{}", store.display())).unwrap()),
        access: Access::new(Env::default(), false),
        options: Options::default(),
        retention: Retention { last: keep, every: None, orphan_age: Duration::from_secs(86_400) },
        restore: Restore::Latest,
        strong: false,
        push_step: None,
        dry: false,
        restore_step: None,
        job: String::new(),
        node: 0,
        claim,
        faults: Faults::default(),
        pace: Arc::new(Mutex::new(Pace::new(None))),
    }
}

/// Two files that only this save has, and one that all have, which is sent once.
fn save(dir: &Path, step: u64, mark: &str) {
    let unit = dir.join(format!("step-{step}"));
    fs::create_dir_all(&unit).unwrap();
    fs::write(unit.join("vocabulary.txt"), "the same").unwrap();
    for name in ["a.bin", "b.bin"] {
        let file = unit.join(name);
        let _ = fs::remove_file(&file);
        fs::write(file, format!("{mark} {}", "x".repeat(300))).unwrap();
    }
}

/// The one mark that all files of a unit have.
fn mark_of(unit: &Path) -> String {
    let marks = ["a.bin", "b.bin"].map(|name| {
        let text = fs::read_to_string(unit.join(name)).unwrap_or_else(|e| panic!("{} {name}: {e}", unit.display()));
        text.split_once(' ').unwrap().0.to_owned()
    });
    assert_eq!(marks[0], marks[1], "{} is mixed", unit.display());
    marks[0].clone()
}

/// One run: claims, restores, trains, commits, until it has saved enough or is fenced.
async fn life(book: Rc<RefCell<Book>>, number: u32, dir: PathBuf, store: PathBuf, keep: u64) {
    let mut mirror = Mirror::open(config(&dir, &store, keep, true)).await.unwrap();
    let attempt = mirror.incarnation().unwrap();
    let newest = {
        let mut book = book.borrow_mut();
        book.claimed = book.claimed.max(attempt);
        book.committed.last_key_value().map(|(stamp, _)| stamp.clone())
    };
    let resume = mirror.restore().await.unwrap_or_else(|error| panic!("attempt {attempt}: {error}"));
    let mut step = 0;
    if let Some(resume) = &resume {
        let mark = mark_of(&resume.from);
        step = resume.step.unwrap();
        if let Some(stamp) = &resume.commit
            && let Some(committed) = book.borrow().committed.get(stamp)
        {
            assert_eq!(*committed, mark, "attempt {attempt} restored {stamp}");
        }
    }
    if let Some(newest) = newest {
        let stamp = resume.as_ref().and_then(|r| r.commit.clone());
        assert!(
            stamp.as_ref().is_none_or(|s| *s >= newest) && resume.is_some(),
            "attempt {attempt} restored {stamp:?} although {newest} was committed before"
        );
    }
    for _ in 0..SAVES {
        step += 1;
        let mark = format!("life-{number}-step-{step}");
        save(&dir, step, &mark);
        let overtaken = book.borrow().claimed > attempt;
        let outcome = mirror.commit_newest(Duration::ZERO, None, &|_, _| {}).await;
        match outcome {
            Outcome::Committed { .. } => {
                assert!(!overtaken, "attempt {attempt} began a commit after a newer one had claimed the store");
                let stamp = mirror.committed().unwrap().1.clone();
                book.borrow_mut().committed.insert(stamp, mark);
            }
            Outcome::Fenced { by } => {
                assert!(by.number > attempt);
                return;
            }
            other => panic!("attempt {attempt}: {other:?}"),
        }
    }
}

/// Hears that a life may go on.
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

struct Running {
    dir: PathBuf,
    ready: Arc<Ready>,
    life: Pin<Box<dyn Future<Output = ()>>>,
}

impl Running {
    /// Lets it go on to its next wait. True when it has ended.
    async fn turn(&mut self) -> bool {
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

/// No object changes, none comes back, and once there is a commit there is always one.
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
        if let Some((was, long, there)) = book.objects.get(path) {
            assert!(there, "{} was deleted and came back", path.display());
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
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let keep = 1 + dice.below(2);
    let book = Rc::new(RefCell::new(Book::default()));
    let (mut begun, mut running, mut free): (u32, Vec<Running>, Vec<PathBuf>) = (0, Vec::new(), Vec::new());
    while begun < LIVES || !running.is_empty() {
        if begun < LIVES && (running.is_empty() || dice.below(6) == 0) {
            // On another machine, or on one where a run has ended.
            let fresh = place.path().join(format!("machine-{begun}"));
            let at = dice.below(free.len() as u64 + 1) as usize;
            let dir = if at < free.len() { free.remove(at) } else { fresh };
            let ready = Arc::new(Ready { is: AtomicBool::new(true), ..Ready::default() });
            let life = Box::pin(life(Rc::clone(&book), begun, dir.clone(), store.clone(), keep));
            running.push(Running { dir, ready, life });
            begun += 1;
        }
        let at = dice.below(running.len() as u64) as usize;
        if dice.below(25) == 0 {
            // Killed; what it has asked of the disk may still be done.
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
    life(Rc::clone(&book), LIVES, last, store.clone(), keep).await;
    check_store(&mut book.borrow_mut(), &store);
    let reader = Mirror::open(config(&place.path().join("reader"), &store, keep, false)).await.unwrap();
    let told = std::cell::Cell::new((0, 0));
    let judged = reader.verified(&|done, all| told.set((done, all))).await.unwrap();
    assert_eq!(told.get().0, told.get().1, "every byte is told of");
    assert!(judged.iter().all(|j| j.problems.is_empty()), "{judged:?}");
    assert_eq!(judged[0].manifest.as_ref().map(|m| m.stamp()).as_ref(), book.borrow().committed.keys().last());
}

#[test]
fn whatever_the_schedule_of_several_runs_nothing_is_mixed_lost_or_overwritten_and_a_fenced_one_begins_nothing() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("TRAINIT_SCHEDULE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..number("TRAINIT_SCHEDULES").unwrap_or(40) + 1,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for seed in seeds {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| runtime.block_on(schedule(seed))));
        if let Err(panic) = done {
            eprintln!("at TRAINIT_SCHEDULE_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
