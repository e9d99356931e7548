//! A checkpoint directory whose file system hangs: the thread that also watches for preemptions goes on.

use std::fs;
use std::future::poll_fn;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::task::Poll;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc::unbounded_channel;

use super::mirror::{Restore, beneath};
use super::names::Names;
use super::*;
use crate::edge::clock::wall;
use crate::edge::fault::Faults;
use crate::edge::store::Access;
use crate::rules::checkpoint::address::Address;
use crate::rules::checkpoint::pace::Pace;
use crate::rules::checkpoint::plan::Retention;
use crate::rules::checkpoint::{Options, Pointer};

pub(super) fn config(place: &Path) -> MirrorConfig {
    MirrorConfig {
        dir: place.join("checkpoints"),
        store: Some(Address::Directory(place.join("store"))),
        chief: None,
        access: Access::default(),
        options: Options::default(),
        retention: Retention { last: 2, every: None, orphan_age: Duration::from_secs(86_400) },
        restore: Restore::Latest,
        strong: false,
        apart: false,
        push_step: None,
        dry: false,
        restore_step: None,
        job: String::new(),
        node: 0,
        claim: true,
        only_sends: false,
        faults: Faults::default(),
        pace: Arc::new(Mutex::new(Pace::new(None))),
    }
}

/// One thread does all that is asked of the disk.
fn runtime() -> Runtime {
    Builder::new_current_thread().max_blocking_threads(1).enable_all().build().expect("runtime")
}

/// Returns when all that was asked of the disk so far is done; nothing more is until what comes back is dropped.
async fn hang() -> Sender<()> {
    let ((thaw, asleep), (at_it, is_at_it)) = (channel::<()>(), tokio::sync::oneshot::channel());
    Handle::current().spawn_blocking(move || {
        let _ = at_it.send(());
        let _ = asleep.recv();
    });
    is_at_it.await.expect("its turn comes");
    thaw
}

/// Everything below a directory: names, and which files have them.
fn names(dir: &Path) -> Vec<(PathBuf, u64)> {
    let inode = |path: &Path| fs::symlink_metadata(path).expect("is there").ino();
    let paths: Vec<PathBuf> = fs::read_dir(dir).expect("reads").flatten().map(|entry| entry.path()).collect();
    let below: Vec<_> = paths.iter().filter(|path| path.is_dir()).flat_map(|path| names(path)).collect();
    let mut found: Vec<_> = paths.into_iter().map(|path| (path.clone(), inode(&path))).chain(below).collect();
    found.sort();
    found
}

/// A deed whose disk hangs after so many turns: the next turn changes nothing there. False if it was through before.
async fn hangs_after(turns: u32, dir: &Path, deed: impl Future<Output = ()>) -> bool {
    let mut deed = pin!(deed);
    let mut left = turns;
    let is_through = poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(false);
        }
        left -= 1;
        deed.as_mut().poll(context).map(|()| true)
    });
    if is_through.await {
        return false;
    }
    let _hangs = hang().await;
    let before = names(dir);
    let _ = poll_fn(|context| Poll::Ready(deed.as_mut().poll(context).is_ready())).await;
    assert_eq!(names(dir), before, "after {turns} turns the thread itself did it");
    true
}

/// So often another turn of the deed is its last before the disk hangs, and never does the deed wait for it.
fn at_every_turn(least: usize, deed: impl AsyncFn(u32) -> bool) {
    let runtime = runtime();
    let turns = (0..).take_while(|turns| runtime.block_on(deed(*turns))).count();
    assert!(turns > least, "only {turns} turns");
}

/// A run in this place that has begun.
async fn begun(place: &Path) -> Mirror {
    let mut mirror = Mirror::open(config(place)).await.expect("opens");
    mirror.restore().await.expect("there is nothing that could not be restored");
    mirror
}

/// Saves a checkpoint of this step.
fn save(place: &Path, step: u64) -> PathBuf {
    let unit = place.join(format!("checkpoints/step-{step}"));
    fs::create_dir_all(unit.join("below")).expect("mkdir");
    for name in ["a.bin", "below/b.bin"] {
        fs::write(unit.join(name), format!("weights of {step}")).expect("writes");
    }
    unit
}

async fn commit(mirror: &mut Mirror, step: u64) {
    let outcome = mirror.commit_newest(None, None, &|_, _| {}).await;
    assert!(matches!(outcome, Outcome::Committed { step: Some(of), .. } if of == step), "{outcome:?}");
}

#[test]
fn no_turn_of_a_commit_waits_for_the_disk() {
    at_every_turn(10, async |turns| {
        let place = tempfile::tempdir().expect("temporary directory");
        let mut mirror = begun(place.path()).await;
        save(place.path(), 1);
        hangs_after(turns, &place.path().join("checkpoints"), commit(&mut mirror, 1)).await
    });
}

#[tokio::test]
async fn what_was_found_to_commit_is_looked_for_only_once() {
    let place = tempfile::tempdir().expect("temporary directory");
    save(place.path(), 1);
    let mut looking = Mirror::open_to_look(config(place.path())).await.expect("opens");
    assert_eq!(looking.next().await.expect("asks").expect("there is one").step, Some(1));
    let mut mirror = Mirror::open(config(place.path())).await.expect("opens");
    mirror.go_by(looking);
    // It came later than the look.
    save(place.path(), 2);
    commit(&mut mirror, 1).await;
    commit(&mut mirror, 2).await;
}

