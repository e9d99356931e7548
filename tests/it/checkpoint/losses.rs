//! How much a SIGKILL at any time loses, beside a store that is slower than the saves: at most two intervals and five seconds.
//! `TRAINIT_LOSSES=1` tries all intervals.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use crate::bucket::commits::amazon;
use crate::support::Trainit;
use crate::support::bucket::Bucket;
use crate::support::checkpoints::Place;

/// Saves with the time inside, each $EVERY seconds: by a rename, in place, or as a directory.
const TRAINER: &str = r#"
import os, shutil, time
d, every, how, n = os.environ["D"], float(os.environ["EVERY"]), os.environ["HOW"], 0
def write(path):
    with open(path, "r+b" if os.path.exists(path) else "wb") as f:
        f.write(b'{"saved": %020.6f, "weights": "%s"}' % (time.time(), b"x" * 300000))
while True:
    n += 1
    if how == "rename":
        write(d + "/.tmp-model"); os.rename(d + "/.tmp-model", d + "/model.json")
    elif how == "in place":
        write(d + "/model.json")
    else:
        unit = d + "/checkpoint-%d" % n
        os.mkdir(unit + ".tmp")
        for name in ("model.json", "optimizer.json"):
            write(unit + ".tmp/" + name)
        os.rename(unit + ".tmp", unit)
        shutil.rmtree(d + "/checkpoint-%d" % (n - 3), ignore_errors=True)
    time.sleep(every)
"#;

/// The newest save below a directory, in seconds since 1970.
fn newest_save(at: &Path) -> f64 {
    let (mut newest, mut left) = (0.0, vec![at.to_owned()]);
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<PathBuf>>());
        } else if path.extension().is_some_and(|end| end == "json") && !path.to_string_lossy().contains(".trainit") {
            let text: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).expect("a whole save");
            newest = f64::max(newest, text["saved"].as_f64().unwrap());
        }
    }
    newest
}

/// The seconds that a kill loses after this time.
fn lost(how: &str, every: f64, after: Duration) -> f64 {
    let (bucket, begun) = (Bucket::start(), Instant::now());
    let place = amazon(&bucket);
    // Slower than the saves.
    bucket.misbehave(move |r| {
        if r.method == "PUT" && r.key.ends_with("model.json") {
            std::thread::sleep(Duration::from_secs_f64(every * 1.2));
        }
        None
    });
    let (url, local) = (place.url(), place.local());
    let run = ["run", "--checkpoint-store", &url, "--checkpoint-dir", local.to_str().unwrap()];
    let trainit = Trainit::new(run).args(["--", "python3", "-c", TRAINER]).env("D", &local);
    let trainit = place.env().iter().fold(trainit, |trainit, (name, value)| trainit.env(name, value));
    let going = trainit.env("EVERY", every.to_string()).env("HOW", how).start();
    std::thread::sleep(after.saturating_sub(begun.elapsed()));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    going.signal(libc::SIGKILL);
    going.finish();
    bucket.behave();
    now - newest_save(&place.pull_afresh("elsewhere"))
}

#[test]
#[ignore = "takes minutes, and has not been judged yet"]
fn a_kill_loses_at_most_two_intervals_and_five_seconds() {
    let all = std::env::var_os("TRAINIT_LOSSES").is_some();
    let intervals: &[f64] = if all { &[0.5, 1.0, 2.0, 4.0, 8.0] } else { &[0.5, 2.0] };
    let cases = intervals.iter().flat_map(|every| ["rename", "in place", "directory"].map(|how| (*every, how)));
    std::thread::scope(|scope| {
        let running: Vec<_> = cases
            .enumerate()
            .map(|(number, (every, how))| {
                let after = Duration::from_secs_f64(15.0 + 3.0 * every + number as f64 * 0.37);
                (every, how, scope.spawn(move || lost(how, every, after)))
            })
            .collect();
        for (every, how, running) in running {
            let lost = running.join().unwrap();
            assert!(lost <= 2.0 * every + 5.0, "{lost:.1} s are lost with a save each {every} s, {how}");
        }
    });
}
