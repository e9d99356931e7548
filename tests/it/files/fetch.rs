//! `--fetch`: training data are in place, whole, before the command starts.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Instant;

use tempfile::TempDir;

use crate::support::bucket::{Bucket, Fault, NAME, Request, SECRET};
use crate::support::checkpoints::tree;
use crate::support::{Finished, Running, Trainit, assert_prompt, eventually, is_root, shared_dir};

/// More than one range of a large file.
const LARGE: usize = 33 << 20;
/// The file that lists the fetched files.
const INDEX: &str = ".trainit-fetch";

/// A bucket with data, and a directory for them.
struct Place {
    bucket: Bucket,
    dir: TempDir,
}

impl Place {
    fn new() -> Place {
        let place = Place { bucket: Bucket::start(), dir: shared_dir() };
        for (name, bytes) in [("a.bin", bytes(3 << 20)), ("sub/deep/b.txt", b"b".to_vec()), ("sub/empty", Vec::new())] {
            place.bucket.place(&format!("data/{name}"), &bytes);
        }
        // The object that web consoles create for a folder.
        place.bucket.place("data/", b"");
        place
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("in/data")
    }

    fn fetch(&self, url: &str) -> Trainit {
        self.fetch_as(url, self.bucket.as_google())
    }

    fn fetch_as(&self, url: &str, env: Vec<(&'static str, String)>) -> Trainit {
        let pair = format!("{url}={}", self.data().display());
        let trainit = Trainit::new(["run", "--store-timeout", "2s", "--fetch", &pair]);
        env.iter().fold(trainit, |trainit, (name, value)| trainit.env(name, value))
    }

    fn run(&self) -> Finished {
        self.fetch(&url("data")).args(["--", "true"]).output()
    }

    /// The files of the bucket, as they must be in the directory.
    #[track_caller]
    fn expect_all(&self) {
        let keys = self.bucket.keys().into_iter().filter(|key| !key.ends_with('/'));
        let expected = keys.map(|key| (key["data/".len()..].to_owned(), self.bucket.object(&key).unwrap()));
        let mut found = names(&self.data());
        found.retain(|name| name != INDEX);
        let found = found.into_iter().map(|name| (name.clone(), fs::read(self.data().join(name)).unwrap()));
        let (found, expected): (BTreeMap<_, _>, BTreeMap<_, _>) = (found.collect(), expected.collect());
        assert!(found == expected, "other files than {:?} or other bytes: {:?}", expected.keys(), found.keys());
    }

    /// The objects that were read.
    fn read(&self) -> Vec<String> {
        let asked = self.bucket.asked().into_iter().filter(|r| r.method == "GET" && !r.key.is_empty());
        let mut keys: Vec<String> = asked.map(|request| request.key).collect();
        keys.sort();
        keys
    }

    /// Checks that nothing was started, that this is the code, and that one line explains it.
    #[track_caller]
    fn expect_refused(&self, done: Finished, code: i32, words: &[&str]) {
        let done = done.expect_code(code);
        let verdict = done.verdict();
        let detail = verdict["detail"].as_str().unwrap();
        assert!(words.iter().all(|word| detail.contains(word)), "{detail}");
        assert!(detail.contains("nothing was started") && !detail.contains('\n'), "{detail}");
        assert_eq!(verdict["attempts"], 0);
    }
}

fn url(prefix: &str) -> String {
    format!("gs://{NAME}/{prefix}")
}

/// The state in the run's status.
fn state(running: &Running) -> serde_json::Value {
    let name = |uid: u32| format!("trainit-{uid}-{}-", running.pid());
    let own = fs::metadata("/proc/self").unwrap().uid();
    let mut dirs = fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().path());
    let is_its = |dir: &PathBuf| dir.file_name().unwrap().to_string_lossy().starts_with(&name(own));
    let socket = dirs.find(is_its).expect("a directory of the run").join("socket");
    let status = Trainit::new(["status", "--json"]).env("TRAINIT_SOCKET", socket).output().expect_code(0);
    serde_json::from_str::<serde_json::Value>(&status.out()).unwrap()["state"].clone()
}