#[tokio::test]
async fn what_was_found_counts_only_where_the_same_is_to_be_left_alone() {
    let place = tempfile::tempdir().expect("temporary directory");
    save(place.path(), 1);
    save(place.path(), 2);
    // A store that is not there yet, or not any more, says nothing of what was gone back from.
    let mut looking = Mirror::open_to_look(config(place.path())).await.expect("opens");
    assert_eq!(looking.next().await.expect("asks").expect("there is one").step, Some(2));
    let mut mirror = Mirror::open(config(place.path())).await.expect("opens");
    let look = mirror.look(None).await.expect("looks");
    mirror.ignored.insert("step-2".to_owned(), look.ages["step-2"].newest_ns);
    mirror.go_by(looking);
    commit(&mut mirror, 1).await;
}

#[test]
fn no_turn_of_a_restore_waits_for_the_disk() {
    at_every_turn(10, async |turns| {
        let place = tempfile::tempdir().expect("temporary directory");
        let unit = save(place.path(), 1);
        commit(&mut begun(place.path()).await, 1).await;
        // What lies there now is in the way.
        fs::write(unit.join("a.bin"), "").expect("writes");
        hangs_after(turns, &place.path().join("checkpoints"), async {
            let restored = Mirror::open(config(place.path())).await.expect("opens").restore().await.expect("is whole");
            assert_eq!(restored.and_then(|resume| resume.step), Some(1));
            assert_eq!(fs::read(unit.join("a.bin")).ok().as_deref(), Some(&b"weights of 1"[..]));
        })
        .await
    });
}

#[test]
fn a_first_restore_that_failed_is_as_strict_when_it_is_done_again() {
    let place = tempfile::tempdir().expect("temporary directory");
    runtime().block_on(async {
        let config = MirrorConfig { restore_step: Some(7), ..config(place.path()) };
        let mut mirror = Mirror::open(config).await.expect("opens");
        for again in [false, true] {
            let refused = mirror.restore().await.expect_err("there is no step 7");
            assert!(refused.message.contains('7') && refused.code == exit::STORE, "{again}: {refused:?}");
        }
    });
}

#[test]
fn no_turn_on_the_way_back_to_an_older_one_waits_for_the_disk() {
    at_every_turn(10, async |turns| {
        let place = tempfile::tempdir().expect("temporary directory");
        let mut mirror = begun(place.path()).await;
        let older = save(place.path(), 1);
        commit(&mut mirror, 1).await;
        let newer = save(place.path(), 2);
        commit(&mut mirror, 2).await;
        fs::remove_dir_all(&older).expect("removes");
        hangs_after(turns, &place.path().join("checkpoints"), async {
            let found = mirror.fall_back().await.expect("there is an older one");
            assert_eq!(found.and_then(|resume| resume.step), Some(1));
            assert!(older.join("a.bin").exists() && !newer.exists());
        })
        .await
    });
}

#[test]
fn no_turn_of_naming_a_checkpoint_waits_for_the_disk() {
    at_every_turn(1, async |turns| {
        let place = tempfile::tempdir().expect("temporary directory");
        let mirror = begun(place.path()).await;
        let dir = place.path().join("checkpoints");
        fs::write(dir.join("step-1.bin"), "weights").expect("writes");
        fs::create_dir(dir.join("latest")).expect("mkdir");
        let pointer = |path: &str, symlink| Pointer { path: path.into(), content: "step-1.bin".into(), symlink };
        let pointers = vec![pointer("latest", false), pointer("link", true)];
        let (names, beneath) = (Names { pointers, copies: vec!["last.bin".into()] }, beneath(&dir).expect("opens"));
        hangs_after(turns, &dir, async {
            assert!(mirror.put_names(&beneath, "step-1.bin", &names).await.is_ok());
            let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap_or_default();
            assert_eq!([read("latest"), read("last.bin"), read("link")], ["step-1.bin", "weights", "weights"]);
        })
        .await
    });
}

#[test]
fn the_last_commit_is_heard_while_what_was_cut_off_is_looked_at() {
    let place = tempfile::tempdir().expect("temporary directory");
    let runtime = runtime();
    let ((orders, received), (teller, heard), clock) = (unbounded_channel(), Teller::overheard(), Clock::start());
    let second = Duration::from_secs(1);
    let checkpoints = Checkpoints {
        mirror: config(place.path()),
        interval: second * 3600,
        settle: second,
        kept: None,
        alone: true,
        sibling: None,
        others: None,
    };
    let keep = Keep { checkpoints: Some(checkpoints), model: None };
    let hear = async |wanted: fn(&Event) -> bool| {
        loop {
            match heard.try_iter().find(wanted) {
                Some(event) => return event,
                None => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    };
    let told = async {
        orders.send(Order::Restore).expect("is heard");
        hear(|event| matches!(event, Event::Restored { .. })).await;
        let hangs = hang().await;
        let now = wall().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        orders.send(Order::Doubt(now.as_nanos() as i64, Duration::MAX)).expect("is heard");
        orders.send(Order::Flush(Some(clock.now() + second))).expect("is heard");
        let flushed = hear(|event| matches!(event, Event::Flushed(_)));
        let flushed = tokio::time::timeout(second * 20, flushed).await;
        drop(hangs);
        flushed
    };
    let flushed = runtime.block_on(async {
        tokio::select! {
            () = keep.work(received, teller, clock) => unreachable!("orders may come"),
            flushed = told => flushed,
        }
    });
    assert!(matches!(flushed, Ok(Event::Flushed(Flushed::OutOfTime(_)))), "{flushed:?}");
}
