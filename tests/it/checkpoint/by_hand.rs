//! `trainit checkpoint` on the command line: its output on both streams, its errors, dry runs, and exit codes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use crate::support::checkpoints::Place;
use crate::support::{Finished, Trainit};

fn json_of(done: &Finished) -> Value {
    serde_json::from_str(&done.out()).unwrap()
}

#[track_caller]
fn one_line(done: &Finished, words: &[&str]) {
    let line = done.err();
    assert_eq!((line.lines().count(), done.out().as_str()), (1, ""), "{line}");
    assert!(words.iter().all(|word| line.contains(word)), "not all of {words:?} in {line}");
}

/// Every file in the directory, including trainit's own.
fn census(root: &Path) -> Vec<String> {
    let mut found = vec![];
    for entry in fs::read_dir(root).into_iter().flatten() {
        let path = entry.unwrap().path();
        found.push(path.display().to_string());
        found.extend(census(&path));
    }
    found.sort();
    found
}

#[test]
fn a_store_alone_is_enough_to_list_verify_and_prune_it() {
    let place = Place::new();
    place.save_and_push(1..=2);
    let url = place.url();
    let run =
        |action: &str| Trainit::new(["checkpoint", action, "--checkpoint-store", &url]).output().expect_code(0).out();
    assert!(run("list").contains("step-2") && !run("list").contains("LOCAL"), "{}", run("list"));
    assert!(run("verify").contains("2 of 2 commits are complete"), "{}", run("verify"));
    assert!(
        run("prune").contains("deleted 0 commits and 0 objects without a commit; 2 commits stay"),
        "{}",
        run("prune")
    );
}

#[test]
fn a_missing_store_is_reported_in_terms_of_the_subcommand() {
    let place = Place::new();
    let (local, url) = (place.local(), format!("{}-mistyped", place.url()));
    for action in ["list", "verify", "prune", "pull"] {
        let mut args = vec!["checkpoint", action, "--checkpoint-store", &url];
        if action == "pull" {
            args.extend(["--checkpoint-dir", local.to_str().unwrap()]);
        }
        let done = Trainit::new(args).output().expect_code(204);
        one_line(&done, &["-mistyped", "see that this is the store that the run was given"]);
        assert!(!done.err().contains("survives") && !done.err().contains("start again"), "{}", done.err());
    }
    let run =
        ["run", "--checkpoint-store", "file:///proc/store", "--checkpoint-dir", local.to_str().unwrap(), "--", "true"];
    let run = Trainit::new(run).output().expect_code(204);
    assert!(run.err().contains("without the store no checkpoint survives this machine"), "{}", run.err());
}

#[test]
fn one_mistake_causes_one_message() {
    let dir = ["--checkpoint-dir", "/x"];
    for (args, word) in [
        (&["list", "--checkpoint-store", "s4://b/x"][..], "unknown scheme"),
        (&["push", dir[0], dir[1]], "--checkpoint-store: checkpoint push needs it"),
        (&["list"], "--checkpoint-store: checkpoint list needs it, or --checkpoint-dir;"),
        (&["pull", "--checkpoint-store", "file:///x"], "--checkpoint-dir: checkpoint pull needs it"),
        (
            &["push", dir[0], dir[1], "--checkpoint-store", "file:///y", "--restore-step", "3"],
            "checkpoint push ignores it",
        ),
        (&[], "trainit checkpoint needs ACTION: list, explain"),
    ] {
        one_line(&Trainit::new(["checkpoint"]).args(args).output().expect_code(125), &[word]);
    }
}

#[test]
fn an_empty_store_and_an_empty_directory_are_reported_as_empty() {
    let place = Place::new();
    fs::create_dir(place.store()).unwrap();
    let text = place.checkpoint("list").output().expect_code(0).out();
    assert!(text.contains("no commits in file://") && text.contains("no checkpoints in /"), "{text}");
    assert_eq!(
        json_of(&place.checkpoint("list").args(["--json"]).output()),
        json!({"commits": [], "local": [], "excluded": []})
    );
    assert!(place.checkpoint("verify").output().expect_code(0).out().starts_with("no commits in file://"));
    assert_eq!(place.checkpoint("pull").output().expect_code(0).out(), "there is nothing to pull\n");
}

