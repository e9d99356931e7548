//! The model of a finished job, and the places where Vertex AI expects the model and the checkpoints.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Mutex;

use crate::support::bucket::{Bucket, Fault, NAME};
use crate::support::checkpoints::{Place, tree};
use crate::support::{Trainit, eventually};

const TRAINER: &str =
    "mkdir -p \"$0/variables\"; echo graph > \"$0/saved_model.pb\"; echo v > \"$0/variables/variables.index\"";

fn run(place: &Place, script: &str) -> Trainit {
    let model = place.path("model");
    Trainit::new(["run", "--model-dir", model.to_str().unwrap(), "--", "sh", "-c", script, model.to_str().unwrap()])
        .env("AIP_MODEL_DIR", place.url())
}

/// Content by path, without trainit's own directory.
fn files(root: &Path) -> BTreeMap<String, String> {
    let plain = |path: &Path| fs::read_to_string(path).unwrap();
    let all = tree(root).into_keys().filter(|path| !path.ends_with('/'));
    all.map(|path| (path.clone(), plain(&root.join(path)))).collect()
}

fn manifest(place: &Place) -> Option<serde_json::Value> {
    let text = fs::read(place.store().join(".trainit/model.json")).ok()?;
    Some(serde_json::from_slice(&text).unwrap())
}

