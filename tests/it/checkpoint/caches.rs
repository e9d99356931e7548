//! `--cache-dir`: a new machine has the compiled files of the earlier ones.

use std::fs;
use std::path::PathBuf;

use crate::support::checkpoints::Place;
use crate::support::{Finished, Trainit, eventually};

fn dir(place: &Place) -> PathBuf {
    place.path("cache")
}

fn run(place: &Place, script: &str) -> Trainit {
    let (local, cache) = (place.local(), dir(place));
    Trainit::new(["run", "--checkpoint-dir", local.to_str().unwrap(), "--checkpoint-store", &place.url()]).args([
        "--cache-dir",
        cache.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        script,
    ])
}

/// Compiles two files unless they are there.
const COMPILES: &str = "for d in $JAX_COMPILATION_CACHE_DIR $TORCHINDUCTOR_CACHE_DIR/ab; do
    [ -e $d/k ] && echo hit $(cat $d/k). || { mkdir -p $d; echo code >$d/k; : >$d/k.lock; echo miss; }; done";

fn out(done: Finished) -> String {
    done.expect_code(0).out()
}

#[test]
fn a_machine_with_an_empty_disk_compiles_nothing_again() {
    let place = Place::new();
    assert_eq!(out(run(&place, COMPILES).output()), "miss\nmiss\n");
    // Both files have one content, so the store has it once, and the index.
    let objects = fs::read_dir(place.store().join(".trainit/cache")).unwrap().count();
    assert_eq!(objects, 2);
    fs::remove_dir_all(dir(&place)).unwrap();
    let done = run(&place, COMPILES).output().expect_code(0);
    assert_eq!(done.out(), "hit code.\nhit code.\n");
    assert!(done.err().contains("fetched 2 files, 10 bytes, in "), "{}", done.err());
    assert!(!dir(&place).join("jax/k.lock").exists());
    place.checkpoint("prune").args(["--orphan-age", "0"]).output().expect_code(0);
    assert_eq!(fs::read_dir(place.store().join(".trainit/cache")).unwrap().count(), objects);
}

#[test]
fn a_torn_file_is_repaired_at_the_next_start() {
    let place = Place::new();
    out(run(&place, COMPILES).output());
    for torn in ["", "co", "xxxx\n"] {
        fs::write(dir(&place).join("jax/k"), torn).unwrap();
        assert_eq!(out(run(&place, COMPILES).output()), "hit code.\nhit code.\n", "{torn:?}");
    }
}

#[test]
fn what_a_killed_trainer_wrote_last_is_removed_unless_the_store_has_it() {
    let place = Place::new();
    let running = run(&place, &format!("{COMPILES}; echo ready; exec sleep 1000")).start();
    running.after_line("ready");
    eventually("the files are in the store", || place.store().join(".trainit/cache/index.json").exists());
    fs::write(dir(&place).join("jax/half"), "ha").unwrap();
    running.signal(libc::SIGKILL);
    drop(running.finish());
    let done = run(&place, "ls $JAX_COMPILATION_CACHE_DIR").output().expect_code(0);
    assert_eq!(done.out(), "k\nk.lock\n");
    assert!(done.err().contains("removed 1 file that a killed trainer left half"), "{}", done.err());
}

#[test]
fn a_variable_that_is_set_stays_and_an_index_that_is_not_whole_is_one_warning() {
    let place = Place::new();
    let other = place.path("other");
    let script = "echo $TRITON_CACHE_DIR $CUDA_CACHE_PATH";
    let shown = out(run(&place, script).env("TRITON_CACHE_DIR", &other).output());
    assert_eq!(shown, format!("{} {}\n", other.display(), dir(&place).join("cuda").display()));
    fs::create_dir_all(place.store().join(".trainit/cache")).unwrap();
    fs::write(place.store().join(".trainit/cache/index.json"), "{").unwrap();
    let done = run(&place, COMPILES).output().expect_code(0);
    assert!(done.err().contains("index.json is not used: it is not whole"), "{}", done.err());
    assert_eq!(out(run(&place, COMPILES).output()), "hit code.\nhit code.\n", "it was written again");
}

#[test]
fn a_path_with_the_id_of_the_job_has_a_warning() {
    let place = Place::new();
    let cache = place.path("cache-of-job-4711");
    let done = Trainit::new(["run", "--cache-dir", cache.to_str().unwrap(), "--", "true"])
        .env("CLOUD_ML_JOB_ID", "job-4711")
        .output()
        .expect_code(0);
    assert!(done.err().contains("has job-4711 in its path"), "{}", done.err());
}