/// The files of a directory.
fn names(dir: &Path) -> Vec<String> {
    tree(dir).into_keys().filter(|path| !path.ends_with('/')).collect()
}

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|n| (n * 7 + n / 251) as u8).collect()
}

#[test]
fn the_data_of_any_cloud_are_in_place_bit_for_bit_before_the_command_starts() {
    let place = Place::new();
    place.bucket.place("data/large.bin", &bytes(LARGE));
    let in_place = "test $(stat -c %s large.bin) = 34603008 && test -e sub/empty && cat sub/deep/b.txt";
    let script = format!("cd {} && {in_place}", place.data().display());
    for (scheme, env) in
        [("gs", place.bucket.as_google()), ("s3", place.bucket.as_amazon()), ("az", place.bucket.as_azure())]
    {
        let run = place.fetch_as(&format!("{scheme}://{NAME}/data/"), env).args(["--", "sh", "-c", &script]);
        let done = run.output().expect_code(0);
        assert_eq!(done.out(), "b");
        place.expect_all();
        assert!(done.err().contains("4 files, 36.0 MiB in "), "{}", done.err());
        assert!(!done.err().contains(SECRET), "{}", done.err());
        assert!(done.verdict()["goodput"]["start"].as_f64() > Some(0.0));
        fs::remove_dir_all(place.data()).unwrap();
    }
}

#[test]
fn a_directory_is_a_source_too() {
    let place = Place::new();
    let from = place.dir.path().join("from");
    fs::create_dir_all(from.join("sub")).unwrap();
    fs::write(from.join("sub/a"), bytes(2 << 20)).unwrap();
    fs::write(from.join("b"), "b").unwrap();
    let url = format!("file://{}", from.display());
    let files = |place: &Place| {
        let mut files = tree(&place.data());
        files.remove(INDEX);
        files
    };
    place.fetch(&url).args(["--", "true"]).output().expect_code(0);
    assert_eq!(files(&place), tree(&from));
    fs::write(from.join("b"), "B").unwrap();
    let done = place.fetch(&url).args(["--", "true"]).output().expect_code(0);
    assert!(done.err().contains("1 file, 1 bytes") && done.err().contains("1 unchanged"), "{}", done.err());
    assert_eq!(files(&place), tree(&from));
    place.expect_refused(place.fetch(&format!("{url}/none")).args(["--", "true"]).output(), 125, &["no objects", &url]);
}

#[test]
fn the_next_start_fetches_only_what_changed() {
    let place = Place::new();
    place.bucket.place("data/kept", b"kept");
    place.bucket.place("data/gone", b"gone");
    place.run().expect_code(0);
    place.bucket.place("data/sub/deep/b.txt", b"B");
    place.bucket.place("data/new", b"new");
    place.bucket.remove("data/gone");
    fs::remove_file(place.data().join("a.bin")).unwrap();
    place.bucket.forget();
    let done = place.run().expect_code(0);
    assert_eq!(place.read(), ["data/a.bin", "data/new", "data/sub/deep/b.txt"]);
    assert!(done.err().contains("1 file in") && done.err().contains("no longer has them"), "{}", done.err());
    fs::remove_file(place.data().join("gone")).unwrap();
    place.expect_all();
    place.bucket.forget();
    place.run().expect_code(0);
    assert_eq!(place.read(), [""; 0]);
}

#[test]
fn a_killed_fetch_continues_with_the_missing_files() {
    let place = Place::new();
    place.bucket.place("data/large.bin", &bytes(LARGE));
    place.bucket.misbehave(|r| is_second_range(r).then_some(Fault::Hang));
    let fetching = place.fetch(&url("data")).args(["--store-timeout", "1h", "--", "true"]).start();
    let index = place.data().join(INDEX);
    eventually("the others are in place", || {
        fs::read_to_string(&index).is_ok_and(|text| text.lines().count() == 1 + 3)
    });
    fetching.signal(libc::SIGKILL);
    assert_eq!(fetching.finish().code(), 137);
    assert!(!place.data().join("large.bin").exists(), "half a file was taken for whole");
    place.bucket.behave();
    place.bucket.forget();
    place.run().expect_code(0);
    assert_eq!(place.read(), ["data/large.bin", "data/large.bin"], "two ranges");
    place.expect_all();
}

