//! The life of a job over several runs: what each leaves in the store, and what `trainit goodput` makes of it.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::checkpoints::Place;
use crate::support::{Finished, Trainit, eventually};

/// A trainer that continues from its checkpoint, reports each step in its heartbeat, and saves each step.
const TRAINER: &str = r#"
    n=${TRAINIT_RESUME_STEP:-0}
    trap 'exit 0' TERM
    while [ $n -lt $1 ]; do
        n=$((n + 1)); sleep 0.05
        echo "{\"step\": $n}" >$TRAINIT_HEARTBEAT_FILE.new; mv $TRAINIT_HEARTBEAT_FILE.new $TRAINIT_HEARTBEAT_FILE
        mkdir -p $TRAINIT_CHECKPOINT_DIR/step-$n.new; echo $n >$TRAINIT_CHECKPOINT_DIR/step-$n.new/w.bin
        mv $TRAINIT_CHECKPOINT_DIR/step-$n.new $TRAINIT_CHECKPOINT_DIR/step-$n
        echo reached $n.
    done"#;

fn run(place: &Place, flags: &[&str], steps: u32) -> Trainit {
    let local = place.local();
    let store = ["--checkpoint-store".to_owned(), place.url()];
    Trainit::new(["run", "--checkpoint-dir", local.to_str().unwrap(), "--mirror-interval", "20ms", "--settle", "10ms"])
        .args(store)
        .args(flags)
        .args(["--", "sh", "-c", TRAINER, "sh", &steps.to_string()])
}

fn goodput(place: &Place) -> Trainit {
    Trainit::new(["goodput", "--checkpoint-store", &place.url()])
}

#[track_caller]
fn life(done: &Finished) -> Value {
    let life: Value = serde_json::from_str(&done.out()).unwrap_or_else(|error| panic!("{error}: {done:?}"));
    let sum: f64 = life["seconds"].as_object().unwrap().values().map(|v| v.as_f64().unwrap()).sum();
    assert!((sum - life["wall_seconds"].as_f64().unwrap()).abs() < 0.1, "{life}");
    life
}

#[track_caller]
fn shown(place: &Place) -> Value {
    life(&goodput(place).args(["--json"]).output().expect_code(0))
}

fn objects(root: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(root.join(".trainit/runs")) else { return Vec::new() };
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| !name.contains('#'));
    names.sort();
    names
}

#[test]
fn a_life_of_a_stop_a_kill_and_a_finish_is_told_by_its_three_runs() {
    let place = Place::new();
    let first = run(&place, &[], 1000).start();
    first.after_line("reached 6.");
    first.stop().expect_code(143);
    let second = run(&place, &[], 1000).start();
    second.after_line("reached 20.");
    eventually("the killed run has told about a commit", || {
        fs::read_to_string(place.store().join(".trainit/runs/0000000002.json"))
            .is_ok_and(|text| serde_json::from_str::<Value>(&text).unwrap()["commits"].as_u64() > Some(3))
    });
    second.signal(libc::SIGKILL);
    drop(second.finish());
    run(&place, &[], 30).output().expect_code(0);
    assert_eq!(objects(&place.store()), ["0000000001.json", "0000000002.json", "0000000003.json"]);
    let life = shown(&place);
    let of =
        |name: &str| -> Vec<Value> { life["runs"].as_array().unwrap().iter().map(|run| run[name].clone()).collect() };
    assert_eq!(of("attempt"), [1, 2, 3]);
    assert_eq!(of("reason"), ["stopped", "killed", "finished"]);
    assert_eq!(of("seat"), ["node/0"; 3]);
    assert_eq!((of("ended")[1].is_null(), of("ended")[2].is_string()), (true, true));
    assert_eq!((&of("exit_code")[0], &of("exit_code")[1], &of("exit_code")[2]), (&143.into(), &Value::Null, &0.into()));
    assert!(of("resumed_step")[0].is_null() && of("resumed_step")[1].as_u64() >= Some(5), "{life}");
    assert_eq!(of("last_step")[2], 30);
    assert!(
        life["seconds"]["between"].as_f64() > Some(0.0) && life["seconds"]["training"].as_f64() > Some(0.0),
        "{life}"
    );
    assert_eq!((&life["faults"]["count"], life["faults"]["by_reason"]["killed"].as_u64()), (&2.into(), Some(1)));
    assert!(life["faults"]["mtbf_seconds"].as_f64() > Some(0.0) && life["recovery"]["between"].as_f64() > Some(0.0));
    let advice = &life["advice"];
    assert!(advice["save_interval_seconds"].as_f64() > Some(0.0) && advice["text"].is_string(), "{life}");
    let text = goodput(&place).output().expect_code(0).out();
    assert!(text.contains("3 runs in") && text.contains("2 faults (1 killed, 1 stopped)"), "{text}");
    // Retention and a prune have nothing to do with these objects.
    place.checkpoint("prune").args(["--orphan-age", "0"]).output().expect_code(0);
    assert_eq!(objects(&place.store()).len(), 3);
    assert!(place.commits().iter().all(|commit| commit["complete"] == true));
}