#[test]
fn a_finished_jobs_model_is_copied_unchanged_with_the_manifest_last() {
    let place = Place::new();
    let done = run(&place, TRAINER).output().expect_code(0);
    assert_eq!(files(&place.store()), files(&place.path("model")));
    let manifest = manifest(&place).expect("a manifest");
    let paths: Vec<&str> = manifest["files"].as_array().unwrap().iter().map(|f| f["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["saved_model.pb", "variables/variables.index"]);
    assert_eq!(done.verdict()["reason"], "finished");
    assert!(done.err().contains("the model is in"), "{}", done.err());
}

#[test]
fn a_model_written_directly_to_its_destination_is_unchanged() {
    let place = Place::new();
    let model = place.path("model");
    std::os::unix::fs::symlink(&model, place.path("link")).unwrap();
    for to in [model.clone(), place.path("link")] {
        let done = run(&place, TRAINER).env("AIP_MODEL_DIR", &to).output().expect_code(0);
        assert!(done.err().contains("there is nothing to copy"), "{}", done.err());
        assert_eq!(files(&model).len(), 2);
        assert!(!model.join(".trainit").exists());
    }
}

#[test]
fn a_model_directory_and_a_destination_that_overlap_are_refused_before_the_start() {
    let place = Place::new();
    let mounted = |url: &str| Trainit::new(["run", "--model-dir", "/gcs/b/m", "--model-store", url, "--", "true"]);
    let inside = place.path("model/out");
    let around = place.path("");
    let refused = [
        run(&place, TRAINER).env("AIP_MODEL_DIR", &inside),
        run(&place, TRAINER).env("AIP_MODEL_DIR", &around),
        mounted("gs://b"),
        mounted("file:///gcs/b/m/out"),
    ];
    for trainit in refused {
        let done = trainit.output().expect_code(125);
        assert!(done.err().contains("overlap"), "{}", done.err());
    }
    assert!(!place.path("model").exists());
    // The destination is known only at this point.
    let script =
        format!("mkdir -p {store}/m; ln -s {store}/m \"$0\"; echo 1 > \"$0/w\"", store = place.store().display());
    let done = run(&place, &script).output().expect_code(204);
    assert!(done.err().contains("overlap"), "{}", done.err());
    assert_eq!(files(&place.store()).into_keys().collect::<Vec<_>>(), ["m/w"]);
}

#[test]
fn a_later_run_replaces_the_model_and_removes_its_obsolete_files() {
    let place = Place::new();
    run(&place, TRAINER).output().expect_code(0);
    fs::remove_dir_all(place.path("model")).unwrap();
    fs::write(place.store().join("foreign-file"), "x").unwrap();
    run(&place, "mkdir \"$0\"; echo longer graph > \"$0/saved_model.pb\"").output().expect_code(0);
    let stored = files(&place.store());
    assert_eq!(stored["saved_model.pb"], "longer graph\n");
    assert_eq!(stored.keys().collect::<Vec<_>>(), ["foreign-file", "saved_model.pb"]);
}

#[test]
fn a_job_that_failed_or_was_stopped_leaves_no_model() {
    let place = Place::new();
    run(&place, &format!("{TRAINER}; exit 3")).output().expect_code(3);
    let running = run(&place, &format!("{TRAINER}; echo ready; exec sleep 1000")).start();
    running.after_line("ready");
    running.stop().expect_code(143);
    assert!(!place.store().exists());
}

#[test]
fn a_model_that_cannot_be_copied_is_204_and_still_exists() {
    let place = Place::new();
    fs::write(place.store(), "a file, no directory").unwrap();
    let done = run(&place, TRAINER).output().expect_code(204);
    assert_eq!(done.verdict()["reason"], "store");
    assert!(done.verdict()["detail"].as_str().unwrap().contains("the model in"), "{}", done.err());
    assert_eq!(files(&place.path("model")).len(), 2);
    let empty = Place::new();
    let done = run(&empty, "mkdir \"$0\"").output().expect_code(204);
    assert!(done.err().contains("there is no file in it"), "{}", done.err());
}

#[test]
fn a_half_written_file_of_the_model_is_named() {
    let place = Place::new();
    let writes = r#"{ printf 'PK\003\004 and no end' >"$0/model.pt"; exec sleep 60; }"#;
    let script =
        format!(r#"mkdir "$0"; echo '{{}}' >"$0/config.json"; {writes} & until [ -s "$0/model.pt" ]; do :; done"#);
    let done = run(&place, &script).output().expect_code(0);
    assert!(
        done.err().contains("model.pt in the model in") && done.err().contains("ends before its own end"),
        "{}",
        done.err()
    );
    assert_eq!(files(&place.store()), files(&place.path("model")), "it is copied as it is");
    let done = run(&Place::new(), TRAINER).output().expect_code(0);
    assert!(!done.err().contains("ends before"), "{}", done.err());
}

#[test]
fn links_within_the_model_are_copied_as_their_targets() {
    let place = Place::new();
    // The layout of a snapshot of the Hugging Face hub.
    let script = "mkdir -p \"$0/blobs\" \"$0/snapshots/a1\"; cd \"$0\"; echo weights > blobs/abc; \
                  ln -s blobs/abc model.safetensors; ln -s ../../blobs/abc snapshots/a1/model.safetensors; \
                  ln -s snapshots/a1 main; ln -s gone dangling; ln -s . loop; ln -s self self; ln -s main/../../blobs x";
    let done = run(&place, script).output().expect_code(0);
    let stored = files(&place.store());
    let names: Vec<&str> = stored.keys().map(String::as_str).filter(|name| !name.starts_with(".trainit")).collect();
    let expected =
        ["blobs/abc", "main/model.safetensors", "model.safetensors", "snapshots/a1/model.safetensors", "x/abc"];
    assert_eq!(names, expected, "{}", done.err());
    assert!(names.iter().all(|name| stored[*name] == "weights\n"), "{stored:?}");
    assert_eq!(manifest(&place).expect("a manifest")["files"].as_array().unwrap().len(), 5);
    for (name, why) in [("dangling", "to nothing"), ("loop", "leads back"), ("self", "leads back")] {
        let line = done.err().lines().find(|line| line.contains(&format!("{name} in "))).unwrap_or_default().to_owned();
        assert!(line.contains(why), "{name}: {}", done.err());
    }
}

#[test]
fn trainits_own_directory_is_not_part_of_the_model() {
    let place = Place::new();
    let script = "mkdir -p \"$0/ck/.trainit/aside\"; echo 1 > \"$0/ck/.trainit/aside/old\"; echo 2 > \"$0/ck/w\"; cd \"$0\"; \
                  ln -s ck best; ln -s /etc/passwd ck/.trainit/out";
    let done = run(&place, script).output().expect_code(0);
    let names: Vec<String> = files(&place.store()).into_keys().collect();
    assert_eq!(names, ["best/w", "ck/w"], "{}", done.err());
}

#[test]
fn links_out_of_the_model_are_refused_without_follow_symlinks() {
    let place = Place::new();
    fs::create_dir_all(place.path("cache/tokens")).unwrap();
    fs::write(place.path("cache/abc"), "weights").unwrap();
    fs::write(place.path("cache/tokens/vocabulary"), "words").unwrap();
    let script = format!("{TRAINER}; ln -s ../cache/abc \"$0/w\"; ln -s ../cache/tokens \"$0/tokens\"");
    let done = run(&place, &script).output().expect_code(204);
    let detail = done.verdict()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("tokens") && detail.contains("--follow-symlinks"), "{detail}");
    assert!(!place.store().exists(), "refused before anything was written");
    fs::remove_dir_all(place.path("model")).unwrap();
    run(&place, &script).env("TRAINIT_FOLLOW_SYMLINKS", "1").output().expect_code(0);
    let stored = files(&place.store());
    assert_eq!((stored["w"].as_str(), stored["tokens/vocabulary"].as_str()), ("weights", "words"));
}

#[test]
fn a_file_with_an_unstorable_name_is_named_before_the_destination_is_changed() {
    let place = Place::new();
    run(&place, TRAINER).output().expect_code(0);
    let before = files(&place.store());
    for name in ["l\u{1}ne", "h#1", &"n".repeat(255)] {
        let odd = place.path("model").join(name);
        let script = format!("echo v2 > \"$0/saved_model.pb\"; echo 1 > '{}'", odd.display());
        let verdict = run(&place, &script).output().expect_code(204).verdict();
        let detail = verdict["detail"].as_str().unwrap();
        assert!(detail.contains(&format!("{name} cannot keep its name")) && detail.contains("rename it"), "{detail}");
        assert_eq!(files(&place.store()), before);
        assert!(manifest(&place).is_some(), "it is whole as it was");
        fs::remove_file(odd).unwrap();
    }
}

#[test]
fn a_model_with_a_name_that_is_not_utf8_is_not_copied_at_all() {
    let place = Place::new();
    run(&place, TRAINER).output().expect_code(0);
    let before = files(&place.store());
    let script = "echo v2 > \"$0/saved_model.pb\"; echo 1 > \"$0/$(printf 'w\\377')\"";
    let verdict = run(&place, script).output().expect_code(204).verdict();
    let detail = verdict["detail"].as_str().unwrap();
    assert!(detail.contains(r"w\xff cannot be copied") && detail.contains("rename it"), "{detail}");
    assert_eq!(files(&place.store()), before);
    assert!(manifest(&place).is_some(), "it is whole as it was");
}

#[test]
fn a_partial_copy_has_no_manifest_and_files_that_cannot_be_replaced_are_unchanged() {
    let place = Place::new();
    run(&place, TRAINER).output().expect_code(0);
    // More than trainit may write: the store becomes full in the middle.
    let big = place.path("big");
    fs::File::create(&big).unwrap().set_len(20 << 20).unwrap();
    let script = format!("echo v2 > \"$0/variables/variables.index\"; mv {} \"$0/saved_model.pb\"", big.display());
    let model = place.path("model");
    let args = ["run", "--model-dir", model.to_str().unwrap(), "--", "sh", "-c", &script, model.to_str().unwrap()];
    let limited = Trainit::through(&["sh", "-c", "ulimit -f 4096; exec \"$0\" \"$@\""], args);
    let done = limited.env("AIP_MODEL_DIR", place.url()).output().expect_code(204);
    let stored = files(&place.store());
    assert_eq!((stored["saved_model.pb"].as_str(), stored["variables/variables.index"].as_str()), ("graph\n", "v2\n"));
    assert_eq!(stored.len(), 2, "{stored:?}");
    assert!(manifest(&place).is_none(), "what is half new is not whole");
    assert!(
        done.err().contains("1 of its 2 files are there now") && done.err().contains("model.json"),
        "{}",
        done.err()
    );
    run(&place, TRAINER).output().expect_code(0);
    assert!(manifest(&place).is_some());
}

#[test]
fn a_file_may_become_a_directory_and_the_reverse() {
    let place = Place::new();
    run(&place, "mkdir -p \"$0/a/b\"; echo 1 > \"$0/a/b/c\"; echo 1 > \"$0/d\"").output().expect_code(0);
    fs::remove_dir_all(place.path("model")).unwrap();
    let second = "mkdir -p \"$0/d/e\"; echo 2 > \"$0/d/e/f\"; echo 2 > \"$0/a\"";
    run(&place, second).output().expect_code(0);
    let stored = files(&place.store());
    assert_eq!(
        stored.into_iter().collect::<Vec<_>>(),
        [("a", "2\n"), ("d/e/f", "2\n")].map(|(p, t)| (p.into(), t.into()))
    );
    // A foreign file is kept, and the error names the file that it blocks.
    fs::remove_dir_all(place.path("model")).unwrap();
    fs::write(place.store().join("d/e/foreign-file"), "x").unwrap();
    let done = run(&place, "mkdir \"$0\"; echo 3 > \"$0/d\"; echo 3 > \"$0/a\"").output().expect_code(204);
    assert!(done.err().contains("/d: Is a directory"), "{}", done.err());
    assert!(files(&place.store()).contains_key("d/e/foreign-file"));
    assert!(manifest(&place).is_none(), "what is half new is not whole");
}

#[test]
fn in_a_bucket_objects_of_the_model_are_replaced_and_other_objects_are_not_read() {
    let bucket = Bucket::start();
    let place = Place::with_store(&format!("s3://{NAME}/job"), bucket.as_amazon());
    let train = |script: &str| {
        let trainit = run(&place, script);
        place.env().iter().fold(trainit, |trainit, (name, value)| trainit.env(name, value)).output()
    };
    // The result of f"{AIP_MODEL_DIR}/saved_model.pb" for an address that ends in a slash.
    bucket.place("job//saved_model.pb", b"foreign");
    train(TRAINER).expect_code(0);
    let manifest = bucket.object("job/.trainit/model.json").expect("a manifest");
    bucket.misbehave(|r| {
        let is_last = r.method == "PUT" && r.key.ends_with("saved_model.pb");
        is_last.then_some(Fault::Refuse("403 Forbidden", "AccessDenied"))
    });
    let second =
        "rm -r \"$0/variables\"; mkdir \"$0/assets\"; echo v > \"$0/assets/v\"; echo v2 > \"$0/saved_model.pb\"";
    let done = train(second).expect_code(204);
    assert!(!done.err().contains("still is"), "{}", done.err());
    let objects = ["job//saved_model.pb", "job/assets/v", "job/saved_model.pb"];
    assert_eq!(bucket.keys(), objects);
    assert_eq!(bucket.object("job/saved_model.pb").as_deref(), Some(&b"graph\n"[..]));
    bucket.behave();
    bucket.place("job/.trainit/model.json", &manifest);
    bucket.forget();
    train("true").expect_code(0);
    assert_eq!(bucket.object("job/saved_model.pb").as_deref(), Some(&b"v2\n"[..]));
    let request_lines = bucket.request_lines();
    let at = |action: &str| {
        request_lines.iter().position(|d| d == action).unwrap_or_else(|| panic!("no {action} in {request_lines:?}"))
    };
    assert!(at("DELETE job/.trainit/model.json") < at("DELETE job/variables/variables.index"));
    assert!(at("DELETE job/.trainit/model.json") < at("PUT job/assets/v"));
    let is_models = |action: &&String| !action.contains("/.trainit/probes") && !action.starts_with("GET");
    assert_eq!(request_lines.iter().rfind(is_models).map(String::as_str), Some("PUT job/.trainit/model.json"));
}

#[test]
fn of_two_concurrent_copies_the_last_to_end_fails_and_leaves_no_manifest() {
    let bucket = Bucket::start();
    let start = |word: &str| {
        let place = Place::with_store(&format!("s3://{NAME}/job"), bucket.as_amazon());
        let script = format!("mkdir -p \"$0/v\"; echo {word} > \"$0/v/v\"; echo {word} > \"$0/saved_model.pb\"");
        let running = place.env().iter().fold(run(&place, &script), |run, (name, value)| run.env(name, value)).start();
        (place, running)
    };
    let (waits, go_on) = bucket.hesitate("/saved_model.pb");
    let (_place, one) = start("one");
    waits.recv().unwrap();
    let (_place, other) = start("the-other");
    eventually("the other's manifest", || bucket.object("job/.trainit/model.json").is_some());
    other.finish().expect_code(0);
    go_on.send(()).unwrap();
    let failed = one.finish().expect_code(204);
    assert!(failed.err().contains("another run has copied its model there"), "{}", failed.err());
    assert!(bucket.object("job/.trainit/model.json").is_none(), "the files are of both");
}

#[test]
fn a_file_that_arrives_damaged_or_is_lost_is_sent_again() {
    for fault in [Fault::Flip, Fault::Pretend] {
        let (bucket, fault) = (Bucket::start(), Mutex::new(Some(fault)));
        let place = Place::with_store(&format!("gs://{NAME}/job"), bucket.as_google());
        bucket.misbehave(move |r| {
            (r.method == "PUT" && r.key.ends_with("saved_model.pb")).then(|| fault.lock().unwrap().take())?
        });
        let trainit = run(&place, TRAINER);
        let done = place.env().iter().fold(trainit, |trainit, (name, value)| trainit.env(name, value)).output();
        assert!(done.expect_code(0).err().contains("saved_model.pb of the model is sent again"));
        assert_eq!(bucket.object("job/saved_model.pb").as_deref(), Some(&b"graph\n"[..]));
        assert!(bucket.object("job/.trainit/model.json").is_some());
    }
}

#[test]
fn an_interrupted_copy_is_reported_with_its_destination_and_advice() {
    let bucket = Bucket::start();
    let place = Place::with_store(&format!("s3://{NAME}/job"), bucket.as_amazon());
    bucket.misbehave(|_| Some(Fault::Hang));
    let trainit = run(&place, TRAINER);
    let running = place.env().iter().fold(trainit, |trainit, (name, value)| trainit.env(name, value)).start();
    eventually("the copy hangs", || !bucket.asked().is_empty());
    running.signal(libc::SIGINT);
    let done = running.finish().expect_code(204);
    let detail = done.verdict()["detail"].as_str().unwrap().to_owned();
    let expected = format!("the copy of the model to {} was interrupted by SIGINT; ", place.url());
    assert!(
        detail.starts_with(&expected) && detail.ends_with("start the job again or copy the model by hand"),
        "{detail}"
    );
}

#[test]
fn only_the_chief_copies_the_model() {
    let place = Place::new();
    let worker = r#"{"cluster": {"workerpool0": ["a:2222"], "workerpool1": ["b:2222"]},
                     "environment": "cloud", "task": {"type": "workerpool1", "index": 0}}"#;
    run(&place, TRAINER).env("CLUSTER_SPEC", worker).output().expect_code(0);
    assert!(!place.store().exists());
}

#[test]
fn vertex_ais_checkpoint_directory_is_the_store_by_default() {
    let place = Place::new();
    let script = "echo from=${TRAINIT_RESUME_STEP-none}; echo '{}' > $TRAINIT_CHECKPOINT_DIR/model-7.json";
    let train = |store: &[&str]| {
        let options = Trainit::new(["run", "--checkpoint-dir"]).args([place.local()]).args(store);
        options.args(["--", "sh", "-c", script]).env("AIP_CHECKPOINT_DIR", format!("{}/", place.url())).output()
    };
    let done = train(&[]).expect_code(0);
    assert_eq!((done.out().as_str(), done.verdict()["committed_step"].as_u64()), ("from=none\n", Some(7)));
    fs::remove_dir_all(place.local()).unwrap();
    assert_eq!(train(&[]).expect_code(0).out(), "from=7\n");
    let elsewhere = format!("file://{}", place.path("elsewhere").display());
    fs::remove_dir_all(place.local()).unwrap();
    assert_eq!(train(&["--checkpoint-store", &elsewhere]).expect_code(0).out(), "from=none\n");
    let done = Trainit::new(["inspect", "--checkpoint-dir", "/c"]).env("AIP_CHECKPOINT_DIR", "gs://b/c/").output();
    assert!(done.out().contains("gs://b/c/") && done.out().contains("AIP_CHECKPOINT_DIR"), "{}", done.out());
}