fn is_second_range(request: &Request) -> bool {
    request.headers.get("range").is_some_and(|range| !range.starts_with("bytes=0-"))
}

#[test]
fn names_that_would_leave_the_directory_are_refused() {
    for name in ["../../evil", "/evil", "x//evil", "./evil", "evil\u{1}"] {
        let place = Place::new();
        place.bucket.place(&format!("data/{name}"), b"evil");
        place.expect_refused(place.run(), 125, &["cannot list", "path segment", "delete that object"]);
        assert!(tree(place.dir.path()).keys().all(|path| !path.contains("evil")));
    }
    let place = Place::new();
    place.bucket.place("data/a.bin/x", b"x");
    place.expect_refused(place.run(), 125, &["a.bin/x", "a directory"]);
}

#[test]
fn a_truncated_or_damaged_answer_is_requested_again_and_never_used() {
    for fault in [|| Fault::Short, || Fault::Half, || Fault::Flip] {
        let place = Place::new();
        place.bucket.misbehave(move |r| r.key.ends_with("a.bin").then(fault));
        let run = place.fetch(&url("data")).args(["--store-timeout", "500ms", "--", "true"]);
        place.expect_refused(run.output(), 204, &["a.bin", "start again"]);
        assert!(!place.data().join("a.bin").exists());
        assert!(!names(&place.data()).iter().any(|name| name.contains("trainit-new")), "half a file is left");
    }
    let place = Place::new();
    let left = Mutex::new(Some(Fault::Flip));
    place.bucket.misbehave(move |r| left.lock().unwrap().take_if(|_| r.key.ends_with("a.bin")));
    place.run().expect_code(0);
    place.expect_all();
}

#[test]
fn a_stop_ends_a_fetch_at_once() {
    let place = Place::new();
    place.bucket.misbehave(|r| r.key.ends_with("a.bin").then_some(Fault::Hang));
    for (signal, code, reason) in [(libc::SIGTERM, 143, "stopped"), (libc::SIGINT, 130, "signalled")] {
        let fetching = place.fetch(&url("data")).args(["--store-timeout", "1h", "--", "true"]).start();
        fetching.after_log("fetching gs://");
        assert_eq!(state(&fetching), "fetching");
        let begun = Instant::now();
        fetching.signal(signal);
        let done = fetching.finish().expect_code(code);
        assert_prompt(begun);
        assert_eq!((&done.verdict()["attempts"], &done.verdict()["reason"]), (&0.into(), &reason.into()));
    }
}

#[test]
fn a_source_without_data_and_a_store_that_refuses_are_reported_with_the_url() {
    let place = Place::new();
    let nothing = place.fetch(&url("dat")).args(["--", "true"]).output();
    place.expect_refused(nothing, 125, &[&url("dat"), "no objects", "check the URL"]);
    let no_bucket = place.fetch("gs://other/data").args(["--", "true"]).output();
    place.expect_refused(no_bucket, 204, &["gs://other/data", "NoSuchBucket"]);
    place.bucket.misbehave(|_| Some(Fault::Refuse("403 Forbidden", "AccessDenied")));
    place.expect_refused(place.run(), 204, &[&url("data"), "AccessDenied", "allowed to"]);
    place.bucket.misbehave(|_| Some(Fault::Hang));
    place.expect_refused(place.run(), 204, &[&url("data"), "start again"]);
}