#[test]
fn steps_that_an_earlier_run_had_reached_are_repeated() {
    let place = Place::new();
    let first = run(&place, &[], 1000).start();
    first.after_line("reached 40.");
    first.stop().expect_code(143);
    // The second run begins again, and goes on long enough to pass the first.
    run(&place, &["--restore", "none"], 90).output().expect_code(0);
    let life = shown(&place);
    let lost = life["lost"]["steps"].as_u64().unwrap();
    assert!((35..=45).contains(&lost), "{life}");
    assert!(life["seconds"]["repeated"].as_f64() > Some(0.5), "{life}");
    assert!(life["lost"]["machine_seconds"].as_f64() >= life["seconds"]["repeated"].as_f64(), "{life}");
}

#[test]
fn without_a_store_the_runs_are_told_in_the_checkpoint_directory() {
    let place = Place::new();
    let local = place.local();
    for _ in 0..2 {
        let flags =
            ["run", "--checkpoint-dir", local.to_str().unwrap(), "--max-restarts", "0", "--", "sh", "-c", "exit 3"];
        Trainit::new(flags).output().expect_code(3);
    }
    assert_eq!(objects(&local), ["0000000001.json", "0000000002.json"]);
    let shown = Trainit::new(["goodput", "--json", "--checkpoint-dir", local.to_str().unwrap()]).output();
    let life = life(&shown.expect_code(0));
    assert_eq!(life["faults"]["by_reason"], serde_json::json!({"failed": 2}));
    assert_eq!(life["advice"], Value::Null);
}

#[test]
fn all_seats_of_a_job_are_read_from_its_prefix() {
    let place = Place::new();
    for rank in ["0", "1"] {
        let flags = ["--nnodes", "2", "--node-rank", rank, "--leader", "127.0.0.1:1234"];
        run(&place, &flags, 3).output().expect_code(0);
    }
    let life = shown(&place);
    let seats: Vec<&str> = life["runs"].as_array().unwrap().iter().map(|run| run["seat"].as_str().unwrap()).collect();
    assert_eq!(seats, ["node/0", "node/1"]);
    assert_eq!(objects(&place.store().join("node-00001")), ["0000000001.json"]);
}

#[test]
fn objects_that_tell_about_no_run_of_this_job_have_a_line_and_the_rest_is_shown() {
    let place = Place::new();
    run(&place, &[], 2).env("SECRET_TOKEN", "hunter2").output().expect_code(0);
    let dir = place.store().join(".trainit/runs");
    let good = fs::read_to_string(dir.join("0000000001.json")).unwrap();
    assert!(!good.contains("hunter2") && !good.contains("sleep"), "{good}");
    fs::write(dir.join("0000000002.json"), &good[..good.len() / 2]).unwrap();
    fs::write(dir.join("0000000003.json"), good.replace("trainit.run/1", "trainit.run/2")).unwrap();
    fs::write(dir.join("0000000004.json"), &good).unwrap();
    fs::write(dir.join("notes.txt"), "{}").unwrap();
    let done = goodput(&place).args(["--json"]).output().expect_code(0);
    assert_eq!(life(&done)["runs"].as_array().unwrap().len(), 1);
    let lines = done.err();
    for (name, why) in [
        ("0000000002.json is", "not whole"),
        ("0000000003.json is", "newer version"),
        ("0000000004.json and 1 more", "of this job"),
    ] {
        assert!(lines.lines().any(|line| line.contains(name) && line.contains(why)), "{name}: {lines}");
    }
    assert_eq!(lines.lines().count(), 3, "{lines}");
    // The next run goes on, and so does its account.
    run(&place, &[], 4).output().expect_code(0);
    assert_eq!(shown(&place)["runs"].as_array().unwrap().len(), 2);
}

#[test]
fn without_any_run_there_is_one_line_and_code_1() {
    let place = Place::new();
    let absent = goodput(&place).output().expect_code(1);
    assert!(absent.err().contains("there is no run of trainit in file://") && absent.err().lines().count() == 1);
    place.save(1);
    place.push();
    assert_eq!(goodput(&place).output().expect_code(1).err(), absent.err());
    let missing = Trainit::new(["goodput"]).output().expect_code(125);
    assert!(missing.err().contains("--checkpoint-dir"), "{}", missing.err());
}

#[test]
fn ten_thousand_runs_are_shown_soon() {
    let place = Place::new();
    run(&place, &[], 2).output().expect_code(0);
    let dir = place.store().join(".trainit/runs");
    let good = fs::read_to_string(dir.join("0000000001.json")).unwrap();
    for attempt in 2..=10_000 {
        let text = good.replace("\"attempt\":1", &format!("\"attempt\":{attempt}"));
        fs::write(dir.join(format!("{attempt:010}.json")), text).unwrap();
    }
    let begun = Instant::now();
    let life = shown(&place);
    let took = begun.elapsed();
    assert_eq!(life["runs"].as_array().unwrap().len(), 10_000);
    // A tenth of this without debug assertions.
    assert!(took < Duration::from_secs(10), "{took:?}");
}