#[test]
fn a_missing_directory_is_an_error_by_itself_and_counts_as_empty_with_a_store() {
    let place = Place::new();
    place.save(1);
    place.push();
    let gone = place.path("mistyped");
    let alone = ["checkpoint", "list", "--checkpoint-dir", gone.to_str().unwrap()];
    for as_json in [&[][..], &["--json"]] {
        let done = Trainit::new(alone).args(as_json).output().expect_code(125);
        one_line(&done, &["/mistyped: No such file or directory", "give a --checkpoint-dir that can be read"]);
    }
    let both = || place.checkpoint_in("list", &gone);
    let text = both().output().expect_code(0).out();
    assert!(text.contains("step-1") && text.contains("/mistyped, which does not exist\n"), "{text}");
    assert_eq!(json_of(&both().args(["--json"]).output().expect_code(0))["local"], json!([]));
    assert!(!gone.exists());
}

#[test]
fn each_action_ends_in_the_same_way_without_the_directory() {
    let place = Place::new();
    let (no_dir, store) = (place.path("no-dir"), place.store());
    place.save(1);
    for (action, without_store, without_dir, made) in [
        ("list", 204, 0, false),
        ("verify", 204, 0, false),
        ("prune", 204, 0, false),
        ("pull", 204, 0, true),
        ("push", 0, 125, false),
    ] {
        let (in_there, at_both) = (|| place.checkpoint_in(action, &no_dir), if action == "push" { 125 } else { 204 });
        in_there().output().expect_code(at_both);
        assert!(!store.exists() && !no_dir.exists(), "{action}");
        place.checkpoint(action).output().expect_code(without_store);
        assert_eq!(store.exists(), action == "push");
        place.push();
        in_there().output().expect_code(without_dir);
        assert_eq!(no_dir.exists(), made, "{action}");
        fs::remove_dir_all(&store).unwrap();
        let _ = fs::remove_dir_all(&no_dir);
    }
}

#[test]
fn a_file_where_a_directory_should_be_is_named() {
    let place = Place::new();
    fs::write(place.path("file"), "").unwrap();
    let (file, url) = (place.path("file"), format!("file://{}", place.path("file").display()));
    let (file, words) = (file.to_str().unwrap(), ["Not a directory", "/file"]);
    one_line(&Trainit::new(["checkpoint", "list", "--checkpoint-store", &url]).output().expect_code(204), &words);
    one_line(&Trainit::new(["checkpoint", "list", "--checkpoint-dir", file]).output().expect_code(125), &words);
    one_line(&place.checkpoint_in("push", Path::new(file)).output().expect_code(125), &words);
}

