//! A checkpoint directory whose file system hangs: the thread that also watches for preemptions goes on.

use std::fs;
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::task::Poll;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc::unbounded_channel;

use super::mirror::Restore;
use super::*;
use crate::edge::clock::wall;
use crate::edge::fault::Faults;
use crate::edge::store::Access;
use crate::rules::checkpoint::Options;
use crate::rules::checkpoint::address::Address;
use crate::rules::checkpoint::pace::Pace;
use crate::rules::checkpoint::plan::Retention;

pub(super) fn config(place: &Path) -> MirrorConfig {
    MirrorConfig {
        dir: place.join("checkpoints"),
        store: Some(Address::Directory(place.join("store"))),
        access: Access::default(),
        options: Options::default(),
        retention: Retention { last: 2, every: None, orphan_age: Duration::from_secs(86_400) },
        restore: Restore::Latest,
        strong: false,
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

/// Everything below a directory.
fn names(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(dir).expect("reads").flatten().map(|entry| entry.path()).collect();
    let below: Vec<PathBuf> = found.iter().filter(|path| path.is_dir()).flat_map(|path| names(path)).collect();
    found.extend(below);
    found.sort();
    found
}

/// A commit whose disk hangs after so many turns: the next turn changes nothing there. False if it was through before.
async fn hangs_in_a_commit(turns: u32) -> bool {
    let place = tempfile::tempdir().expect("temporary directory");
    let mut mirror = Mirror::open(config(place.path())).await.expect("opens");
    mirror.restore().await.expect("there is nothing");
    let (dir, unit) = (place.path().join("checkpoints"), place.path().join("checkpoints/step-1"));
    fs::create_dir(&unit).expect("mkdir");
    for name in ["a.bin", "b.bin"] {
        fs::write(unit.join(name), "weights").expect("writes");
    }
    let mut commit = pin!(mirror.commit_newest(None, None, &|_, _| {}));
    let mut left = turns;
    let is_through = poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(false);
        }
        left -= 1;
        commit.as_mut().poll(context).map(|outcome| {
            assert!(matches!(outcome, Outcome::Committed { step: Some(1), .. }), "{outcome:?}");
            true
        })
    });
    if is_through.await {
        return false;
    }
    let _hangs = hang().await;
    let before = names(&dir);
    let _ = poll_fn(|context| Poll::Ready(commit.as_mut().poll(context).is_ready())).await;
    assert_eq!(names(&dir), before, "after {turns} turns the thread itself did it");
    true
}

#[test]
fn no_turn_of_a_commit_waits_for_the_disk() {
    let runtime = runtime();
    let turns = (1..).take_while(|turns| runtime.block_on(hangs_in_a_commit(*turns))).count();
    assert!(turns > 10, "only {turns} turns");
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
