//! Trainers that save the newest once more under a fixed name (`last.ckpt`) and look for that name when they start.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::checkpoints::Place;
use crate::support::{Running, Trainit, eventually};

/// A file as torch.save writes it: an archive of a pickle and a tensor.
fn saved(dir: &Path, name: &str, pickle: &str, tensor: &str) {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for (file, content) in [("archive/data.pkl", pickle), ("archive/data/0", tensor)] {
        let (sum, size) = (crc32c::crc32c(content.as_bytes()).to_le_bytes(), (content.len() as u32).to_le_bytes());
        let length = (file.len() as u16).to_le_bytes();
        let head = [&[0; 10][..], &sum, &size, &size, &length, &[0; 2]].concat();
        let offset = (bytes.len() as u32).to_le_bytes();
        bytes.extend([b"PK\x03\x04", &head[..], file.as_bytes(), content.as_bytes()].concat());
        directory.extend([b"PK\x01\x02\0\0", &head[..], &[0; 10], &offset, file.as_bytes()].concat());
    }
    let (size, offset) = ((directory.len() as u32).to_le_bytes(), (bytes.len() as u32).to_le_bytes());
    let end = [&b"PK\x05\x06\0\0\0\0\x02\0\x02\0"[..], &size, &offset, &[0; 2]].concat();
    fs::write(dir.join(name), [bytes, directory, end].concat()).unwrap();
}

/// A place in which there are files to be saved: `N.ckpt` as the numbered one, and `N.last` with other words in its pickle.
fn place() -> Place {
    let place = Place::new();
    fs::create_dir(place.path("of")).unwrap();
    for step in [20, 30, 31] {
        let tensor = format!("weights of {step} ").repeat(1000);
        saved(&place.path("of"), &format!("{step}.ckpt"), &format!("step {step}"), &tensor);
        saved(&place.path("of"), &format!("{step}.last"), &format!("step {step}, last.ckpt"), &tensor);
    }
    place
}

fn of(place: &Place, name: &str) -> Vec<u8> {
    fs::read(place.path("of").join(name)).unwrap()
}

/// `trainit run` of a shell script; it sees the checkpoint directory as $D and what to save as $S.
fn run(place: &Place, script: &str) -> Trainit {
    let local = place.local();
    Trainit::new(["run", "--checkpoint-store", &place.url(), "--checkpoint-dir", local.to_str().unwrap()])
        .args(["--settle", "50ms", "--mirror-interval", "20ms", "--", "sh", "-c", script])
        .env("D", &local)
        .env("S", place.path("of"))
}

const NUMBERED: &str = "epoch=0-step=";

/// The newest commit's step, and its files with their keys; `None`: there is no commit yet.
fn newest_with_keys(place: &Place) -> Option<(u64, Vec<(String, String)>)> {
    let entries = fs::read_dir(place.store().join(".trainit/commits")).ok()?;
    let paths = entries.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some_and(|e| e == "json"));
    let manifest: Value = serde_json::from_slice(&fs::read(paths.max()?).unwrap()).unwrap();
    let text = |file: &Value, name: &str| file[name].as_str().unwrap().to_owned();
    let files = manifest["files"].as_array().unwrap().iter().map(|file| (text(file, "path"), text(file, "key")));
    Some((manifest["step"].as_u64().unwrap_or(0), files.collect()))
}

fn newest(place: &Place) -> Option<(u64, Vec<String>)> {
    newest_with_keys(place).map(|(step, files)| (step, files.into_iter().map(|(path, _)| path).collect()))
}

fn is_newest(place: &Place, step: u64, names: &[&str]) -> bool {
    newest(place) == Some((step, names.iter().map(|name| (*name).to_owned()).collect()))
}

#[track_caller]
fn until(place: &Place, step: u64, names: &[&str]) {
    eventually(&format!("a commit of {step} with {names:?}"), || is_newest(place, step, names));
}