#[test]
fn the_variables_of_vertex_ai_name_files_with_wildcards_or_one_file() {
    let place = Place::new();
    for name in ["training-00000-of-00002.jsonl", "training-00001-of-00002.jsonl", "validation.csv", "test-0"] {
        place.bucket.place(&format!("sets/{name}"), name.as_bytes());
    }
    let (train, valid) = (place.dir.path().join("train"), place.dir.path().join("valid"));
    let pairs = format!("$AIP_TRAINING_DATA_URI={}\n$AIP_VALIDATION_DATA_URI={}", train.display(), valid.display());
    let run = Trainit::run(["true"]).env("TRAINIT_FETCH", pairs).env("STORAGE_EMULATOR_HOST", &place.bucket.at);
    let run = run.env("AIP_TRAINING_DATA_URI", url("sets/training-*"));
    run.env("AIP_VALIDATION_DATA_URI", url("sets/validation.csv")).output().expect_code(0);
    let shards = [INDEX, "training-00000-of-00002.jsonl", "training-00001-of-00002.jsonl"];
    assert_eq!(names(&train), shards);
    assert_eq!(names(&valid), [INDEX, "validation.csv"]);
}

#[test]
fn a_link_in_the_directory_is_not_followed() {
    let place = Place::new();
    let outside = place.dir.path().join("outside");
    fs::create_dir_all(outside.join("deep")).unwrap();
    fs::write(outside.join("precious"), "precious").unwrap();
    fs::create_dir_all(place.data()).unwrap();
    let links = [(outside.clone(), "sub"), (outside.join("precious"), "a.bin"), (outside.join("new"), INDEX)];
    for (to, link) in links {
        let link = place.data().join(link);
        symlink(to, &link).unwrap();
        if is_root() {
            lchown(&link, Some(65534), Some(65534)).unwrap();
        }
    }
    place.expect_refused(place.run(), 125, &["move it away"]);
    fs::remove_file(place.data().join(INDEX)).unwrap();
    place.expect_refused(place.run(), 125, &["move it away"]);
    fs::remove_file(place.data().join("sub")).unwrap();
    place.run().expect_code(0);
    place.expect_all();
    assert_eq!(fs::read_to_string(outside.join("precious")).unwrap(), "precious");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 2);
}

#[test]
fn a_directory_that_cannot_take_the_data_is_reported() {
    let place = Place::new();
    fs::write(place.dir.path().join("in"), "a file").unwrap();
    place.expect_refused(place.run(), 125, &["in/data", "move it away"]);
    if !is_root() {
        crate::support::skip("needs root to mount a small disk");
        return;
    }
    let pair = format!("{}=/mnt", url("data"));
    let script = "mount -t tmpfs -o size=1m none /mnt && exec \"$@\"";
    let prefix = ["unshare", "--mount", "sh", "-c", script, "sh"];
    let run = Trainit::through(&prefix, ["run", "--fetch", &pair, "--", "true"]);
    let done = run.env("STORAGE_EMULATOR_HOST", &place.bucket.at).output();
    place.expect_refused(done, 125, &["3.0 MiB are to be fetched", "larger disk"]);
}

#[test]
fn a_restart_does_not_fetch_again() {
    let place = Place::new();
    let flags = ["--max-restarts", "1", "--restart-backoff", "0s"];
    place.fetch(&url("data")).args(flags).args(["--", "false"]).output().expect_code(1);
    let is_list = |r: &&Request| r.key.is_empty() && !r.query.contains_key("continuation-token");
    assert_eq!(place.bucket.asked().iter().filter(is_list).count(), 1);
}

#[test]
fn two_fetches_into_one_directory_do_not_interfere() {
    let place = Place::new();
    let (go_on, word) = channel::<()>();
    let word = Mutex::new(word);
    place.bucket.misbehave(move |r| {
        if r.key.ends_with("a.bin") {
            let _ = word.lock().unwrap().recv();
        }
        None
    });
    let start = || place.fetch(&url("data")).args(["--store-timeout", "1h", "--", "true"]).start();
    let first = start();
    eventually("the first one reads", || place.data().join(INDEX).exists());
    let second = start();
    second.after_log("waiting for another process");
    drop(go_on);
    first.finish().expect_code(0);
    second.finish().expect_code(0);
    assert_eq!(place.read().iter().filter(|key| key.ends_with("a.bin")).count(), 1);
    place.expect_all();
}
