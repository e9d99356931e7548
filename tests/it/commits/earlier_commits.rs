//! Commits of the first versions, in which a commit was not yet a snapshot: they are listed, verified and restored. The
//! stores in `tests/golden/commits` were written by a binary of that time.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::support::Trainit;
use crate::support::checkpoints::{Place, tree};

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.path().is_dir() { copy(&entry.path(), &to) } else { _ = fs::copy(entry.path(), to).unwrap() }
    }
}

/// A copy of one of the stores, and a directory to restore into.
fn store(name: &str) -> (tempfile::TempDir, String, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/commits").join(name);
    copy(&golden, &place.path().join("store"));
    let (url, to) = (format!("file://{}", place.path().join("store").display()), place.path().join("checkpoints"));
    (place, url, to)
}

/// The files that a restore puts in place, by path.
#[track_caller]
fn restored(name: &str) -> BTreeMap<String, Vec<u8>> {
    let (_place, url, to) = store(name);
    let action = |action: &str| {
        Trainit::new(["checkpoint", action, "--checkpoint-store", &url, "--checkpoint-dir", to.to_str().unwrap()])
            .output()
    };
    let verified = action("verify").expect_code(0);
    assert!(verified.out().contains("complete, every byte was read and checked"), "{}", verified.out());
    action("pull").expect_code(0);
    let found = tree(&to).into_iter().filter(|(path, _)| !path.ends_with('/')).collect();
    let again = action("pull").expect_code(0);
    assert!(again.out().contains("stays") || again.out().contains("already in place"), "{}", again.out());
    found
}

fn names(files: &BTreeMap<String, Vec<u8>>) -> Vec<&str> {
    files.keys().map(String::as_str).collect()
}

#[test]
fn a_directory_is_restored_with_the_pointer_that_names_it() {
    let files = restored("directory");
    let expected = [
        "global_step20/mp_rank_00_model_states.pt",
        "global_step20/zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "latest",
    ];
    assert_eq!(names(&files), expected);
    assert!(files["latest"].ends_with(b"global_step20"));
}

#[test]
fn a_file_is_restored_under_both_names() {
    let files = restored("file");
    assert_eq!(names(&files), ["epoch=1-step=50.ckpt", "last.ckpt"]);
    let content = |name: &str| files[name].iter().position(|byte| *byte == b'P').map(|at| files[name][at..].to_vec());
    assert_eq!(content("last.ckpt"), content("epoch=1-step=50.ckpt"));
}

#[test]
fn files_of_one_prefix_are_restored_with_their_state_file() {
    assert_eq!(names(&restored("prefix")), ["checkpoint", "ckpt-5.data-00000-of-00001", "ckpt-5.index"]);
}

#[test]
fn small_files_are_restored_from_their_archives() {
    let files = restored("archive");
    assert_eq!(files.len(), 1001);
    assert!(files["step-7/0042.bin"].ends_with(b"weights 42\n"));
}

#[test]
fn a_run_resumes_from_an_earlier_commit_and_adds_the_next_one() {
    let (_place, url, to) = store("directory");
    let script = "echo $TRAINIT_RESUME_FROM $TRAINIT_RESUME_STEP; cp -r $TRAINIT_RESUME_FROM $TRAINIT_CHECKPOINT_DIR/global_step30; \
                  printf global_step30 > $TRAINIT_CHECKPOINT_DIR/latest";
    let run = |script: &str| {
        let args =
            ["run", "--checkpoint-store", &url, "--checkpoint-dir", to.to_str().unwrap(), "--", "sh", "-c", script];
        Trainit::new(args).output().expect_code(0)
    };
    assert_eq!(run(script).out(), format!("{}/global_step20 20\n", to.display()));
    fs::remove_dir_all(&to).unwrap();
    assert_eq!(
        run("echo $TRAINIT_RESUME_FROM $TRAINIT_RESUME_STEP").out(),
        format!("{}/global_step30 30\n", to.display())
    );
}

#[test]
fn a_manifest_with_a_blake3_of_each_file_is_read_and_its_crc32c_decides() {
    let place = Place::new();
    place.save(1);
    place.push();
    let (_, mut manifest) = place.manifest();
    manifest["files"].as_array_mut().unwrap().iter_mut().for_each(|file| file["blake3"] = json!("0".repeat(64)));
    place.forge(manifest);
    place.checkpoint("verify").output().expect_code(0);
    let pulled = place.pull_afresh("elsewhere");
    assert_eq!(tree(&pulled.join("step-1")), tree(&place.local().join("step-1")));
}