/// Kills the run and its trainer, and starts again on an empty disk: where the trainer is told to go on from.
fn killed_and_started_anew(place: &Place, running: Running) -> String {
    running.signal(libc::SIGKILL);
    running.finish().expect_code(137);
    fs::remove_dir_all(place.local()).unwrap();
    let done = run(place, r#"echo "$TRAINIT_RESUME_FROM at $TRAINIT_RESUME_STEP""#).output().expect_code(0);
    done.out().trim().rsplit('/').next().unwrap().to_owned()
}

#[test]
fn the_last_is_back_with_the_numbered_one_of_the_same_save_after_a_kill_and_an_empty_disk() {
    for (first, then) in [(".ckpt", ".last"), (".last", ".ckpt")] {
        let place = place();
        let name = |end: &str, step: u64| {
            if end == ".last" { "last.ckpt".to_owned() } else { format!("{NUMBERED}{step}.ckpt") }
        };
        let save = |step| {
            let copy = |end: &str| format!("cp $S/{step}{end} $D/.new && mv $D/.new $D/{}\n", name(end, step));
            copy(first) + &copy(then)
        };
        let running = run(&place, &format!("{}sleep 0.5\n{}exec sleep 60", save(20), save(30))).start();
        until(&place, 30, &["epoch=0-step=30.ckpt", "last.ckpt"]);
        assert_eq!(killed_and_started_anew(&place, running), "epoch=0-step=30.ckpt at 30");
        let there = |name: &str| fs::read(place.local().join(name)).unwrap();
        assert_eq!(there("last.ckpt"), of(&place, "30.last"));
        assert_eq!(there("epoch=0-step=30.ckpt"), of(&place, "30.ckpt"));
    }
}

#[test]
fn the_numbered_one_waits_for_no_last_that_is_being_written_and_is_not_sent_again_with_it() {
    let place = place();
    let script = "cp $S/30.ckpt $D/epoch=0-step=30.ckpt; head -c 5000 $S/30.last >$D/last.ckpt
        until [ -e $D/.go ]; do sleep 0.02; done; cp $S/30.last $D/last.ckpt; exec sleep 60";
    let running = run(&place, script).start();
    until(&place, 30, &["epoch=0-step=30.ckpt"]);
    fs::write(place.local().join(".go"), "").unwrap();
    until(&place, 30, &["epoch=0-step=30.ckpt", "last.ckpt"]);
    let keys: Vec<String> = newest_with_keys(&place).unwrap().1.into_iter().map(|(_, key)| key).collect();
    assert!(keys[0].contains("-000001/") && keys[1].contains("-000002/"), "{keys:?}");
    // A later save is written over it, and is torn: nothing is committed because of that.
    fs::write(place.local().join("last.ckpt"), &of(&place, "31.last")[..5000]).unwrap();
    let done = {
        running.signal(libc::SIGTERM);
        running.finish().expect_code(143)
    };
    assert_eq!(place.commits().len(), 2, "{}", done.err());
    assert!(is_newest(&place, 30, &["epoch=0-step=30.ckpt", "last.ckpt"]));
}

#[test]
fn what_is_saved_when_time_is_short_is_committed_with_its_last_in_the_end() {
    let place = place();
    let script = "trap 'cp $S/30.ckpt $D/epoch=0-step=30.ckpt; cp $S/30.last $D/last.ckpt; exit 0' TERM
        echo ready; while :; do sleep 0.02; done";
    let running = run(&place, script).start();
    running.after_line("ready");
    running.signal(libc::SIGTERM);
    let done = running.finish().expect_code(143);
    assert!(is_newest(&place, 30, &["epoch=0-step=30.ckpt", "last.ckpt"]), "{:?} {}", newest(&place), done.err());
    assert_eq!(done.verdict()["committed_step"], 30);
}

#[test]
fn a_later_save_under_that_name_alone_is_committed_without_the_numbered_one() {
    let place = place();
    let script = "cp -p $S/30.ckpt $D/epoch=0-step=30.ckpt; cp -p $S/30.last $D/last.ckpt
        until [ -e $D/.go ]; do sleep 0.02; done; cp $S/31.last $D/last.ckpt; exec sleep 60";
    for name in ["30.ckpt", "30.last"] {
        let file = fs::File::options().append(true).open(place.path("of").join(name)).unwrap();
        file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(60)).unwrap();
    }
    let running = run(&place, script).start();
    until(&place, 30, &["epoch=0-step=30.ckpt", "last.ckpt"]);
    fs::write(place.local().join(".go"), "").unwrap();
    until(&place, 0, &["last.ckpt"]);
    assert_eq!(place.commits().len(), 2);
    assert_eq!(killed_and_started_anew(&place, running), "last.ckpt at");
    assert_eq!(fs::read(place.local().join("last.ckpt")).unwrap(), of(&place, "31.last"));
}

#[test]
fn a_last_of_another_save_that_lies_in_the_way_is_moved_aside_and_the_pair_is_listed_verified_and_pulled() {
    let place = place();
    for (name, from) in [("epoch=0-step=30.ckpt", "30.ckpt"), ("last.ckpt", "30.last")] {
        fs::write(place.local().join(name), of(&place, from)).unwrap();
    }
    let listed = Trainit::new(["checkpoint", "list", "--checkpoint-dir", place.local().to_str().unwrap()]);
    let listed = listed.output().expect_code(0).out();
    let row = listed.lines().find(|line| line.ends_with("epoch=0-step=30.ckpt")).unwrap().to_owned();
    assert_eq!(row.split_whitespace().nth(2), Some("2"), "{listed}");
    place.push();
    place.push();
    assert!(is_newest(&place, 30, &["epoch=0-step=30.ckpt", "last.ckpt"]));
    assert_eq!(place.commits().len(), 1, "the same again is no commit");
    place.checkpoint("verify").output().expect_code(0);
    let there = place.path("there");
    fs::create_dir(&there).unwrap();
    fs::write(there.join("last.ckpt"), of(&place, "20.last")).unwrap();
    place.checkpoint_in("pull", &there).output().expect_code(0);
    assert_eq!(fs::read(there.join("last.ckpt")).unwrap(), of(&place, "30.last"));
    assert_eq!(fs::read(there.join("epoch=0-step=30.ckpt")).unwrap(), of(&place, "30.ckpt"));
    assert_eq!(fs::read(there.join(".trainit/aside/pull-1/last.ckpt")).unwrap(), of(&place, "20.last"));
}

#[test]
fn a_last_that_is_written_over_while_it_is_copied_holds_up_nothing() {
    for point in ["3:stop", "4:stop", "5:stop", "6:stop"] {
        let place = place();
        for (name, from) in [("epoch=0-step=30.ckpt", "30.ckpt"), ("last.ckpt", "30.last")] {
            fs::write(place.local().join(name), of(&place, from)).unwrap();
        }
        let push = place.push_stopped_at(point);
        fs::write(place.local().join("last.ckpt"), &of(&place, "31.last")[..5000]).unwrap();
        push.signal(libc::SIGCONT);
        push.finish().expect_code(0);
        assert!(is_newest(&place, 30, &["epoch=0-step=30.ckpt"]), "{point}: {:?}", newest(&place));
        place.checkpoint("verify").output().expect_code(0);
    }
}
