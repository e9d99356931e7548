//! The main purpose: a trainer that is stopped, preempted or killed at any time continues from the newest committed
//! checkpoint, on an empty disk, and finishes. The trainer is a real one: examples/train.sh fits a line.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::checkpoints::Place;
use crate::support::{Finished, Running, Trainit, eventually, is_alive, send};

const STEPS: u64 = 24;

/// A disk that machines lose and a store that stays.
struct Job {
    root: tempfile::TempDir,
}

impl Job {
    fn new() -> Job {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("store")).unwrap();
        Job { root }
    }

    fn disk(&self) -> PathBuf {
        self.root.path().join("disk")
    }

    fn store(&self) -> PathBuf {
        self.root.path().join("store")
    }

    fn lose_the_disk(&self) {
        let _ = fs::remove_dir_all(self.disk());
    }

    fn trainit(&self, pause: &str) -> Trainit {
        let trainer = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/train.sh");
        Trainit::new(["run", "--commit-interval", "20ms", "--settle", "10ms", "--restart-backoff", "1ms"])
            .args(["--checkpoint-store", &format!("file://{}", self.store().display()), "--checkpoint-dir"])
            .args([self.disk().as_os_str(), "--".as_ref(), trainer.as_os_str(), self.disk().as_os_str()])
            .args([STEPS.to_string().as_str(), pause])
    }

    fn start(&self) -> Running {
        self.trainit("0.1").start()
    }

    /// Steps of all commits, oldest first, from the manifests' names: A-S-step-hash.
    fn commits(&self) -> Vec<u64> {
        let Ok(entries) = fs::read_dir(self.store().join(".trainit/commits")) else { return Vec::new() };
        let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|n| n.ends_with(".json"));
        names.sort();
        names.iter().map(|n| n.rsplit('-').nth(1).unwrap().parse().unwrap()).collect()
    }

    fn newest(&self) -> u64 {
        self.commits().last().copied().unwrap_or(0)
    }

    /// Runs on an empty disk to the end; returns the step that it resumed from.
    fn finish_on_a_new_machine(&self) -> (u64, Finished) {
        self.lose_the_disk();
        let committed = self.newest();
        let done = self.trainit("0").output().expect_code(0);
        assert!(done.out().contains(&format!("resume_step={committed}\n")), "committed {committed}: {}", done.out());
        assert!(done.out().contains(&format!("done step={STEPS}")), "{}", done.out());
        (committed, done)
    }
}

#[test]
fn every_start_says_where_training_begins() {
    let job = Job::new();
    let store = format!("file://{}", job.store().display());
    let running = job.start();
    running.after_line("step=7 ");
    let said = running.stop().expect_code(143).err();
    assert!(said.contains(&format!("starts from the beginning: {store} has no commit")), "{said}");
    let newest = job.newest();
    let again = job.trainit("0").args(["1"]).output();
    assert!(again.err().contains(&format!("resumes from step {newest} (local)")), "{}", again.err());
    let newest = job.newest();
    let (_, elsewhere) = job.finish_on_a_new_machine();
    assert!(elsewhere.err().contains(&format!("resumes from step {newest} (from {store})")), "{}", elsewhere.err());
    let local = Trainit::new(["run", "--checkpoint-dir"]).args([job.root.path().join("empty").as_os_str()]);
    let said = local.args(["--", "true"]).output().expect_code(0).err();
    assert!(said.contains("starts from the beginning: ") && said.contains("empty has no checkpoint"), "{said}");
}

#[test]
fn a_stopped_job_commits_its_last_checkpoint_and_resumes_from_it() {
    let job = Job::new();
    let running = job.start();
    running.after_line("step=7 ");
    let done = running.stop().expect_code(143);
    let verdict = done.verdict();
    let step = verdict["committed_step"].as_u64().expect("a committed step");
    assert!(step >= 7, "what was saved on SIGTERM is in the store: {verdict}");
    assert!(done.out().contains(&format!("stopped at step={step}")), "{}", done.out());
    let (resumed, done) = job.finish_on_a_new_machine();
    assert_eq!(resumed, step);
    let verdict = done.verdict();
    assert_eq!((verdict["resumed_step"].as_u64(), verdict["committed_step"].as_u64()), (Some(step), Some(STEPS)));
}

