//! Trainers that save the newest once more under a fixed name (`last.ckpt`) and look for that name when they start.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

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

/// A place in which there are files to be saved: `N.ckpt`.
fn place() -> Place {
    let place = Place::new();
    fs::create_dir(place.path("of")).unwrap();
    for step in [10, 20, 30, 31] {
        let tensor = format!("weights of {step} ").repeat(1000);
        saved(&place.path("of"), &format!("{step}.ckpt"), &format!("step {step}"), &tensor);
    }
    place
}

fn of(place: &Place, name: &str) -> Vec<u8> {
    fs::read(place.path("of").join(name)).unwrap()
}

fn local(place: &Place, name: &str) -> Vec<u8> {
    fs::read(place.local().join(name)).unwrap()
}

fn a_minute_ago(path: &Path) {
    // Open for reading: what is open for writing here is so, for a moment, in each process that another test starts meanwhile.
    let file = fs::File::open(path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(60)).unwrap();
}

fn numbered(step: u64) -> String {
    format!("epoch=0-step={step}.ckpt")
}

/// `trainit run` of a shell script; it sees the checkpoint directory as $D and what to save as $S.
fn run(place: &Place, script: &str) -> Trainit {
    let local = place.local();
    Trainit::new(["run", "--checkpoint-store", &place.url(), "--checkpoint-dir", local.to_str().unwrap()])
        .args(["--settle", "50ms", "--mirror-interval", "20ms", "--", "sh", "-c", script])
        .env("D", &local)
        .env("S", place.path("of"))
}

/// Lines of a script that save the file under a name, as a library does it that renames.
fn save(from: &str, name: &str) -> String {
    format!("cp $S/{from} $D/.new && mv $D/.new $D/{name}\n")
}

/// The newest commit's unit, and how many commits there are. `None`: none yet, or half of a manifest.
fn newest(place: &Place) -> Option<(String, usize)> {
    let entries = fs::read_dir(place.store().join(".trainit/commits")).ok()?;
    let paths = entries.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some_and(|e| e == "json"));
    let paths: Vec<PathBuf> = paths.collect();
    let manifest: Value = serde_json::from_slice(&fs::read(paths.iter().max()?).ok()?).ok()?;
    Some((manifest["unit"].as_str()?.to_owned(), paths.len()))
}

#[track_caller]
fn until(place: &Place, unit: &str) {
    eventually(&format!("a commit of {unit}"), || newest(place).is_some_and(|(newest, _)| newest == unit));
}

