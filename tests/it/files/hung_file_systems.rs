//! File systems that do not answer: signals are handled, a crashed trainer gets a verdict, and the log names the
//! hanging file system.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::support::bucket::{Bucket, NAME};
use crate::support::checkpoints::Place;
use crate::support::metadata::{Metadata, gce};
use crate::support::mounts::{Frozen, Hung};
use crate::support::{Finished, Running, Trainit, assert_prompt, eventually, is_alive, send};

macro_rules! or_skip {
    ($mounted:expr) => {
        match $mounted {
            Some(mounted) => mounted,
            None => return crate::support::skip("nothing can be mounted here"),
        }
    };
}

/// A run in this place; each attempt ends with the code in `end-N`.
fn run(place: &Place, args: &[&str]) -> Trainit {
    let (local, timing) =
        (place.local(), ["--settle", "0s", "--commit-interval", "100ms", "--restart-backoff", "10ms"]);
    let script = r#"trap 'exit 0' TERM; echo "attempt $TRAINIT_ATTEMPT from $(basename "$TRAINIT_RESUME_FROM")"
        until [ -e "$0-$TRAINIT_ATTEMPT" ]; do sleep 0.02; done; exit "$(cat "$0-$TRAINIT_ATTEMPT")""#;
    let end = place.path("end");
    let run = ["run", "--checkpoint-dir", local.to_str().unwrap(), "--checkpoint-store", &place.url()];
    let trainit = place.env().iter().fold(Trainit::new(run), |trainit, (name, value)| trainit.env(name, value));
    trainit.args(timing).args(args).args(["--", "sh", "-c", script, end.to_str().unwrap()])
}

/// A run whose step 1 is committed.
fn one_committed(place: &Place, args: &[&str]) -> Running {
    let going = run(place, args).start();
    going.after_line("attempt 1");
    place.save(1);
    going.after_log("checkpoint committed");
    going
}

fn end(place: &Place, attempt: u32, code: &str) {
    fs::write(place.path("new"), code).unwrap();
    fs::rename(place.path("new"), place.path(&format!("end-{attempt}"))).unwrap();
}

fn times(done: &Finished, text: &str) -> usize {
    done.err().matches(text).count()
}

/// Whether this file of /proc has the text for one of its threads.
fn any_thread(going: &Running, file: &str, is_it: impl Fn(&str) -> bool) -> bool {
    let tasks = fs::read_dir(format!("/proc/{}/task", going.pid())).unwrap().flatten();
    tasks.map(|task| fs::read_to_string(task.path().join(file))).any(|text| text.is_ok_and(|text| is_it(&text)))
}

fn is_at(going: &Running, thread: &str) -> bool {
    any_thread(going, "comm", |name| name.trim() == thread)
}

#[test]
fn a_stop_while_the_path_of_the_store_hangs_ends_the_run() {
    let place = Place::new();
    fs::create_dir(place.store()).unwrap();
    let _hung = or_skip!(Hung::over(&place.store()));
    let (local, below) = (place.local(), format!("{}/jobs/1", place.url()));
    let run = ["run", "--checkpoint-dir", local.to_str().unwrap(), "--checkpoint-store", &below, "--", "true"];
    let going = Trainit::new(run).start();
    eventually("it is looked at", || is_at(&going, "places"));
    going.signal(libc::SIGTERM);
    let done = going.finish().expect_code(143);
    assert!(done.err().contains("the command had not been started"), "{}", done.err());
}

#[test]
fn a_peer_that_does_not_answer_at_the_start_is_named_and_a_stop_works() {
    let place = Place::new();
    fs::create_dir(place.path("far")).unwrap();
    let _hung = or_skip!(Hung::over(&place.path("far")));
    let named = |args: &[&str], name: &str| {
        let going = Trainit::new(["run"]).args(args).args(["--", "true"]).start();
        let line = going.after_log("does not answer");
        assert!(line.contains(name), "{line}");
        let asked = Instant::now();
        going.signal(libc::SIGTERM);
        let done = going.finish().expect_code(143);
        assert_prompt(asked);
        assert_eq!(times(&done, "does not answer"), 1, "{}", done.err());
    };
    let (near, far) = (place.local(), place.path("far"));
    let (near, far) = (near.to_str().unwrap(), far.to_str().unwrap());
    let (url, below) = (format!("file://{far}"), format!("file://{far}/jobs/1"));
    let store = place.url();
    std::thread::scope(|scope| {
        scope.spawn(|| named(&["--checkpoint-dir", near, "--checkpoint-store", &url], &url));
        scope.spawn(|| named(&["--checkpoint-dir", near, "--checkpoint-store", &below], &below));
        scope.spawn(|| named(&["--checkpoint-dir", far, "--checkpoint-store", &store], "checkpoint directory"));
        scope.spawn(|| named(&["--checkpoint-dir", far], "checkpoint directory"));
    });
}

