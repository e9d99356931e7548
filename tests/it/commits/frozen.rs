//! A run that is frozen in a commit while a newer run takes over the store.

use std::future::{Future, poll_fn};

use super::schedules::{Kept, Running, config, mark_of, runtime, save};
use trainit::supervisor::checkpoints::commit::outcome::{Ask, Outcome};
use trainit::supervisor::checkpoints::mirror::Mirror;

/// Freezes a machine with one run after this number of turns of a commit, while its disk operations are pending. The
/// commit shares a file with the previous one. A newer run takes over and commits, and the older commits are pruned.
/// Then the first run continues. True if it was frozen before its commit was complete.
async fn freeze_in_a_commit(turns: usize) -> bool {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    let kept = Kept { last: 1, every: Some(2) };
    let mut old = Mirror::open(config(&at("old"), &at("store"), kept, true)).await.unwrap();
    save(&at("old"), 1, "old-1");
    old.commit(&Ask::at_rest(), &|_, _| {}).await;
    save(&at("old"), 2, "old-2");
    // One thread performs all disk operations, and the test can pause it.
    let machine = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).enable_all().build().unwrap();
    let inside = machine.handle().clone();
    let mut commit = Box::pin(async move { old.commit(&Ask::at_rest(), &|_, _| {}).await });
    let life = poll_fn(move |context| {
        let _inside = inside.enter();
        commit.as_mut().poll(context).map(drop)
    });
    let mut frozen = Running::new(at("old"), life);
    for _ in 0..turns {
        if frozen.turn().await {
            machine.shutdown_background();
            return false;
        }
    }
    let (thaw, asleep) = std::sync::mpsc::channel::<()>();
    machine.spawn_blocking(move || asleep.recv());
    let done = frozen.turn().await;
    let mut new = Mirror::open(config(&at("new"), &at("store"), kept, true)).await.unwrap();
    new.restore().await.unwrap();
    save(&at("new"), 3, "new-3");
    let outcome = new.commit(&Ask::at_rest(), &|_, _| {}).await;
    assert!(matches!(outcome, Outcome::Committed { .. }), "{outcome:?}");
    // A run keeps the commit that it resumed from; a manual prune does not.
    let person = Mirror::open(config(&at("person"), &at("store"), kept, false)).await.unwrap();
    person.prune(false).await.unwrap();
    drop(thaw);
    if !done {
        while !frozen.turn().await {}
    }
    machine.shutdown_background();
    let judged = new.verified(&|_, _| {}).await.unwrap();
    let torn: Vec<_> = judged.iter().filter(|j| !j.problems.is_empty()).map(|j| (&j.name, &j.problems)).collect();
    assert!(torn.is_empty(), "frozen after {turns} turns: {torn:?}");
    assert_eq!(mark_of(&place.path().join(format!("store/step-3/{}", judged[0].name.stamp))), "new-3");
    true
}

#[test]
fn a_run_frozen_anywhere_in_a_commit_while_a_newer_one_commits_leaves_no_torn_commit() {
    let runtime = runtime();
    let frozen = (0..).take_while(|turns| runtime.block_on(freeze_in_a_commit(*turns))).count();
    assert!(frozen > 10, "only {frozen} places");
}