#[test]
fn after_a_kill_of_trainit_at_any_time_the_next_run_resumes_from_the_newest_commit() {
    for place in 0..10 {
        let job = Job::new();
        let running = job.start();
        running.after_line(&format!("step={} ", 1 + place * 2));
        running.signal(libc::SIGKILL);
        running.finish().expect_code(137);
        job.finish_on_a_new_machine();
    }
}

#[test]
fn after_a_kill_of_both_at_any_time_the_next_run_resumes_from_the_newest_commit() {
    for place in 0..10 {
        let job = Job::new();
        let running = job.start();
        let line = running.after_log("started");
        running.after_line(&format!("step={} ", 1 + place * 2));
        let child = pid_in(&line);
        send(running.pid(), libc::SIGKILL);
        // It may have ended already, because it dies with trainit.
        if is_alive(child) {
            let _ = std::process::Command::new("kill").args(["-9", &child.to_string()]).status();
        }
        running.finish().expect_code(137);
        job.finish_on_a_new_machine();
    }
}

#[test]
fn a_trainer_killed_at_any_time_is_restarted_from_its_newest_checkpoint() {
    for place in 0..10 {
        let job = Job::new();
        let running = job.start();
        let line = running.after_log("started");
        running.after_line(&format!("step={} ", 1 + place * 2));
        send(pid_in(&line), libc::SIGKILL);
        let done = running.finish().expect_code(0);
        assert!(done.out().contains(&format!("done step={STEPS}")), "{}", done.out());
        assert_eq!(done.verdict()["attempts"], 2);
        // The step that is printed is not saved yet.
        let expected = place * 2 / 5 * 5;
        let resumed: Vec<u64> =
            done.out().lines().filter_map(|l| l.strip_prefix("start resume_step=")?.parse().ok()).collect();
        assert!(resumed[1] >= expected, "killed after step {}: {resumed:?}", 1 + place * 2);
    }
}

fn pid_in(log: &str) -> i32 {
    let value: serde_json::Value = serde_json::from_str(log).unwrap();
    value["trainit"]["pid"].as_i64().unwrap() as i32
}

#[test]
fn new_checkpoints_are_committed_while_training_continues() {
    let job = Job::new();
    let running = job.trainit("0.2").start();
    let line = running.after_log("checkpoint committed");
    let lag: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert!(lag["trainit"]["lag_seconds"].as_f64().is_some_and(|lag| lag < 60.0), "{line}");
    assert!(lag["trainit"]["unit"].as_str().is_some_and(|unit| unit.starts_with("ckpt-0")), "{line}");
    assert!(job.newest() >= 5);
    running.signal(libc::SIGKILL);
    running.finish();
}

#[test]
fn a_torn_commit_is_skipped_for_the_previous_one() {
    let job = Job::new();
    let running = job.start();
    running.after_line("step=12 ");
    running.stop().expect_code(143);
    let commits = job.commits();
    assert!(commits.len() >= 2, "{commits:?}");
    let newest = commits.last().unwrap();
    let torn = data_of(&job, *newest);
    let length = fs::metadata(&torn).unwrap().len();
    fs::OpenOptions::new().write(true).open(&torn).unwrap().set_len(length / 2).unwrap();
    job.lose_the_disk();
    let done = job.trainit("0").output().expect_code(0);
    let before = commits[commits.len() - 2];
    assert!(done.out().contains(&format!("resume_step={before}\n")), "{commits:?}: {}{}", done.out(), done.err());
    assert!(done.err().contains("skipped commit") || done.err().contains("checkpoint"), "{}", done.err());
}

fn data_of(job: &Job, step: u64) -> PathBuf {
    let unit = job.store().join(format!("ckpt-{step:08}.json"));
    let mut paths = vec![unit];
    loop {
        let path = paths.pop().expect("a data file");
        if path.is_file() {
            return path;
        }
        paths.extend(fs::read_dir(path).unwrap().map(|e| e.unwrap().path()));
    }
}

#[test]
fn a_newer_run_fences_the_older_one_which_leaves_with_205() {
    let job = Job::new();
    let old = job.trainit("0.1").start();
    old.after_line("step=6 ");
    let disk = job.disk();
    fs::rename(&disk, job.root.path().join("elsewhere")).unwrap();
    // The old run's directory now belongs to another machine.
    fs::create_dir(&disk).unwrap();
    let done = job.trainit("0").output().expect_code(0);
    assert!(done.out().contains("done step="), "{}", done.out());
    let done = old.finish();
    let reason = done.verdict()["reason"].clone();
    assert!(done.code() == 205 && reason == "fenced", "{}: {}", done.code(), done.err());
}