#[test]
fn a_hanging_store_is_reported_and_a_crash_is_restarted_from_local_files() {
    let place = Place::new();
    let going = one_committed(&place, &["--max-restarts", "3", "--store-timeout", "2s"]);
    let hung = or_skip!(Hung::over(&place.store()));
    place.save(2);
    going.after_log("its file system has not answered for 2 s; it is not committed");
    end(&place, 1, "9");
    let line = going.after_line("attempt 2");
    assert!(line.contains("from step-2"), "{line}\n{}", going.log_so_far());
    drop(hung);
    going.after_log("\"step\":2,\"unit\"");
    let done = going.stop().expect_code(143);
    assert_eq!(done.verdict()["committed_step"], 2, "{}", done.err());
}

#[test]
fn a_hanging_checkpoint_directory_delays_a_stop_no_longer_than_a_hanging_store() {
    let place = Place::new();
    let going = one_committed(&place, &[]);
    let _hung = or_skip!(Hung::over(&place.local()));
    let asked = Instant::now();
    going.signal(libc::SIGTERM);
    let line = going.after_log("commit waits for it");
    assert!(line.contains("the checkpoint directory"), "{line}");
    assert!(asked.elapsed() < Duration::from_secs(12), "{:?}", asked.elapsed());
    let done = going.finish().expect_code(204);
    assert!(asked.elapsed() < Duration::from_secs(32), "{:?}", asked.elapsed());
    assert!(done.err().contains("has not answered for 20 s"), "{}", done.err());
    assert_eq!(done.verdict()["committed_step"], 1);
}

#[test]
fn a_stop_during_the_last_commit_of_a_finished_job_has_the_usual_deadline() {
    let place = Place::new();
    let going = one_committed(&place, &[]);
    let _hung = or_skip!(Hung::over(&place.store()));
    place.save(2);
    end(&place, 1, "0");
    going.after_log("the last commit waits for it");
    let asked = Instant::now();
    going.signal(libc::SIGTERM);
    let done = going.finish().expect_code(204);
    assert!(asked.elapsed() < Duration::from_secs(40), "{:?}", asked.elapsed());
    assert!(done.err().contains("has not answered for 2"), "{}", done.err());
}

#[test]
fn a_store_that_can_be_read_but_not_written_is_given_up() {
    let place = Place::new();
    fs::create_dir(place.store()).unwrap();
    let frozen = or_skip!(Frozen::over(&place.store()));
    let going = one_committed(&place, &["--store-timeout", "2s"]);
    let ice = frozen.freeze();
    place.save(2);
    going.after_log("its file system has not answered for 2 s; it is not committed");
    going.signal(libc::SIGTERM);
    going.after_log("\"verdict\"");
    // No process can end while one of its threads is held.
    drop(ice);
    let done = going.finish().expect_code(204);
    assert_eq!(done.verdict()["committed_step"], 1, "{}", done.err());
}

#[test]
fn a_notice_is_handled_during_a_restore_to_a_frozen_disk() {
    let bucket = Bucket::start();
    let place = Place::with_store(&format!("s3://{NAME}/job"), bucket.as_amazon());
    place.save(1);
    fs::write(place.local().join("step-1/weights.bin"), vec![7; 8 << 20]).unwrap();
    place.push();
    fs::remove_dir_all(place.local()).unwrap();
    fs::create_dir(place.local()).unwrap();
    let frozen = or_skip!(Frozen::over(&place.local()));
    let ((asked, is_asked), (go_on, goes_on)) = (channel(), channel());
    let once = Mutex::new(Some((asked, goes_on)));
    bucket.misbehave(move |r| {
        let is_it = r.method == "GET" && r.key.ends_with("weights.bin");
        if let Some((asked, goes_on)) = is_it.then(|| once.lock().unwrap().take()).flatten() {
            asked.send(()).unwrap();
            goes_on.recv().unwrap();
        }
        None
    });
    let cloud = Metadata::start(gce);
    let going = run(&place, &[]).env("GCE_METADATA_HOST", &cloud.at).start();
    is_asked.recv().unwrap();
    let ice = frozen.freeze();
    go_on.send(()).unwrap();
    eventually("the disk is waited for", || any_thread(&going, "stat", |stat| stat.contains(") D ")));
    cloud.turn();
    let verdict = going.after_log("\"verdict\"");
    assert!(verdict.contains("the command had not been started"), "{verdict}");
    drop(ice);
    going.finish().expect_code(143);
}

