//! The content of a commit: parts, all other files unchanged, the excluded files, and the log lines about it.

use std::fs;

use serde_json::Value;

use crate::support::Trainit;
use crate::support::checkpoints::{Place, tree};

fn write(place: &Place, path: &str, bytes: impl AsRef<[u8]>) {
    let path = place.local().join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// A checkpoint as Hugging Face's `Trainer` writes it.
fn save(place: &Place, root: &str, step: u64) {
    let header = br#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    let weights = [&(header.len() as u64).to_le_bytes()[..], header, &[step as u8]].concat();
    write(place, &format!("{root}/checkpoint-{step}/model.safetensors"), weights);
    write(place, &format!("{root}/checkpoint-{step}/trainer_state.json"), format!("{{\"global_step\": {step}}}"));
}

#[track_caller]
fn paths(place: &Place) -> Vec<String> {
    let files = place.manifest().1["files"].as_array().unwrap().clone();
    let files = files.iter().filter(|file| file["type"] == "file");
    files.map(|file| file["path"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_commit_has_the_newest_units_of_each_known_root_and_all_other_files() {
    let place = Place::new();
    for (root, step) in [("actor", 5), ("actor", 10), ("actor", 15), ("actor", 20), ("critic", 20)] {
        save(&place, root, step);
    }
    write(&place, "tokenizer/vocab.bin", "abc");
    place.push();
    assert_eq!(
        paths(&place),
        [
            "actor/checkpoint-10/model.safetensors",
            "actor/checkpoint-10/trainer_state.json",
            "actor/checkpoint-15/model.safetensors",
            "actor/checkpoint-15/trainer_state.json",
            "actor/checkpoint-20/model.safetensors",
            "actor/checkpoint-20/trainer_state.json",
            "critic/checkpoint-20/model.safetensors",
            "critic/checkpoint-20/trainer_state.json",
            "tokenizer/vocab.bin"
        ]
    );
    let parts = place.manifest().1["parts"].clone();
    let of = |at: usize, key: &str| parts[at][key].clone();
    assert_eq!((of(0, "root"), of(1, "root"), of(2, "root")), ("actor".into(), "critic".into(), Value::Null));
    assert_eq!((of(0, "unit"), of(0, "step")), ("actor/checkpoint-20".into(), 20.into()));
    let pulled = place.pull_afresh("elsewhere");
    assert_eq!(tree(&pulled.join("critic")), tree(&place.local().join("critic")));
}

#[test]
fn a_part_that_is_not_ready_is_carried_over_from_the_last_commit() {
    let place = Place::new();
    for root in ["actor", "critic"] {
        save(&place, root, 10);
    }
    place.push();
    for root in ["actor", "critic"] {
        save(&place, root, 20);
    }
    write(&place, "critic/checkpoint-20/model.safetensors", "cut");
    let done = place.push();
    assert!(done.err().contains("NOT committed: critic/checkpoint-20"), "{}", done.err());
    let pulled = place.pull_afresh("elsewhere");
    assert!(pulled.join("actor/checkpoint-20/trainer_state.json").exists());
    assert!(pulled.join("critic/checkpoint-10/trainer_state.json").exists());
    assert!(!pulled.join("critic/checkpoint-20").exists());
}

#[test]
fn logs_and_temporary_files_are_excluded_and_flags_change_that() {
    let place = Place::new();
    for path in ["weights.bin", "train.log", "weights.bin.tmp", "wandb/run.bin", "samples/a.png", "events.tfevents.1"] {
        write(&place, path, "x");
    }
    place.push();
    assert_eq!(paths(&place), ["samples/a.png", "weights.bin"]);
    let flags = ["--checkpoint-exclude", "samples/", "--checkpoint-include", "*.log", "--checkpoint-exclude", "*.none"];
    place.checkpoint("push").args(flags).output().expect_code(0);
    assert_eq!(paths(&place), ["train.log", "weights.bin"]);
}

#[test]
fn a_format_can_be_chosen_and_the_tree_format_takes_everything() {
    let place = Place::new();
    for step in [10, 20] {
        save(&place, "run", step);
    }
    write(&place, "other.bin", "x");
    let push = |format: &str| {
        place.checkpoint("push").args(["--checkpoint-format", format]).output().expect_code(0);
        paths(&place).len()
    };
    assert_eq!(push("auto"), 5);
    assert_eq!(push("tree"), 5);
    assert_eq!(push("huggingface"), 4);
    let done = place.checkpoint("push").args(["--checkpoint-format", "hugging"]).output().expect_code(125);
    assert!(done.err().contains("huggingface") && done.err().lines().count() == 1, "{}", done.err());
}

#[test]
fn with_keep_saves_only_the_newest_of_numbered_files_are_committed() {
    let place = Place::new();
    let dir = place.local();
    let script = r#"mkdir "$D/net"; for n in 1 2 3 4; do echo $n >"$D/net/policy_$n.bin"; echo $n >"$D/net/value_$n.bin"
        until grep -l "policy_$n.bin" "$STORE"/.trainit/commits/*.json; do sleep 0.02; done; done"#;
    let run = ["run", "--settle", "50ms", "--commit-interval", "50ms", "--keep-saves", "2", "--checkpoint-dir"];
    let run = Trainit::new(run).args([dir.to_str().unwrap(), "--checkpoint-store", &place.url()]);
    let run = run.args(["--", "sh", "-c", script]).env("D", &dir).env("STORE", place.store());
    run.output().expect_code(0);
    assert_eq!(paths(&place), ["net/policy_3.bin", "net/policy_4.bin", "net/value_3.bin", "net/value_4.bin"]);
}

#[test]
fn each_path_is_reported_with_the_rule_that_decides_about_it() {
    let place = Place::new();
    save(&place, "run", 10);
    for path in ["train.log", "extra.bin"] {
        write(&place, path, "x");
    }
    let dir = place.local();
    let explain = |args: &[&str]| {
        let explain = Trainit::new(["checkpoint", "explain", "--checkpoint-dir", dir.to_str().unwrap()]);
        explain.args(args).output().expect_code(0).out()
    };
    let all = explain(&[]);
    for (path, rule) in [("train.log", "*.log"), ("extra.bin", "rest"), ("run/checkpoint-10/", "huggingface")] {
        assert!(all.lines().any(|line| line.contains(path) && line.contains(rule)), "{path}: {all}");
    }
    let one: Value = serde_json::from_str(&explain(&["--json", "train.log"])).unwrap();
    assert!(one.to_string().contains("*.log"), "{one}");
    let absolute = dir.join("extra.bin");
    assert!(explain(&[absolute.to_str().unwrap()]).contains("rest"));
}

#[test]
fn the_first_commit_of_a_run_logs_its_content() {
    let place = Place::new();
    let dir = place.local();
    let script = r#"mkdir "$0/step-1"; for n in 1 2 3 4; do head -c ${n}000 /dev/zero >"$0/step-1/w$n.bin"; done"#;
    let run = ["run", "--settle", "0", "--checkpoint-dir", dir.to_str().unwrap(), "--checkpoint-store", &place.url()];
    let done = Trainit::new(run).args(["--", "sh", "-c", script, dir.to_str().unwrap()]).output().expect_code(0);
    let err = done.err();
    let lines: Vec<&str> = err.lines().filter(|line| line.contains("the first commit takes")).collect();
    assert_eq!(lines.len(), 1, "{err}");
    for part in ["4 files, 10000 bytes", "step-1/w4.bin (4000 bytes), step-1/w3.bin", "step-1/w2.bin"] {
        assert!(lines[0].contains(part), "{part}: {}", lines[0]);
    }
}

#[test]
fn files_torn_by_a_death_are_kept_and_the_committed_version_is_restored() {
    let place = Place::new();
    let dir = place.local();
    let script = r#"cd "$D"; if [ "$TRAINIT_ATTEMPT" = 2 ]; then cat state.json; exit 0; fi
        echo '{"a": 1}' >state.json; echo '{"b": 1}' >other.json
        until ls "$STORE"/.trainit/commits/*.json; do sleep 0.02; done
        printf '{"a": ' >state.json; kill -9 $$"#;
    let run = ["run", "--settle", "50ms", "--commit-interval", "50ms", "--restart-backoff", "1ms", "--checkpoint-dir"];
    let run = Trainit::new(run).args([dir.to_str().unwrap(), "--checkpoint-store", &place.url()]);
    let run = run.args(["--", "sh", "-c", script]).env("D", &dir).env("STORE", place.store());
    let done = run.output().expect_code(0);
    assert!(done.out().ends_with("{\"a\": 1}\n"), "{}\n{}", done.out(), done.err());
    let torn = fs::read_dir(dir.join(".trainit/torn")).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read_to_string(torn.join("state.json")).unwrap(), "{\"a\": ");
    assert!(done.err().contains("may be half a save") && done.err().contains("is put back"), "{}", done.err());
}

#[test]
fn a_save_is_committed_although_the_directories_of_an_earlier_one_were_just_deleted() {
    let place = Place::new();
    let dir = place.local();
    let script = r#"cd "$D"; save() { mkdir -p "$1/layers"; echo '{}' >"$1/layers/0.json"; : >"$1/DONE"; }; save step-1
        until ls "$STORE"/.trainit/commits/*.json; do sleep 0.02; done; save step-2; rm -r step-1; kill -9 $$"#;
    let run = ["run", "--settle", "1s", "--mirror-interval", "50ms", "--max-restarts", "0", "--marker", "DONE"];
    let run = Trainit::new(run).args(["--checkpoint-dir", dir.to_str().unwrap(), "--checkpoint-store", &place.url()]);
    let run = run.args(["--", "sh", "-c", script]).env("D", &dir).env("STORE", place.store());
    let done = run.output().expect_code(137);
    assert!(paths(&place).contains(&"step-2/layers/0.json".to_owned()), "{:?}\n{}", paths(&place), done.err());
}

#[test]
fn a_trainer_that_saves_more_often_than_settle_is_committed_while_it_runs_although_the_store_is_slower() {
    let place = Place::new();
    let dir = place.local();
    let script = r#"cd "$D"; n=0; until [ "$(ls "$STORE/.trainit/commits" | wc -l)" -ge 3 ]; do
        n=$((n + 1)); { printf '{"w": "'; head -c 30000 /dev/zero | tr '\0' x; printf '"}'; } >.tmp-save
        mv .tmp-save step-$n.json; rm -f step-$((n - 3)).json; sleep 0.3; done; kill -9 $PPID"#;
    let run =
        ["run", "--settle", "1s", "--mirror-interval", "100ms", "--mirror-bandwidth", "60KiB", "--checkpoint-dir"];
    let run = Trainit::new(run).args([dir.to_str().unwrap(), "--checkpoint-store", &place.url()]);
    let run = run.args(["--", "sh", "-c", script]).env("D", &dir).env("STORE", place.store());
    let done = run.output().expect_code(137);
    let steps = place.steps();
    assert!(steps.len() == 3 && steps[0] > steps[1] && steps[1] > steps[2], "{steps:?}\n{}", done.err());
    let newest = place.pull_afresh("elsewhere").join(format!("step-{}.json", steps[0]));
    assert!(serde_json::from_slice::<Value>(&fs::read(newest).unwrap()).is_ok(), "the newest is whole");
}

#[test]
fn an_excluded_newest_file_is_never_reported_as_safe() {
    let place = Place::new();
    let dir = place.local();
    let script = r#"echo '{}' >"$0/a.json"; printf '{"cut": ' >"$0/b.json""#;
    let run = ["run", "--settle", "0", "--checkpoint-dir", dir.to_str().unwrap(), "--checkpoint-store", &place.url()];
    let done = Trainit::new(run).args(["--", "sh", "-c", script, dir.to_str().unwrap()]).output().expect_code(0);
    assert!(!done.err().contains("is safe in the store"), "{}", done.err());
    assert!(done.err().contains("NOT in the store: b.json"), "{}", done.err());
}

#[test]
fn a_list_calls_complete_only_what_a_format_or_a_known_end_proves() {
    let place = Place::new();
    let state = || {
        let listed = place.checkpoint("list").args(["--json"]).output().expect_code(0).out();
        let part = &serde_json::from_str::<Value>(&listed).unwrap()["local"][0];
        (part["state"].as_str().unwrap().to_owned(), part["complete"].as_bool().unwrap())
    };
    write(&place, "tokenizer.json", "{}");
    place.push();
    assert_eq!(state(), ("committed".to_owned(), true));
    write(&place, "state.json", "{}");
    assert_eq!(state(), ("complete".to_owned(), true));
    write(&place, "weights.ubj", "perhaps the first half");
    assert_eq!(state(), ("unproven".to_owned(), false));
}