#[test]
fn verify_names_every_bad_file_and_list_names_those_with_a_wrong_size() {
    let place = Place::new();
    place.save(1);
    place.push();
    let data = place.store().join("step-1/0000000001-000001");
    let mut bytes = fs::read(data.join("weights.bin")).unwrap();
    bytes[100] ^= 1;
    fs::write(data.join("weights.bin"), bytes).unwrap();
    fs::remove_file(data.join("state.json")).unwrap();
    place.save(2);
    place.push();
    let problems = |done: Finished| {
        let value = json_of(&done);
        assert_eq!(value["commits"][0]["complete"], true, "{value}");
        let problems = value["commits"][1]["problems"].as_array().unwrap().clone();
        problems.iter().map(|p| p["path"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(problems(place.checkpoint("list").args(["--json"]).output().expect_code(0)), ["step-1/state.json"]);
    let verified = place.checkpoint("verify").args(["--json"]).output().expect_code(1);
    assert_eq!(problems(verified), ["step-1/state.json", "step-1/weights.bin"]);
    let text = place.checkpoint("verify").output().expect_code(1).out();
    assert!(text.contains("state.json is missing from the store, and 1 more"), "{text}");
    assert!(text.contains("1 of 2 commits are complete"), "{text}");
}

#[test]
fn verify_continues_after_an_object_that_cannot_be_read() {
    let place = Place::new();
    place.save_and_push(1..=2);
    // A directory in the place of an object has no size in a listing and no bytes to read.
    let object = place.store().join("step-2/0000000002-000001/weights.bin");
    fs::remove_file(&object).unwrap();
    fs::create_dir(&object).unwrap();
    let text = place.checkpoint("verify").output().expect_code(1).out();
    assert!(text.contains("1 of 2 commits are complete"), "{text}");
}

#[test]
fn files_in_the_newest_commit_are_not_pushed_again() {
    let place = Place::new();
    place.save_and_push(1..=3);
    let before = census(&place.store());
    let done = place.push_one();
    assert!(
        done.out().starts_with("nothing to push: the newest commit, 0000000003-000001, is already step-3"),
        "{}",
        done.out()
    );
    let value = json_of(&place.checkpoint("push").args(["--json", "--keep-saves", "1"]).output().expect_code(0));
    assert_eq!(value["up_to_date"]["commit"], "0000000003-000001", "{value}");
    assert_eq!(census(&place.store()), before, "no attempt is claimed, and no older commit is deleted");
    fs::write(place.local().join("step-3/state.json"), "{\"step\": 3, \"again\": 1}").unwrap();
    assert!(place.push_one().out().starts_with("committed step-3"));
}

#[test]
fn a_push_without_a_checkpoint_creates_nothing_and_gives_the_reason() {
    let place = Place::new();
    let nowhere = place.path("nowhere");
    let done = place.checkpoint_in("push", &nowhere).output().expect_code(125);
    one_line(&done, &["/nowhere: No such file or directory", "give a --checkpoint-dir that can be read"]);
    fs::create_dir_all(place.local().join("checkpoint-5")).unwrap();
    fs::write(place.local().join("checkpoint-5/model.safetensors"), "cut").unwrap();
    let done = place.checkpoint("push").output().expect_code(1);
    one_line(&done, &["nothing was pushed: checkpoint-5/model.safetensors"]);
    assert!(!nowhere.exists() && !place.store().exists());
}

#[test]
fn a_dry_run_of_a_subcommand_without_one_is_refused() {
    let place = Place::new();
    place.save(1);
    for action in ["push", "pull"] {
        let refused = place.checkpoint(action).env("TRAINIT_DRY_RUN", "1").output().expect_code(125);
        assert!(refused.err().contains("only checkpoint prune"), "{}", refused.err());
    }
    assert!(!place.store().exists());
}

#[test]
fn pull_names_the_files_that_it_moved_aside() {
    let place = Place::new();
    place.save(1);
    place.push();
    let pulled = place.path("pulled");
    fs::create_dir_all(pulled.join("step-1")).unwrap();
    fs::write(pulled.join("step-1/mine.txt"), "mine").unwrap();
    let done = place.checkpoint_in("pull", &pulled).output().expect_code(0);
    assert!(done.out().contains("step-1 is in place (step 1, commit 0000000001-000001, "), "{}", done.out());
    let (_, aside) = done.err().split_once("is kept in ").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let aside = aside.split(';').next().unwrap();
    assert_eq!(fs::read_to_string(pulled.join(aside).join("step-1/mine.txt")).unwrap(), "mine");
    let linked = place.path("linked");
    fs::create_dir_all(&linked).unwrap();
    symlink(place.path("elsewhere"), linked.join(".trainit")).unwrap();
    one_line(&place.checkpoint_in("pull", &linked).output().expect_code(125), &["symbolic link", "move it away"]);
}

#[test]
fn prune_names_deleted_commits_and_counts_the_kept_ones() {
    let place = Place::new();
    place.save_and_push(1..=3);
    let prune = |args: &[&str]| place.checkpoint("prune").args(["--keep-last", "1"]).args(args).output().expect_code(0);
    let value = json_of(&prune(&["--json", "--dry-run", "--keep-every", "2"]));
    assert_eq!((value["kept"].as_u64(), value["commits"].as_array().map(Vec::len)), (Some(2), Some(1)), "{value}");
    let text = prune(&[]).out();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        [
            "deleted commit 0000000001-000001 (step 1)",
            "deleted commit 0000000002-000001 (step 2)",
            "deleted 2 commits and 0 objects without a commit; 1 commit stays"
        ]
    );
}

#[test]
fn prune_counts_half_written_files_and_a_dry_run_keeps_them() {
    let place = Place::new();
    place.save(1);
    place.push();
    let half = place.store().join("step-1/0000000001-000001/weights.bin#1");
    let file = fs::File::create(&half).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
    let prune =
        |args: &[&str]| place.checkpoint("prune").args(["--orphan-age", "0s"]).args(args).output().expect_code(0);
    assert_eq!(json_of(&prune(&["--json", "--dry-run"]))["half_written"], 1);
    let line = |verb: &str| format!("{verb} 1 incomplete file of interrupted writes\n");
    assert!(prune(&["--dry-run"]).out().starts_with(&line("would delete")) && half.exists());
    assert!(prune(&[]).out().starts_with(&line("deleted")) && !half.exists());
    assert!(prune(&[]).out().starts_with("deleted 0 commits"), "none is left");
}

#[test]
fn a_store_without_room_for_one_more_file_can_be_pruned() {
    let place = Place::new();
    place.save_and_push(1..=2);
    let script = "mount -t tmpfs -o nr_inodes=40 none \"$1\" && cp -a \"$2\"/. \"$1\" || exit 9; n=0; \
                  while touch \"$1/full-$n\" 2>/dev/null; do n=$((n + 1)); done; \
                  for dry in --dry-run --json; do \"$0\" checkpoint prune --keep-last 1 --checkpoint-store \"file://$1\" $dry || exit; done";
    let full = place.path("full");
    fs::create_dir(&full).unwrap();
    let (full, store) = (full.display().to_string(), place.store().display().to_string());
    let wrapper = ["unshare", "--mount", "sh", "-c", script];
    let done = Trainit::through(&wrapper, [full, store]).output().expect_code(0);
    assert!(done.out().contains("would delete 1 commit "), "{}{}", done.out(), done.err());
    assert!(done.out().contains("\"kept\": 1") || done.out().contains("\"kept\":1"), "{}", done.out());
}

#[test]
fn a_push_deletes_commits_only_with_a_retention_setting() {
    let place = Place::new();
    place.save_and_push(1..=5);
    assert_eq!(place.steps(), [5, 4, 3, 2, 1]);
    place.save(6);
    place.checkpoint("push").env("TRAINIT_KEEP_LAST", "2").output().expect_code(0);
    assert_eq!(place.steps(), [6, 5]);
}

#[test]
fn the_help_lists_the_exit_codes_of_each_action() {
    let help = Trainit::new(["checkpoint", "--help"]).output().expect_code(0).out();
    for words in ["Exit codes: 0", "125", "204", "205", "verify", "standard output", "explain"] {
        assert!(help.contains(words), "no {words:?} in {help}");
    }
}

#[test]
fn the_newest_of_hundreds_of_checkpoints_is_found_quickly() {
    let place = Place::new();
    for step in 1..=700 {
        let unit = place.local().join(format!("checkpoint_{step}"));
        fs::create_dir(&unit).unwrap();
        fs::write(unit.join("pytorch_model.bin"), "weights").unwrap();
        fs::write(unit.join("random_states_0.pkl"), b"\x80\x02}q\0.").unwrap();
    }
    let begun = Instant::now();
    let list = Trainit::new(["checkpoint", "list", "--json", "--checkpoint-dir"]).args([place.local()]);
    let done = list.output().expect_code(0);
    assert_eq!(json_of(&done)["local"][0]["step"], 700, "{}", done.out());
    // Comparing each checkpoint with each other one would take twenty times as long.
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
}