#[test]
fn without_a_store_the_next_attempt_resumes_from_the_newest_local_checkpoint() {
    let root = tempfile::tempdir().unwrap();
    let script = "echo from=${TRAINIT_RESUME_FROM-none} step=${TRAINIT_RESUME_STEP-none}; \
                  [ $TRAINIT_ATTEMPT = 2 ] && exit 0; echo '{}' > ck/model-7.json; exit 1";
    fs::create_dir(root.path().join("ck")).unwrap();
    let done = Trainit::new(["run", "--checkpoint-dir", "ck", "--restart-backoff", "1ms", "--", "sh", "-c", script])
        .dir(root.path())
        .output()
        .expect_code(0);
    let path = root.path().join("ck/model-7.json");
    assert_eq!(done.out(), format!("from=none step=none\nfrom={} step=7\n", path.display()));
}

#[test]
fn the_checkpoint_directory_is_created_also_without_a_store_or_the_error_has_advice() {
    let root = tempfile::tempdir().unwrap();
    let run = |dir: &str, script: &str| {
        let run = Trainit::new(["run", "--max-restarts", "1", "--restart-backoff", "1ms", "--checkpoint-dir", dir]);
        run.args(["--", "sh", "-c", script]).dir(root.path()).output().expect_code(137).err()
    };
    let made = run("new/ck", "[ -d new/ck ] && kill -9 $$");
    assert!(!made.contains("cannot be looked at") && !made.contains("cannot make"), "{made}");
    // No directory can be created there.
    let output = run("/proc/ck", "kill -9 $$");
    assert_eq!(output.matches("\"checkpoint\"").count(), 1, "{output}");
    for part in ["cannot make the checkpoint directory /proc/ck: ", "give a --checkpoint-dir that can be made"] {
        assert!(output.contains(part), "{part}: {output}");
    }
}

#[test]
fn a_checkpoint_directory_that_cannot_be_one_is_refused_with_a_store_and_without_in_one_line() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("file"), "").unwrap();
    let url = format!("file://{}/store", root.path().display());
    for store in [&[][..], &["--checkpoint-store", url.as_str()]] {
        for dir in ["file", "file/below", &"long".repeat(99)] {
            let run = Trainit::new(["run", "--max-restarts", "0", "--checkpoint-dir", dir]).args(store);
            let done = run.args(["--", "echo", "ran"]).dir(root.path()).output();
            assert_eq!((done.code(), done.out().as_str()), (125, ""), "{}", done.err());
            assert_eq!(done.err().lines().count(), 1, "{}", done.err());
        }
    }
}

#[test]
fn a_store_that_cannot_be_written_is_204_before_anything_is_started() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("store"), "a file, no directory").unwrap();
    let store = format!("file://{}", root.path().join("store").display());
    let done = Trainit::new(["run", "--checkpoint-dir", "ck", "--checkpoint-store", &store, "--", "echo", "ran"])
        .dir(root.path())
        .output()
        .expect_code(204);
    assert!(!done.out().contains("ran"));
    assert_eq!(done.verdict()["reason"], "store");
}

#[test]
fn in_a_full_store_the_failed_commit_is_reported_and_earlier_commits_are_kept() {
    let root = tempfile::tempdir().unwrap();
    let (disk, store) = (root.path().join("disk"), root.path().join("store"));
    for dir in [&disk, &store] {
        fs::create_dir(dir).unwrap();
    }
    // 256 KiB of store: a small checkpoint fits, a large one does not.
    let script = format!("mount -t tmpfs -o size=256k none {} && exec \"$0\" \"$@\"", store.display());
    let trainer = "if [ -n \"${TRAINIT_RESUME_STEP-}\" ]; then echo again=$TRAINIT_RESUME_STEP; exit 0; fi; \
                   echo small > ckpt-1; echo ready; read line; head -c 1000000 /dev/zero > ckpt-2; exit 0";
    let url = format!("file://{}", store.display());
    let run = |trainer: &str| {
        format!(
            "\"$0\" run --checkpoint-dir {d} --checkpoint-store {url} --commit-interval 50ms --settle 20ms --keep-last 1 -- sh -c 'cd {d}; {trainer}'",
            d = disk.display()
        )
    };
    let both = format!(
        "{script}; true; {}; echo first=$?; rm -rf {d}/*; {}; echo second=$?",
        run(trainer),
        run(trainer),
        d = disk.display()
    )
    .replace("exec \"$0\" \"$@\"; true", "true");
    let (read, write) = std::io::pipe().unwrap();
    let mut trainit = Trainit::through(&["unshare", "--mount", "sh", "-c", &both], Vec::<&str>::new());
    trainit.command().stdin(read);
    let running = trainit.start();
    running.after_line("ready");
    running.after_log("checkpoint committed");
    drop(write);
    let done = running.finish().expect_code(0);
    assert!(done.out().contains("first=204"), "{}{}", done.out(), done.err());
    assert!(done.out().contains("again=1") && done.out().contains("second=0"), "{}{}", done.out(), done.err());
}

