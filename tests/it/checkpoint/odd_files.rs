//! A store in a directory with something else in the place of a file; and checkpoints that cannot be read.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;

use serde_json::Value;

use crate::support::Trainit;
use crate::support::checkpoints::Place;

#[test]
fn a_pipe_or_a_socket_among_the_files_does_not_block_and_its_checkpoint_is_incomplete() {
    for is_pipe in [true, false] {
        let place = Place::new();
        place.save_and_push(1..=2);
        let object = place.store().join("step-2/0000000002-000001/weights.bin");
        fs::remove_file(&object).unwrap();
        if is_pipe {
            nix::unistd::mkfifo(&object, nix::sys::stat::Mode::S_IRWXU).unwrap();
        } else {
            UnixListener::bind(&object).unwrap();
        }
        assert_eq!(place.steps(), [1]);
        let text = place.checkpoint("verify").output().expect_code(1).out();
        assert!(text.contains("1 of 2 commits are complete") && text.contains("weights.bin is missing"), "{text}");
        let keep = ["--keep-last", "1", "--json"];
        let pruned = place.checkpoint("prune").args(keep).output().expect_code(0).out();
        assert_eq!(serde_json::from_str::<Value>(&pruned).unwrap()["kept"], 2, "{pruned}");
        let pulled = place.pull_afresh("pulled");
        assert!(pulled.join("step-1").exists() && !pulled.join("step-2").exists());
        let run = ["run", "--checkpoint-dir", place.path("run").to_str().unwrap(), "--checkpoint-store", &place.url()]
            .map(str::to_owned);
        let done = Trainit::new(run).args(["--", "sh", "-c", "echo $TRAINIT_RESUME_STEP"]).output().expect_code(0);
        assert_eq!(done.out(), "1\n", "{}", done.err());
    }
}

#[test]
fn a_pipe_with_the_name_of_a_claim_does_not_block_a_push() {
    let place = Place::new();
    place.save(1);
    fs::create_dir_all(place.store().join(".trainit/attempts")).unwrap();
    let claim = place.store().join(".trainit/attempts/0000000001.json");
    nix::unistd::mkfifo(&claim, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let done = place.checkpoint("push").output().expect_code(204);
    assert!(done.err().contains("0000000001.json: it is not a regular file"), "{}", done.err());
}

#[test]
fn a_trainers_checkpoint_without_read_permission_is_204() {
    let (name, whole, locked) = ("w.bin", "w", "/w.bin");
    let place = Place::new();
    // Root may read everything, and other users may not write to a place of root.
    if fs::metadata(place.local()).unwrap().uid() != 0 {
        return;
    }
    fs::create_dir(place.store()).unwrap();
    for dir in [place.path(""), place.local(), place.store()] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let script = format!(
        r#"save() {{ mkdir "$D.tmp"; printf %s "$W" >"$D.tmp/{name}"; $2 "$D.tmp{locked}"; mv "$D.tmp" "$D/step-$1"; }}
           save 1 :; until ls "$S"/.trainit/commits/*; do sleep 0.01; done; save 2 "chmod 0""#
    );
    let local = place.local();
    let args = ["run", "--checkpoint-store", &place.url(), "--checkpoint-dir", local.to_str().unwrap()];
    let as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let run = Trainit::through(&as_nobody, [&args[..], &["--settle", "0", "--commit-interval", "20ms"]].concat());
    let run = run.args(["--", "sh", "-c", &script]).env("D", &local).env("S", place.store()).env("W", whole);
    let done = run.output().expect_code(204);
    let last = done.err().lines().last().unwrap_or_default().to_owned();
    for part in [&format!("step-2{locked}"), "Permission denied", "trainit's user must be allowed to read"] {
        assert!(last.contains(part), "{name}: {part}: {}", done.err());
    }
    assert_eq!(place.steps(), [1], "{name}");
    let by_hand =
        ["checkpoint", "push", "--checkpoint-store", &place.url(), "--checkpoint-dir", local.to_str().unwrap()];
    let pushed = Trainit::through(&as_nobody, by_hand).output().expect_code(204).err();
    let last = pushed.lines().last().unwrap_or_default();
    assert!(last.contains("step-2") && last.contains("Permission denied"), "{name}: {pushed}");
    fs::set_permissions(local.join("step-2"), fs::Permissions::from_mode(0o755)).unwrap();
}