/// Where a trainer that starts is told to go on from.
fn resumed(place: &Place) -> String {
    let done = run(place, r#"echo "$TRAINIT_RESUME_FROM at $TRAINIT_RESUME_STEP""#).output().expect_code(0);
    done.out().trim().rsplit('/').next().unwrap().to_owned()
}

/// Kills the run with its trainer, and takes the disk away.
fn lost(place: &Place, running: Running) {
    running.signal(libc::SIGKILL);
    running.finish().expect_code(137);
    fs::remove_dir_all(place.local()).unwrap();
}

#[test]
fn what_was_saved_twice_is_committed_once_and_is_back_under_both_names_on_an_empty_disk() {
    for is_last_first in [false, true] {
        let place = place();
        let script = |step: u64| {
            let both = [save(&format!("{step}.ckpt"), &numbered(step)), save(&format!("{step}.ckpt"), "last.ckpt")];
            if is_last_first { both.into_iter().rev().collect::<String>() } else { both.concat() }
        };
        let waits = "until [ -e $D/.go ]; do sleep 0.02; done\n";
        let running = run(&place, &format!("{}{waits}{}exec sleep 60", script(20), script(30))).start();
        until(&place, &numbered(20));
        fs::write(place.local().join(".go"), "").unwrap();
        until(&place, &numbered(30));
        lost(&place, running);
        assert_eq!(resumed(&place), format!("{} at 30", numbered(30)));
        for name in ["last.ckpt", &numbered(30)] {
            assert_eq!(local(&place, name), of(&place, "30.ckpt"), "{name}");
        }
    }
}

#[test]
fn a_last_that_is_torn_holds_nothing_up_and_is_whole_after_a_restore() {
    let place = place();
    // First, so that it lies there when the numbered one is committed.
    let script = format!("head -c 5000 $S/31.ckpt >$D/last.ckpt\n{}exec sleep 60", save("30.ckpt", &numbered(30)));
    let running = run(&place, &script).start();
    let last = place.local().join("last.ckpt");
    until(&place, &numbered(30));
    running.signal(libc::SIGKILL);
    running.finish().expect_code(137);
    assert_eq!(newest(&place), Some((numbered(30), 1)));
    let (before, there) = (local(&place, "last.ckpt"), place.local());
    a_minute_ago(&last);
    // What was torn by the kill is in the way on this disk, and missing on another.
    for is_lost in [false, true] {
        if is_lost {
            fs::remove_dir_all(&there).unwrap();
        }
        assert_eq!(resumed(&place), format!("{} at 30", numbered(30)));
        assert!(local(&place, "last.ckpt") == of(&place, "30.ckpt"));
        let mut aside = fs::read_dir(there.join(".trainit/aside")).into_iter().flatten();
        let is_kept = aside.any(|e| fs::read(e.unwrap().path().join("last.ckpt")).is_ok_and(|kept| kept == before));
        assert_eq!(is_kept, !is_lost);
    }
}

#[test]
fn where_the_disk_is_still_there_a_restart_leaves_both_files_as_they_are() {
    let place = place();
    fs::write(place.local().join("last.ckpt"), of(&place, "30.ckpt")).unwrap();
    fs::write(place.local().join(numbered(30)), of(&place, "30.ckpt")).unwrap();
    place.push();
    assert_eq!(newest(&place), Some((numbered(30), 1)));
    let inode = || fs::metadata(place.local().join("last.ckpt")).unwrap().ino();
    let before = inode();
    assert_eq!(resumed(&place), format!("{} at 30", numbered(30)));
    assert_eq!((inode(), local(&place, "last.ckpt")), (before, of(&place, "30.ckpt")));
    assert!(!place.local().join(".trainit/aside").exists());
}

#[test]
fn a_later_save_under_the_fixed_name_alone_is_a_commit_of_its_own() {
    let place = place();
    fs::write(place.local().join(numbered(30)), of(&place, "30.ckpt")).unwrap();
    a_minute_ago(&place.local().join(numbered(30)));
    fs::write(place.local().join("last.ckpt"), of(&place, "30.ckpt")).unwrap();
    place.push();
    assert_eq!(newest(&place), Some((numbered(30), 1)));
    fs::write(place.local().join("last.ckpt"), of(&place, "31.ckpt")).unwrap();
    place.push();
    assert_eq!(newest(&place), Some(("last.ckpt".to_owned(), 2)));
    fs::remove_dir_all(place.local()).unwrap();
    assert_eq!(resumed(&place), "last.ckpt at");
    assert!(local(&place, "last.ckpt") == of(&place, "31.ckpt"));
}

#[test]
fn who_goes_back_to_an_older_step_finds_that_under_the_fixed_name() {
    let place = place();
    for step in [20, 30] {
        fs::write(place.local().join(numbered(step)), of(&place, &format!("{step}.ckpt"))).unwrap();
        fs::write(place.local().join("last.ckpt"), of(&place, &format!("{step}.ckpt"))).unwrap();
        place.push();
    }
    let there = place.path("there");
    fs::create_dir(&there).unwrap();
    let pull = |step: &str| place.checkpoint_in("pull", &there).args(["--restore-step", step]).output().expect_code(0);
    pull("30");
    pull("20");
    assert_eq!(fs::read(there.join("last.ckpt")).unwrap(), of(&place, "20.ckpt"));
    assert!(!there.join(".trainit/aside").exists(), "what lies there under its own name is kept once");
    // What is whole and no copy of anything may be all that there is of it.
    fs::write(there.join("last.ckpt"), of(&place, "31.ckpt")).unwrap();
    pull("30");
    assert_eq!(fs::read(there.join("last.ckpt")).unwrap(), of(&place, "31.ckpt"));
}

#[test]
fn a_restore_that_is_killed_while_it_makes_a_copy_is_done_again() {
    for point in [30, 31] {
        let place = place();
        fs::write(place.local().join(numbered(30)), of(&place, "30.ckpt")).unwrap();
        fs::write(place.local().join("last.ckpt"), of(&place, "30.ckpt")).unwrap();
        place.push();
        let there = place.path("there");
        let pull = || place.checkpoint_in("pull", &there);
        fs::create_dir(&there).unwrap();
        fs::write(there.join("last.ckpt"), &of(&place, "31.ckpt")[..5000]).unwrap();
        a_minute_ago(&there.join("last.ckpt"));
        pull().env("TRAINIT_TEST_FAULT", point.to_string()).output().expect_code(137);
        pull().output().expect_code(0);
        for name in ["last.ckpt", &numbered(30)] {
            assert_eq!(fs::read(there.join(name)).unwrap(), of(&place, "30.ckpt"), "killed at point {point}: {name}");
        }
        assert!(!there.join(".trainit/tmp").exists());
    }
}

/// A trainer that goes on from last.ckpt, and can do nothing with what was saved at 30.
fn picky(place: &Place, has_store: bool) -> Trainit {
    let script = r#"grep -aq "weights of 30" $D/last.ckpt && exit 3; echo from $TRAINIT_RESUME_STEP"#;
    let there = place.local();
    let run = ["run", "--settle", "0", "--restart-backoff", "1ms", "--checkpoint-dir"];
    let mut trainit = Trainit::new(run).args([&there]);
    if has_store {
        trainit = trainit.args(["--checkpoint-store", &place.url()]);
    }
    trainit.args(["--", "sh", "-c", script]).env("D", &there)
}

#[test]
fn a_poisoned_checkpoint_is_gone_from_its_fixed_name_too_with_a_store_and_without() {
    for has_store in [true, false] {
        let place = place();
        for step in [20, 30] {
            fs::write(place.local().join(numbered(step)), of(&place, &format!("{step}.ckpt"))).unwrap();
            fs::write(place.local().join("last.ckpt"), of(&place, &format!("{step}.ckpt"))).unwrap();
            if has_store {
                place.push();
            }
        }
        let done = picky(&place, has_store).output().expect_code(0);
        assert_eq!(done.out(), "from 20\n", "{}", done.err());
        assert!(local(&place, "last.ckpt") == of(&place, "20.ckpt"));
        assert!(!place.local().join(numbered(30)).exists());
    }
}

#[test]
fn a_poisoned_last_without_a_step_makes_way_for_the_one_before_it() {
    for has_store in [true, false] {
        let place = place();
        fs::write(place.local().join(numbered(20)), of(&place, "20.ckpt")).unwrap();
        a_minute_ago(&place.local().join(numbered(20)));
        fs::write(place.local().join("last.ckpt"), of(&place, "20.ckpt")).unwrap();
        if has_store {
            place.push();
        }
        fs::write(place.local().join("last.ckpt"), of(&place, "30.ckpt")).unwrap();
        if has_store {
            place.push();
        }
        let done = picky(&place, has_store).output().expect_code(0);
        assert_eq!(done.out(), "from 20\n", "{}", done.err());
        assert!(local(&place, "last.ckpt") == of(&place, "20.ckpt"));
    }
}

#[test]
fn a_small_file_of_text_under_the_fixed_name_is_a_pointer() {
    let place = place();
    saved(&place.local(), "model_100.pt", "step 100", "w");
    fs::write(place.local().join("latest.pt"), "model_100.pt").unwrap();
    place.push();
    let there = place.pull_afresh("there");
    assert_eq!(fs::read_to_string(there.join("latest.pt")).unwrap(), "model_100.pt");
}

#[test]
fn a_last_that_somebody_is_writing_is_left_to_him() {
    let place = place();
    fs::write(place.local().join(numbered(30)), of(&place, "30.ckpt")).unwrap();
    fs::write(place.local().join("last.ckpt"), of(&place, "30.ckpt")).unwrap();
    place.push();
    let last = place.path("there").join("last.ckpt");
    fs::create_dir(place.path("there")).unwrap();
    let half = &of(&place, "31.ckpt")[..5000];
    fs::write(&last, half).unwrap();
    a_minute_ago(&last);
    let open = fs::File::options().append(true).open(&last).unwrap();
    let mut writer = Command::new("cat").stdin(Stdio::piped()).stdout(open).spawn().unwrap();
    place.pull_afresh("there");
    assert!(fs::read(&last).unwrap() == half);
    drop(writer.stdin.take());
    writer.wait().unwrap();
    place.pull_afresh("there");
    assert!(fs::read(&last).unwrap() == of(&place, "30.ckpt"));
}