#[test]
fn a_required_restore_without_a_checkpoint_starts_nothing() {
    let job = Job::new();
    let done = job.trainit("0").env("TRAINIT_RESTORE", "required").output();
    assert_eq!(done.code(), 204, "{}", done.err());
    assert!(!done.out().contains("start"));
}

#[test]
fn no_process_of_the_old_attempt_is_left_when_the_last_commit_begins() {
    let job = Job::new();
    let running = job.start();
    running.after_line("step=3 ");
    let line = running.after_log("started");
    let done = running.stop().expect_code(143);
    eventually("the trainer is gone", || !is_alive(pid_in(&line)));
    drop(done);
}

#[test]
fn an_incomplete_checkpoint_is_named_before_a_start_from_scratch_and_stays() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("ckpt-5.json"), "{\"w\": 1").unwrap();
    let run = |args: &[&str]| {
        let places = ["run", "--checkpoint-dir", dir.path().to_str().unwrap()];
        Trainit::new(places).args(args).args(["--", "sh", "-c", "echo from ${TRAINIT_RESUME_FROM:-scratch}"]).output()
    };
    let done = run(&[]).expect_code(0);
    assert_eq!(done.out(), "from scratch\n");
    let said = done.err();
    let before = said.split("started sh").next().unwrap();
    assert!(before.contains("ckpt-5.json: its JSON is cut short"), "{before}");
    assert!(dir.path().join("ckpt-5.json").is_file());
    run(&["--restore", "required"]).expect_code(204);
}

#[test]
fn the_checkpoint_directory_variable_is_valid_in_another_working_directory() {
    let place = Place::new();
    let here = place.path("");
    let command = "cd / && echo $TRAINIT_CHECKPOINT_DIR && mkdir $TRAINIT_CHECKPOINT_DIR/step-3 && \
                   echo weights >$TRAINIT_CHECKPOINT_DIR/step-3/model.bin";
    let options = ["run", "--settle", "0", "--checkpoint-dir", "ck", "--checkpoint-store", &place.url()];
    let done = Trainit::new(options).args(["--", "sh", "-c", command]).dir(&here).output().expect_code(0);
    assert_eq!(Path::new(done.out().trim_end()), here.join("ck"));
    assert_eq!(done.verdict()["committed_step"], 3);
}

#[test]
fn a_run_that_commits_nothing_causes_a_warning() {
    let is_warned = |done: &Finished| {
        let lines = done.err();
        let line = lines.lines().find(|line| line.contains("nothing to commit in")).unwrap_or_default();
        line.contains("nothing_committed") && line.contains("WARNING")
    };
    let place = Place::new();
    let run = |command: &str| {
        let options =
            ["run", "--settle", "0", "--max-restarts", "0", "--checkpoint-store", &place.url(), "--checkpoint-dir"];
        Trainit::new(options).args([place.local()]).args(["--", "sh", "-c", command]).output()
    };
    assert!(is_warned(&run("true").expect_code(0)), "saved elsewhere");
    let failed = run("echo weights >$TRAINIT_CHECKPOINT_DIR/weights.dat; exit 3").expect_code(3);
    assert!(!is_warned(&failed) && place.commits().len() == 1, "{}", failed.err());
    place.save(1);
    run("true").expect_code(0);
    assert!(
        !is_warned(&run("rm -r $TRAINIT_CHECKPOINT_DIR/step-1").expect_code(0)),
        "the store has what it went on from"
    );
}