#[test]
fn a_log_file_that_does_not_answer_delays_no_deadline() {
    let place = Place::new();
    fs::create_dir(place.path("far")).unwrap();
    let frozen = or_skip!(Frozen::over(&place.path("far")));
    let log = fs::File::create(place.path("far/log")).unwrap();
    let script = "trap '' TERM; echo pid=$$; while :; do sleep 0.01; done";
    let mut trainit = Trainit::new(["run", "--stop-grace", "300ms", "--", "sh", "-c", script]);
    let mut child = trainit.command().stdout(Stdio::piped()).stderr(log).spawn().unwrap();
    let line = BufReader::new(child.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    let trainer: i32 = line.strip_prefix("pid=").unwrap().parse().unwrap();
    let ice = frozen.freeze();
    send(child.id() as i32, libc::SIGTERM);
    eventually("the trainer is killed at the deadline", || !is_alive(trainer));
    drop(ice);
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

#[test]
fn a_metrics_file_that_does_not_answer_never_stops_the_trainer() {
    let place = Place::new();
    fs::create_dir(place.path("far")).unwrap();
    let frozen = or_skip!(Frozen::over(&place.path("far")));
    let (metrics, begin) = (place.path("far/metrics"), place.path("begin"));
    fs::write(&metrics, "").unwrap();
    let script =
        "echo ready; until [ -e \"$0\" ]; do sleep 0.01; done; yes 'loss: 0.5' | head -n 100000; echo done >&2";
    let run = ["run", "--metric", "loss=loss: ([0-9.]+)", "--keep", "0", "--", "sh", "-c", script];
    let going = Trainit::new(run).args([&begin]).env("CLOUD_ML_HP_METRIC_FILE", &metrics).start();
    going.after_line("ready");
    let ice = frozen.freeze();
    fs::write(&begin, "").unwrap();
    going.after_log("has taken nothing for 2s");
    going.after_log("done");
    drop(ice);
    let done = going.finish().expect_code(0);
    assert!(!done.err().contains("the reader of trainit's output"), "{}", done.err());
}

#[test]
fn last_metrics_report_and_verdict_have_one_deadline() {
    let place = Place::new();
    fs::create_dir(place.path("far")).unwrap();
    let begin = place.path("begin");
    let script = "trap '' TERM; echo ready; until [ -e \"$0\" ]; do sleep 0.01; done; echo loss: 0.5; echo up; while :; do sleep 0.01; done";
    let far = |name: &str| place.path("far").join(name).to_str().unwrap().to_owned();
    let (verdict, report) = (far("verdict"), far("report.html"));
    let run = ["run", "--stop-grace", "1s", "--metric", "loss=loss: ([0-9.]+)", "--verdict-file", &verdict];
    let run = Trainit::new(run).args(["--run-report", &report, "--", "sh", "-c", script]).args([&begin]);
    let going = run.env("CLOUD_ML_HP_METRIC_FILE", far("metrics")).start();
    going.after_line("ready");
    let _hung = or_skip!(Hung::over(&place.path("far")));
    fs::write(&begin, "").unwrap();
    going.after_line("up");
    let asked = Instant::now();
    going.signal(libc::SIGTERM);
    let done = going.finish().expect_code(143);
    assert!(asked.elapsed() < Duration::from_secs(8), "{:?}\n{}", asked.elapsed(), done.err());
    for what in ["last metrics could not be written", "report could not be written", "verdict could not be written"] {
        assert!(done.err().contains(what), "{what}: {}", done.err());
    }
}
