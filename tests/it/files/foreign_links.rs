//! Files that root opens in places where a less privileged user may write: a link of that user is never followed.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::support::{Finished, Trainit, binary, is_root, shared_dir};

/// The user that the trainer became.
const TRAINER: &str = "65534";

/// A directory of root with a file that only root may read, and a directory of the trainer.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Option<Place> {
        if !is_root() {
            crate::support::skip("needs root and a less privileged user");
            return None;
        }
        let place = Place { dir: shared_dir() };
        fs::write(place.at("precious"), "{\"loss\": 0.5, \"step\": 1}\n").unwrap();
        fs::set_permissions(place.at("precious"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::create_dir(place.at("theirs")).unwrap();
        chown(place.at("theirs"), Some(65534), Some(65534)).unwrap();
        Some(place)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs a script as the trainer's user.
    fn trainer(&self, script: &str) {
        let ids = ["--reuid", TRAINER, "--regid", TRAINER, "--clear-groups"];
        let mut command = Command::new("setpriv");
        let status = command.args(ids).args(["sh", "-c", script]).current_dir(self.dir.path()).status().unwrap();
        assert!(status.success(), "{script}");
    }

    fn run(&self, flags: &[&str], script: &str) -> Finished {
        let run = Trainit::new(["run"]).args(flags).args(["--", "sh", "-c", script]).dir(self.dir.path());
        run.env("CLOUD_ML_HP_METRIC_FILE", self.at("metrics")).output().expect_code(0)
    }

    #[track_caller]
    fn nothing_was_touched(&self) {
        assert_eq!(fs::read_to_string(self.at("precious")).unwrap(), "{\"loss\": 0.5, \"step\": 1}\n");
    }
}

#[test]
fn a_metrics_file_that_is_a_link_of_the_trainer_is_neither_written_nor_trimmed() {
    let Some(place) = Place::new() else { return };
    place.trainer("ln -s ../precious theirs/soft; ln -s .. theirs/way");
    fs::hard_link(place.at("precious"), place.at("theirs/hard")).unwrap();
    for (name, words) in [
        ("theirs/soft", "soft is a symbolic link of user 65534"),
        ("theirs/way/precious", "way is a symbolic link of user 65534"),
        ("theirs/way/new", "way is a symbolic link of user 65534"),
        ("theirs/hard", "hard links"),
    ] {
        let report = Trainit::new(["report-metric", "a", "1", "--keep", "1", "--file", name]).dir(place.dir.path());
        let done = report.output().expect_code(1);
        assert!(done.err().contains(words) && done.err().contains("--file"), "{name}: {}", done.err());
        place.nothing_was_touched();
    }
    assert!(!place.at("new").exists());
}

#[test]
fn a_run_refuses_a_link_of_the_trainer_for_reports_and_continues() {
    let Some(place) = Place::new() else { return };
    place.trainer("ln -s ../precious theirs/soft");
    let run =
        Trainit::new(["run", "--metric", "loss=loss: ([0-9.]+)", "--", "echo", "loss: 0.25"]).dir(place.dir.path());
    let done = run.env("CLOUD_ML_HP_METRIC_FILE", place.at("theirs/soft")).output().expect_code(0);
    assert!(done.err().contains("soft is a symbolic link of user 65534"), "{}", done.err());
    assert_eq!(done.verdict()["metrics"]["loss"], 0.25);
    place.nothing_was_touched();
}

#[test]
fn a_verdict_is_not_written_through_a_link_of_the_trainer() {
    let Some(place) = Place::new() else { return };
    fs::hard_link(place.at("precious"), place.at("theirs/hard")).unwrap();
    let link = "setpriv --reuid 65534 --regid 65534 --clear-groups ln -s ../precious theirs/soft";
    for (name, script, words) in
        [("theirs/soft", link, "soft is a symbolic link of user 65534"), ("theirs/hard", "true", "hard links")]
    {
        let done = place.run(&["--verdict-file", name], script);
        assert!(done.err().contains(words), "{name}: {}", done.err());
        assert_eq!(done.verdict()["reason"], "finished");
        place.nothing_was_touched();
    }
}

#[test]
fn metric_files_are_not_read_through_links_of_the_trainer() {
    let Some(place) = Place::new() else { return };
    const EVENTS: &str = "out.tfevents.1";
    fs::write(place.at(EVENTS), include_bytes!("../../golden/tensorboard/tensorboardX.tfevents")).unwrap();
    let become_trainer = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    let soft = format!("{become_trainer} ln -s ../precious theirs/soft");
    let hard = "ln precious theirs/hard".to_owned();
    let folder = format!("{become_trainer} ln -s .. theirs/folder");
    let event = format!("mkdir theirs/events; chown 65534 theirs/events; ln {EVENTS} theirs/events/");
    for (flag, name, script, words) in [
        ("--metric-file", "theirs/soft", soft, "soft is a symbolic link of user 65534"),
        ("--metric-file", "theirs/hard", hard, "hard links"),
        ("--tensorboard-dir", "theirs/folder", folder, "folder is a symbolic link of user 65534"),
        ("--tensorboard-dir", "theirs/events", event, "a hard link to a file of another user"),
    ] {
        let done = place.run(&[flag, name], &script);
        assert!(done.err().contains(words), "{name}: {}", done.err());
        assert_eq!(done.verdict()["metrics"], serde_json::json!({}), "{name}: {}", done.err());
    }
    assert!(!place.at("metrics").exists());
}

#[test]
fn a_checkpoint_directory_is_not_opened_through_a_link_of_the_trainer() {
    let Some(place) = Place::new() else { return };
    fs::create_dir(place.at("real")).unwrap();
    place.trainer("ln -s ../real theirs/checkpoints");
    let flags = ["--checkpoint-dir", "theirs/checkpoints", "--checkpoint-store"];
    let store = format!("file://{}", place.at("store").display());
    let run = Trainit::new(["run"]).args(flags).args([store.as_str(), "--", "true"]).dir(place.dir.path());
    let done = run.output();
    assert!(done.err().contains("checkpoints is a symbolic link of user 65534"), "{}", done.err());
    assert!(!place.at("real/.trainit").exists());
}

#[test]
fn links_of_root_are_followed_everywhere() {
    let Some(place) = Place::new() else { return };
    for name in ["metrics", "verdict", "loss.jsonl"] {
        symlink(place.at(name), place.at("theirs").join(name)).unwrap();
    }
    symlink(place.at("theirs"), place.at("logs")).unwrap();
    let script = "echo '{\"loss\": 0.25, \"step\": 3}' >loss.jsonl";
    let flags = ["--metric-file", "logs/loss.jsonl", "--verdict-file", "logs/verdict"];
    let run = Trainit::new(["run"]).args(flags).args(["--", "sh", "-c", script]).dir(place.dir.path());
    let done = run.env("CLOUD_ML_HP_METRIC_FILE", place.at("logs/metrics")).output().expect_code(0);
    assert_eq!(done.verdict()["metrics"]["loss"], 0.25, "{}", done.err());
    assert!(fs::read_to_string(place.at("metrics")).unwrap().contains("0.25"));
    assert!(fs::read_to_string(place.at("verdict")).unwrap().contains("finished"));
}

#[test]
fn root_gets_a_run_directory_although_another_user_took_the_names() {
    if !is_root() {
        crate::support::skip("needs root for a PID namespace");
        return;
    }
    // Every predictable name that a run directory of this PID could have. A directory that contains the program itself
    // cannot be covered by a mount.
    let premade = "for place in /dev/shm /tmp /run; do case $0 in $place/*) continue;; esac; mount -t tmpfs -o mode=1777 none $place; \
                   setpriv --reuid 65534 --regid 65534 --clear-groups \
                   sh -c \"cd $place; mkdir trainit-0-1; for n in \\$(seq 64); do mkdir trainit-0-1.\\$n; done\"; done; \
                   exec \"$0\" \"$@\"";
    let prefix = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", premade];
    let script = "test -n \"$TRAINIT_PREEMPTION_FILE\" && trainit status --check";
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", binary().parent().unwrap().display());
    let run = Trainit::through(&prefix, ["run", "--preemption", "off", "--", "sh", "-c", script]).env("PATH", path);
    let done = run.output().expect_code(0);
    assert!(!done.err().contains("no place"), "{}", done.err());
}

#[test]
fn a_store_is_neither_read_nor_written_through_a_link_of_the_trainer() {
    let Some(place) = Place::new() else { return };
    place.trainer("ln -s .. theirs/way");
    let store = format!("file://{}", place.at("theirs/way/store").display());
    fs::create_dir(place.at("ckpt")).unwrap();
    fs::write(place.at("ckpt/model-1.bin"), "x").unwrap();
    let args = ["checkpoint", "push", "--checkpoint-dir", "ckpt", "--checkpoint-store", store.as_str()];
    let done = Trainit::new(args).dir(place.dir.path()).output();
    assert!(!done.status.success() && done.err().contains("way is a symbolic link of user 65534"), "{}", done.err());
    assert!(!place.at("store").exists());
}
